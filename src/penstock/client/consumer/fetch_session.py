"""One broker's fetch session, the client's half (KIP-227). Pure.

Theory. A full fetch names every partition and opens a session; from then on a request names only what changed, and the
broker remembers the rest. The epoch counts requests, so that both sides know that they speak of the same state. After
an error that concerns the session, and after a connection broke, the next fetch is a full one.

Rule: `request` is told what to fetch as a whole and answers with what to say; `accepted` or `reset` follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.client.consumer.types import TopicPartition

NO_SESSION: Final = 0
FULL: Final = 0
WITHOUT: Final = -1
_LAST_EPOCH: Final = 2**31 - 1


class Wanted(NamedTuple):
    """How one partition is to be fetched."""

    offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1


class SessionRequest(NamedTuple):
    session_id: int
    epoch: int
    named: dict[TopicPartition, Wanted]
    forgotten: list[TopicPartition]


class FetchSession:
    __slots__ = ("_epoch", "_id", "_known", "_pending")

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL
        self._known: dict[TopicPartition, Wanted] = {}
        self._pending: dict[TopicPartition, Wanted] = {}

    @property
    def is_open(self) -> bool:
        return self._id != NO_SESSION

    def request(self, wanted: Mapping[TopicPartition, Wanted]) -> SessionRequest:
        self._pending = dict(wanted)
        if not self.is_open:
            return SessionRequest(NO_SESSION, FULL, self._pending, [])
        named = {partition: how for partition, how in wanted.items() if self._known.get(partition) != how}
        forgotten = [partition for partition in self._known if partition not in wanted]
        return SessionRequest(self._id, self._epoch, named, forgotten)

    def accepted(self, session_id: int) -> None:
        """The broker answered without an error of the session; id 0 says that it keeps none."""
        if session_id == NO_SESSION:
            self.reset()
            return
        self._epoch = 1 if session_id != self._id or self._epoch >= _LAST_EPOCH else self._epoch + 1
        self._id = session_id
        self._known = self._pending

    def reset(self) -> None:
        """Begin anew: the next fetch names everything."""
        self._id, self._epoch = NO_SESSION, FULL
        self._known = {}
