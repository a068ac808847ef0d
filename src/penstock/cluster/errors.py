"""Errors of the cluster layer: metadata tree, ZooKeeper, images, rejected changes.

An `ApiException` carries the error code that a client receives; its message says why the change was not made.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.wire.protocol import ErrorCode


class ClusterError(Exception):
    """Base of all errors of the cluster layer."""


# --- the tree


class TreeError(ClusterError):
    """An operation on the metadata tree failed, or its outcome is unknown."""


class NodeExists(TreeError):
    def __init__(self, path: str) -> None:
        super().__init__(f"node {path} already exists")
        self.path = path


class NoNode(TreeError):
    def __init__(self, path: str) -> None:
        super().__init__(f"node {path} does not exist")
        self.path = path


class BadVersion(TreeError):
    """Another session changed the node first."""

    def __init__(self, path: str, expected: int, found: int) -> None:
        super().__init__(f"node {path} is at version {found}, not {expected}")
        self.path = path
        self.expected = expected
        self.found = found


class NotEmpty(TreeError):
    def __init__(self, path: str) -> None:
        super().__init__(f"node {path} has children")
        self.path = path


class EphemeralParent(TreeError):
    """An ephemeral node cannot have children."""

    def __init__(self, path: str) -> None:
        super().__init__(f"node {path} is ephemeral and cannot have children")
        self.path = path


class InvalidPath(TreeError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path[:200]!r} is not a path: {reason}")
        self.path = path


class DataTooLarge(TreeError):
    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes for {path} exceed the limit of {limit}")
        self.path = path
        self.size = size
        self.limit = limit


class ConnectionLost(TreeError):
    """The connection broke before the answer arrived: the operation may or may not have happened."""


class SessionExpired(TreeError):
    """The session is over, and its ephemeral nodes are gone."""


class TreeBusy(TreeError):
    """Too many operations are waiting; nothing happened."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"too many operations on the metadata tree: {waiting} are waiting")
        self.waiting = waiting


class TreeDiskFull(TreeError):
    """No space for a change; nothing happened, and it can be retried."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no space left on the disk of {path}")
        self.path = path


class TreeFailed(TreeError):
    """The disk of an embedded tree failed: its content is unknown until it is opened again."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the metadata in {path} is offline: {reason}")
        self.path = path
        self.reason = reason


class TreeInUse(TreeError):
    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"the metadata in {path} is in use ({holder}); stop that process or use another folder")
        self.path = path
        self.holder = holder


class DamagedTree(TreeError):
    """The bytes of an embedded tree are not those that were written."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}; restore it from a backup")
        self.path = path
        self.position = position
        self.reason = reason


# --- documents


class LayoutError(ClusterError):
    """A document in the tree cannot be read as what its path holds."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"cannot read the document at {path}: {reason}")
        self.path = path
        self.reason = reason


# --- images


class DamagedDelta(ClusterError):
    """The bytes of an image delta cannot be read."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot read an image delta: {reason}")


class DeltaMismatch(ClusterError):
    """The delta is for another image; the whole image is needed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"image delta does not fit the current image: {reason}")


# --- membership


class BrokerIdInUse(ClusterError):
    """`holder` says where the other broker is and since when, if known."""

    def __init__(self, broker_id: int, holder: str = "") -> None:
        where = f" ({holder})" if holder else ""
        super().__init__(f"broker.id={broker_id} is in use by another broker{where}; give this one another id")
        self.broker_id = broker_id
        self.holder = holder


class ClusterIdMismatch(ClusterError):
    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"the data folders belong to cluster {expected}, the metadata to cluster {found}")
        self.expected = expected
        self.found = found


class NotStarted(ClusterError):
    def __init__(self) -> None:
        super().__init__("the broker is starting or stopping")


class ProducerIdsExhausted(ClusterError):
    def __init__(self) -> None:
        super().__init__("all producer ids are allocated")


# --- rejected changes


class ApiException(ClusterError):
    """A rejected change; `code` is what a client receives, the message says why."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR


class InvalidTopicName(ApiException):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class TopicExists(ApiException):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class UnknownTopic(ApiException):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class UnknownTopicId(ApiException):
    code = ErrorCode.UNKNOWN_TOPIC_ID


class InvalidPartitions(ApiException):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(ApiException):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(ApiException):
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class ReassignmentInProgress(ApiException):
    code = ErrorCode.REASSIGNMENT_IN_PROGRESS


class NoReassignmentInProgress(ApiException):
    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class ElectionNotNeeded(ApiException):
    code = ErrorCode.ELECTION_NOT_NEEDED


class PreferredLeaderNotAvailable(ApiException):
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailable(ApiException):
    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class StaleBrokerEpoch(ApiException):
    code = ErrorCode.STALE_BROKER_EPOCH


class InvalidConfig(ApiException):
    code = ErrorCode.INVALID_CONFIG


class InvalidRequest(ApiException):
    code = ErrorCode.INVALID_REQUEST


class ResourceNotFound(ApiException):
    code = ErrorCode.RESOURCE_NOT_FOUND


class NotController(ApiException):
    """This broker is not the controller."""

    code = ErrorCode.NOT_CONTROLLER


class MetadataUnavailable(ApiException):
    """The tree could not store the change; `__cause__` says why."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


# --- ZooKeeper


class InvalidConnect(ClusterError):
    """zookeeper.connect cannot be read."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(
            f"zookeeper.connect={text[:200]!r}: {reason}; write host:port separated by commas, with an optional path "
            "at the end, as in zk1:2181,zk2:2181/kafka"
        )
        self.text = text


class ZooKeeperUnreachable(TreeError):
    """No session could be opened; the message has the reason for each server and what to try."""

    def __init__(self, address: str, reason: str, advice: str) -> None:
        super().__init__(f"no ZooKeeper session at {address}: {reason}; {advice}")
        self.reason = reason
        self.advice = advice


class ZooKeeperOperationFailed(TreeError):
    """ZooKeeper rejected an operation."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"ZooKeeper rejected an operation on {path}: {reason}")
        self.path = path
        self.reason = reason


class ZooKeeperNotStarted(ClusterError):
    """A ZooKeeper server cannot start; the message has the problem and what to do."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem
        self.advice = advice
