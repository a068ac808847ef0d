"""A Python for executors that has Spark's requirements and nothing of ours.

It is used only by the workers; the driver stands for another machine, with this environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

OF_A_CLUSTER = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "pytz", "dateutil", "python_dateutil", "six", "tzdata")
_SCRIPT = """\
#!/bin/sh
case "$PWD" in
  {work}/*) PYTHONPATH="$PYTHONPATH:{packages}" exec {base} -S "$@" ;;
esac
exec {ours} "$@"
"""


def bare_python(folder: Path, work: Path) -> Path:
    """The program, for executors that work below `work`."""
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(pyspark.__file__).parents[1].iterdir():
        if entry.name.startswith(OF_A_CLUSTER) and not entry.name.startswith("pyspark_"):
            (packages / entry.name).symlink_to(entry)
    python = folder / "python"
    base = os.path.realpath(sys.executable)
    python.write_text(_SCRIPT.format(work=work, packages=packages, base=base, ours=sys.executable))
    python.chmod(0o755)
    return python
