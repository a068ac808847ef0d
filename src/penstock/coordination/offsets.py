"""The committed offsets of one partition of `__consumer_offsets`, by group, topic and partition.

Rule: `replay` and `end_transaction` are the only ways to change it, in the order of the log, while the shard is loaded
and afterwards alike. What a transaction commits waits beside the store until its marker comes. Of a plain commit and a
transaction's, or of two transactions', the later in the log wins, whichever marker comes first; the count of replayed
records serves as the place in the log, since compaction may remove records but keeps their order.

Commits that are on their way into the log are counted as well: until they are there, the offset is not settled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from penstock.coordination.events import NO_PRODUCER_ID
from penstock.coordination.group_records import CommittedOffset, OffsetRecord


class _Entry(msgspec.Struct, frozen=True, gc=False):
    place: int
    value: CommittedOffset


_Topics: TypeAlias = dict[str, dict[int, _Entry]]
_Groups: TypeAlias = dict[str, _Topics]
_Spot: TypeAlias = tuple[str, str, int]


class CommittedOffsets:
    def __init__(self) -> None:
        self._groups: _Groups = {}
        self._transactions: dict[int, _Groups] = {}
        self._on_their_way: Counter[_Spot] = Counter()
        self._replayed = 0

    # Reading

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        entry = self._groups.get(group_id, {}).get(topic, {}).get(partition)
        return None if entry is None else entry.value

    def count(self, group_id: str) -> int:
        """Partitions of which the group has an offset that counts."""
        return sum(len(partitions) for partitions in self._groups.get(group_id, {}).values())

    def topics(self, group_id: str) -> Iterator[str]:
        return iter(self._groups.get(group_id, {}))

    def partitions(self, group_id: str, topic: str) -> Iterator[tuple[int, CommittedOffset]]:
        entries = self._groups.get(group_id, {}).get(topic, {})
        return ((partition, entry.value) for partition, entry in entries.items())

    def has_group(self, group_id: str) -> bool:
        """Whether the group has offsets, decided or in an open transaction."""
        return group_id in self._groups or self.in_transaction(group_id)

    def group_ids(self) -> set[str]:
        return set(self._groups).union(*self._transactions.values())

    def in_transaction(self, group_id: str) -> bool:
        return any(group_id in groups for groups in self._transactions.values())

    def is_unsettled(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a commit is on its way into the log, or waits for the end of its transaction."""
        if (group_id, topic, partition) in self._on_their_way:
            return True
        return self.is_in_transaction(group_id, topic, partition)

    def is_in_transaction(self, group_id: str, topic: str, partition: int) -> bool:
        return any(partition in groups.get(group_id, {}).get(topic, ()) for groups in self._transactions.values())

    def all_of(self, group_id: str) -> list[tuple[str, int]]:
        """Every topic and partition of which the group has an offset, decided or not."""
        found: dict[tuple[str, int], None] = {}
        for groups in (self._groups, *self._transactions.values()):
            for topic, partitions in groups.get(group_id, {}).items():
                found.update(((topic, partition), None) for partition in partitions)
        return list(found)

    def everything(self) -> dict[_Spot, CommittedOffset]:
        return dict(self.each())

    def each(self) -> Iterator[tuple[_Spot, CommittedOffset]]:
        """Every offset that counts, by group; for whoever may not want all of them."""
        return (
            ((group_id, topic, partition), entry.value)
            for group_id, topics in self._groups.items()
            for topic, partitions in topics.items()
            for partition, entry in partitions.items()
        )

    # Changing

    def replay(self, record: OffsetRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        """Applies a record of the log; one of a transaction is kept aside for `end_transaction`."""
        self._replayed += 1
        group_id, topic, partition, value = record
        if value is None:
            _remove(self._groups, group_id, topic, partition)
            for groups in self._transactions.values():
                _remove(groups, group_id, topic, partition)
        elif producer_id == NO_PRODUCER_ID:
            _put(self._groups, group_id, topic, partition, _Entry(self._replayed, value))
        else:
            groups = self._transactions.setdefault(producer_id, {})
            _put(groups, group_id, topic, partition, _Entry(self._replayed, value))

    def end_transaction(self, producer_id: int, *, committed: bool) -> set[str]:
        """The marker of a producer's transaction has come; answers with the groups that it concerns."""
        groups = self._transactions.pop(producer_id, {})
        if committed:
            for group_id, topics in groups.items():
                for topic, partitions in topics.items():
                    for partition, entry in partitions.items():
                        present = self._groups.get(group_id, {}).get(topic, {}).get(partition)
                        if present is None or present.place < entry.place:
                            _put(self._groups, group_id, topic, partition, entry)
        return set(groups)

    def on_their_way(self, records: Iterable[OffsetRecord]) -> None:
        self._on_their_way.update(record[:3] for record in records)

    def arrived(self, records: Iterable[OffsetRecord]) -> None:
        """Records that were on their way are in the log, or never will be."""
        for record in records:
            spot = record[:3]
            self._on_their_way[spot] -= 1
            if self._on_their_way[spot] <= 0:
                del self._on_their_way[spot]


def _put(groups: _Groups, group_id: str, topic: str, partition: int, entry: _Entry) -> None:
    groups.setdefault(group_id, {}).setdefault(topic, {})[partition] = entry


def _remove(groups: _Groups, group_id: str, topic: str, partition: int) -> None:
    topics = groups.get(group_id, {})
    partitions = topics.get(topic, {})
    if partitions.pop(partition, None) is not None and not partitions:
        del topics[topic]
        if not topics:
            del groups[group_id]
