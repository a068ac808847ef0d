"""Numbers and times as people read them: 1.5 KB, 4 m 10 s, 1,234 batches, 2024-05-01T12:00:00.000Z.

The command line and the console show the same quantities in the same words.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB", "PB")
_MOST_MS: Final = 253_402_300_799_999  # the end of the year 9999, which is datetime's


def human_bytes(count: int) -> str:
    """1536 -> "1.5 KB"; units of 1024."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} {_UNITS[0]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def counted(count: int, noun: str) -> str:
    """ "1 segment", "1,234 batches"."""
    plural = noun if count == 1 else noun + ("es" if noun.endswith("ch") else "s")
    return f"{count:,} {plural}"


def some_of(names: list[str]) -> str:
    """The first three of many names."""
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def time_text(time_ms: int | None) -> str:
    """UTC with milliseconds; "-" for None."""
    if time_ms is None or time_ms < 0 or time_ms > _MOST_MS:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(seconds: float | None) -> str:
    """3.2 s, 4 m 10 s, 2 h 5 m, 3 d 4 h; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds else "0 s"
    for size, unit, smaller, name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // smaller)} {name}"
    return "-"
