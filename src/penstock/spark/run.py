"""Runs a user's program in this process and registers the data source in every session it makes.

    python -m penstock.spark.run script.py arguments      (`penstock spark submit` and `penstock spark python`)

The program runs as `__main__` with its own arguments, its folder first on sys.path, and its exit code.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from penstock.spark.session import finish_always


def main(arguments: list[str]) -> None:
    """`SCRIPT ARGS`, `-m MODULE ARGS` or `-c CODE ARGS`."""
    finish_always()
    kind = arguments[0] if arguments[0] in ("-m", "-c") else ""
    what, rest = (arguments[1], arguments[2:]) if kind else (arguments[0], arguments[1:])
    # Python put the folder of this file on the path, where its modules would shadow others.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if kind == "-c":
        sys.argv = ["-c", *rest]
        sys.path.insert(0, "")
        names = {"__name__": "__main__", "__builtins__": __builtins__}
        exec(compile(what, "<string>", "exec"), names)
    elif kind == "-m":
        sys.argv = [what, *rest]
        sys.path.insert(0, "")
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [what, *rest]
        sys.path.insert(0, str(Path(what).resolve().parent))
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
