"""What can go wrong between a topic and Spark, besides what any client meets (`penstock.errors`).

Rule: an error is one line. Spark prints it below two tracebacks of its own, and what does not fit there is not read.
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
