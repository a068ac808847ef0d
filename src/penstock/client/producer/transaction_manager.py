"""Transactions of a producer: the requests around `TransactionState`, and what happens to waiting batches.

A commit closes and flushes all batches, then sends EndTxn; an abort drops what was not sent yet and waits for what is
in flight. From version 2 on EndTxn returns the epoch of the next transaction, whose sequence numbers start at 0. In
version 1 the epoch stays, and only a transaction that lost a numbered batch is followed by a new one, by InitProducerId
with the current id and epoch (KIP-360). The state changes under the producer's lock; requests are sent on its loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import (
    AuthorizationError,
    ConfigError,
    PenstockError,
    TimedOut,
    TransactionAborted,
    TransactionOutcomeUnknown,
    UnsupportedVersion,
)
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.producer.producer_batch import ProducerBatch, ProducerId
from penstock.client.producer.settings import ProducerSettings
from penstock.client.producer.transaction_state import TRANSITIONS, Event, Partition, State, TransactionState
from penstock.client.transactions import (
    Ask,
    Attempts,
    CoordinatorRequests,
    GroupMetadata,
    PreparedTransaction,
    Rejected,
    Verdict,
    adding_partitions,
    end_of,
    verdict_of,
)
from penstock.wire.protocol import ApiKey, ErrorCode, error_code
from penstock.wire.schemas.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.schemas.end_txn import EndTxnResponse
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.schemas.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.wire.types import Message

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata] | Mapping[tuple[str, int], int | OffsetAndMetadata]
CheckedOffsets = dict[tuple[str, int], int | OffsetAndMetadata]

LAST_PRODUCE_OF_VERSION_1: Final = 11
"""From version 12 on, Produce adds its partitions to a transaction of version 2."""

_log = logging.getLogger("penstock.producer")
_INIT_VERSION: Final = 5
_INIT_TWO_PHASE_VERSION: Final = 6
_INIT_WITH_EPOCH_VERSION: Final = 3
_OFFSETS_OF: Final = {1: (0, 4), 2: (5, 5)}  # versions of TxnOffsetCommit
_GROUP_METADATA_SINCE: Final = 3


class Batches(Protocol):
    """What the manager needs from the producer that it belongs to."""

    def open_for_sending(self) -> None:
        """Records may be sent from now on. Called with the lock held."""

    def close_for_sending(self) -> None:
        """Records may no longer be sent; open batches are closed. Called with the lock held."""

    def use(self, producer: ProducerId) -> None:
        """Number the next batches under this id and epoch."""

    def drop_unsent(self, error: PenstockError) -> None:
        """Fail the batches that are not in flight."""

    async def flush(self, timeout_s: float | None) -> bool: ...

    @property
    def has_unfinished(self) -> bool:
        """Whether batches are not acknowledged. Called with the lock held."""

    def wake(self) -> None: ...


class DirectRequests(Protocol):
    """A request in the calling thread: see `direct_sender`."""

    def hold(self, node: int, connection: Connection) -> Any:
        """What `ask` and `release` need, or None."""

    def ask(self, node: int, link: Any, api_key: ApiKey, message: Message, version: int, deadline_s: float) -> Any:
        """The response, or None."""

    def release(self, node: int, link: Any, *, is_reusable: bool) -> None:
        """End what `hold` began, if the calling thread holds it, even if it did not get to know what it holds."""


class _CommitHere:
    """A commit in the calling thread: how far it has come."""

    __slots__ = ("is_begun", "is_committed", "is_over", "link", "node", "response")

    def __init__(self) -> None:
        self.is_begun = self.is_over = self.is_committed = False
        self.node = -1
        self.link: Any = None
        self.response: EndTxnResponse | None = None


class TransactionManager:
    """The transactions of one producer. Its coroutines run on the producer's event loop, one at a time.

    `commit_here` runs in the application's thread instead, where it saves two thread switches.
    """

    def __init__(self, cluster: ClusterClient, settings: ProducerSettings, lock: Any, batches: Batches) -> None:
        if settings.transactional_id is None:
            raise ConfigError("transactions need a transactional_id", hint='Create it with transactional_id="..."')
        self.state = TransactionState(settings.transactional_id)
        self._settings = settings
        self._lock = lock
        self._batches = batches
        self._requests = CoordinatorRequests(cluster)
        self._commit_attempts = Attempts()
        self._adding: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.state.transactional_id

    def _limit_ms(self, timeout_s: float | None) -> float:
        return self._settings.max_block_ms if timeout_s is None else max(timeout_s, 0) * 1000

    # --- initialization

    async def initialize(self, timeout_s: float | None) -> None:
        """Get an id and epoch: former producers with the same transactional id are fenced, their transaction ends."""
        with self._lock:
            if self.state.state is State.READY:
                return
            self.state.call(Event.INITIALIZE)
        try:
            producer = await self._new_epoch(None, self._limit_ms(timeout_s))
        except BaseException as error:
            with self._lock:
                if isinstance(error, Rejected) and error.verdict is Verdict.FENCED:
                    self.state.happened(Event.FATAL, error.error)
                else:
                    self.state.happened(Event.NOT_INITIALIZED)
            if isinstance(error, Rejected):
                raise self._explained(error.error) from None
            raise
        with self._lock:
            self._adopt(producer)
            self.state.happened(Event.INITIALIZED)

    async def _new_epoch(self, current: ProducerId | None, timeout_ms: float) -> ProducerId:
        """InitProducerId: an id and its first epoch, or the next epoch of the current id."""
        settings, two_phase = self._settings, self._settings.transaction_two_phase_commit

        def build(version: int) -> InitProducerIdRequest:
            request = InitProducerIdRequest(
                transactional_id=self.id, transaction_timeout_ms=settings.transaction_timeout_ms
            )
            if current is not None:
                request.producer_id, request.producer_epoch = current
            if two_phase:
                request.enable2_pc = True
            return request

        ask = Ask(
            ApiKey.INIT_PRODUCER_ID,
            f"a {'two-phase ' if two_phase else ''}producer id for transactional id {self.id}",
            build,
            lowest=_INIT_TWO_PHASE_VERSION if two_phase else _INIT_WITH_EPOCH_VERSION if current is not None else 0,
            highest=_INIT_TWO_PHASE_VERSION if two_phase else _INIT_VERSION,
        )
        try:
            response: InitProducerIdResponse = await self._requests.send(ask, self.id, timeout_ms)
        except UnsupportedVersion as error:
            if two_phase:
                error.hint = "The brokers have no two-phase commit (KIP-939): leave transaction_two_phase_commit out"
            raise
        return ProducerId(response.producer_id, response.producer_epoch)

    def _explained(self, error: PenstockError) -> PenstockError:
        if self._settings.transaction_two_phase_commit and isinstance(error, AuthorizationError):
            error.hint = (
                "The brokers' setting transaction.two.phase.commit.enable must be on, and with ACLs the principal "
                "needs TWO_PHASE_COMMIT on the transactional id"
            )
        return error

    def _adopt(self, producer: ProducerId) -> None:
        self.state.producer = producer
        self._batches.use(producer)

    # --- begin

    @property
    def needs_initialization(self) -> bool:
        return self.state.state is State.UNINITIALIZED

    def begin(self) -> None:
        """Begin a transaction, on any thread. No request is sent: the coordinator learns of it by its first record."""
        with self._lock:
            self.state.call(Event.BEGIN)
            self.state.version = self._requests.version
            self._commit_attempts = Attempts()
            self._batches.open_for_sending()

    def check_sending(self) -> None:
        """Raises a TransactionError if records may not be sent now. Called with the lock held, on any thread."""
        if not self.state.may_send:
            raise self.state.rejection("send()")

    @property
    def is_prepared(self) -> bool:
        return self.state.state is State.PREPARED

    @property
    def may_abort(self) -> bool:
        """Whether there is a transaction, and it is certainly not committed."""
        return Event.ABORT in TRANSITIONS[self.state.state]

    # --- for the sender

    def produce_version(self, highest: int) -> int:
        """The version of Produce to use with a broker that has this one."""
        return highest if self.state.version >= 2 else min(highest, LAST_PRODUCE_OF_VERSION_1)

    def batch_failed(self, batch: ProducerBatch, error: Exception) -> None:
        """A batch failed for good. Called with the lock held; it may be called twice."""
        if not isinstance(error, PenstockError):
            failure = PenstockError(f"a batch for {batch.topic}-{batch.partition} failed: {error!r}")
            failure.__cause__ = error
        else:
            failure = error
        if batch.is_numbered:
            self.state.has_gap = True
        if isinstance(failure, TransactionAborted):
            return
        code = failure.code
        verdict = Verdict.ABORT if code is None else verdict_of(ApiKey.PRODUCE, code)
        self.state.failed(verdict, failure)

    def drop_after_failure(self) -> None:
        """If the transaction has failed, fail its other batches, too. Called on the loop, without the lock."""
        if self.state.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            with self._lock:
                self._batches.close_for_sending()
            self._batches.drop_unsent(self._aborted(self.state.error))

    def add_partitions(self) -> None:
        """Add new partitions at the coordinator, in version 1. Called on the loop."""
        if self._adding is None and self.state.to_add():
            self._adding = asyncio.create_task(self._add_partitions())

    async def _add_partitions(self) -> None:
        try:
            while partitions := self.state.to_add():
                await self._add(partitions)
                self._batches.wake()
        except PenstockError as error:
            self._fail(error)
        finally:
            self._adding = None

    async def _add(self, partitions: frozenset[Partition]) -> None:
        producer = self._producer()
        ask = adding_partitions(self.id, producer.id, producer.epoch, partitions)
        await self._sent(ask, self.id, self._settings.delivery_timeout_ms)
        with self._lock:
            self.state.added(partitions)

    async def _sent(self, ask: Ask, key: str, timeout_ms: float) -> Any:
        """The response to a request that may begin the transaction at the coordinator."""
        attempts = Attempts()
        try:
            return await self._requests.send(ask, key, timeout_ms, attempts)
        finally:
            if attempts.is_doubtful:
                self.state.touches_coordinator()

    def _fail(self, error: PenstockError) -> None:
        """The transaction cannot be committed."""
        failure, verdict = (error.error, error.verdict) if isinstance(error, Rejected) else (error, Verdict.ABORT)
        with self._lock:
            self.state.failed(verdict, failure)
        self.drop_after_failure()

    def _aborted(self, cause: PenstockError | None) -> TransactionAborted:
        error = TransactionAborted(f"the record was not sent: transaction {self.id} was aborted")
        error.__cause__ = cause
        return error

    def _producer(self) -> ProducerId:
        if self.state.producer is None:
            raise self.state.rejection("this")
        return self.state.producer

    # --- offsets

    async def send_offsets(self, offsets: CheckedOffsets, group: GroupMetadata, timeout_s: float | None) -> None:
        """Commit a group's offsets in this transaction."""
        with self._lock:
            if not self.state.may_send:
                raise self.state.rejection("send_offsets_to_transaction()")
            version, producer = self.state.version, self._producer()
        if not offsets:
            return
        timeout_ms = self._limit_ms(timeout_s)
        try:
            if version < 2 and not self.state.has_group(group.group_id):
                await self._sent(self._group_ask(group, producer), self.id, timeout_ms)
                self.state.added_group(group.group_id)
            await self._sent(_offsets_ask(self.id, producer, offsets, group, version), group.group_id, timeout_ms)
            self.state.added_group(group.group_id)
        except BaseException as error:
            # Late offsets must not count: after a time-out or a cancellation, too, the transaction has to be aborted.
            failure = error if isinstance(error, PenstockError) else PenstockError("the offsets were not sent")
            self._fail(failure)
            if isinstance(error, PenstockError):
                raise self.state.rejection("send_offsets_to_transaction()") from self.state.error
            raise

    def _group_ask(self, group: GroupMetadata, producer: ProducerId) -> Ask:
        return Ask(
            ApiKey.ADD_OFFSETS_TO_TXN,
            f"adding offsets of group {group.group_id} to transaction {self.id}",
            lambda version: AddOffsetsToTxnRequest(
                transactional_id=self.id,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                group_id=group.group_id,
            ),
        )

    # --- the end

    async def prepare(self, timeout_s: float | None) -> PreparedTransaction:
        """Flush, and accept no more records."""
        with self._lock:
            self.state.call(Event.PREPARE)
            self._batches.close_for_sending()
        await self._flush(Event.PREPARE, self._limit_ms(timeout_s))
        return self.state.prepared()

    async def commit(self, timeout_s: float | None) -> None:
        """Flush, and commit. Raises TransactionOutcomeUnknown if the commit was sent and not answered in time."""
        deadline = _Deadline(self._limit_ms(timeout_s))
        with self._lock:
            self.state.call(Event.COMMIT)
            self._batches.close_for_sending()
        try:
            await self._flush(Event.COMMIT, deadline.left_ms)
            await self._end(commit=True, timeout_ms=deadline.left_ms, attempts=self._commit_attempts)
        except Rejected as rejected:
            raise self._commit_rejected(rejected) from rejected.error
        except BaseException as error:
            self._commit_not_done(error)
            raise

    def commit_here(self, direct: DirectRequests, deadline_s: float) -> bool:
        """Commit in the calling thread, if all is acknowledged and the coordinator is known.

        False: it was not possible, or has no clear outcome. `commit` does it then, or repeats it: a coordinator that
        has carried out an EndTxn of version 2 says so again.
        """
        here = _CommitHere()
        try:
            try:
                self._ask_here(here, direct, deadline_s)
            finally:
                self._end_here(here, direct)
        finally:  # if Ctrl-C came before that was done
            self._end_here(here, direct)
        return here.is_committed

    def _ask_here(self, here: _CommitHere, direct: DirectRequests, deadline_s: float) -> None:
        with self._lock:
            known = self._requests.coordinator
            if known is None or known[1].closed or not self._may_commit_here():
                return
            here.node, here.is_begun = known[0], True
            here.link = direct.hold(*known)
            if here.link is None:
                here.is_over = True
                return
            ask = end_of(self.state.prepared(), commit=True)
            message = ask.build(ask.highest)
            self.state.call(Event.COMMIT)
            self._batches.close_for_sending()
            self._commit_attempts.is_doubtful = True
        here.response = direct.ask(here.node, here.link, ask.api_key, message, ask.highest, deadline_s)

    def _end_here(self, here: _CommitHere, direct: DirectRequests) -> None:
        """Leave the connection, and the state `COMMITTING`, however far the commit has come; once."""
        if not here.is_begun or here.is_over:
            return
        with self._lock:
            is_asked = self._commit_attempts.is_doubtful
            direct.release(here.node, here.link, is_reusable=here.response is not None or not is_asked)
            if self.state.state is State.COMMITTING:
                if is_asked:
                    here.is_committed = self._answered_here(here.response)
                else:
                    self.state.happened(Event.NOT_ENDED)
            here.is_over = True

    def _may_commit_here(self) -> bool:
        state = self.state
        is_plain = state.state is State.IN_TRANSACTION and state.version >= 2 and state.producer is not None
        return is_plain and not (state.is_empty or state.is_lost or state.has_gap or self._batches.has_unfinished)

    def _answered_here(self, response: EndTxnResponse | None) -> bool:
        code = None if response is None else error_code(response.error_code)
        if response is not None and code is ErrorCode.NONE and response.producer_id >= 0:
            self._adopt(ProducerId(response.producer_id, response.producer_epoch))
            self.state.happened(Event.ENDED)
            return True
        if code is None or code is ErrorCode.NONE or verdict_of(ApiKey.END_TXN, code) is Verdict.MOVED:
            self.state.happened(Event.DOUBT)  # without the next epoch, too: the loop knows what to do then
        else:
            self._commit_attempts.is_doubtful = False
            self.state.happened(Event.NOT_ENDED)
        return False

    def _commit_rejected(self, rejected: Rejected) -> PenstockError:
        with self._lock:
            self.state.is_doubtful = self.state.is_doubtful or self._commit_attempts.is_doubtful
            self.state.failed(rejected.verdict, rejected.error)
            return self.state.rejection(Event.COMMIT.value)

    def _commit_not_done(self, error: BaseException) -> None:
        """The commit ended without a response: by a time-out, a cancellation, or before it was sent."""
        with self._lock:
            if self.state.state is not State.COMMITTING:
                return
            self.state.happened(Event.DOUBT if self._commit_attempts.is_doubtful else Event.NOT_ENDED)
        if self.state.is_doubtful and isinstance(error, Exception):
            raise TransactionOutcomeUnknown(
                f"the commit of transaction {self.id} was sent, and its outcome is not known: {error}"
            ) from error

    async def _flush(self, event: Event, timeout_ms: float) -> None:
        if not await self._batches.flush(timeout_ms / 1000):
            raise TimedOut(
                f"not all records of transaction {self.id} were acknowledged within {timeout_ms:.0f} ms",
                hint=f"They are still being sent: repeat {event.value}, or abort",
            )
        with self._lock:
            if self.state.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
                raise self.state.rejection(event.value)

    async def abort(self, timeout_s: float | None) -> None:
        """Drop what was not sent, wait for what is in flight, and abort."""
        deadline = _Deadline(self._limit_ms(timeout_s))
        with self._lock:
            self.state.call(Event.ABORT)
            self._batches.close_for_sending()
        attempts = Attempts()
        try:
            self._batches.drop_unsent(self._aborted(self.state.error))
            if self._adding is not None:
                await asyncio.wait((self._adding,), timeout=deadline.left_ms / 1000)
            if not await self._batches.flush(deadline.left_ms / 1000):
                raise TimedOut(f"transaction {self.id} was not aborted in time", hint="Repeat abort_transaction()")
            await self._end(commit=False, timeout_ms=deadline.left_ms, attempts=attempts)
        except (Rejected, UnsupportedVersion) as error:
            reason = error.error if isinstance(error, Rejected) else error
            with self._lock:
                self.state.happened(Event.FATAL, reason)
                raise self.state.rejection(Event.ABORT.value) from reason
        except BaseException as error:
            with self._lock:
                if self.state.state is State.ABORTING:
                    late = error if isinstance(error, PenstockError) else TimedOut("the abort was interrupted")
                    self.state.happened(Event.NOT_ENDED, late)
            raise

    async def _end(self, *, commit: bool, timeout_ms: float, attempts: Attempts) -> None:
        producer, deadline = self._producer(), _Deadline(timeout_ms)
        if self.state.is_empty:
            pass  # the coordinator has never heard of it, and would reject its end
        elif self.state.is_lost:
            producer = await self._new_epoch(producer, timeout_ms)
        else:
            try:
                ask = end_of(self.state.prepared(), commit=commit)
                response = await self._requests.send(ask, self.id, timeout_ms, attempts)
                if response.producer_id >= 0:
                    producer = ProducerId(response.producer_id, response.producer_epoch)
                elif self.state.has_gap:
                    producer = await self._new_epoch(producer, deadline.left_ms)
            except Rejected as rejected:
                if commit or rejected.verdict is not Verdict.LOST:
                    raise
                producer = await self._new_epoch(producer, deadline.left_ms)
        with self._lock:
            self._adopt(producer)
            self.state.happened(Event.ENDED)

    async def close(self, timeout_s: float | None) -> None:
        """Abort an open transaction; one that is prepared, or may be committed, stays as it is."""
        if self._adding is not None:
            self._adding.cancel()
        if self.state.is_open and (timeout_s is None or timeout_s > 0):
            try:
                await self.abort(timeout_s)
            except PenstockError as error:
                _log.warning("the transaction was not aborted: transactional_id=%s error=%s", self.id, error)


class _Deadline:
    __slots__ = ("_at",)

    def __init__(self, timeout_ms: float) -> None:
        self._at = asyncio.get_running_loop().time() + timeout_ms / 1000

    @property
    def left_ms(self) -> float:
        return max(0.0, (self._at - asyncio.get_running_loop().time()) * 1000)


# --------------------------------------------------------------------------------------------------- arguments


def _offsets_ask(
    transactional_id: str, producer: ProducerId, offsets: CheckedOffsets, group: GroupMetadata, version: int
) -> Ask:
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (topic, partition), stored in offsets.items():
        at = stored if isinstance(stored, OffsetAndMetadata) else OffsetAndMetadata(stored)
        named = topics.setdefault(topic, TxnOffsetCommitRequestTopic(name=topic, partitions=[]))
        named.partitions.append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=at.offset,
                committed_leader_epoch=at.leader_epoch,
                committed_metadata=at.metadata,
            )
        )

    def build(api_version: int) -> TxnOffsetCommitRequest:
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group.group_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            topics=list(topics.values()),
        )
        if api_version >= _GROUP_METADATA_SINCE:
            request.generation_id = group.generation_id
            request.member_id = group.member_id
            request.group_instance_id = group.group_instance_id
        return request

    lowest, highest = _OFFSETS_OF[version]
    return Ask(
        ApiKey.TXN_OFFSET_COMMIT,
        f"the offsets of group {group.group_id} in transaction {transactional_id}",
        build,
        lambda response: (each.error_code for topic in response.topics for each in topic.partitions),
        lowest=lowest,
        highest=highest,
        kind="group",
    )


def checked_offsets(offsets: Any) -> CheckedOffsets:
    """Offsets by partition, as the application passes them; raises ConfigError."""
    if not isinstance(offsets, Mapping):
        raise ConfigError(
            f"offsets is a {type(offsets).__name__}", hint="Give a mapping of (topic, partition) to the next offset"
        )
    checked: CheckedOffsets = {}
    for partition, stored in offsets.items():
        at = stored.offset if isinstance(stored, OffsetAndMetadata) else stored
        is_pair = isinstance(partition, tuple) and len(partition) == 2
        if not is_pair or not isinstance(at, int) or isinstance(at, bool) or at < 0:
            raise ConfigError(
                f"offsets has {partition!r}: {stored!r}", hint="Give (topic, partition): offset of the next record"
            )
        checked[partition] = stored
    return checked


def checked_group(group_metadata: Any) -> GroupMetadata:
    """The group metadata, of themselves, of a consumer, or of a group id alone; raises ConfigError."""
    if isinstance(group_metadata, GroupMetadata):
        return group_metadata
    if isinstance(group_metadata, str):
        if not group_metadata:
            raise ConfigError("the group id is empty")
        return GroupMetadata(group_metadata)
    ask = getattr(group_metadata, "group_metadata", None)
    if callable(ask):
        found = ask()
        if isinstance(found, GroupMetadata):
            return found
    raise ConfigError(
        f"group_metadata is {group_metadata!r}", hint="Pass the consumer, or what its group_metadata() returned"
    )


def check_consumer(consumer: Any, *, is_async: bool) -> None:
    """Raises ConfigError for a consumer that cannot take part in transactions of a producer."""
    if consumer is None:
        return
    name = "an AsyncConsumer" if is_async else "a Consumer"
    if not hasattr(consumer, "rewind") or inspect.iscoroutinefunction(consumer.rewind) is not is_async:
        raise ConfigError(f"consumer is {consumer!r}, not {name}")
    if not consumer.is_exactly_once:
        raise ConfigError(
            "the consumer has no group, commits by itself, or reads records of open and aborted transactions",
            hint="Create it with a group_id and exactly_once=True",
        )
