"""The protocol's tables: API keys, the versions of each API, its header versions and codecs, and the error codes.

Version ranges are written as Kafka writes them: `3+`, `0-14`, `2`, `none`. All of Kafka's API keys are listed; those
with a schema are in `APIS`, and private APIs between our brokers start at 30000. What a broker serves is a subset,
chosen by the broker. `retriable` says whether Kafka's clients refresh metadata, wait and send the request again.

This module is cheap to import: a schema and the codec compiler are loaded when a codec is first requested.
"""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.wire.errors import SchemaError, UnknownApi, UnknownVersion

if TYPE_CHECKING:
    from penstock.wire.codec import Codec
    from penstock.wire.types import Message


ENDLESS: Final = 0x7FFF

# Topics in which brokers keep their own records.
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})


class VersionRange(NamedTuple):
    """Versions from `lowest` to `highest`, inclusive; empty if `highest` is below `lowest`."""

    lowest: int
    highest: int

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        try:
            if text == "none":
                return NO_VERSIONS
            if text.endswith("+"):
                return cls(int(text[:-1]), ENDLESS)
            first, dash, last = text.partition("-")
            return cls(int(first), int(last if dash else first))
        except ValueError as error:
            raise SchemaError(f"{text!r} is not a range of versions") from error

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest


NO_VERSIONS: Final = VersionRange(0, -1)
ALL_VERSIONS: Final = VersionRange(0, ENDLESS)


FIRST_PRIVATE_KEY: Final = 30000
"""APIs from here on are private to our brokers and not advertised."""


class ApiKey(IntEnum):
    """Kafka's API keys, and our private ones."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92

    PUSH_IMAGE = 30000
    AUTHENTICATE_BROKER = 30001
    FORWARD = 30002


class ErrorCode(IntEnum):
    """The values of `error_code` fields."""

    retriable: bool
    meaning: str

    def __new__(cls, code: int, retriable: bool, meaning: str) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.meaning = meaning
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed in a way that no other code describes."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The partition does not, or no longer, contain the requested offset."
    CORRUPT_MESSAGE = 2, True, "The checksum or length of a record batch does not match its bytes."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This broker does not have the partition; it may not exist yet."
    INVALID_FETCH_SIZE = 4, False, "The requested fetch size is invalid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "The broker is not the leader of the partition, or not a replica."
    REQUEST_TIMED_OUT = 7, True, "The request was not completed within its timeout."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "A replica that the request needs is not available at the moment."
    MESSAGE_TOO_LARGE = 10, False, "A record batch exceeds the size that the topic accepts."
    STALE_CONTROLLER_EPOCH = 11, False, "The sender is no longer the controller."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata of a committed offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection was lost before a response arrived."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "The coordinator is not available at the moment."
    NOT_COORDINATOR = 16, True, "Another broker coordinates this group or transaction."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is invalid, or the topic may not be used in this way."
    RECORD_LIST_TOO_LARGE = 18, False, "The batches of one request exceed the size of a segment."
    NOT_ENOUGH_REPLICAS = 19, True, "Too few replicas are in sync for acks=all; nothing was written."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "The records were written, but too few replicas are in sync."
    INVALID_REQUIRED_ACKS = 21, False, "The acks of a produce request must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The member's generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member has no protocol in common with the other members."
    INVALID_GROUP_ID = 24, False, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no such member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the broker's limits."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing; the member must rejoin."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The record of a committed offset exceeds the size limit."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "The principal is not authorized for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "The principal is not authorized for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "The principal is not authorized for the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is too far from the broker's time."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request is not valid in this state of the SASL handshake."
    UNSUPPORTED_VERSION = 35, False, "The broker does not serve this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic with this name already exists."
    INVALID_PARTITIONS = 37, False, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is below one, or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is invalid."
    INVALID_CONFIG = 40, False, "A setting has an unknown name or an invalid value."
    NOT_CONTROLLER = 41, True, "The broker is not the controller."
    INVALID_REQUEST = 42, False, "The request is malformed or contradicts itself."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The topic's message format does not support the request."
    POLICY_VIOLATION = 44, False, "The request violates a policy of the cluster."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The producer sent a sequence number out of order."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer already sent this sequence number."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is older than the latest known one."
    INVALID_TXN_STATE = 48, False, "The transaction is in a state that does not allow the request."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout exceeds the broker's limit."
    CONCURRENT_TRANSACTIONS = 51, True, "An earlier transaction of the producer is still being completed."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The sender is no longer the coordinator of the transaction."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "The principal is not authorized for the transactional id."
    SECURITY_DISABLED = 54, False, "The broker has no authorizer."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not attempted, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The disk of the partition failed."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "The credentials are wrong."
    UNKNOWN_PRODUCER_ID = 59, False, "The partition does not, or no longer, know the producer."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is already being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are disabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "The delegation token does not exist."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The delegation token has another owner."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "Delegation token requests are not allowed on this connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "The principal is not authorized for the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The principal type is not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "The group does not exist."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The broker no longer has the fetch session; a full fetch starts a new one."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session is at another epoch; a full fetch starts a new one."
    LISTENER_NOT_FOUND = 72, True, "The leader has no endpoint for the listener of the request."
    TOPIC_DELETION_DISABLED = 73, False, "Topic deletion is disabled."
    FENCED_LEADER_EPOCH = 74, True, "The request's leader epoch is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The request's leader epoch is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The request version does not support the compression type."
    STALE_BROKER_EPOCH = 77, False, "The broker has registered again since the request was sent."
    OFFSET_NOT_AVAILABLE = 78, True, "The new leader does not know the high watermark yet."
    MEMBER_ID_REQUIRED = 79, False, "The member must join again with the id that it was given."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available at the moment."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has reached its maximum size."
    FENCED_INSTANCE_ID = 82, False, "Another member uses the instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No eligible leader of the partition is alive."
    ELECTION_NOT_NEEDED = 84, True, "The partition already has the right leader."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to the topic, so its offsets are kept."
    INVALID_RECORD = 87, False, "A record is invalid for its topic; the whole batch was rejected."
    UNSTABLE_OFFSET_COMMIT = 88, True, "Offsets of an open transaction are not decided yet."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "A quota is exceeded."
    PRODUCER_FENCED = 90, False, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The resource does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names the same resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, False, "The sender's voter set differs from the quorum's."
    INVALID_UPDATE_VERSION = 95, False, "A feature cannot be changed to this version."
    FEATURE_UPDATE_FAILED = 96, False, "The update of feature versions failed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The principal of a forwarded request cannot be deserialized."
    SNAPSHOT_NOT_FOUND = 98, False, "The snapshot does not exist."
    POSITION_OUT_OF_RANGE = 99, False, "The position is outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This broker does not know the topic id; it may not exist yet."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "Another live broker has this id."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker with this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The log on disk belongs to another topic of the same name."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request is for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "The transactional id does not exist."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "A fetch session switched between topic names and topic ids."
    INELIGIBLE_REPLICA = 107, False, "A proposed in-sync replica is not eligible."
    NEW_LEADER_ELECTED = 108, False, "The partition has a new leader after the change."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The requested offset is only in tiered storage."
    FENCED_MEMBER_EPOCH = 110, False, "The member's epoch is fenced; the member must rejoin."
    UNRELEASED_INSTANCE_ID = 111, False, "The instance id is still held by another member."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support the member's assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is stale; its next heartbeat returns the current one."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request was sent to a broker instead of a controller, or the reverse."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "The endpoint type is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "The controller id is unknown."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is no longer valid."
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry exceeds the broker's limit."
    INVALID_REGISTRATION = 119, False, "The controller rejected the broker's registration."
    TRANSACTION_ABORTABLE = 120, False, "The transaction must be aborted; the producer can continue after that."
    INVALID_RECORD_STATE = 121, False, "The record's state does not allow the acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker no longer has the share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session is at another epoch."
    FENCED_STATE_EPOCH = 124, False, "The share group's state has a newer epoch."
    INVALID_VOTER_KEY = 125, False, "The voter's key does not match the receiver's."
    DUPLICATE_VOTER = 126, False, "The voter is already in the quorum."
    VOTER_NOT_FOUND = 127, False, "The voter is not in the quorum."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is invalid."
    REBOOTSTRAP_REQUIRED = 129, False, "The client's metadata is unusable; it must rebootstrap."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The topology of the streams group is invalid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The topology epoch of the streams group is invalid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The topology epoch of the streams group is fenced."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker has reached its limit of share sessions."


_BY_CODE: Final = {int(code): code for code in ErrorCode}


def error_code(code: int) -> ErrorCode:
    """The member for a number from the wire; unknown numbers are UNKNOWN_SERVER_ERROR."""
    return _BY_CODE.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


class Api(NamedTuple):
    """An API, its known versions, and its flexible versions (compact lengths, tagged fields)."""

    key: ApiKey
    versions: VersionRange
    flexible: VersionRange

    @property
    def name(self) -> str:
        """The name as Kafka spells it in messages: DescribeConfigs."""
        return "".join(word.capitalize() for word in self.key.name.split("_"))

    def request_header_version(self, version: int) -> int:
        if version in self.flexible:
            return 2
        # ControlledShutdown 0 is older than the client id in headers.
        return 0 if self.key is ApiKey.CONTROLLED_SHUTDOWN and version == 0 else 1

    def response_header_version(self, version: int) -> int:
        # A client learns the versions from this response, so it must be readable without them.
        return 1 if version in self.flexible and self.key is not ApiKey.API_VERSIONS else 0

    def check(self, version: int, correlation_id: int | None = None) -> None:
        """Raises UnknownVersion unless there is a schema for the version."""
        lowest, highest = self.versions
        if not lowest <= version <= highest:
            raise UnknownVersion(self.name, version, lowest, highest, api_key=self.key, correlation_id=correlation_id)

    @property
    def request(self) -> type[Message]:
        return self._message("Request")

    @property
    def response(self) -> type[Message]:
        return self._message("Response")

    def _message(self, side: str) -> type[Message]:
        module = import_module(f"penstock.wire.schemas.{self.key.name.lower()}")
        message: type[Message] = getattr(module, self.name + side)
        return message


def _api(key: ApiKey, versions: str, flexible: str) -> Api:
    return Api(key, VersionRange.parse(versions), VersionRange.parse(flexible))


_ROWS: Final = (
    _api(ApiKey.PRODUCE, "0-13", "9+"),
    _api(ApiKey.FETCH, "0-18", "12+"),
    _api(ApiKey.LIST_OFFSETS, "0-11", "6+"),
    _api(ApiKey.METADATA, "0-13", "9+"),
    _api(ApiKey.LEADER_AND_ISR, "0-7", "4+"),
    _api(ApiKey.STOP_REPLICA, "0-4", "2+"),
    _api(ApiKey.UPDATE_METADATA, "0-8", "6+"),
    _api(ApiKey.CONTROLLED_SHUTDOWN, "0-3", "3+"),
    _api(ApiKey.OFFSET_COMMIT, "0-10", "8+"),
    _api(ApiKey.OFFSET_FETCH, "0-10", "6+"),
    _api(ApiKey.FIND_COORDINATOR, "0-6", "3+"),
    _api(ApiKey.JOIN_GROUP, "0-9", "6+"),
    _api(ApiKey.HEARTBEAT, "0-4", "4+"),
    _api(ApiKey.LEAVE_GROUP, "0-5", "4+"),
    _api(ApiKey.SYNC_GROUP, "0-5", "4+"),
    _api(ApiKey.DESCRIBE_GROUPS, "0-6", "5+"),
    _api(ApiKey.LIST_GROUPS, "0-5", "3+"),
    _api(ApiKey.SASL_HANDSHAKE, "0-1", "none"),
    _api(ApiKey.API_VERSIONS, "0-4", "3+"),
    _api(ApiKey.CREATE_TOPICS, "0-7", "5+"),
    _api(ApiKey.DELETE_TOPICS, "0-6", "4+"),
    _api(ApiKey.DELETE_RECORDS, "0-2", "2+"),
    _api(ApiKey.INIT_PRODUCER_ID, "0-6", "2+"),
    _api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "0-4", "4+"),
    _api(ApiKey.ADD_PARTITIONS_TO_TXN, "0-5", "3+"),
    _api(ApiKey.ADD_OFFSETS_TO_TXN, "0-4", "3+"),
    _api(ApiKey.END_TXN, "0-5", "3+"),
    _api(ApiKey.WRITE_TXN_MARKERS, "0-2", "1+"),
    _api(ApiKey.TXN_OFFSET_COMMIT, "0-5", "3+"),
    _api(ApiKey.DESCRIBE_ACLS, "0-3", "2+"),
    _api(ApiKey.CREATE_ACLS, "0-3", "2+"),
    _api(ApiKey.DELETE_ACLS, "0-3", "2+"),
    _api(ApiKey.DESCRIBE_CONFIGS, "0-4", "4+"),
    _api(ApiKey.ALTER_CONFIGS, "0-2", "2+"),
    _api(ApiKey.ALTER_REPLICA_LOG_DIRS, "0-2", "2+"),
    _api(ApiKey.DESCRIBE_LOG_DIRS, "0-5", "2+"),
    _api(ApiKey.SASL_AUTHENTICATE, "0-2", "2+"),
    _api(ApiKey.CREATE_PARTITIONS, "0-3", "2+"),
    _api(ApiKey.DELETE_GROUPS, "0-2", "2+"),
    _api(ApiKey.ELECT_LEADERS, "0-2", "2+"),
    _api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "0-1", "1+"),
    _api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "0-1", "0+"),
    _api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "0", "0+"),
    _api(ApiKey.OFFSET_DELETE, "0", "none"),
    _api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "0-1", "1+"),
    _api(ApiKey.ALTER_CLIENT_QUOTAS, "0-1", "1+"),
    _api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "0", "0+"),
    _api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "0", "0+"),
    _api(ApiKey.ALTER_PARTITION, "0-3", "0+"),
    _api(ApiKey.DESCRIBE_CLUSTER, "0-2", "0+"),
    _api(ApiKey.DESCRIBE_PRODUCERS, "0", "0+"),
    _api(ApiKey.DESCRIBE_TRANSACTIONS, "0", "0+"),
    _api(ApiKey.LIST_TRANSACTIONS, "0-2", "0+"),
    _api(ApiKey.ALLOCATE_PRODUCER_IDS, "0", "0+"),
    _api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "0-1", "0+"),
    _api(ApiKey.CONSUMER_GROUP_DESCRIBE, "0-1", "0+"),
    _api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "0", "0+"),
    _api(ApiKey.PUSH_IMAGE, "0", "0+"),
    _api(ApiKey.AUTHENTICATE_BROKER, "0", "0+"),
    _api(ApiKey.FORWARD, "0", "0+"),
)

APIS: Final[dict[int, Api]] = {int(api.key): api for api in _ROWS}

_request_codecs: Final[dict[tuple[int, int], Codec[Any]]] = {}
_response_codecs: Final[dict[tuple[int, int], Codec[Any]]] = {}


def find_api(api_key: int) -> Api:
    """The API with this key. Raises UnknownApi if it has no schema."""
    api = APIS.get(api_key)
    if api is None:
        raise UnknownApi(api_key)
    return api


def request_codec(api_key: int, version: int) -> Codec[Any]:
    """The codec of an API's request; raises UnknownApi or UnknownVersion."""
    codec = _request_codecs.get((api_key, version))
    if codec is None:
        codec = _request_codecs[api_key, version] = _compiled(find_api(api_key), version, "Request")
    return codec


def response_codec(api_key: int, version: int) -> Codec[Any]:
    """The codec of an API's response; raises UnknownApi or UnknownVersion."""
    codec = _response_codecs.get((api_key, version))
    if codec is None:
        codec = _response_codecs[api_key, version] = _compiled(find_api(api_key), version, "Response")
    return codec


def _compiled(api: Api, version: int, side: str) -> Codec[Any]:
    from penstock.wire.codec import codec_for

    api.check(version)
    return codec_for(api.request if side == "Request" else api.response, version)
