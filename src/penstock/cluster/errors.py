"""Errors of the cluster layer: metadata tree, ZooKeeper, images, rejected changes.

An `ApiException` carries the error code that a client receives; its message says why the change was not made.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.wire.protocol import ErrorCode


class ClusterError(Exception):
    """Base of everything that the cluster layer raises of its own."""


# --- the tree


class TreeError(ClusterError):
    """An operation on the metadata tree that did not happen, or of which it is not known whether it did."""


class NodeExists(TreeError):
    def __init__(self, path: str) -> None:
        super().__init__(f"there is a node {path} already")
        self.path = path


class NoNode(TreeError):
    def __init__(self, path: str) -> None:
        super().__init__(f"there is no node {path}")
        self.path = path


class BadVersion(TreeError):
    """Somebody else changed the node first."""

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
    """A child for a node that vanishes with its session."""

    def __init__(self, path: str) -> None:
        super().__init__(f"node {path} is ephemeral and can have no children")
        self.path = path


class InvalidPath(TreeError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path[:200]!r} is no path of a node: {reason}")
        self.path = path


class DataTooLarge(TreeError):
    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes for {path} exceed the limit of {limit}")
        self.path = path
        self.size = size
        self.limit = limit


class ConnectionLost(TreeError):
    """The connection broke before an answer arrived: the operation may or may not have happened."""


class SessionExpired(TreeError):
    """The session is over, and its ephemeral nodes are gone."""


class TreeBusy(TreeError):
    """As many operations wait as may; nothing happened."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} operations on the metadata tree are waiting already")
        self.waiting = waiting


class TreeDiskFull(TreeError):
    """No room for a change; everything is as before, and it may be tried again."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no space left on the disk of {path}")
        self.path = path


class TreeFailed(TreeError):
    """The disk under an embedded tree failed: what it holds is unknown until it is opened again."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the metadata in {path} is offline: {reason}")
        self.path = path
        self.reason = reason


class TreeInUse(TreeError):
    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"the metadata in {path} is in use ({holder}); stop that process or choose another folder")
        self.path = path
        self.holder = holder


class DamagedTree(TreeError):
    """Bytes of an embedded tree that are not what was written."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}; restore it from a backup")
        self.path = path
        self.position = position
        self.reason = reason


# --- documents


class LayoutError(ClusterError):
    """A document in the tree that is not what belongs at its path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the document at {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


# --- images


class DamagedDelta(ClusterError):
    """Bytes that tell no change of an image."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a change of the cluster's image cannot be read: {reason}")


class DeltaMismatch(ClusterError):
    """A change of another image than the one that is there: whoever has it needs the whole image."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a change of the cluster's image does not fit the one that is there: {reason}")


# --- what a cluster refuses


class BrokerIdInUse(ClusterError):
    """`holder` says where that broker is and since when, as far as it is known."""

    def __init__(self, broker_id: int, holder: str = "") -> None:
        told = f" ({holder})" if holder else ""
        super().__init__(f"a broker with broker.id={broker_id} is running already{told}; give this one another id")
        self.broker_id = broker_id
        self.holder = holder


class ClusterIdMismatch(ClusterError):
    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"the data folders belong to cluster {expected}, the metadata to cluster {found}")
        self.expected = expected
        self.found = found


class NotStarted(ClusterError):
    def __init__(self) -> None:
        super().__init__("the cluster's metadata is not loaded")


class ProducerIdsExhausted(ClusterError):
    def __init__(self) -> None:
        super().__init__("every producer id has been given away")


class ApiException(ClusterError):
    """A change that will not be made; `code` is what a client is told, the text is why."""

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


class NotController(ApiException):
    """This broker is the controller no more, or never was: another one decides."""

    code = ErrorCode.NOT_CONTROLLER


class MetadataUnavailable(ApiException):
    """The tree could not take the change; `__cause__` says why."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class InvalidConnect(ClusterError):
    """A zookeeper.connect that is no list of hosts."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(
            f"zookeeper.connect is {text[:200]!r}: {reason}; write host:port, several parted by commas, and a path "
            "behind the last if the cluster has one, as zk1:2181,zk2:2181/kafka"
        )
        self.text = text


class ZooKeeperUnreachable(TreeError):
    """No session: why, for each server, and what to try."""

    def __init__(self, address: str, reason: str, advice: str) -> None:
        super().__init__(f"no ZooKeeper session at {address}: {reason}; {advice}")
        self.reason = reason
        self.advice = advice


class ZooKeeperOperationFailed(TreeError):
    """An operation that ZooKeeper did not make, for a reason of its own."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"ZooKeeper refused an operation on {path}: {reason}")
        self.path = path
        self.reason = reason


class ZooKeeperNotStarted(ClusterError):
    """A ZooKeeper server that cannot start: what is wrong, and what to do."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem
        self.advice = advice
