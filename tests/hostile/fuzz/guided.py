"""One of the parsers in `decoders.py`, guided by the coverage of our own modules. Needs the package atheris.

    python -m tests.hostile.fuzz.guided NAME [-runs=100000] [-max_total_time=60] [folder of a corpus]

It continues until something is found, or as libFuzzer's options say. Samples are written to the corpus at the start.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

atheris: Any = import_module("atheris")

with atheris.instrument_imports(include=["penstock"]):
    from tests.hostile.fuzz.decoders import TARGETS, check


def main() -> None:
    name, *options = sys.argv[1:]
    with TemporaryDirectory(prefix="penstock-fuzz-") as samples:
        for number, sample in enumerate(TARGETS[name].samples()):
            (Path(samples) / str(number)).write_bytes(sample)
        # The first folder receives what is found, the second is only read.
        atheris.Setup([sys.argv[0], *options, samples], lambda data: check(name, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
