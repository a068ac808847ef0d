"""Which committed offsets have outlived their use (KIP-211).

- Nobody assigned by the coordinator ever used the group: each offset expires on its own, a retention after its commit.
- The group has members: only offsets of topics that they no longer read expire, a retention after the commit, and only
  in a stable group, since in the middle of a rebalance nobody can say what is read.
- The group is empty: nothing expires before a retention has passed since the last member went, nor before one has
  passed since the commit, which an administrator may have made later.

An offset with a time of expiry of its own (old clients choose it) goes by that, under the same conditions. A group that
is empty and has no offsets left goes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from penstock.coordination.group_records import NO_TIME, CommittedOffset, OffsetRecord
from penstock.coordination.groups.group import Group, GroupState
from penstock.coordination.offsets import CommittedOffsets


def expired(group: Group, offsets: CommittedOffsets, now_ms: int, retention_ms: int) -> Iterator[OffsetRecord]:
    """A tombstone for every offset of the group whose time has come."""
    if not _may_expire(group):
        return
    group_id = group.group_id
    since_ms = group.since_ms if group.state is GroupState.EMPTY and group.protocol_type is not None else NO_TIME
    for topic in offsets.topics(group_id):
        if group.is_subscribed(topic):
            continue
        for partition, value in offsets.partitions(group_id, topic):
            if _is_over(value, since_ms, now_ms, retention_ms) and not offsets.is_unsettled(group_id, topic, partition):
                yield OffsetRecord(group_id, topic, partition, None)


def _may_expire(group: Group) -> bool:
    if group.state is GroupState.EMPTY:
        return True
    return group.state is GroupState.STABLE and group.uses_consumer_protocol and group.subscribed is not None


def _is_over(value: CommittedOffset, since_ms: int, now_ms: int, retention_ms: int) -> bool:
    if value.expire_timestamp_ms != NO_TIME:
        return now_ms >= value.expire_timestamp_ms
    return now_ms - max(value.commit_timestamp_ms, since_ms) >= retention_ms


class ExpiryRounds:
    """Visits all groups once in a while, a bounded number of groups and records at a time.

    While what one visit found is being written there is no other, which would find the same again.
    """

    def __init__(self, interval_ms: int, batch: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._batch = batch
        self._round_starts_ms = now_ms + interval_ms
        self._left: list[str] = []
        self.is_writing = False

    @property
    def due_ms(self) -> int | None:
        if self.is_writing:
            return None
        return 0 if self._left else self._round_starts_ms

    def wrote(self) -> None:
        self.is_writing = False

    def gave_up(self) -> None:
        """Writing failed: the rest waits for the next round, rather than failing again at once."""
        self.is_writing = False
        self._left.clear()

    def visit(
        self,
        group_ids: Callable[[], Iterable[str]],
        tombstones: Callable[[str], Iterator[OffsetRecord]],
        now_ms: int,
    ) -> dict[str, list[OffsetRecord]]:
        """The next groups, and of each as many tombstones as there is room for; none if nothing is due."""
        due_ms = self.due_ms
        if due_ms is None or due_ms > now_ms:
            return {}
        if not self._left:
            self._left = list(group_ids())
            self._round_starts_ms = now_ms + self._interval_ms
        visited: dict[str, list[OffsetRecord]] = {}
        room = self._batch
        while self._left and room > 0 and len(visited) < self._batch:
            group_id = self._left.pop()
            visited[group_id] = found = list(islice(tombstones(group_id), room))
            room -= len(found)
            if room == 0:
                # There may be more of the same group.
                self._left.append(group_id)
        return visited
