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
# Java: the error that Py4J reports, and its cause.
_CAUSED: Final = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)*([\w$]+)(?:: (.*))?$", re.MULTILINE)
_LONGEST: Final = 400
_SPARKS: Final = ("pyspark.", "py4j.")
_SHOW_TRACEBACK: Final = "Set PENSTOCK_TRACEBACK=1 to see the traceback"
# Spark waits ten seconds for a Python worker, however busy the machine is.
_OVERLOADED: Final = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET")
_TROUBLES: Final = (
    ("Python worker exited unexpectedly", "a Python worker of Spark ended during a task"),
    ("ExecutorLostFailure", "an executor was lost"),
    ("FetchFailed", "shuffle data of another executor could not be fetched"),
    ("Failed to get broadcast", "a broadcast could not be fetched"),
    ("Futures timed out", "a Spark component timed out"),
    ("already active in this SparkSession", "the stopped query is still active"),
    ("java.net.SocketTimeoutException", "a Spark component timed out"),
    ("java.net.SocketException", "a connection inside Spark was closed"),
    ("java.net.ConnectException", "a connection inside Spark could not be opened"),
    ("java.io.EOFException", "a connection inside Spark was closed"),
    ("java.io.OptionalDataException", "Spark changed a task while serializing it"),
    ("java.util.ConcurrentModificationException", "concurrent modification inside Spark"),
)
"""Texts in Spark's errors, and what they mean; the first match counts."""

# ---------------------------------------------------------------------------------------------- errors


class PipelineError(PenstockError):
    """Base of the errors of pipelines."""


class UnknownPipeline(PipelineError, ConfigError):
    """There is no pipeline with this name."""


class PipelineRuns(PipelineError):
    """The pipeline runs in another process."""


class TableGone(PipelineError):
    """A table of a running stream does not exist."""


class OtherColumns(PipelineError):
    """The columns of a table differ from this version of its pipeline."""


class SparkTrouble(PipelineError):
    """A failure of Spark's processes or connections. A retry may succeed; if it never does, check the machines."""

    retriable = True


# ---------------------------------------------------------------------------------------------- failed queries


def cause_of(text: str, name: str) -> PenstockError:
    """The penstock error behind the text of a failed query."""
    found = list(_OURS.finditer(text))
    for match in reversed(found):
        kind = _kind(match[1], match[2])
        if kind is not None:
            return _noted(PipelineError(f"{name}: {_short(match[3])}", retriable=_is_retriable(kind, match[3])), text)
    if any(each in text for each in _OVERLOADED):
        late = f"{name}: a Python worker of Spark did not start in time"
        return _noted(PipelineError(late, retriable=True), text)
    for words, meaning in _TROUBLES:
        if words in text:
            return _noted(SparkTrouble(f"{name}: {meaning}", hint=_SHOW_TRACEBACK), text)
    return _noted(PipelineError(f"{name}: {_short(_main_line(text))}", hint=_SHOW_TRACEBACK), text)


def in_one_line(error: BaseException, name: str) -> PenstockError:
    """A caught error as a penstock error that knows whether it is retriable."""
    if isinstance(error, PenstockError):
        if error.retriable:
            return error
        if isinstance(error, TimedOut):
            return PipelineError(f"{name}: {_short(error.message)}", retriable=True, hint=error.hint)
        # A load on executors reports the last line of Spark's text, which lacks the cause.
        behind = None if error.__cause__ is None or not _is_sparks(error.__cause__) else error.__cause__
        meant = None if behind is None else cause_of(str(behind), name)
        return meant if meant is not None and meant.retriable else error
    if _is_sparks(error):
        return cause_of(str(error), name)
    short = PipelineError(f"{name}: {_short(f'{type(error).__name__}: {error}')}", hint=_SHOW_TRACEBACK)
    return _noted(short, "".join(traceback.format_exception(error)))


def full_details(error: BaseException) -> list[str]:
    """The full text of an error, for PENSTOCK_TRACEBACK; nothing if one line is all."""
    return list(getattr(error, "__notes__", ()))


def _main_line(text: str) -> str:
    """The most useful line of a text: what Python raised, else the first cause in Java."""
    raised = [one for one in _RAISED.findall(text) if not one[0].startswith("Py4J")] or _CAUSED.findall(text)
    if not raised:
        return next(iter(text.strip().splitlines()), "no reason given")
    kind, message = raised[-1]
    return f"{kind}: {message}" if message.strip() else kind


def _noted(error: PipelineError, text: str) -> PipelineError:
    error.add_note(text)
    return error


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.startswith(_SPARKS)


def _is_retriable(kind: type[PenstockError], text: str) -> bool:
    """Whether an error, known by its class and text, is retriable.

    The code of a broker's error is in the text. A bootstrap error is retriable: an earlier start has succeeded.
    """
    if issubclass(kind, BrokerError):
        codes = (ErrorCode[each] for each in _CODE.findall(text) if each in ErrorCode.__members__)
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
