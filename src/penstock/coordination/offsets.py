"""Committed offsets of one partition of `__consumer_offsets`: storage, requests, expiry.

`replay` and `end_transaction` are the only ways to change `CommittedOffsets`, in log order. Offsets of a transaction
wait beside the store until its marker arrives; of two commits the later in the log wins, whichever marker comes first.
Commits on their way into the log are counted: until they are there, the offset is unstable.

A commit with a generation is accepted from a member of that generation, except while its partitions are being assigned.
A commit without one (-1) is accepted only while the group has no members.

Expiry (KIP-211): in a group that was never assigned by the coordinator, each offset expires a retention after its
commit. In a stable group with members, only offsets of topics that they no longer read expire. In an empty group
nothing expires before a retention since the last member left and since the commit. An offset with its own expiry time
goes by that. An empty group without offsets is deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from penstock.coordination.errors import Rejected
from penstock.coordination.group_records import NO_EPOCH, NO_TIME, CommittedOffset, OffsetRecord
from penstock.coordination.groups.group import Group, GroupState
from penstock.coordination.responses import NO_OFFSET, NO_PRODUCER_ID
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas import offset_commit, offset_delete, offset_fetch, txn_offset_commit

_END_OF_TIME_MS: Final = 2**63 - 1
# The first versions of OffsetCommit and OffsetFetch with this.
_KNOWS_GROUP_NOT_FOUND: Final = 9
_SEVERAL_GROUPS: Final = 8


# --- storage


class _Entry(msgspec.Struct, frozen=True, gc=False):
    position: int
    value: CommittedOffset


_Topics: TypeAlias = dict[str, dict[int, _Entry]]
_Groups: TypeAlias = dict[str, _Topics]
_Key: TypeAlias = tuple[str, str, int]


class CommittedOffsets:
    def __init__(self) -> None:
        self._groups: _Groups = {}
        self._transactions: dict[int, _Groups] = {}
        self._in_flight: Counter[_Key] = Counter()
        self._replayed = 0

    # Reads.

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        entry = self._groups.get(group_id, {}).get(topic, {}).get(partition)
        return None if entry is None else entry.value

    def count(self, group_id: str) -> int:
        """How many partitions the group has committed offsets of."""
        return sum(len(partitions) for partitions in self._groups.get(group_id, {}).values())

    def topics(self, group_id: str) -> Iterator[str]:
        return iter(self._groups.get(group_id, {}))

    def partitions(self, group_id: str, topic: str) -> Iterator[tuple[int, CommittedOffset]]:
        entries = self._groups.get(group_id, {}).get(topic, {})
        return ((partition, entry.value) for partition, entry in entries.items())

    def has_group(self, group_id: str) -> bool:
        """Whether the group has offsets, committed or in an open transaction."""
        return group_id in self._groups or self.in_transaction(group_id)

    def group_ids(self) -> set[str]:
        return set(self._groups).union(*self._transactions.values())

    def in_transaction(self, group_id: str) -> bool:
        return any(group_id in groups for groups in self._transactions.values())

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a commit is being written, or waits for the end of its transaction."""
        if (group_id, topic, partition) in self._in_flight:
            return True
        return self.is_in_transaction(group_id, topic, partition)

    def is_in_transaction(self, group_id: str, topic: str, partition: int) -> bool:
        return any(partition in groups.get(group_id, {}).get(topic, ()) for groups in self._transactions.values())

    def all_of(self, group_id: str) -> list[tuple[str, int]]:
        """Every topic and partition of which the group has an offset, committed or in a transaction."""
        found: dict[tuple[str, int], None] = {}
        for groups in (self._groups, *self._transactions.values()):
            for topic, partitions in groups.get(group_id, {}).items():
                found.update(((topic, partition), None) for partition in partitions)
        return list(found)

    def each(self) -> Iterator[tuple[_Key, CommittedOffset]]:
        """Every committed offset, by group."""
        return (
            ((group_id, topic, partition), entry.value)
            for group_id, topics in self._groups.items()
            for topic, partitions in topics.items()
            for partition, entry in partitions.items()
        )

    # Changes.

    def replay(self, record: OffsetRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a record of the log; one of a transaction waits for `end_transaction`."""
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
        """Apply the marker of a producer's transaction; returns the groups that it affects."""
        groups = self._transactions.pop(producer_id, {})
        if committed:
            for group_id, topics in groups.items():
                for topic, partitions in topics.items():
                    for partition, entry in partitions.items():
                        present = self._groups.get(group_id, {}).get(topic, {}).get(partition)
                        if present is None or present.position < entry.position:
                            _put(self._groups, group_id, topic, partition, entry)
        return set(groups)

    def in_flight(self, records: Iterable[OffsetRecord]) -> None:
        self._in_flight.update(record[:3] for record in records)

    def arrived(self, records: Iterable[OffsetRecord]) -> None:
        """Records that were in flight are committed, or never will be."""
        for record in records:
            key = record[:3]
            self._in_flight[key] -= 1
            if self._in_flight[key] <= 0:
                del self._in_flight[key]


def _put(groups: _Groups, group_id: str, topic: str, partition: int, entry: _Entry) -> None:
    groups.setdefault(group_id, {}).setdefault(topic, {})[partition] = entry


def _remove(groups: _Groups, group_id: str, topic: str, partition: int) -> None:
    topics = groups.get(group_id, {})
    partitions = topics.get(topic, {})
    if partitions.pop(partition, None) is not None and not partitions:
        del topics[topic]
        if not topics:
            del groups[group_id]


# --- requests


def no_such_group(api_version: int) -> ErrorCode:
    """The error for a member that commits to a group that does not exist."""
    return ErrorCode.GROUP_ID_NOT_FOUND if api_version >= _KNOWS_GROUP_NOT_FOUND else ErrorCode.ILLEGAL_GENERATION


def check_commit(
    group: Group, generation: int, member_id: str, instance_id: str | None, *, transactional: bool
) -> None:
    """Rejected unless the sender may commit for the group now."""
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation >= 0 or member_id or instance_id is not None:
        group.validate(member_id, instance_id)
        if generation != group.generation:
            raise Rejected(ErrorCode.ILLEGAL_GENERATION)
    elif not transactional:
        raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
        raise Rejected(ErrorCode.REBALANCE_IN_PROGRESS)


def plan_commit(
    request: offset_commit.OffsetCommitRequest, now_ms: int, metadata_max_bytes: int
) -> tuple[list[OffsetRecord], offset_commit.OffsetCommitResponse]:
    """The records of the valid partitions, and the response once they are committed."""
    expire_timestamp_ms = NO_TIME
    if request.retention_time_ms != NO_TIME:
        expire_timestamp_ms = min(now_ms + request.retention_time_ms, _END_OF_TIME_MS)
    records: list[OffsetRecord] = []
    response = offset_commit.OffsetCommitResponse()
    for topic in request.topics:
        answers = offset_commit.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answers)
        for partition in topic.partitions:
            code = _check_metadata(partition.committed_metadata, metadata_max_bytes)
            answers.partitions.append(
                offset_commit.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            )
            if code is ErrorCode.NONE:
                stamp_ms = partition.commit_timestamp
                value = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch if expire_timestamp_ms == NO_TIME else NO_EPOCH,
                    partition.committed_metadata or "",
                    now_ms if stamp_ms == NO_TIME else stamp_ms,
                    expire_timestamp_ms,
                )
                records.append(OffsetRecord(request.group_id, topic.name, partition.partition_index, value))
    return records, response


def plan_txn_commit(
    request: txn_offset_commit.TxnOffsetCommitRequest, now_ms: int, metadata_max_bytes: int
) -> tuple[list[OffsetRecord], txn_offset_commit.TxnOffsetCommitResponse]:
    records: list[OffsetRecord] = []
    response = txn_offset_commit.TxnOffsetCommitResponse()
    for topic in request.topics:
        answers = txn_offset_commit.TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(answers)
        for partition in topic.partitions:
            code = _check_metadata(partition.committed_metadata, metadata_max_bytes)
            answers.partitions.append(
                txn_offset_commit.TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=code
                )
            )
            if code is ErrorCode.NONE:
                value = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    now_ms,
                )
                records.append(OffsetRecord(request.group_id, topic.name, partition.partition_index, value))
    return records, response


def fetch_offsets(
    offsets: CommittedOffsets, request: offset_fetch.OffsetFetchRequest, api_version: int
) -> offset_fetch.OffsetFetchResponse:
    """The response to a request for one group (up to version 7), or for several."""
    require_stable = request.require_stable
    if api_version >= _SEVERAL_GROUPS:
        groups = [fetch_group_offsets(offsets, group, require_stable=require_stable) for group in request.groups]
        return offset_fetch.OffsetFetchResponse(groups=groups)
    topics = request.topics
    asked = offset_fetch.OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    if topics is not None:
        asked.topics = [
            offset_fetch.OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in topics
        ]
    found = fetch_group_offsets(offsets, asked, require_stable=require_stable)
    return offset_fetch.OffsetFetchResponse(
        topics=[
            offset_fetch.OffsetFetchResponseTopic(
                name=topic.name, partitions=[_as_of_one_group(partition) for partition in topic.partitions]
            )
            for topic in found.topics
        ]
    )


def fetch_group_offsets(
    offsets: CommittedOffsets, request: offset_fetch.OffsetFetchRequestGroup, *, require_stable: bool
) -> offset_fetch.OffsetFetchResponseGroup:
    """The committed offsets of a group: of the requested partitions, or of all if none are named."""
    group_id = request.group_id
    response = offset_fetch.OffsetFetchResponseGroup(group_id=group_id)
    for topic, indexes in _requested(offsets, request):
        fetched = [
            _fetched(offsets, group_id, topic.name, partition, require_stable=require_stable) for partition in indexes
        ]
        response.topics.append(
            offset_fetch.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=fetched)
        )
    return response


def check_offset_delete(group: Group) -> None:
    """Rejected if the group has members and their topics are unknown."""
    if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
        raise Rejected(ErrorCode.NON_EMPTY_GROUP)


def plan_offset_delete(
    group: Group, offsets: CommittedOffsets, request: offset_delete.OffsetDeleteRequest
) -> tuple[list[OffsetRecord], offset_delete.OffsetDeleteResponse]:
    records: list[OffsetRecord] = []
    response = offset_delete.OffsetDeleteResponse()
    present = set(offsets.all_of(request.group_id))
    for topic in request.topics:
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic.name) else ErrorCode.NONE
        answers = offset_delete.OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answers)
        for partition in topic.partitions:
            index = partition.partition_index
            answers.partitions.append(
                offset_delete.OffsetDeleteResponsePartition(partition_index=index, error_code=code)
            )
            if code is ErrorCode.NONE and (topic.name, index) in present:
                records.append(OffsetRecord(request.group_id, topic.name, index, None))
    return records, response


def _check_metadata(metadata: str | None, limit: int) -> ErrorCode:
    # Characters, although the setting says bytes: that is what Kafka counts.
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if metadata and len(metadata) > limit else ErrorCode.NONE


def _requested(
    offsets: CommittedOffsets, request: offset_fetch.OffsetFetchRequestGroup
) -> Iterator[tuple[offset_fetch.OffsetFetchRequestTopics, list[int]]]:
    if request.topics is not None:
        for topic in request.topics:
            yield topic, topic.partition_indexes
        return
    for name in offsets.topics(request.group_id):
        partitions = [partition for partition, _ in offsets.partitions(request.group_id, name)]
        yield offset_fetch.OffsetFetchRequestTopics(name=name), partitions


def _fetched(
    offsets: CommittedOffsets, group_id: str, topic: str, partition: int, *, require_stable: bool
) -> offset_fetch.OffsetFetchResponsePartitions:
    answer = offset_fetch.OffsetFetchResponsePartitions(partition_index=partition, committed_offset=NO_OFFSET)
    if require_stable and offsets.is_unstable(group_id, topic, partition):
        answer.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return answer
    committed = offsets.get(group_id, topic, partition)
    if committed is not None:
        answer.committed_offset = committed.offset
        answer.committed_leader_epoch = committed.leader_epoch
        answer.metadata = committed.metadata
    return answer


def _as_of_one_group(
    partition: offset_fetch.OffsetFetchResponsePartitions,
) -> offset_fetch.OffsetFetchResponsePartition:
    return offset_fetch.OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )


# --- expiry


def expired(group: Group, offsets: CommittedOffsets, now_ms: int, retention_ms: int) -> Iterator[OffsetRecord]:
    """A tombstone for every expired offset of the group."""
    if not _may_expire(group):
        return
    group_id = group.group_id
    since_ms = group.since_ms if group.state is GroupState.EMPTY and group.protocol_type is not None else NO_TIME
    for topic in offsets.topics(group_id):
        if group.is_subscribed(topic):
            continue
        for partition, value in offsets.partitions(group_id, topic):
            if _is_expired(value, since_ms, now_ms, retention_ms) and not offsets.is_unstable(
                group_id, topic, partition
            ):
                yield OffsetRecord(group_id, topic, partition, None)


def _may_expire(group: Group) -> bool:
    if group.state is GroupState.EMPTY:
        return True
    return group.state is GroupState.STABLE and group.uses_consumer_protocol and group.subscribed is not None


def _is_expired(value: CommittedOffset, since_ms: int, now_ms: int, retention_ms: int) -> bool:
    if value.expire_timestamp_ms != NO_TIME:
        return now_ms >= value.expire_timestamp_ms
    return now_ms - max(value.commit_timestamp_ms, since_ms) >= retention_ms


class ExpiryRounds:
    """Visits all groups at an interval, a bounded number of groups and records at a time.

    While the tombstones of one visit are being written there is no other visit, which would find the same offsets.
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
        """The write failed: the rest waits for the next round."""
        self.is_writing = False
        self._left.clear()

    def visit(
        self,
        group_ids: Callable[[], Iterable[str]],
        tombstones: Callable[[str], Iterator[OffsetRecord]],
        now_ms: int,
    ) -> dict[str, list[OffsetRecord]]:
        """The next groups with their tombstones, up to the batch size; empty if nothing is due."""
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
                # The group may have more.
                self._left.append(group_id)
        return visited
