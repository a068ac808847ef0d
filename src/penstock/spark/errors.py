"""Errors of the data source and of tables, besides those of every client (`penstock.errors`).

Each is a `PenstockError` with a message of one line: Spark prints it below two tracebacks of its own, and a second
line is not read. A table error is raised before a commit or after it, never halfway: the table is as it was, or it is
committed.
"""

from __future__ import annotations

from copy import copy

from penstock.client.errors import ConfigError, PenstockError, TimedOut


class UnknownOption(ConfigError):
    """An option that neither the stock connector nor this one has."""


class DataLost(PenstockError):
    """Records that should have been read are no longer there, or never will be."""


class TopicRecreated(DataLost):
    """The topic was deleted and made again: its offsets mean other records now."""


class CheckpointMismatch(PenstockError):
    """The checkpoint belongs to a query of other topics."""


class ReadStalled(TimedOut):
    """A task got no further for too long."""

    retriable = False


def in_one_line(error: PenstockError) -> PenstockError:
    """The same error; told in one line if it took several."""
    if "\n" not in str(error):
        return error
    shorter = copy(error)
    head, *rest = (part.strip() for part in error.message.splitlines() if part.strip())
    shorter.args = (f"{head} {'; '.join(rest)}".strip(),)
    shorter.hint = " ".join(error.hint.split())
    return shorter


class TableError(PenstockError):
    """Something about a table."""


class DeclarationError(TableError, ConfigError):
    """A declaration that makes no sense; nothing was made or changed."""


class NoSuchTable(TableError):
    """The warehouse has no table of this name."""


class TableExists(TableError):
    """The warehouse has a table of this name already."""


class ConcurrentLoad(TableError):
    """Another load of this table has committed in between; nothing of this one was."""

    retriable = True


class RangeError(TableError):
    """Offsets or times that cannot be loaded like this."""


class UnfitRecord(TableError):
    """A record does not fit the table, and the table says that this ends the load."""


class TableDamaged(TableError):
    """The table's own books do not add up."""
