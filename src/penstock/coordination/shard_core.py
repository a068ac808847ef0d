"""What a shard is before any request: the state that survives, the writes on their way, and time.

Rule: a batch of records is handed out with an id, and kept with what follows from it until its fate is reported. Only
then are its records replayed, by the same code that replays the log of a coordinator that has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from penstock.coordination.errors import Refused, ShardActive, ShardNotActive, WriteOutOfOrder
from penstock.coordination.events import NO_PRODUCER_ID, Continuation, Outcome, Producer, RequestContext, Turn
from penstock.coordination.expiry import ExpiryRounds, expired
from penstock.coordination.group_records import (
    GroupRecord,
    OffsetRecord,
    Record,
    SavedGroup,
    UnknownRecord,
    decode_record,
    encode_record,
)
from penstock.coordination.groups.group import Group
from penstock.coordination.groups.members import MemberMemory
from penstock.coordination.groups.rebalance import expire, prepare
from penstock.coordination.groups.table import GroupTable
from penstock.coordination.offsets import CommittedOffsets
from penstock.coordination.refusals import refuse
from penstock.coordination.settings import GroupSettings
from penstock.runtime.randomness import Random
from penstock.wire.error_codes import ErrorCode
from penstock.wire.types import Buffer, Message

_R = TypeVar("_R", bound=Message)

_ANSWER_TO_FAILED_APPEND: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


class _Phase(Enum):
    LOADING = 0
    ACTIVE = 1
    GIVEN_UP = 2


class _Write(NamedTuple):
    """A batch on its way into the log."""

    records: list[Record]
    continuations: list[Continuation]
    groups: list[Group]
    producer: Producer | None


class ShardCore:
    def __init__(self, settings: GroupSettings, random: Random, memory: MemberMemory | None = None) -> None:
        """`memory` is what all shards of a broker share."""
        self._settings = settings
        self._random = random
        self._phase = _Phase.LOADING
        self._saved: dict[str, SavedGroup] = {}
        self._offsets = CommittedOffsets()
        self._groups = GroupTable(settings, memory or MemberMemory())
        self._writes: dict[int, _Write] = {}
        self._last_write_id = 0
        self._touched: dict[str, Group] = {}
        self._expiry = ExpiryRounds(settings.offsets_retention_check_interval_ms, settings.expiry_batch_records, 0)

    # What survives

    @property
    def groups(self) -> list[Group]:
        return list(self._groups)

    @property
    def saved_groups(self) -> dict[str, SavedGroup]:
        return dict(self._saved)

    @property
    def offsets(self) -> CommittedOffsets:
        return self._offsets

    def states(self) -> list[str]:
        """The state of every group, for those who count."""
        return [group.state.value for group in self._groups]

    @property
    def next_deadline_ms(self) -> int:
        """When `tick` is to be called; possibly somewhat early, never late. After a change it may have moved."""
        expiry_ms = self._expiry.due_ms
        deadline_ms = self._groups.next_deadline_ms
        return deadline_ms if expiry_ms is None else min(deadline_ms, expiry_ms)

    def replay(
        self, key: Buffer | None, value: Buffer | None, producer_id: int = NO_PRODUCER_ID
    ) -> Record | UnknownRecord:
        """Takes in a record of the log, with the producer's id if it is part of a transaction.

        Records of unknown versions change nothing and are returned; BadGroupRecord is raised for damaged ones.
        """
        if self._phase is not _Phase.LOADING:
            raise ShardActive("records are replayed before the shard is loaded")
        record = decode_record(key, value)
        if not isinstance(record, UnknownRecord):
            self._apply(record, producer_id)
        return record

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """The end of a transaction is in the log: its offsets count from now on, or are gone."""
        for group_id in self._offsets.end_transaction(producer_id, committed=committed):
            if self._phase is _Phase.ACTIVE:
                self._settle(self._groups.ensure(group_id))

    def loaded(self, now_ms: int) -> None:
        """All records have been replayed; requests may come. Members get a session's time to show themselves."""
        if self._phase is not _Phase.LOADING:
            raise ShardActive("a shard is loaded once")
        self._phase = _Phase.ACTIVE
        settings = self._settings
        self._expiry = ExpiryRounds(settings.offsets_retention_check_interval_ms, settings.expiry_batch_records, now_ms)
        for group_id in self._offsets.group_ids():
            self._groups.ensure(group_id)
        for group_id, saved in self._saved.items():
            group = self._groups.ensure(group_id)
            group.load(saved, now_ms)
            if len(group.members) > settings.max_size:
                prepare(group, Turn(now_ms))
            self._groups.schedule(group)

    def unload(self) -> Outcome:
        """Another broker coordinates these groups now: everyone who waits is told, and nothing is served any more."""
        turn = Turn(0)
        self._phase = _Phase.GIVEN_UP
        for group in self._groups:
            group.abandon(ErrorCode.NOT_COORDINATOR, turn)
        for write in self._writes.values():
            for continuation in write.continuations:
                continuation.failed(turn, ErrorCode.NOT_COORDINATOR)
        self._writes.clear()
        return Outcome(turn.replies, [], None)

    # Writes

    def appended(self, write_id: int, now_ms: int) -> Outcome:
        """The batch handed out under this id is in the log for good."""
        write = self._take_write(write_id)
        if write is None:
            return Outcome([], [], None)
        turn = Turn(now_ms)
        producer_id = NO_PRODUCER_ID if write.producer is None else write.producer.producer_id
        for record in write.records:
            self._apply(record, producer_id)
        for continuation in write.continuations:
            continuation.done(turn)
        return self._finish(turn)

    def append_failed(self, write_id: int, code: ErrorCode, now_ms: int) -> Outcome:
        """The batch handed out under this id is not in the log and never will be; earlier ones may be on their way.

        Where that is not certain, the shard is to be unloaded, and loaded again from the log.
        """
        write = self._take_write(write_id, in_order=False)
        if write is None:
            return Outcome([], [], None)
        turn = Turn(now_ms)
        answer = _ANSWER_TO_FAILED_APPEND.get(code, code)
        if code in _TOO_LARGE:
            commit = all(isinstance(record, OffsetRecord) for record in write.records)
            answer = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if commit else ErrorCode.UNKNOWN_SERVER_ERROR
        for continuation in write.continuations:
            continuation.failed(turn, answer)
        return self._finish(turn)

    def tick(self, now_ms: int) -> Outcome:
        """Time has passed."""
        turn = self._turn(now_ms)
        for group in self._groups.take_due(now_ms):
            expire(group, turn)
            self._touch(group)
        self._expire_offsets(turn)
        return self._finish(turn)

    # Within

    def _serve(
        self,
        handler: Callable[[_R, RequestContext, Turn], None],
        request: _R,
        context: RequestContext,
        now_ms: int,
    ) -> Outcome:
        turn = self._turn(now_ms)
        try:
            handler(request, context, turn)
        except Refused as refused:
            turn.reply(context, refuse(request, refused.code, context.api_version))
        return self._finish(turn)

    def _turn(self, now_ms: int) -> Turn:
        if self._phase is not _Phase.ACTIVE:
            raise ShardNotActive(f"the shard is {self._phase.name.lower()}")
        return Turn(now_ms)

    def _touch(self, group: Group) -> None:
        self._touched[group.group_id] = group

    def _finish(self, turn: Turn) -> Outcome:
        groups = list(self._touched.values())
        self._touched.clear()
        if not turn.records:
            for group in groups:
                self._settle(group)
            return Outcome(turn.replies, [], None)
        self._last_write_id += 1
        for group in groups:
            group.writes_on_their_way += 1
            self._settle(group)
        write = _Write(turn.records, turn.continuations, groups, turn.producer)
        self._writes[self._last_write_id] = write
        records = [encode_record(record) for record in turn.records]
        return Outcome(turn.replies, records, self._last_write_id, turn.producer)

    def _take_write(self, write_id: int, *, in_order: bool = True) -> _Write | None:
        if self._phase is _Phase.GIVEN_UP:
            return None
        oldest = next(iter(self._writes), None)
        if write_id != oldest and (in_order or write_id not in self._writes):
            raise WriteOutOfOrder(write_id, oldest)
        write = self._writes.pop(write_id)
        for group in write.groups:
            group.writes_on_their_way -= 1
            self._touch(group)
        return write

    def _settle(self, group: Group) -> None:
        """After anything that concerns a group: it is forgotten if nothing is left of it, or looked at in time."""
        if group.is_idle and group.group_id not in self._saved and not self._offsets.has_group(group.group_id):
            self._groups.forget(group)
        else:
            self._groups.schedule(group)

    def _apply(self, record: Record, producer_id: int) -> None:
        if isinstance(record, OffsetRecord):
            self._offsets.replay(record, producer_id)
        elif record.value is None:
            self._saved.pop(record.group_id, None)
        else:
            self._saved[record.group_id] = record.value
        if self._phase is _Phase.ACTIVE:
            self._touch(self._groups.ensure(record.group_id))

    def _expire_offsets(self, turn: Turn) -> None:
        offsets, retention_ms = self._offsets, self._settings.offsets_retention_ms

        def tombstones(group_id: str) -> Iterator[OffsetRecord]:
            group = self._groups.find(group_id)
            return iter(()) if group is None else expired(group, offsets, turn.now_ms, retention_ms)

        before = len(turn.records)
        for group_id, records in self._expiry.visit(self._groups.ids, tombstones, turn.now_ms).items():
            group = self._groups.find(group_id)
            if group is None:
                continue
            for record in records:
                turn.write(record)
            nothing_left = group.is_idle and len(records) == len(offsets.all_of(group_id))
            if nothing_left and group_id in self._saved:
                turn.write(GroupRecord(group_id, None))
            self._touch(group)
        if len(turn.records) > before:
            self._expiry.is_writing = True
            turn.when_written(lambda _: self._expiry.wrote(), lambda _, code: self._expiry.gave_up())
