"""Errors of the data source and of tables, besides those of every client (`penstock.errors`).

Each is a `PenstockError` with a message of one line: Spark prints it below two tracebacks of its own, and a second
line is not read. A table error is raised before a commit or after it, never halfway: the table is unchanged, or it is
committed.
"""

from __future__ import annotations

from copy import copy

from penstock.client.errors import ConfigError, PenstockError, TimedOut


class UnknownOption(ConfigError):
    """An option that neither the stock connector nor this one knows."""


class DataLost(PenstockError):
    """Records that should have been read are no longer in the log, or were never written."""


class TopicRecreated(DataLost):
    """The topic was deleted and recreated, so its offsets refer to other records."""


class CheckpointMismatch(PenstockError):
    """The checkpoint was written by a query over other topics."""


class ReadStalled(TimedOut):
    """A task made no progress within its timeout."""

    retriable = False


class Superseded(PenstockError):
    """The same query was started again elsewhere; nothing of this run is written any more."""


class MarginCrossed(PenstockError):
    """A batch took so long that its transactions may time out; nothing of it is visible."""


class RowsLost(PenstockError):
    """Rows of a decided batch are not visible, because their transactions timed out before they were committed."""

    def __init__(self, message: str, *, ranges: tuple[tuple[str, int, int, int], ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.ranges = ranges
        """Topic, partition, first offset and the offset after the last, of each range with such rows."""


class LedgerDamaged(PenstockError):
    """The ledger of exactly-once writes cannot be read, or does not fit the query."""


class TableError(PenstockError):
    """Base of all errors of tables."""


class DeclarationError(TableError, ConfigError):
    """An invalid declaration; nothing was created or changed."""


class NoSuchTable(TableError):
    """The warehouse has no table with this name."""


class TableExists(TableError):
    """The warehouse already has a table with this name."""


class ConcurrentLoad(TableError):
    """Another load of this table committed meanwhile; nothing of this load was committed."""

    retriable = True


class RangeError(TableError):
    """Offsets or times that cannot be loaded."""


class UnfitRecord(TableError):
    """A record does not match the table, and the table has on_error = "fail"."""


class TableDamaged(TableError):
    """The table's own counts do not add up."""


# ---------------------------------------------------------------------------------------------- one line


def in_one_line(error: PenstockError) -> PenstockError:
    """The same error with its message joined into one line."""
    if "\n" not in str(error):
        return error
    shorter = copy(error)
    head, *rest = (part.strip() for part in error.message.splitlines() if part.strip())
    shorter.args = (f"{head} {'; '.join(rest)}".strip(),)
    shorter.hint = one_line(error.hint)
    return shorter


def one_line(error: BaseException | str) -> str:
    """The text of an error in one line, or the name of its type if it has no text."""
    return " ".join(str(error).split()) or (type(error).__name__ if isinstance(error, BaseException) else "")
