"""What a doctor finds."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"


class Finding(NamedTuple):
    """`level` is ok, note or problem; `check` is for programs, and stays the same."""

    level: str
    check: str
    subject: str
    text: str
    advice: str = ""
