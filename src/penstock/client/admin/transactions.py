"""Admin calls about transactions: what coordinators and partitions know of them, and what ends those that hang.

A partition keeps a transaction open from its first record to the marker that its coordinator writes. A transaction
hangs if the coordinator is not going to write that marker: it does not know the producer, or has completed the
transaction without this partition. Committed readers then wait at the first record forever, and compaction with them.
`open_transactions` compares both sides. `abort_transaction` writes the missing marker itself, but not for
a transaction that its coordinator still completes, since aborting one of its partitions would break its atomicity.
`end_transaction` is the second phase of a commit in two phases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.client.admin.cluster import ClusterCalls
from penstock.client.admin.core import only, topic_partitions
from penstock.client.admin.results import (
    FencedProducer,
    OpenTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from penstock.client.cluster_metadata import Node, TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import (
    ConfigError,
    NoOpenTransaction,
    PenstockError,
    TransactionOngoing,
    UnknownTransactionalId,
    UnsupportedVersion,
    error_for,
)
from penstock.client.metadata_updater import ask_metadata
from penstock.client.transactions import PreparedTransaction, end_prepared
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.describe_producers import DescribeProducersRequest, TopicRequest
from penstock.wire.schemas.describe_transactions import DescribeTransactionsRequest
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest
from penstock.wire.schemas.list_transactions import ListTransactionsRequest
from penstock.wire.schemas.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

Producers = tuple[ProducerState, ...]

STATE_TOPIC: Final = "__transaction_state"
_DURATION_SINCE: Final = 1
_PATTERN_SINCE: Final = 2
_MOST_PARTITIONS: Final = 500  # of one request
_MOST_PRODUCERS: Final = 500
_MOST_AT_ONCE: Final = 50
# A coordinator takes the time-out of the transaction as that of its write, too; a producer's default is as long.
_FENCE_TIMEOUT_MS: Final = 60_000
_OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


class _Selection(NamedTuple):
    """Which producer of a partition is meant: by the start of its transaction, or by its id and epoch."""

    start_offset: int | None
    producer_id: int | None
    producer_epoch: int | None

    def matches(self, found: OpenTransaction) -> bool:
        if self.start_offset is not None:
            return found.start_offset == self.start_offset
        producer = found.producer
        return (producer.producer_id, producer.producer_epoch) == (self.producer_id, self.producer_epoch)

    def __str__(self) -> str:
        if self.start_offset is not None:
            return f"that starts at offset {self.start_offset}"
        return f"of producer {self.producer_id} with epoch {self.producer_epoch}"


class TransactionCalls(ClusterCalls):
    # ------------------------------------------------------------------------------------------ the second phase

    async def end_transaction(
        self, prepared: PreparedTransaction, commit: bool, *, timeout_ms: int | None = None
    ) -> None:
        """Commit or abort a transaction that `Producer.prepare_transaction` has prepared, from any process.

        The call may be repeated. While the id was not used again, the coordinator remembers how its last transaction
        ended: a repetition with the same `commit` succeeds and changes nothing, one with the other raises
        TransactionAborted (it cannot be committed: it was aborted, for example by its time-out) or TransactionError (it
        cannot be aborted: it was committed). Once another transaction was begun under the id, or the id has expired
        (after 7 days by default), it is not known how the old one ended: TransactionOutcomeUnknown. So use an id for
        one prepared transaction at a time, and end it before a new producer takes the id over: that aborts it.

        A transaction that is neither committed nor aborted within transaction_timeout_ms of its producer is aborted by
        the coordinator, unless the producer was created with transaction_two_phase_commit. Raises TimedOut if the
        outcome is not known in time: repeat the call.
        """
        if not isinstance(prepared, PreparedTransaction):
            raise ConfigError(
                f"prepared is {prepared!r}", hint="Pass what prepare_transaction() or from_json() returned"
            )
        limit_ms = timeout_ms if timeout_ms is not None else self.cluster.request_timeout_ms
        await self.cluster.start()
        await end_prepared(self.cluster, prepared, commit=commit, timeout_ms=limit_ms)

    # ------------------------------------------------------------------------------------------ coordinators

    async def list_transactions(
        self,
        states: Iterable[str] | None = None,
        producer_ids: Iterable[int] | None = None,
        duration_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> list[TransactionListing]:
        """All transactional ids of the cluster, sorted: those in one of these states ("Ongoing"...), of these
        producers, with a transaction that is open for longer than `duration_ms`, whose id matches a pattern.

        Raises UnsupportedVersion if a broker is too old for a filter.
        """
        wanted_states = None if states is None else sorted(set(states))
        wanted_ids = None if producer_ids is None else sorted(set(producer_ids))
        if wanted_states == [] or wanted_ids == []:
            return []
        if duration_ms is not None and duration_ms < 0:
            raise ConfigError(f"duration_ms is {duration_ms}", hint="Give a number of milliseconds, 0 or more")
        request = ListTransactionsRequest(
            state_filters=wanted_states or [],
            producer_id_filters=wanted_ids or [],
            duration_filter=-1 if duration_ms is None else duration_ms,
            transactional_id_pattern=transactional_id_pattern,
        )
        nodes = (await self.describe_cluster(timeout_ms=timeout_ms)).nodes
        found = await asyncio.gather(*(self._transactions_of(node, request, timeout_ms) for node in nodes))
        # While a coordinator moves, two brokers may list an id.
        listings = {item.transactional_id: item for part in found for item in part}
        if duration_ms is not None:
            # Kafka counts from the begin of the last transaction, also if that is complete.
            listings = {key: item for key, item in listings.items() if item.state in _OPEN_STATES}
        return [listings[transactional_id] for transactional_id in sorted(listings)]

    async def _transactions_of(
        self, node: Node, request: ListTransactionsRequest, timeout_ms: int | None
    ) -> list[TransactionListing]:
        async def ask(left_ms: int) -> list[TransactionListing]:
            connection = await self.cluster.to(node.id)
            version = connection.version_of(ApiKey.LIST_TRANSACTIONS)
            _check_filters(connection, request, version)
            answer = await connection.request(ApiKey.LIST_TRANSACTIONS, request, version=version, timeout_ms=left_ms)
            if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
                pattern = request.transactional_id_pattern
                raise ConfigError(f"{pattern!r} is not a regular expression", hint="Use the syntax of RE2")
            if answer.error_code:
                raise error_for(answer.error_code, where=str(node))
            if answer.unknown_state_filters:
                unknown = ", ".join(map(repr, answer.unknown_state_filters))
                raise ConfigError(
                    f"{unknown} is not a state of transactions", hint="Use Ongoing, PrepareCommit, CompleteAbort..."
                )
            return [
                TransactionListing(item.transactional_id, item.producer_id, item.transaction_state, node)
                for item in answer.transaction_states
            ]

        return await self._retried(f"listing the transactions of {node}", timeout_ms, ask)

    async def describe_transaction(
        self, transactional_id: str, *, timeout_ms: int | None = None
    ) -> TransactionDescription:
        """The state of a transactional id and its current transaction; raises UnknownTransactionalId."""
        return only(await self.describe_transactions([transactional_id], timeout_ms=timeout_ms))

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TransactionDescription | PenstockError]:
        """Several transactional ids; each has a description or an error."""

        async def ask(transactional_id: str, connection: Connection, left_ms: int) -> TransactionDescription:
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            answer = await connection.request(ApiKey.DESCRIBE_TRANSACTIONS, request, timeout_ms=left_ms)
            (found,) = answer.transaction_states
            if found.error_code:
                raise error_for(found.error_code, where=f"transactional id {transactional_id}")
            return TransactionDescription(
                transactional_id,
                found.transaction_state,
                found.producer_id,
                found.producer_epoch,
                found.transaction_timeout_ms,
                None if found.transaction_start_time_ms < 0 else found.transaction_start_time_ms,
                tuple(
                    sorted(TopicPartition(topic.topic, index) for topic in found.topics for index in topic.partitions)
                ),
                self._node_of(connection),
            )

        return await self._of_each_id("describing", transactional_ids, timeout_ms, ask)

    async def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, FencedProducer | PenstockError]:
        """Fence the producers of these transactional ids: an open transaction is aborted, and a producer that still
        uses the id gets ProducerFenced. An id that does not exist is created.
        """

        async def ask(transactional_id: str, connection: Connection, left_ms: int) -> FencedProducer:
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=min(left_ms, _FENCE_TIMEOUT_MS)
            )
            answer = await connection.request(ApiKey.INIT_PRODUCER_ID, request, timeout_ms=left_ms)
            if answer.error_code:
                raise error_for(answer.error_code, where=f"transactional id {transactional_id}")
            return FencedProducer(answer.producer_id, answer.producer_epoch)

        return await self._of_each_id("fencing", transactional_ids, timeout_ms, ask)

    async def _of_each_id(self, what: str, ids: Iterable[str], timeout_ms: int | None, ask: Any) -> dict[str, Any]:
        """A result or an error of the coordinator of each transactional id."""
        wanted = list(dict.fromkeys(ids))
        if "" in wanted:
            raise ConfigError("a transactional id is empty", hint="Give the transactional.id of a producer")
        turn = asyncio.Semaphore(_MOST_AT_ONCE)

        async def one(transactional_id: str) -> Any:
            async with turn:
                try:
                    return await self._of_coordinator(
                        "transaction",
                        transactional_id,
                        f"{what} transactional id {transactional_id}",
                        timeout_ms,
                        lambda connection, left_ms: ask(transactional_id, connection, left_ms),
                    )
                except PenstockError as error:
                    return error

        return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))

    # ------------------------------------------------------------------------------------------ partitions

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]], *, broker_id: int | None = None, timeout_ms: int | None = None
    ) -> dict[TopicPartition, Producers | PenstockError]:
        """The producers whose state partitions keep, as their leaders know them, or the replicas on one broker."""
        wanted = list(dict.fromkeys(topic_partitions(partitions)))
        if broker_id is None:
            return await self._by_leader("describing producers", wanted, timeout_ms, _producers)
        return await self._retried(
            f"describing producers on broker {broker_id}",
            timeout_ms,
            lambda left_ms: self._producers_of(broker_id, wanted, left_ms),
        )

    async def _producers_of(
        self, broker_id: int, wanted: list[TopicPartition], left_ms: int
    ) -> dict[TopicPartition, Producers | PenstockError]:
        return await _producers(await self.cluster.to(broker_id), wanted, left_ms)

    async def open_transactions(
        self,
        partitions: Iterable[tuple[str, int]],
        *,
        idle_ms: int = 0,
        broker_id: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, tuple[OpenTransaction, ...] | PenstockError]:
        """The open transactions of partitions, and which of them hang; with `idle_ms`, those whose last record is at
        least that old.

        A verdict "hanging" needs two looks at both sides, and a leader for all of __transaction_state. It needs the
        right to describe all transactional ids, too: brokers do not list the others.
        """
        first = await self._open_once(partitions, idle_ms, broker_id, timeout_ms)
        doubtful = [key for key, found in first.items() if _hanging(found)]
        if not doubtful:
            return first
        again = await self._open_once(doubtful, idle_ms, broker_id, timeout_ms)
        for key in doubtful:
            before, now = first[key], again[key]
            if isinstance(before, PenstockError) or isinstance(now, PenstockError):
                first[key] = now
                continue
            # What was completed between the question to the partition and that to the coordinator is no longer open.
            first[key] = tuple(item for item in now if not item.is_hanging or _is_among(item, before))
        return first

    async def _open_once(
        self, partitions: Iterable[tuple[str, int]], idle_ms: int, broker_id: int | None, timeout_ms: int | None
    ) -> dict[TopicPartition, tuple[OpenTransaction, ...] | PenstockError]:
        described = await self.describe_producers(partitions, broker_id=broker_id, timeout_ms=timeout_ms)
        before_ms = self.cluster.clock.now_ms() - idle_ms
        candidates = {
            key: [each for each in found if _is_open(each) and each.last_timestamp <= before_ms]
            for key, found in described.items()
            if not isinstance(found, PenstockError)
        }
        owners = await self._owners({each.producer_id for found in candidates.values() for each in found}, timeout_ms)
        answers: dict[TopicPartition, tuple[OpenTransaction, ...] | PenstockError] = {}
        for key, found in described.items():
            if isinstance(found, PenstockError):
                answers[key] = found
                continue
            known = [(each, owners.get(each.producer_id)) for each in candidates[key]]
            failure = next((owner for _, owner in known if isinstance(owner, PenstockError)), None)
            answers[key] = failure or tuple(
                _judged(key, each, owner) for each, owner in known if not isinstance(owner, PenstockError)
            )
        return answers

    async def _owners(
        self, producer_ids: set[int], timeout_ms: int | None
    ) -> dict[int, TransactionDescription | PenstockError]:
        """The transactional ids of producers, by producer id; those that no coordinator knows are left out."""
        if not producer_ids:
            return {}
        await self._check_coordinators(timeout_ms)
        wanted = sorted(producer_ids)
        listed: dict[str, int] = {}
        for start in range(0, len(wanted), _MOST_PRODUCERS):
            part = await self.list_transactions(
                producer_ids=wanted[start : start + _MOST_PRODUCERS], timeout_ms=timeout_ms
            )
            listed.update({item.transactional_id: item.producer_id for item in part})
        described = await self.describe_transactions(listed, timeout_ms=timeout_ms)
        return {
            listed[transactional_id]: found
            for transactional_id, found in described.items()
            # It may have expired, or continue with another producer id, since it was listed.
            if not isinstance(found, UnknownTransactionalId)
        }

    async def _check_coordinators(self, timeout_ms: int | None) -> None:
        """Raise unless every transactional id has a coordinator: what an absent one knows would seem to hang."""

        async def ask(left_ms: int) -> None:
            answer = await ask_metadata(await self.cluster.to_any(), [STATE_TOPIC], timeout_ms=left_ms)
            (topic,) = answer.topics
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return  # no transactional id has been used yet
            if topic.error_code:
                raise error_for(topic.error_code, where=f"topic {STATE_TOPIC}")
            absent = next((item.partition_index for item in topic.partitions if item.leader_id < 0), None)
            if absent is not None:
                raise error_for(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    where=f"{STATE_TOPIC}-{absent}",
                    detail="without a leader, so the state of its transactions is unknown",
                )

        await self._retried("looking for the coordinators of transactions", timeout_ms, ask)

    # ------------------------------------------------------------------------------------------ abort

    async def abort_transaction(
        self,
        topic: str,
        partition: int,
        *,
        start_offset: int | None = None,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        coordinator_epoch: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Abort a hanging transaction in one partition, named by its start offset, or by its producer's id and epoch.

        Raises NoOpenTransaction, and TransactionOngoing for one that its coordinator still completes. Brokers before
        Kafka 3.0 cannot be asked: they need producer id, producer epoch and coordinator epoch, and nothing is checked.
        """
        chosen = _selection(start_offset, producer_id, producer_epoch)
        key = TopicPartition(topic, partition)
        try:
            found = only(await self.open_transactions([key], timeout_ms=timeout_ms))
        except UnsupportedVersion:
            if producer_id is None or producer_epoch is None or coordinator_epoch is None:
                raise
            await self._write_abort(key, producer_id, producer_epoch, coordinator_epoch, timeout_ms)
            return
        meant = next((item for item in found if chosen.matches(item)), None)
        if meant is None:
            raise NoOpenTransaction(key, str(chosen))
        if not meant.is_hanging:
            raise TransactionOngoing(key, meant.transactional_id or "", meant.state or "")
        producer = meant.producer
        if coordinator_epoch is None:
            coordinator_epoch = producer.coordinator_epoch
        await self._write_abort(key, producer.producer_id, producer.producer_epoch, coordinator_epoch, timeout_ms)

    async def _write_abort(
        self,
        key: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int | None,
        timeout_ms: int | None,
    ) -> None:
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=key.topic, partition_indexes=[key.partition])],
            # Without a marker before this one, the epoch that any coordinator's is at least equal to.
            coordinator_epoch=max(0, coordinator_epoch or 0),
        )

        async def ask(
            connection: Connection, led: list[TopicPartition], left_ms: int
        ) -> dict[TopicPartition, PenstockError | None]:
            request = WriteTxnMarkersRequest(markers=[marker])
            answer = await connection.request(ApiKey.WRITE_TXN_MARKERS, request, timeout_ms=left_ms)
            return {
                TopicPartition(topic.name, item.partition_index): error_for(item.error_code, where=str(key))
                if item.error_code
                else None
                for result in answer.markers
                for topic in result.topics
                for item in topic.partitions
            }

        error = (await self._by_leader(f"aborting a transaction in {key}", [key], timeout_ms, ask))[key]
        if error is not None:
            raise error


# --------------------------------------------------------------------------------------------------- requests


def _check_filters(connection: Connection, request: ListTransactionsRequest, version: int) -> None:
    for given, since, name in (
        (request.duration_filter >= 0, _DURATION_SINCE, "duration"),
        (request.transactional_id_pattern is not None, _PATTERN_SINCE, "pattern"),
    ):
        if given and version < since:
            raise UnsupportedVersion(
                connection.node, f"ListTransactions by {name}", (since, _PATTERN_SINCE), (0, version)
            )


async def _producers(
    connection: Connection, wanted: Sequence[TopicPartition], left_ms: int
) -> dict[TopicPartition, Producers | PenstockError]:
    found: dict[TopicPartition, Producers | PenstockError] = {}
    for start in range(0, len(wanted), _MOST_PARTITIONS):
        topics: dict[str, TopicRequest] = {}
        for name, index in wanted[start : start + _MOST_PARTITIONS]:
            topics.setdefault(name, TopicRequest(name=name, partition_indexes=[])).partition_indexes.append(index)
        answer = await connection.request(
            ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest(topics=list(topics.values())), timeout_ms=left_ms
        )
        for topic in answer.topics:
            for item in topic.partitions:
                key = TopicPartition(topic.name, item.partition_index)
                found[key] = (
                    error_for(item.error_code, where=str(key), detail=item.error_message)
                    if item.error_code
                    else tuple(sorted(map(_producer, item.active_producers), key=lambda each: each.producer_id))
                )
    return found


def _producer(state: Any) -> ProducerState:
    return ProducerState(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        None if state.coordinator_epoch < 0 else state.coordinator_epoch,
        None if state.current_txn_start_offset < 0 else state.current_txn_start_offset,
    )


# --------------------------------------------------------------------------------------------------- verdicts


def _is_open(producer: ProducerState) -> bool:
    return producer.transaction_start_offset is not None


def _judged(key: TopicPartition, producer: ProducerState, owner: TransactionDescription | None) -> OpenTransaction:
    is_known = (
        owner is not None
        and owner.producer_id == producer.producer_id
        and owner.state in _OPEN_STATES
        and key in owner.partitions
    )
    return OpenTransaction(
        partition=key,
        producer=producer,
        start_offset=-1 if producer.transaction_start_offset is None else producer.transaction_start_offset,
        transactional_id=None if owner is None else owner.transactional_id,
        state=None if owner is None else owner.state,
        start_time_ms=owner.start_time_ms if owner is not None and is_known else None,
        is_hanging=not is_known,
    )


def _hanging(found: tuple[OpenTransaction, ...] | PenstockError) -> bool:
    return not isinstance(found, PenstockError) and any(item.is_hanging for item in found)


def _is_among(item: OpenTransaction, before: Iterable[OpenTransaction]) -> bool:
    """Whether the same transaction was found to hang before."""
    which = (item.producer.producer_id, item.start_offset)
    return any(each.is_hanging and (each.producer.producer_id, each.start_offset) == which for each in before)


def _selection(start_offset: int | None, producer_id: int | None, producer_epoch: int | None) -> _Selection:
    by_producer: Mapping[str, int | None] = {"producer_id": producer_id, "producer_epoch": producer_epoch}
    missing = [name for name, value in by_producer.items() if value is None]
    if start_offset is not None and len(missing) == len(by_producer):
        return _Selection(start_offset, None, None)
    if start_offset is None and not missing:
        return _Selection(None, producer_id, producer_epoch)
    problem = "no transaction is named" if start_offset is None else "a transaction is named twice"
    if start_offset is None and len(missing) < len(by_producer):
        problem = f"{missing[0]} is missing"
    raise ConfigError(problem, hint="Give start_offset, or producer_id and producer_epoch")
