"""The log lines that a broker or another long-running command writes to standard error.

    2026-11-15T13:12:34.567Z INFO    penstock.broker.broker: broker serves broker=0 ...

One event is one line, so that lines can be counted, searched and shipped. An exception is on the line of its event,
with its stack frames, innermost first. Control characters are escaped: a name that a client chose must not
write to the terminal or begin a line.
"""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Final

from penstock.cli.output import printable

LEVELS: Final = ("debug", "info", "warning", "error")

_FRAMES_MAX = 8
_CAUSES_MAX = 4


class LineFormatter(logging.Formatter):
    """A record as one line, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = f"{time} {record.levelname:<7} {record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f" | {exception_text(record.exc_info[1])}"
        return printable(text)


def exception_text(error: BaseException) -> str:
    """An exception, where it came from, and what caused it."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < _CAUSES_MAX:
        frames = traceback.extract_tb(cause.__traceback__)[-_FRAMES_MAX:]
        places = ", ".join(f"{PurePath(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        parts.append(f"{type(cause).__name__}: {cause}" + (f" ({places})" if places else ""))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ", caused by ".join(parts)


def log_to_stderr(level: str) -> None:
    """Log events of `level` and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
