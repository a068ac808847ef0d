"""Errors of pipelines, and how the text of a failed Spark query becomes one of them.

Everything is a `PenstockError` of one line. Spark reports a Java and a Python traceback; the penstock error inside is
found again, with whether it is retriable. A batch can always be repeated, so timeouts are retriable. Failures of
Spark's own processes, and not of what they compute, are retried a few times (`SparkTrouble`).
"""

from __future__ import annotations

import re
import traceback
from importlib import import_module
from typing import Final

from penstock.client.errors import BootstrapError, BrokerError, ConfigError, PenstockError, TimedOut
from penstock.wire.protocol import ErrorCode

_OURS: Final = re.compile(r"(penstock(?:\.\w+)+)\.(\w+): (.+)")
_CODE: Final = re.compile(r"\(([A-Z_]+)\)")
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE)
# Of Java's: the error that Py4J tells of, and what caused it.
_CAUSED: Final = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)*([\w$]+)(?:: (.*))?$", re.MULTILINE)
_LONGEST: Final = 400
_SPARKS: Final = ("pyspark.", "py4j.")
_ALL_OF_IT: Final = "PENSTOCK_TRACEBACK=1 shows all of it"
# Spark waits ten seconds for a Python that it has started, whatever the machine has to do besides.
_OVERLOADED: Final = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET")
_TROUBLES: Final = (
    ("Python worker exited unexpectedly", "a Python of Spark's has ended in the middle of its work"),
    ("ExecutorLostFailure", "an executor was lost"),
    ("FetchFailed", "what another executor had computed could not be fetched"),
    ("Failed to get broadcast", "what the driver had sent to executors could not be fetched"),
    ("Futures timed out", "a part of Spark did not answer in time"),
    ("already active in this SparkSession", "the query that was stopped has not ended yet"),
    ("java.net.SocketTimeoutException", "a part of Spark did not answer in time"),
    ("java.net.SocketException", "a connection inside Spark has ended"),
    ("java.net.ConnectException", "a connection inside Spark could not be opened"),
    ("java.io.EOFException", "a connection inside Spark has ended"),
    ("java.io.OptionalDataException", "Spark changed a task while it wrote it down"),
    ("java.util.ConcurrentModificationException", "two threads of Spark's got into each other's way"),
)
"""Words of Spark's, and what they mean; the first one found counts."""


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


class SparkTrouble(PipelineError):
    """Something happened to Spark's processes, or between them. The same may go through the next time; where it never
    does, something is wrong with the machines."""

    retriable = True


def cause_of(text: str, name: str) -> PenstockError:
    """The error behind what Spark says of a query."""
    found = list(_OURS.finditer(text))
    for match in reversed(found):
        kind = _kind(match[1], match[2])
        if kind is not None:
            return _noted(PipelineError(f"{name}: {_short(match[3])}", retriable=_is_retriable(kind, match[3])), text)
    if any(each in text for each in _OVERLOADED):
        late = f"{name}: Spark's Python did not start in time on a busy machine"
        return _noted(PipelineError(late, retriable=True), text)
    for words, meaning in _TROUBLES:
        if words in text:
            return _noted(SparkTrouble(f"{name}: {meaning}", hint=_ALL_OF_IT), text)
    return _noted(PipelineError(f"{name}: {_short(_said(text))}", hint=_ALL_OF_IT), text)


def _said(text: str) -> str:
    """The line of a text that tells most: what Python raised, else what Java did, the first cause of it."""
    raised = [one for one in _RAISED.findall(text) if not one[0].startswith("Py4J")] or _CAUSED.findall(text)
    if not raised:
        return next(iter(text.strip().splitlines()), "no reason given")
    kind, message = raised[-1]
    return f"{kind}: {message}" if message.strip() else kind


def in_one_line(error: BaseException, name: str) -> PenstockError:
    """An error that was caught, as one of ours that knows whether it may pass."""
    if isinstance(error, PenstockError):
        if error.retriable:
            return error
        if isinstance(error, TimedOut):
            return PipelineError(f"{name}: {_short(error.message)}", retriable=True, hint=error.hint)
        # A load that ran in executors tells the last line of what Spark said; what that means is not in it.
        behind = None if error.__cause__ is None or not _is_sparks(error.__cause__) else error.__cause__
        meant = None if behind is None else cause_of(str(behind), name)
        return meant if meant is not None and meant.retriable else error
    if _is_sparks(error):
        return cause_of(str(error), name)
    short = PipelineError(f"{name}: {_short(f'{type(error).__name__}: {error}')}", hint=_ALL_OF_IT)
    return _noted(short, "".join(traceback.format_exception(error)))


def full_details(error: BaseException) -> list[str]:
    """All that is known of an error, for who has set PENSTOCK_TRACEBACK; nothing if one line is all."""
    return list(getattr(error, "__notes__", ()))


def _noted(error: PipelineError, text: str) -> PipelineError:
    error.add_note(text)
    return error


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.startswith(_SPARKS)


def _is_retriable(kind: type[PenstockError], said: str) -> bool:
    """Which error code a broker gave, or which of its addresses failed for good, is not in the class: the first is in
    the text, and of the second the first start has shown that one works."""
    if issubclass(kind, BrokerError):
        codes = (ErrorCode[each] for each in _CODE.findall(said) if each in ErrorCode.__members__)
        return next((code.retriable for code in codes), False)
    return kind.retriable or issubclass(kind, BootstrapError | TimedOut)


def _kind(module: str, name: str) -> type[PenstockError] | None:
    try:
        kind = getattr(import_module(module), name, None)
    except ImportError:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, PenstockError) else None


def _short(text: str) -> str:
    whole = " ".join(text.split())
    return whole if len(whole) <= _LONGEST else whole[: _LONGEST - 3] + "..."
