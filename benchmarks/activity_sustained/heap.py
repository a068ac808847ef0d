"""What Spark's Java still holds after its full collections, by the log that it writes of them.

Rule: the memory of a Java process says how far its heap was allowed to grow, not what is in it. What a full collection
leaves is what is held; that it does not grow is what tells a job that can run for weeks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

_VARIABLE: Final = "JDK_JAVA_OPTIONS"
_FULL: Final = re.compile(r"^\[([^\]]+)\].* Pause Full .* \d+M->(\d+)M\(\d+M\)")
_TIME: Final = "%Y-%m-%dT%H:%M:%S.%f%z"


def environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Variables with which every Java that is started writes such a log into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = f"-Xlog:gc:file={folder}/gc-%p.log:time"
    return {**given, _VARIABLE: f"{given.get(_VARIABLE, '')} {asked}".strip()}


def held_mb(folder: Path, began_ms: int) -> list[tuple[float, float]]:
    """Seconds since then, and what was left at that time, in order; nothing if no log is there."""
    return sorted(one for path in folder.glob("gc-*.log") for one in _read(path, began_ms))


def _read(path: Path, began_ms: int) -> Iterator[tuple[float, float]]:
    for line in path.read_text(errors="replace").splitlines():
        found = _FULL.match(line)
        if found is not None:
            at_s = datetime.strptime(found[1], _TIME).timestamp() - began_ms / 1000
            yield round(at_s, 2), float(found[2])
