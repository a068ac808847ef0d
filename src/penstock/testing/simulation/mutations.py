"""Mutations: safeguards that can be switched off by name, to show that a run with drawn faults notices.

A `Mutation` replaces one or more functions and names the violation that follows. A replacement must have the
parameters of what it replaces. One that has drifted from the code is rejected when it is applied, because the errors
that it causes would look like a catch. `campaign` runs mutations under drawn faults. A mutation that no seed catches is
a gap in the simulator.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import FunctionType
from typing import Any, Final, NamedTuple
from unittest import mock

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.connection import Connection
from penstock.client.consumer.coordinator import Commits
from penstock.client.errors import GroupError
from penstock.client.fetch_state import Chunk, PartitionState
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.offset_stores.broker import BrokerOffsetStore
from penstock.client.producer import sender
from penstock.client.producer.accumulator import PartitionQueue
from penstock.client.producer.producer_batch import UNNUMBERED, ProducerBatch
from penstock.client.producer.sender import Decision, decide
from penstock.cluster.controller import election, failover
from penstock.cluster.controller.election import DEFAULT_RULES, IsrRequest, PartitionRules
from penstock.cluster.controller.failover import MembershipChanges
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.tree.embedded import Entry, Journal
from penstock.cluster.tree.layout import BrokerRegistration
from penstock.coordination import offsets as group_commits
from penstock.coordination.coordinator_runtime import Shard
from penstock.coordination.group_records import GroupRecord, SavedGroup
from penstock.coordination.groups import rebalance
from penstock.coordination.groups.group import Group, GroupState
from penstock.coordination.groups.rebalance import answer_syncs
from penstock.coordination.responses import NO_PRODUCER_ID, Outcome, RequestContext, Turn
from penstock.coordination.shard import ShardCore
from penstock.log import log_loader, recovery
from penstock.log.file_records import Piece, walk
from penstock.log.group_commit import Done, Flush, Flushable, GroupCommit
from penstock.log.log_dirs import replica_moves
from penstock.log.partition_log import Appended, PartitionLog
from penstock.log.producer_state import NEW, ProducerStates, SequenceCheck
from penstock.log.producer_state import ProducerBatch as StoredBatch
from penstock.log.recovery import Damage, LogDamage
from penstock.records import Buffer, records_of, scan
from penstock.replication import partition as partitions
from penstock.replication.fetch_state import EpochEnd, Epochs, PartitionFetchState, Position
from penstock.replication.isr import UNKNOWN_START, Leadership, Progress
from penstock.replication.partition import Partition
from penstock.runtime.files import File, Files
from penstock.testing.simulated_files import SimulatedFile
from penstock.testing.simulation.cluster import CannotStart, drawn_folders
from penstock.testing.simulation.cluster_checks import Unhealed
from penstock.testing.simulation.observer import InvariantBroken
from penstock.testing.simulation.run import Violation
from penstock.testing.simulation.scheduler import SimulationFailed
from penstock.testing.simulation.transactions.mutations import TRANSACTION_MUTATIONS
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.offset_commit import OffsetCommitRequest
from penstock.wire.schemas.sync_group import SyncGroupRequest
from penstock.wire.types import Message

ANY_TEXT: Final = "…"


class UnknownMutation(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"unknown mutation {name!r}; the mutations are {', '.join(MUTATIONS)}")


class DriftedMutation(TypeError):
    """A replacement that no longer fits the code."""


class Expected(NamedTuple):
    """A violation: its class and its sentence, in which `…` matches any text."""

    error: type[SimulationFailed]
    sentence: str

    def __str__(self) -> str:
        return f"{self.error.__name__}: {self.sentence}"

    def matches(self, problem: str) -> bool:
        """Whether a report has this problem."""
        pattern = ".*".join(map(re.escape, self.sentence.split(ANY_TEXT)))
        return problem.startswith(f"{self.error.__name__}: ") and re.search(pattern, problem) is not None


class Mutation(NamedTuple):
    """A safeguard to switch off: each (target, attribute, replacement) of `replaced` is applied.

    At least one of the `expected` violations follows under some seeds, of those for which `may_catch` is true.
    `brokers` is the number of brokers it needs.
    """

    what: str
    replaced: tuple[tuple[Any, str, Any], ...]
    expected: tuple[Expected, ...]
    brokers: int = 3
    may_catch: Callable[[int], bool] = lambda seed: True

    def is_caught_by(self, problem: str) -> bool:
        return any(expected.matches(problem) for expected in self.expected)


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Switch the safeguard off. Raises UnknownMutation and DriftedMutation."""
    mutation = MUTATIONS.get(name)
    if mutation is None:
        raise UnknownMutation(name)
    with ExitStack() as stack:
        for target, attribute, replacement in mutation.replaced:
            require_same_shape(target, attribute, replacement)
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield


def require_same_shape(target: Any, attribute: str, replacement: Any) -> None:
    """Raise DriftedMutation unless it can replace `target.attribute`: same kind, parameters and defaults."""
    where = f"{getattr(target, '__qualname__', target.__name__)}.{attribute}"
    try:
        original = inspect.getattr_static(target, attribute)
    except AttributeError:
        raise DriftedMutation(f"{where} does not exist any more") from None
    if isinstance(original, property) and isinstance(replacement, property):
        original, replacement = original.fget, replacement.fget
    if not isinstance(original, FunctionType) or not isinstance(replacement, FunctionType):
        kinds = f"{type(original).__name__}, its replacement a {type(replacement).__name__}"
        raise DriftedMutation(f"{where} is a {kinds}")
    if inspect.iscoroutinefunction(original) != inspect.iscoroutinefunction(replacement):
        raise DriftedMutation(f"one of {where} and its replacement is awaited, the other is not")
    expected, found = _parameters(original), _parameters(replacement)
    if expected != found:
        raise DriftedMutation(f"{where} takes ({', '.join(expected)}), its replacement ({', '.join(found)})")


def _parameters(function: FunctionType) -> list[str]:
    bare = [each.replace(annotation=each.empty) for each in inspect.signature(function).parameters.values()]
    return [f"{'*, ' if each.kind is each.KEYWORD_ONLY else ''}{each}" for each in bare]


# --- a single broker: its log, disk and metadata tree


def _durable_at_once(self: GroupCommit, log: Flushable, offset: int, done: Done, *, is_urgent: bool = True) -> None:
    assert isinstance(log, PartitionLog)
    log.durability.flushed_offset = max(log.flushed_offset, offset)
    done(None)


def _walk_unverified(file: File, start: int, end: int, *, verify: bool = True) -> Iterator[Piece]:
    return _REAL_WALK(file, start, end, verify=False)


def _always_new(self: ProducerStates, batch: StoredBatch, *, from_client: bool = True) -> SequenceCheck:
    return NEW


def _run_ignoring_errors(self: Flush) -> None:
    with suppress(OSError):
        _REAL_RUN(self)


def _copy_bytes_unsynced(files: Files, source: str, target: str, start: int, end: int, *, sync: bool = True) -> None:
    _REAL_COPY_BYTES(files, source, target, start, end, sync=False)


def _run_without_names(self: Flush) -> None:
    self.folder = None
    _REAL_RUN(self)


def _no_failed_sync(files: Files, folder: str) -> bool:
    return False


def _append_without_sync(self: Journal, entries: list[Entry]) -> None:
    with mock.patch.object(SimulatedFile, "sync", _no_sync):
        _REAL_JOURNAL_APPEND(self, entries)


def _no_sync(self: SimulatedFile) -> None:
    """Does not sync."""


def _advance_over_unsynced(self: Partition) -> None:
    log = self.log
    synced, log.durability.flushed_offset = log.flushed_offset, log.log_end_offset
    try:
        _REAL_ADVANCE(self)
    finally:
        log.durability.flushed_offset = synced


_REAL_WALK = walk
_REAL_RUN = Flush.run
_REAL_COPY_BYTES = replica_moves._copy_bytes
_REAL_JOURNAL_APPEND = Journal.append
_REAL_ADVANCE = Partition.advance


# --- replication and controller


def _follow_and_truncate(self: Partition, image: PartitionImage) -> bool:
    is_new = _REAL_FOLLOW(self, image)
    if is_new and self.log.log_end_offset > self.log.high_watermark and self.log.failure is None:
        self.truncate_to(self.log.high_watermark)
    return is_new


def _no_divergence(position: Position, log_end: int, epochs: Epochs) -> EpochEnd | None:
    return None


def _lead_with_everything_committed(
    self: Partition, image: PartitionImage, me: int, brokers: Mapping[int, int], now_ms: float
) -> bool:
    if self.leadership is None:
        self.log.advance_high_watermark(self.log.log_end_offset)
    return _REAL_LEAD(self, image, me, brokers, now_ms)


def _when_durable_here(self: Partition, end_offset: int, timeout_ms: float, done: Any) -> None:
    self._commits.when_durable(self.log, end_offset, done)


def _only_the_requested_isr(self: Leadership) -> frozenset[int]:
    return frozenset(self.isr if self._pending is None else self._pending.isr)


def _may_join_at_once(self: Leadership, broker: int, known: Mapping[int, int]) -> bool:
    return known.get(broker) == self._followers[broker].broker_epoch


def _may_join_as_before(self: Leadership, broker: int, known: Mapping[int, int]) -> bool:
    return broker in known and self._followers[broker].log_end >= max(self.high_watermark, self.epoch_start)


def _known_already(
    self: Partition,
    broker: int,
    broker_epoch: int,
    position: Position,
    brokers: Mapping[int, int],
    now_ms: float,
    log_start: int = UNKNOWN_START,
) -> tuple[ErrorCode, EpochEnd | None]:
    return _REAL_FETCHED_BY(self, broker, broker_epoch, position, {**brokers, broker: broker_epoch}, now_ms, log_start)


def _keep_progress(self: Progress, now_ms: float) -> None:
    """What a broker reported before its restart still counts."""


def _accept_every_isr(
    partition: PartitionImage, request: IsrRequest, image: ClusterImage, online: Collection[int]
) -> ErrorCode | None:
    return None


def _append_without_producers(self: PartitionLog, batches: Buffer, *, now_ms: int) -> Appended | None:
    with mock.patch.object(ProducerStates, "apply", return_value=None):
        return _REAL_APPEND(self, batches, now_ms=now_ms)


def _never_unclean(registration: BrokerRegistration, known_epoch: int) -> bool:
    return False


def _none_emptied(
    image: ClusterImage,
    found: Mapping[int, BrokerRegistration],
    handled_epochs: Mapping[int, int],
    unsettled: Iterable[int] = (),
) -> MembershipChanges:
    return _REAL_CHANGES(image, found, handled_epochs, unsettled)._replace(emptied=())


def _no_damage(damage: Damage | None) -> LogDamage | None:
    return None


def _no_missing_end(found: Any, recovery_point: int | None) -> LogDamage | None:
    return None


def _elect_in_the_same_epoch(
    partition: PartitionImage,
    live: Collection[int],
    restarted: Collection[int],
    controller_epoch: int,
    rules: PartitionRules = DEFAULT_RULES,
    uncleanly_stopped: Collection[int] = (),
    emptied: Collection[int] = (),
) -> PartitionImage | None:
    return _REAL_ELECT(partition, live, (), controller_epoch, rules, uncleanly_stopped, emptied)


def _always_eligible(
    partition: PartitionImage, isr: tuple[int, ...], rules: PartitionRules, unsafe: Collection[int]
) -> tuple[int, ...]:
    return tuple(
        broker
        for broker in partition.replicas
        if broker not in isr and broker not in unsafe and (broker in partition.isr or broker in partition.elr)
    )


_REAL_FOLLOW = Partition.follow
_REAL_LEAD = Partition.lead
_REAL_FETCHED_BY = Partition.fetched_by
_REAL_APPEND = PartitionLog.append_as_follower
_REAL_CHANGES = failover.find_membership_changes
_REAL_ELECT = election.elect


# --- group coordinator


def _accept_any_generation(
    group: Group, generation: int, member_id: str, instance_id: str | None, *, transactional: bool
) -> None:
    """Accepts every generation."""


def _reply_at_once(self: Turn, to: RequestContext, message: Message, error: Callable[[ErrorCode], Message]) -> None:
    self.reply(to, message)


def _acknowledge_anyway(self: ShardCore, write_id: int, code: ErrorCode, now_ms: int) -> Outcome:
    write = self._take_write(write_id, in_order=False)
    turn = Turn(now_ms)
    for continuation in () if write is None else write.continuations:
        continuation.done(turn)
    return self._finish(turn)


def _serve_unloaded(self: Shard[Any]) -> None:
    if not self.is_closed:
        self.machine.loaded(self._coordinator.now_ms())
        self.is_loaded = True
        self._schedule()


def _replay_backwards(self: Shard[Any], data: bytes) -> bool:
    headers = scan(data).headers
    for header in reversed(headers):
        for record in () if header.is_control else records_of(data, header):
            self._replay(record.key, record.value, NO_PRODUCER_ID, record.offset)
    self._position = headers[-1].next_offset if headers else self._position
    return bool(headers)


def _assign_at_once(group: Group, request: SyncGroupRequest, turn: Turn) -> None:
    assignments = {each.member_id: each.assignment for each in request.assignments}
    turn.write(GroupRecord(group.group_id, group.saved(turn.now_ms, assignments)))
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    answer_syncs(group, ErrorCode.NONE, turn)
    group.enter(GroupState.STABLE, turn.now_ms)


def _same_generation(self: Group, now_ms: int) -> None:
    _REAL_NEXT_GENERATION(self, now_ms)
    self.generation = max(1, self.generation - 1)


def _load_without_generation(self: Group, saved: SavedGroup, now_ms: int) -> None:
    _REAL_LOAD(self, saved, now_ms)
    self.generation = 0


_REAL_NEXT_GENERATION = Group.next_generation
_REAL_LOAD = Group.load


# --- clients


def _requeue_unnumbered(self: PartitionQueue, batch: ProducerBatch) -> None:
    batch.numbers = UNNUMBERED
    _REAL_REQUEUE(self, batch)


def _fetched_so_far(self: Commits, states: Iterable[PartitionState]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        state.partition: OffsetAndMetadata(state.fetch_offset, state.fetch_epoch, "")
        for state in states
        if state.position >= 0 and state.has_position and self._saved.get(state.partition) != state.fetch_offset
    }


def _acknowledge_uncertain(
    code: ErrorCode, *, count: int, is_numbered: bool, is_oldest: bool, may_retry: bool, is_recognisable: bool = True
) -> Decision:
    if code in (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT):
        code = ErrorCode.NONE
    return _REAL_DECIDE(
        code,
        count=count,
        is_numbered=is_numbered,
        is_oldest=is_oldest,
        may_retry=may_retry,
        is_recognisable=is_recognisable,
    )


async def _commit_ignoring_errors(
    self: BrokerOffsetStore, connection: Connection, group: str, request: OffsetCommitRequest, timeout_ms: int
) -> None:
    with suppress(GroupError):
        await _REAL_STORE_COMMIT(self, connection, group, request, timeout_ms)


_REAL_REQUEUE = PartitionQueue.requeue
_REAL_DECIDE = decide
_REAL_STORE_COMMIT = BrokerOffsetStore._commit


def _invariant(sentence: str) -> Expected:
    return Expected(InvariantBroken, sentence)


def _violation(sentence: str) -> Expected:
    return Expected(Violation, sentence)


_NOT_ENOUGH_COPIES: Final = _invariant("the high watermark of … is …, where … are required")
_NOT_ON_DISK: Final = _invariant("reports … as durable, but its disk has …")
_LEADER_LACKS: Final = _invariant("leads in epoch … and has … where … is committed")
_IN_SYNC_LACKS: Final = _invariant("is in sync and has … where … is committed")
_TRUNCATED: Final = _invariant("is in sync and truncates …, which is committed")
_OTHER_BYTES: Final = _invariant("stores …, which others have as …")
_ACKNOWLEDGED_EARLY: Final = _invariant("a producer gets offset …, but only … is committed")
_TWO_LEADERS: Final = _invariant("epoch … is led by … and by …")
_TWICE: Final = _violation("is stored twice, at … and at …")
_LOST: Final = _violation("was acknowledged at … and is lost")
_REPLACED: Final = _violation("was acknowledged at …, where … is")
_SEQUENCE_AGAIN: Final = _violation("has sequence … of producer … again")
_OWNED_TWICE: Final = _violation("is assigned to … and to … in generation …")
_OFFSET_REUSED: Final = _violation("offset … of … was given to … and to …")
_COMMIT_LOST: Final = _violation("the commit of … was acknowledged, but a reader gets …")
_COMMIT_BACK: Final = _violation("the commit of … was accepted, although … was committed before")
_SKIPPED: Final = _violation("starts … at …, but the group has read up to …")
_UNREAD: Final = Expected(Unhealed, "readers have caught up: not within …")

_ERRORS: Final = {error.__name__: error for error in (Violation, Unhealed)}

SINGLE_BROKER: Final = 1

MUTATIONS: Final[dict[str, Mutation]] = {
    "acknowledge-without-sync": Mutation(
        "acks=all is acknowledged before the records are on disk",
        ((GroupCommit, "when_durable", _durable_at_once),),
        (_NOT_ENOUGH_COPIES, _NOT_ON_DISK),
        SINGLE_BROKER,
    ),
    "recovery-without-checksum": Mutation(
        "recovery trusts every batch whose header looks sound",
        ((recovery, "walk", _walk_unverified),),
        (_UNREAD, _LEADER_LACKS, _NOT_ON_DISK),
        SINGLE_BROKER,
    ),
    "retries-are-appended": Mutation(
        "a retried batch is stored again",
        ((ProducerStates, "check", _always_new),),
        (_TWICE, _SEQUENCE_AGAIN),
        SINGLE_BROKER,
    ),
    "failed-syncs-count": Mutation(
        "a failed sync counts as successful",
        ((Flush, "run", _run_ignoring_errors),),
        (_LEADER_LACKS, _NOT_ON_DISK),
        SINGLE_BROKER,
    ),
    "rotten-cache-believed": Mutation(
        "after a failed sync, a restart trusts the page cache",
        ((log_loader, "has_failed_sync", _no_failed_sync),),
        (_LEADER_LACKS, _NOT_ON_DISK),
        SINGLE_BROKER,
    ),
    "segments-without-names": Mutation(
        "new segments are synced, but not their folder entries",
        ((Flush, "run", _run_without_names),),
        (_LEADER_LACKS, _NOT_ON_DISK),
        SINGLE_BROKER,
    ),
    "moved-copies-not-synced": Mutation(
        "a replica is moved to another data folder before its copy is on disk",
        ((replica_moves, "_copy_bytes", _copy_bytes_unsynced),),
        (_invariant("moved … to another disk, which has …"),),
        may_catch=lambda seed: drawn_folders(seed) > 1,
    ),
    "tree-without-sync": Mutation(
        "metadata changes are acknowledged before they are on disk",
        ((Journal, "append", _append_without_sync),),
        (Expected(CannotStart, "does not start: …"), _TWO_LEADERS),
        SINGLE_BROKER,
    ),
    "watermark-over-unsynced": Mutation(
        "consumers get records that a power loss can take",
        ((Partition, "advance", _advance_over_unsynced),),
        (_NOT_ENOUGH_COPIES, _NOT_ON_DISK),
        SINGLE_BROKER,
    ),
    "truncate-by-watermark": Mutation(
        "a follower truncates to its own high watermark, not where epochs diverge",
        ((Partition, "follow", _follow_and_truncate),),
        (_TRUNCATED, _LEADER_LACKS),
    ),
    "divergence-ignored": Mutation(
        "the leader does not report where a follower's log diverges from its own",
        ((partitions, "divergence", _no_divergence),),
        (_IN_SYNC_LACKS, _LEADER_LACKS, _TRUNCATED, _OTHER_BYTES),
    ),
    "follower-asks-before-sync": Mutation(
        "a follower fetches on before its records are on disk",
        ((PartitionFetchState, "must_sync", property(lambda self: False)),),
        (_NOT_ENOUGH_COPIES,),
    ),
    "watermark-restored-too-high": Mutation(
        "a new leader takes everything it has as committed",
        ((Partition, "lead", _lead_with_everything_committed),),
        (_NOT_ENOUGH_COPIES, _IN_SYNC_LACKS),
    ),
    "acknowledge-without-watermark": Mutation(
        "acks=all is acknowledged when only the leader has the records",
        ((Partition, "when_committed", _when_durable_here),),
        (_ACKNOWLEDGED_EARLY,),
    ),
    "shrink-before-answer": Mutation(
        "a replica to be removed from the ISR is ignored before the controller has agreed",
        ((Leadership, "widest_isr", property(_only_the_requested_isr)),),
        (_IN_SYNC_LACKS, _LEADER_LACKS, _NOT_ENOUGH_COPIES),
    ),
    "too-few-in-sync": Mutation(
        "the high watermark moves with too few replicas in sync",
        ((Leadership, "is_enough", property(lambda self: True)),),
        (_NOT_ENOUGH_COPIES,),
    ),
    "join-too-early": Mutation(
        "a follower joins the ISR before it has everything committed",
        ((Leadership, "_may_join", _may_join_at_once),),
        (_IN_SYNC_LACKS,),
    ),
    "broker-epochs-ignored": Mutation(
        "what a broker reported before its restart counts afterwards",
        (
            (Partition, "fetched_by", _known_already),
            (Progress, "forget", _keep_progress),
            (Leadership, "_may_join", _may_join_as_before),
            (election, "_isr_error", _accept_every_isr),
        ),
        (_IN_SYNC_LACKS, _LEADER_LACKS, _NOT_ENOUGH_COPIES),
    ),
    "producers-not-followed": Mutation(
        "followers do not keep the state of idempotent producers",
        ((PartitionLog, "append_as_follower", _append_without_producers),),
        (_TWICE, _SEQUENCE_AGAIN),
    ),
    "forgetful-brokers-trusted": Mutation(
        "a broker that lost power is trusted with what it had not synced",
        ((failover, "had_unclean_shutdown", _never_unclean),),
        (_LEADER_LACKS,),
    ),
    "emptied-brokers-trusted": Mutation(
        "a broker that comes back with an empty disk counts as in sync",
        ((failover, "find_membership_changes", _none_emptied),),
        (_LEADER_LACKS, _IN_SYNC_LACKS),
    ),
    "damage-taken-for-a-torn-end": Mutation(
        "a log is truncated at damage of durable records, and its broker counts as in sync",
        ((log_loader, "_ended", _no_damage), (log_loader, "_missing_end", _no_missing_end)),
        (_LEADER_LACKS, _IN_SYNC_LACKS),
    ),
    "epoch-stays-after-restart": Mutation(
        "a restarted leader continues in its old epoch",
        ((election, "elect", _elect_in_the_same_epoch),),
        (_TWO_LEADERS,),
    ),
    "eligible-for-ever": Mutation(
        "a replica that left the ISR stays eligible whatever was committed since",
        ((election, "_eligible", _always_eligible),),
        (_LEADER_LACKS,),
    ),
    "old-generations-commit": Mutation(
        "a commit is accepted from any generation",
        ((group_commits, "check_commit", _accept_any_generation),),
        (_COMMIT_LOST, _COMMIT_BACK),
    ),
    "commits-answered-early": Mutation(
        "a commit is acknowledged before its record is committed",
        ((Turn, "reply_when_written", _reply_at_once),),
        (_COMMIT_LOST,),
    ),
    "rejected-writes-answered": Mutation(
        "a coordinator acknowledges what its log has rejected",
        ((ShardCore, "append_failed", _acknowledge_anyway),),
        (_COMMIT_LOST,),
    ),
    "coordinator-serves-unloaded": Mutation(
        "a new coordinator answers before it has replayed its log",
        ((Shard, "load", _serve_unloaded),),
        (_COMMIT_LOST,),
    ),
    "commits-replayed-backwards": Mutation(
        "after a replay the older of two commits counts",
        ((Shard, "_replay_all", _replay_backwards),),
        (_COMMIT_LOST,),
    ),
    "shares-answered-early": Mutation(
        "members get their assignments before the record of the generation is committed",
        ((rebalance, "_assign", _assign_at_once),),
        (_OWNED_TWICE,),
    ),
    "generations-not-counted": Mutation(
        "a rebalance ends in the generation in which it began",
        ((Group, "next_generation", _same_generation),),
        (_OWNED_TWICE,),
    ),
    "generations-forgotten": Mutation(
        "a new coordinator does not know the generation of a group",
        ((Group, "load", _load_without_generation),),
        (_OWNED_TWICE,),
    ),
    "retries-renumbered": Mutation(
        "the producer gives a retried batch new sequence numbers",
        ((PartitionQueue, "requeue", _requeue_unnumbered),),
        (_TWICE,),
    ),
    "doubtful-answers-believed": Mutation(
        "the producer takes NOT_ENOUGH_REPLICAS_AFTER_APPEND as an acknowledgement",
        ((sender, "decide", _acknowledge_uncertain),),
        (_LOST, _REPLACED, _OFFSET_REUSED, _UNREAD),
    ),
    "commits-what-was-fetched": Mutation(
        "the consumer commits what it has fetched, not what was consumed",
        ((Commits, "consumed", _fetched_so_far),),
        (_UNREAD, _SKIPPED),
    ),
    "reads-after-revocation": Mutation(
        "the consumer returns fetched records of revoked partitions",
        ((Chunk, "is_stale", property(lambda self: False)),),
        (_violation("gets offset … of …, which it has given up"),),
    ),
    "rejected-commits-believed": Mutation(
        "the consumer takes a rejected commit as successful",
        ((BrokerOffsetStore, "_commit", _commit_ignoring_errors),),
        (_COMMIT_LOST, _COMMIT_BACK),
    ),
    **{
        name: Mutation(
            what,
            replaced,
            tuple(Expected(_ERRORS[error], sentence) for error, sentence in expected),
            may_catch=may_catch,
        )
        for name, (what, replaced, expected, may_catch) in TRANSACTION_MUTATIONS.items()
    },
}
