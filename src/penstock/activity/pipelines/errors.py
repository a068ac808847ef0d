"""What can go wrong with a pipeline: one line about what happened, one about what to do.

Rule: everything is a `PenstockError`. What Spark says of a query that ended is a text with a Java and a Python
traceback in it; the error of ours that caused it is found there again, with its word on whether it may pass.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Final

from penstock.client.errors import BootstrapError, ConfigError, PenstockError

_OURS: Final = re.compile(r"(penstock(?:\.\w+)+)\.(\w+): (.+)")
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE)
_LONGEST: Final = 400
# Spark waits ten seconds for a Python that it has started, whatever the machine has to do besides.
_OVERLOADED: Final = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET")


class PipelineError(PenstockError):
    """Something about a pipeline."""


class UnknownPipeline(PipelineError, ConfigError):
    """There is no pipeline of this name."""


class PipelineRuns(PipelineError):
    """Another process runs it."""


class TableGone(PipelineError):
    """A table that a stream goes on with is not there."""


class OtherColumns(PipelineError):
    """A table has other columns than this version of its pipeline makes."""


def cause_of(text: str, name: str) -> PenstockError:
    """The error behind what Spark says of a query."""
    found = list(_OURS.finditer(text))
    for match in reversed(found):
        kind = _kind(match[1], match[2])
        if kind is not None:
            # Which of its addresses failed for good is not in the text; the first start has shown that one works.
            passes = kind.retriable or issubclass(kind, BootstrapError)
            return PipelineError(f"{name}: {_short(match[3])}", retriable=passes)
    if any(each in text for each in _OVERLOADED):
        return PipelineError(f"{name}: Spark's Python did not start in time on a busy machine", retriable=True)
    raised = _RAISED.findall(text)
    said = f"{raised[-1][0]}: {raised[-1][1]}" if raised else next(iter(text.strip().splitlines()), "no reason given")
    return PipelineError(f"{name}: {_short(said)}", hint="PENSTOCK_TRACEBACK=1 shows all of it")


def in_one_line(error: BaseException, name: str) -> PenstockError:
    """An error that was caught, as one of ours."""
    if isinstance(error, PenstockError):
        return error
    return PipelineError(f"{name}: {_short(f'{type(error).__name__}: {error}')}")


def _kind(module: str, name: str) -> type[PenstockError] | None:
    try:
        kind = getattr(import_module(module), name, None)
    except ImportError:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, PenstockError) else None


def _short(text: str) -> str:
    whole = " ".join(text.split())
    return whole if len(whole) <= _LONGEST else whole[: _LONGEST - 3] + "..."
