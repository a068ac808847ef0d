"""Runs commands as if packages were not installed: HIDDEN,... COMMAND... Prints a JSON list of [exit code, output]."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder
from typing import Any


class Hiding:
    """A finder of modules and distributions that does not find some."""

    def __init__(self, finder: Any, hidden: list[str]) -> None:
        self._finder = finder
        self._hidden = hidden

    def _hides(self, name: str) -> bool:
        return any(name == one or name.startswith(f"{one}.") for one in self._hidden)

    def find_spec(self, name: str, *rest: Any) -> Any:
        return None if self._hides(name) else self._finder.find_spec(name, *rest)

    def invalidate_caches(self) -> None:
        """Nothing is kept here."""

    def find_distributions(self, context: Any = DistributionFinder.Context()) -> Iterable[Distribution]:  # noqa: B008
        find = getattr(self._finder, "find_distributions", None)
        return [one for one in find(context) if not self._hides(one.metadata["Name"])] if find else []


def run(line: str) -> tuple[int, str]:
    from penstock.cli.main import main

    written = io.BytesIO()
    sys.stdout = sys.stderr = io.TextIOWrapper(written, write_through=True)
    try:
        main(line.split())
    except SystemExit as end:
        return (end.code if isinstance(end.code, int) else 1), written.getvalue().decode()
    finally:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


if __name__ == "__main__":
    sys.meta_path[:] = [Hiding(finder, sys.argv[1].split(",")) for finder in sys.meta_path]
    answers = [run(line) for line in sys.argv[2:]]
    sys.__stdout__.write(json.dumps(answers))  # type: ignore[union-attr]
