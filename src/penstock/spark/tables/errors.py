"""What can go wrong with a table: one line about what happened, one about what to do; the table is as it was before.

Rule: everything here is a `PenstockError`, so whoever handles the clients' errors handles these. None of them is raised
after something was half done: a commit has happened, or it has not. Records that are gone and topics that were made
again are `penstock.spark.errors`, as for every reader.
"""

from __future__ import annotations

from penstock.client.errors import ConfigError, PenstockError


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
