"""The error codes of the protocol: one number, whether trying again can help, and what it means.

Retriable says what Kafka's clients do with a code: refresh what they know of the cluster, wait, and send
the same request again.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """A code as it travels in `error_code` fields; -1 and 0 aside, always positive."""

    retriable: bool
    meaning: str

    def __new__(cls, code: int, retriable: bool, meaning: str) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.meaning = meaning
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "Something went wrong in the broker that no other code describes."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = (
        1,
        False,
        "The partition holds no record at the offset asked for, neither yet nor any more.",
    )
    CORRUPT_MESSAGE = 2, True, "A checksum or length does not fit the bytes of a record batch."
    UNKNOWN_TOPIC_OR_PARTITION = (
        3,
        True,
        "This broker does not have the partition; it may not exist, or not yet.",
    )
    INVALID_FETCH_SIZE = 4, False, "A fetch asks for a size that makes no sense."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = (
        6,
        True,
        "The broker asked does not lead the partition, or holds no replica of it.",
    )
    REQUEST_TIMED_OUT = 7, True, "The time that the request allowed ran out before it was done."
    BROKER_NOT_AVAILABLE = 8, False, "The broker meant is not there."
    REPLICA_NOT_AVAILABLE = 9, True, "A replica that the request needs cannot be reached at the moment."
    MESSAGE_TOO_LARGE = 10, False, "A record batch exceeds the size that the topic accepts."
    STALE_CONTROLLER_EPOCH = 11, False, "The sender was the controller once, and has been replaced."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The note that comes with a committed offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection broke before an answer arrived."
    COORDINATOR_LOAD_IN_PROGRESS = (
        14,
        True,
        "The coordinator has just taken over and is still reading its state.",
    )
    COORDINATOR_NOT_AVAILABLE = 15, True, "There is no coordinator at the moment."
    NOT_COORDINATOR = 16, True, "Another broker coordinates this group or transaction."
    INVALID_TOPIC_EXCEPTION = (
        17,
        False,
        "The topic's name is not allowed, or the topic may not be used in this way.",
    )
    RECORD_LIST_TOO_LARGE = 18, False, "The batches of one request exceed the size of a segment."
    NOT_ENOUGH_REPLICAS = (
        19,
        True,
        "Too few replicas are in sync for a write that asks for all of them; nothing was written.",
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "The records were written, and then too few replicas were in sync.",
    )
    INVALID_REQUIRED_ACKS = 21, False, "The acks of a produce request are none of -1, 0 and 1."
    ILLEGAL_GENERATION = 22, False, "The member speaks of a generation that the group has left behind."
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        False,
        "The member offers no protocol that the others of the group support.",
    )
    INVALID_GROUP_ID = 24, False, "The group's name is not allowed."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no such member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout lies outside the limits that the broker sets."
    REBALANCE_IN_PROGRESS = 27, False, "The group is forming anew, and the member has to join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The record of a committed offset would exceed the size limit."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "The principal may not do this to the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "The principal may not do this to the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "The principal may not do this to the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is too far from the broker's time."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not belong at this point of authentication."
    UNSUPPORTED_VERSION = 35, False, "The broker does not serve this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "There is a topic of this name already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not possible."
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "The replication factor is below one, or above the number of brokers.",
    )
    INVALID_REPLICA_ASSIGNMENT = (
        39,
        False,
        "The assignment of replicas to brokers contradicts itself or the cluster.",
    )
    INVALID_CONFIG = 40, False, "A setting has an unknown name or an impossible value."
    NOT_CONTROLLER = 41, True, "Only the controller can do this, and another broker is it."
    INVALID_REQUEST = 42, False, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The record format of the topic is too old for this."
    POLICY_VIOLATION = 44, False, "The request breaks a policy that the operator has set."
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45,
        False,
        "A batch skips sequence numbers that its producer has not sent yet.",
    )
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer sent this sequence number before."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is older than the latest one known."
    INVALID_TXN_STATE = 48, False, "The transaction is in a state that does not allow this."
    INVALID_PRODUCER_ID_MAPPING = (
        49,
        False,
        "The producer id is not the one that belongs to the transactional id.",
    )
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout exceeds what the broker allows."
    CONCURRENT_TRANSACTIONS = 51, True, "An earlier transaction of the same producer is still being finished."
    TRANSACTION_COORDINATOR_FENCED = (
        52,
        False,
        "The sender coordinated this transaction once, and has been replaced.",
    )
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "The principal may not use the transactional id."
    SECURITY_DISABLED = 54, False, "Access rules were asked for, and the broker runs without them."
    OPERATION_NOT_ATTEMPTED = 55, False, "Nothing was tried, since another part of the same request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The disk under the partition failed."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "The credentials are wrong."
    UNKNOWN_PRODUCER_ID = 59, False, "The partition knows nothing (any more) about the producer."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being moved already."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are switched off."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The delegation token belongs to someone else."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        False,
        "Delegation tokens cannot be handled over a connection authenticated in this way.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = (
        65,
        False,
        "The principal may not do this to the delegation token.",
    )
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token is no longer valid."
    INVALID_PRINCIPAL_TYPE = 67, False, "The kind of principal is not supported here."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = (
        70,
        True,
        "The broker has forgotten the fetch session; a full fetch starts a new one.",
    )
    INVALID_FETCH_SESSION_EPOCH = (
        71,
        True,
        "The fetch session is at another epoch; a full fetch starts a new one.",
    )
    LISTENER_NOT_FOUND = 72, True, "The leader has no endpoint on the listener that the request came through."
    TOPIC_DELETION_DISABLED = 73, False, "The operator does not allow topics to be deleted."
    FENCED_LEADER_EPOCH = 74, True, "The asker's leader epoch is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The asker's leader epoch is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        False,
        "The records are compressed in a way that the version of the request cannot carry.",
    )
    STALE_BROKER_EPOCH = 77, False, "The broker has been registered anew since this was sent."
    OFFSET_NOT_AVAILABLE = 78, True, "A new leader does not know yet up to where records are committed."
    MEMBER_ID_REQUIRED = 79, False, "The member has been given an id, and has to join again with it."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader cannot take over at the moment."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has as many members as it may."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over the instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica that could lead the partition is alive."
    ELECTION_NOT_NEEDED = 84, True, "The partition has the leader it should have."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group still reads the topic, so its offsets stay."
    INVALID_RECORD = 87, False, "A record breaks a rule of its topic; the whole batch was refused."
    UNSTABLE_OFFSET_COMMIT = (
        88,
        True,
        "Offsets of an open transaction stand in the way; they will be decided soon.",
    )
    THROTTLING_QUOTA_EXCEEDED = 89, True, "A quota is used up for the moment."
    PRODUCER_FENCED = 90, False, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "What the request refers to does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names the same thing twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, False, "The voters that the sender assumes are not those of the quorum."
    INVALID_UPDATE_VERSION = 95, False, "A feature cannot be changed to this version."
    FEATURE_UPDATE_FAILED = 96, False, "Changing the versions of features failed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The principal in a forwarded request cannot be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This broker knows no topic of this id; it may not exist, or not yet."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "A live broker holds this id already."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker of this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The log on disk belongs to another topic of the same name."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request was meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "A fetch session changed between topic names and topic ids."
    INELIGIBLE_REPLICA = 107, False, "A replica proposed as in sync is not allowed to be."
    NEW_LEADER_ELECTED = 108, False, "The change was made, and it gave the partition another leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset asked for is in remote storage only."
    FENCED_MEMBER_EPOCH = (
        110,
        False,
        "The coordinator has moved on from the member's epoch; the member has to join anew.",
    )
    UNRELEASED_INSTANCE_ID = 111, False, "The instance id is still held by another member."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group cannot use the assignor that the member wants."
    STALE_MEMBER_EPOCH = (
        113,
        False,
        "The member uses an old epoch; its next heartbeat will bring the current one.",
    )
    MISMATCHED_ENDPOINT_TYPE = (
        114,
        False,
        "The request went to a broker instead of a controller, or the reverse.",
    )
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "The kind of endpoint is not supported yet."
    UNKNOWN_CONTROLLER_ID = 116, False, "No controller of this id is known."
    UNKNOWN_SUBSCRIPTION_ID = (
        117,
        False,
        "The client sends telemetry for a subscription that is no longer valid.",
    )
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry exceeds the size that the broker accepts."
    INVALID_REGISTRATION = 119, False, "The controller refuses the broker's registration."
    TRANSACTION_ABORTABLE = (
        120,
        False,
        "The transaction cannot go on; aborting it leaves the producer usable.",
    )
    INVALID_RECORD_STATE = (
        121,
        False,
        "A record of a share group is not in a state that allows the acknowledgement.",
    )
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker has forgotten the share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session is at another epoch."
    FENCED_STATE_EPOCH = 124, False, "The state of a share group has moved on to a newer epoch."
    INVALID_VOTER_KEY = 125, False, "The key of the voter does not match that of the receiver."
    DUPLICATE_VOTER = 126, False, "The quorum has this voter already."
    VOTER_NOT_FOUND = 127, False, "The quorum has no such voter."
    INVALID_REGULAR_EXPRESSION = 128, False, "The pattern of a subscription cannot be compiled."
    REBOOTSTRAP_REQUIRED = (
        129,
        False,
        "What the client knows of the cluster is of no use; it has to start from its bootstrap servers.",
    )
    STREAMS_INVALID_TOPOLOGY = 130, False, "The topology of a streams group is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The epoch of a streams group's topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The epoch of a streams group's topology has been overtaken."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker holds as many share sessions as it may."


_BY_CODE = {int(code): code for code in ErrorCode}


def error_code(code: int) -> ErrorCode:
    """The member for a number from the wire; numbers from a newer peer count as UNKNOWN_SERVER_ERROR."""
    return _BY_CODE.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
