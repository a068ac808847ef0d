"""Errors of a mirror."""

from __future__ import annotations

from typing import Final

from penstock.client.errors import PenstockError

TRUNCATED: Final = "truncated"
RECREATED: Final = "recreated"
LOST: Final = "lost"
FOREIGN: Final = "foreign"
GAP: Final = "gap"
SHIFTED: Final = "shifted"
LOOP: Final = "loop"
MISSING: Final = "missing"
UNREADABLE: Final = "unreadable"
REJECTED: Final = "rejected"


class MirrorStopped(PenstockError):
    """A partition or a topic cannot be mirrored any further without a decision of the operator.

    Nothing is skipped: the position stays where it is. `reason` is one of the words of this module.
    """

    def __init__(self, reason: str, message: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class StateUnreadable(Exception):
    """The state topic has a record that no mirror wrote. Not a PenstockError: no retry helps, the process ends."""


class ShardLost(PenstockError):
    """Another process has taken over a shard, or its transaction failed: what is kept in memory no longer counts."""
