"""Requests to the coordinators of transactions: what their errors mean, and how they are retried.

`VERDICTS` has the meaning of every error of every request, as Java's client 4.3 and KIP-1050 have it. A request is
repeated while that may help, within its time-out; coordinators that moved are looked up again. What remains is raised
as `Rejected`, with the verdict.

`PreparedTransaction` names a transaction whose records are all in the log: any process can end it, with
`Admin.end_transaction`. Version 2 (KIP-890) starts a new epoch with every transaction, so a late request of an old one
cannot touch a new one; version 1 is for clusters whose `transaction.version` is below 2.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from penstock.client.cluster_client import ClusterClient, Kind
from penstock.client.connection import Connection
from penstock.client.errors import (
    ConfigError,
    NotConnected,
    PenstockError,
    TimedOut,
    TransactionAborted,
    TransactionError,
    TransactionOutcomeUnknown,
    UnsupportedVersion,
    error_for,
)
from penstock.wire.protocol import ApiKey, ErrorCode, error_code
from penstock.wire.schemas.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from penstock.wire.schemas.describe_transactions import DescribeTransactionsRequest
from penstock.wire.schemas.end_txn import EndTxnRequest
from penstock.wire.types import Message

FEATURE: Final = "transaction.version"
CONCURRENT_BACKOFF_MS: Final = 20.0
"""The wait for the end of the transaction before, which takes a moment longer than its commit."""

_ADD_PARTITIONS_VERSION: Final = 3
_END_TXN_OF: Final = {1: 4, 2: 5}  # the highest version of EndTxn for a transaction of version 1 or 2
_NEEDED_FOR_2: Final = ((ApiKey.PRODUCE, 12), (ApiKey.TXN_OFFSET_COMMIT, 5), (ApiKey.END_TXN, 5))
_DESCRIBED: Final = {
    "CompleteCommit": True, "PrepareCommit": True,
    "CompleteAbort": False, "PrepareAbort": False, "PrepareEpochFence": False,
}  # fmt: skip
_MOST_BUMPS_BY_ABORT: Final = {1: 1, 2: 2}  # by the abort itself, and by a time-out before it


class GroupMetadata(NamedTuple):
    """The member that commits offsets in a transaction (KIP-447): see `Consumer.group_metadata`."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction whose records are all in the log, and which is neither committed nor aborted yet.

    It can be pickled and written as JSON; `Admin.end_transaction` ends it, from any process. `is_empty`: nothing was
    sent, so there is nothing to end.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    version: int = 2
    is_empty: bool = False

    def __post_init__(self) -> None:
        kinds = {"transactional_id": str, "producer_id": int, "epoch": int, "version": int, "is_empty": bool}
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) is not kinds[each.name]:
                raise ConfigError(
                    f"{each.name} of a prepared transaction is {value!r}, not of type {kinds[each.name].__name__}"
                )
        if not self.transactional_id or self.version not in _END_TXN_OF:
            raise ConfigError(f"{self!r} is not a prepared transaction", hint="Use what prepare_transaction() returned")

    def to_json(self) -> str:
        """The transaction as a JSON object, which `from_json` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> PreparedTransaction:
        """Raises ConfigError for anything but the text of `to_json`."""
        try:
            return PreparedTransaction(**json.loads(text))
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            shown = text[:100]
            raise ConfigError(f"{shown!r} is not a prepared transaction", hint="Use the text of to_json()") from error


def transaction_version(connection: Connection) -> int:
    """The version of transactions to use in the cluster of a connection: 2 if it is finalized there, else 1."""
    is_finalized = connection.finalized_features.get(FEATURE, 0) >= 2
    return 2 if is_finalized and all(connection.supports(*each) for each in _NEEDED_FOR_2) else 1


# --------------------------------------------------------------------------------------------------- errors


class Verdict(Enum):
    """What an error of a request means for the transaction and its producer."""

    RETRY = auto()
    MOVED = auto()
    """Look the coordinator up again, and retry."""
    ABORT = auto()
    LOST = auto()
    """The coordinator has forgotten the producer id: abort without EndTxn, and get a new epoch by InitProducerId."""
    FENCED = auto()
    STOP = auto()


_ANY_REQUEST: Final[Mapping[ErrorCode, Verdict]] = {
    ErrorCode.NOT_COORDINATOR: Verdict.MOVED,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Verdict.MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Verdict.RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: Verdict.RETRY,
    ErrorCode.TRANSACTION_ABORTABLE: Verdict.ABORT,
    ErrorCode.UNKNOWN_PRODUCER_ID: Verdict.LOST,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict.LOST,
    ErrorCode.INVALID_PRODUCER_EPOCH: Verdict.FENCED,
    ErrorCode.PRODUCER_FENCED: Verdict.FENCED,
    ErrorCode.INVALID_TXN_STATE: Verdict.STOP,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.STOP,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Verdict.STOP,
}

VERDICTS: Final[Mapping[ApiKey, Mapping[ErrorCode, Verdict]]] = {
    ApiKey.FIND_COORDINATOR: {**_ANY_REQUEST, ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT},
    ApiKey.INIT_PRODUCER_ID: _ANY_REQUEST,
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        **_ANY_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORT,
        ErrorCode.OPERATION_NOT_ATTEMPTED: Verdict.ABORT,
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {**_ANY_REQUEST, ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT},
    ApiKey.TXN_OFFSET_COMMIT: {
        **_ANY_REQUEST,
        ErrorCode.REQUEST_TIMED_OUT: Verdict.MOVED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORT,
        ErrorCode.FENCED_INSTANCE_ID: Verdict.ABORT,
        ErrorCode.UNKNOWN_MEMBER_ID: Verdict.ABORT,
        ErrorCode.ILLEGAL_GENERATION: Verdict.ABORT,
        ErrorCode.STALE_MEMBER_EPOCH: Verdict.ABORT,
        ErrorCode.REBALANCE_IN_PROGRESS: Verdict.ABORT,
        ErrorCode.OFFSET_METADATA_TOO_LARGE: Verdict.ABORT,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: Verdict.ABORT,
    },
    ApiKey.END_TXN: _ANY_REQUEST,
    ApiKey.DESCRIBE_TRANSACTIONS: _ANY_REQUEST,
    # Of a batch that failed permanently; the sender has retried what may be retried. Here an old epoch need not mean a
    # newer producer: the leader may only have seen the marker of a time-out. The end of the transaction tells.
    ApiKey.PRODUCE: {
        ErrorCode.INVALID_PRODUCER_EPOCH: Verdict.ABORT,
        ErrorCode.INVALID_TXN_STATE: Verdict.ABORT,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: Verdict.LOST,
        ErrorCode.PRODUCER_FENCED: Verdict.FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.STOP,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Verdict.STOP,
    },
}


def verdict_of(api_key: ApiKey, code: ErrorCode) -> Verdict:
    """An error that the table does not name passes by itself, or is unexpected: then the producer stops."""
    known = VERDICTS[api_key].get(code)
    if known is not None:
        return known
    if api_key is ApiKey.PRODUCE:
        return Verdict.ABORT
    return Verdict.RETRY if code.retriable else Verdict.STOP


class Rejected(PenstockError):
    """A coordinator rejected a request, and a retry would not help."""

    def __init__(self, error: PenstockError, verdict: Verdict) -> None:
        super().__init__(error.message, code=error.code, hint=error.hint)
        self.error = error
        self.verdict = verdict


# --------------------------------------------------------------------------------------------------- requests


class Ask(NamedTuple):
    """A request to a coordinator: how to write it for a version, and which codes its response has."""

    api_key: ApiKey
    what: str
    build: Callable[[int], Message]
    codes: Callable[[Any], Iterable[int]] = lambda response: (response.error_code,)
    lowest: int = 0
    highest: int = 0x7FFF
    kind: Kind = "transaction"

    @property
    def is_about_transaction(self) -> bool:
        return self.kind == "transaction"


class Attempts:
    """What is known about a request, over all its attempts.

    It is doubtful when an attempt was sent and never answered, or answered by a coordinator that lost its role: then it
    may have been carried out, whatever a later attempt says.
    """

    __slots__ = ("failure", "is_doubtful")

    def __init__(self) -> None:
        self.failure: PenstockError | None = None
        self.is_doubtful = False

    def moved(self) -> None:
        """A coordinator that loses its role answers so, too, whether its last record will last or not."""
        self.is_doubtful = True


class CoordinatorRequests:
    """Sends requests to coordinators, and repeats them while that may help. Used on the cluster client's loop."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self.version = 1
        """The version of transactions, as of the last connection to a coordinator of transactions."""
        self.coordinator: tuple[int, Connection] | None = None
        """The coordinator of transactions that was asked last, and the connection to it; None if it did not answer, or
        is not the coordinator any more."""

    async def send(self, ask: Ask, key: str, timeout_ms: float, attempts: Attempts | None = None) -> Any:
        """The response; raises Rejected, TimedOut, or an error that no retry can solve."""
        attempts = attempts or Attempts()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._until_done(ask, key, attempts)
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            why = f"; the last failure was: {attempts.failure}" if attempts.failure is not None else ""
            raise TimedOut(
                f"{ask.what} did not finish within {timeout_ms:.0f} ms{why}", hint="Check that the brokers are up"
            ) from attempts.failure

    async def _until_done(self, ask: Ask, key: str, attempts: Attempts) -> Any:
        cluster = self._cluster
        backoff = cluster.new_backoff()
        while True:
            wait_ms: float | None = None
            try:
                connection = await cluster.to_coordinator(ask.kind, key)
                response = await self._once(ask, connection, attempts)
                code = _worst(ask, response)
                if code is ErrorCode.NONE:
                    return response
                attempts.failure = error_for(code, where=ask.what)
                verdict = verdict_of(ask.api_key, code)
                if verdict is Verdict.MOVED:
                    attempts.moved()
                    self._forget(ask, key)
                elif verdict is not Verdict.RETRY:
                    raise Rejected(attempts.failure, verdict)
                elif code is ErrorCode.CONCURRENT_TRANSACTIONS:
                    wait_ms = CONCURRENT_BACKOFF_MS
            except (NotConnected, TimedOut) as error:
                attempts.failure = error
                self._forget(ask, key)
            except PenstockError as error:
                if isinstance(error, Rejected) or not error.retriable:
                    raise
                attempts.failure = error  # of the look-up of the coordinator
            if wait_ms is None:
                wait_ms = backoff.failed(cluster.clock.monotonic_ms())
            await asyncio.sleep(wait_ms / 1000)

    def _forget(self, ask: Ask, key: str) -> None:
        self._cluster.forget_coordinator(ask.kind, key)
        if ask.is_about_transaction:
            self.coordinator = None

    async def _once(self, ask: Ask, connection: Connection, attempts: Attempts) -> Any:
        if ask.is_about_transaction:
            self.version = transaction_version(connection)
            if self.coordinator is None or self.coordinator[1] is not connection:
                self.coordinator = self._cluster.node_of(connection), connection
        version = connection.version_of(ask.api_key, at_most=ask.highest)
        if version < ask.lowest:
            theirs = connection.versions.get(ask.api_key)
            raise UnsupportedVersion(connection.node, ask.what, (ask.lowest, ask.highest), theirs)
        answer = connection.send(
            ask.api_key, ask.build(version), version=version, timeout_ms=self._cluster.request_timeout_ms
        )
        was_doubtful, attempts.is_doubtful = attempts.is_doubtful, True
        response = await answer if answer is not None else None
        attempts.is_doubtful = was_doubtful
        return response


_SEVERITY: Final = (Verdict.FENCED, Verdict.STOP, Verdict.LOST, Verdict.ABORT, Verdict.MOVED, Verdict.RETRY)


def _worst(ask: Ask, response: Any) -> ErrorCode:
    """Of a response about several partitions, the code with the gravest verdict."""
    found = [error_code(code) for code in ask.codes(response) if code]
    if not found:
        return ErrorCode.NONE
    # Where one partition was rejected, others are only not attempted: the reason is the former.
    return min(
        found,
        key=lambda code: (
            _SEVERITY.index(verdict_of(ask.api_key, code)),
            code is ErrorCode.OPERATION_NOT_ATTEMPTED,
        ),
    )


# --------------------------------------------------------------------------------------------------- requests


def adding_partitions(
    transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[tuple[str, int]]
) -> Ask:
    """AddPartitionsToTxn, in the form that a client sends: later versions are for brokers."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return Ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        f"adding {sum(map(len, topics.values()))} partitions to transaction {transactional_id}",
        lambda version: AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()
            ],
        ),
        lambda response: (
            each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ),
        highest=_ADD_PARTITIONS_VERSION,
    )


def end_of(prepared: PreparedTransaction, *, commit: bool) -> Ask:
    """EndTxn. Repeating it is safe: a coordinator that has carried it out says so again."""
    return Ask(
        ApiKey.END_TXN,
        f"the {'commit' if commit else 'abort'} of transaction {prepared.transactional_id}",
        lambda version: EndTxnRequest(
            transactional_id=prepared.transactional_id,
            producer_id=prepared.producer_id,
            producer_epoch=prepared.epoch,
            committed=commit,
        ),
        lowest=5 if prepared.version == 2 else 0,
        highest=_END_TXN_OF[prepared.version],
    )


async def end_prepared(
    cluster: ClusterClient, prepared: PreparedTransaction, *, commit: bool, timeout_ms: float
) -> None:
    """See `Admin.end_transaction`."""
    if prepared.is_empty:
        return
    requests = CoordinatorRequests(cluster)
    try:
        await requests.send(end_of(prepared, commit=commit), prepared.transactional_id, timeout_ms)
    except Rejected as rejected:
        if rejected.verdict is Verdict.STOP and rejected.code is not ErrorCode.INVALID_TXN_STATE:
            raise rejected.error from None
        was_committed = await _how_it_ended(requests, prepared, timeout_ms)
        if was_committed is commit:
            return
        raise _ended_otherwise(prepared, was_committed, rejected.error) from rejected.error


async def _how_it_ended(requests: CoordinatorRequests, prepared: PreparedTransaction, timeout_ms: float) -> bool | None:
    """Whether a transaction that is no longer open was committed; None if the coordinator cannot tell any more."""
    ask = Ask(
        ApiKey.DESCRIBE_TRANSACTIONS,
        f"the description of transaction {prepared.transactional_id}",
        lambda version: DescribeTransactionsRequest(transactional_ids=[prepared.transactional_id]),
        lambda response: (each.error_code for each in response.transaction_states),
    )
    try:
        found = (await requests.send(ask, prepared.transactional_id, timeout_ms)).transaction_states[0]
    except (Rejected, UnsupportedVersion):
        return None
    bumps = found.producer_epoch - prepared.epoch
    was_committed = _DESCRIBED.get(found.transaction_state)
    if found.producer_id != prepared.producer_id or was_committed is None:
        return None
    if was_committed:
        return True if bumps == prepared.version - 1 else None
    return False if 0 <= bumps <= _MOST_BUMPS_BY_ABORT[prepared.version] else None


def _ended_otherwise(
    prepared: PreparedTransaction, was_committed: bool | None, reason: PenstockError
) -> TransactionError:
    name = f"transaction {prepared.transactional_id} (producer {prepared.producer_id}, epoch {prepared.epoch})"
    if was_committed is None:
        return TransactionOutcomeUnknown(
            f"{name} is no longer open, and its coordinator cannot tell how it ended: {reason.message}",
            retriable=False,
            hint="A newer producer has used the id since, or it has expired. Look for the records themselves",
        )
    if was_committed:
        return TransactionError(f"{name} cannot be aborted: it was committed", hint="Its records are visible")
    return TransactionAborted(
        f"{name} cannot be committed: it was aborted, by its time-out or by a newer producer with the same id",
        hint="Its records are lost: send them again. A longer transaction_timeout_ms, or two-phase commit where the "
        "brokers have it, gives more time between the two phases",
    )
