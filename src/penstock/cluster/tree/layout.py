"""Kafka's classic paths in the metadata tree, and the JSON documents stored there. Pure.

Documents are written as Kafka 3 writes them, so its tools and brokers read them, and read in every version that Kafka
ever wrote: missing fields have defaults, unknown fields are ignored. A document that lacks what every version has, or
has it in the wrong shape, raises LayoutError with its path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from penstock.cluster.errors import LayoutError
from penstock.log.log_dirs.identity import decode_id, encode_id
from penstock.security.acls import (
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    member_named,
    title_of,
)
from penstock.security.broker_proof import SECRET_BYTES

BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
SEQUENCE_IDS: Final = "/brokers/seqid"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CLUSTER_ID: Final = "/cluster/id"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
CONFIG_CHANGES: Final = "/config/changes"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
# Our own: of each broker the last epoch that a controller handled, and what brokers prove themselves with.
BROKER_EPOCHS: Final = "/penstock/broker_epochs"
CLUSTER_SECRET: Final = "/penstock/cluster_secret"
LITERAL_ACLS: Final = "/kafka-acl"
PREFIXED_ACLS: Final = "/kafka-acl-extended/prefixed"
ACL_CHANGES: Final = ("/kafka-acl-changes", "/kafka-acl-extended-changes")  # what tools leave there after a change

# What every tool expects to exist, empty or not.
PERSISTENT_PATHS: Final = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    SEQUENCE_IDS,
    "/isr_change_notification",
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    TOPIC_CONFIGS,
    "/config/clients",
    "/config/users",
    BROKER_CONFIGS,
    "/config/ips",
    "/cluster",
)

# Under BROKER_CONFIGS: the settings of all brokers.
DEFAULT_BROKER: Final = "<default>"


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def partitions_path(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition_path(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}"


def partition_state_path(name: str, index: int) -> str:
    return f"{TOPICS}/{name}/partitions/{index}/state"


def topic_config_path(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config_path(name: str) -> str:
    """`name` is a broker's id or DEFAULT_BROKER."""
    return f"{BROKER_CONFIGS}/{name}"


def deletion_path(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"


def acl_folder(kind: ResourceType, pattern_type: PatternType) -> str:
    return f"{PREFIXED_ACLS if pattern_type is PatternType.PREFIXED else LITERAL_ACLS}/{title_of(kind)}"


def acl_path(pattern: ResourcePattern) -> str:
    """Kafka does not encode names, so those with a slash have no path; see `pattern_at`."""
    return f"{acl_folder(pattern.type, pattern.pattern_type)}/{pattern.name}"


def pattern_at(path: str) -> ResourcePattern | None:
    """The pattern whose ACLs are stored at a path; None if it is not such a path."""
    for root, pattern_type in ((LITERAL_ACLS, PatternType.LITERAL), (PREFIXED_ACLS, PatternType.PREFIXED)):
        if path.startswith(f"{root}/"):
            kind, _, name = path[len(root) + 1 :].partition("/")
            found = next((each for each in ResourceType if title_of(each) == kind), None)
            if found is not None and name and "/" not in name:
                return ResourcePattern(found, name, pattern_type)
    return None


PLAINTEXT: Final = "PLAINTEXT"
NO_LEADER: Final = -1
UNKNOWN_EPOCH: Final = -1

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_ENDPOINT = re.compile(r"([^:/\s]+)://(\[[0-9a-zA-Z:.%]*\]|[^\[\]/\s]*):(-?[0-9]{1,5})")

Document = TypeVar("Document", bound=msgspec.Struct)


class Endpoint(NamedTuple):
    """The advertised address of a listener."""

    listener: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


class TopicReplicas(NamedTuple):
    """A broker's replicas of one topic. A topic that was deleted and created again has another id."""

    topic_id: bytes
    partitions: frozenset[int]


ReplicaSet = Mapping[str, TopicReplicas]
"""Replicas of one broker, by topic."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A registered broker. `epoch` is the creation number of its node, so each registration has another one.
    `clean_epoch` is the previous epoch if its data folders say that it ended cleanly, else UNKNOWN_EPOCH. `clean_since`
    is an earlier epoch since which nothing was lost: controllers may have missed those between the two. `is_emptied`:
    some data folder is new; the broker says so until an image has shown it registered like that. `kept` are then the
    replicas in its other folders: all that are not listed count as lost. `offline` are the replicas in failed folders;
    the broker changes that list while it is registered.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    timestamp_ms: int = -1
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    epoch: int = UNKNOWN_EPOCH
    clean_epoch: int = UNKNOWN_EPOCH
    is_emptied: bool = False
    clean_since: int = UNKNOWN_EPOCH
    kept: ReplicaSet = field(default_factory=dict)
    offline: ReplicaSet = field(default_factory=dict)

    def is_offline(self, topic: str, topic_id: bytes, partition: int) -> bool:
        """Whether its replica is in a failed data folder."""
        return _holds(self.offline, topic, topic_id, partition)

    def has_kept(self, topic: str, topic_id: bytes, partition: int) -> bool:
        """Whether its replica is in a data folder that is not new."""
        return _holds(self.kept, topic, topic_id, partition)


def _holds(replicas: ReplicaSet, topic: str, topic_id: bytes, partition: int) -> bool:
    found = replicas.get(topic)
    return found is not None and found.topic_id == topic_id and partition in found.partitions


class PartitionAssignment(NamedTuple):
    """The replicas, the preferred leader first, and which of them are being added or removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class TopicAssignment(NamedTuple):
    """`topic_id` is None in documents older than version 3."""

    topic_id: bytes | None
    partitions: tuple[PartitionAssignment, ...]


class PartitionState(NamedTuple):
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    recovering: bool = False  # the leader was elected uncleanly and has not recovered yet
    elr: tuple[int, ...] = ()  # left the ISR with everything that was committed (KIP-966)


class ProducerIdBlock(NamedTuple):
    """Producer ids of a broker, from `first` to `last` inclusive."""

    broker_id: int
    first: int
    last: int


# --- brokers


class _Broker(msgspec.Struct, omit_defaults=True):
    version: int
    endpoints: list[str] | None = None
    listener_security_protocol_map: dict[str, str] | None = None
    features: dict[str, dict[str, int]] | None = None
    rack: str | None = None
    jmx_port: int | None = None
    host: str | None = None
    port: int | None = None
    timestamp: str | int | None = None
    penstock_clean_epoch: int = UNKNOWN_EPOCH
    penstock_emptied: bool = False
    penstock_clean_since: int = UNKNOWN_EPOCH
    # By topic: its id, and the partitions.
    penstock_kept: dict[str, tuple[str, list[int]]] = {}
    penstock_offline: dict[str, tuple[str, list[int]]] = {}


def encode_broker(broker: BrokerRegistration) -> bytes:
    """Version 5. Host and port are those of a plaintext listener; null and -1 if there is none."""
    plain = next((endpoint for endpoint in broker.endpoints if endpoint.protocol == PLAINTEXT), None)
    document: dict[str, Any] = {
        "features": broker.features,
        "listener_security_protocol_map": {endpoint.listener: endpoint.protocol for endpoint in broker.endpoints},
        "endpoints": [str(endpoint) for endpoint in broker.endpoints],
        "jmx_port": -1,
        "port": -1 if plain is None else plain.port,
        "host": None if plain is None else plain.host,
        "version": 5,
        "timestamp": str(broker.timestamp_ms),
    }
    if broker.rack is not None:
        document["rack"] = broker.rack
    if broker.clean_epoch != UNKNOWN_EPOCH:
        document["penstock_clean_epoch"] = broker.clean_epoch
    if broker.clean_since != UNKNOWN_EPOCH:
        document["penstock_clean_since"] = broker.clean_since
    if broker.is_emptied:
        document["penstock_emptied"] = True
    for name, replicas in (("penstock_kept", broker.kept), ("penstock_offline", broker.offline)):
        if replicas:
            document[name] = {
                topic: [encode_id(found.topic_id), sorted(found.partitions)]
                for topic, found in sorted(replicas.items())
            }
    return msgspec.json.encode(document)


def decode_broker(broker_id: int, data: bytes, epoch: int = UNKNOWN_EPOCH) -> BrokerRegistration:
    """`epoch` is the creation number of the node; it is not in the document."""
    path = broker_path(broker_id)
    document = _decode(path, data, _Broker)
    if document.version < 1:
        raise LayoutError(path, f"unknown version {document.version}")
    if document.version == 1:
        if document.host is None or document.port is None:
            raise LayoutError(path, "host or port is missing")
        endpoints = [Endpoint(PLAINTEXT, PLAINTEXT, document.host, document.port)]
    else:
        protocols = document.listener_security_protocol_map
        endpoints = [_endpoint(path, text, protocols) for text in document.endpoints or ()]
    if not endpoints:
        raise LayoutError(path, "it has no endpoints")
    timestamp = str(document.timestamp)
    timestamp_ms = int(timestamp) if timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 20 else -1
    for name in ("penstock_clean_epoch", "penstock_clean_since"):
        if not UNKNOWN_EPOCH <= getattr(document, name) <= _INT64_MAX:
            raise LayoutError(path, f"{name} is out of range")
    return BrokerRegistration(
        broker_id, tuple(endpoints), document.rack, timestamp_ms, document.features or {}, epoch,
        document.penstock_clean_epoch, document.penstock_emptied, document.penstock_clean_since,
        _replica_set(path, document.penstock_kept), _replica_set(path, document.penstock_offline),
    )  # fmt: skip


def _replica_set(path: str, found: Mapping[str, tuple[str, list[int]]]) -> ReplicaSet:
    try:
        return {topic: TopicReplicas(decode_id(text), frozenset(indexes)) for topic, (text, indexes) in found.items()}
    except ValueError as error:
        raise LayoutError(path, f"it lists an invalid topic id: {error}") from error


def encode_log_dir_event(broker_id: int) -> bytes:
    """Version 1, as Kafka writes it: a data folder of this broker has failed."""
    return msgspec.json.encode({"version": 1, "broker": broker_id, "event": 1})


def _endpoint(path: str, text: str, protocols: Mapping[str, str] | None) -> Endpoint:
    match = _ENDPOINT.fullmatch(text)
    if match is None or int(match[3]) > 65535:
        raise LayoutError(path, f"{text[:200]!r} is not an endpoint")
    listener = match[1]
    # Documents without a map have listeners named after their protocol.
    protocol = listener if protocols is None else protocols.get(listener)
    if protocol is None:
        raise LayoutError(path, f"listener {listener} has no protocol")
    return Endpoint(listener, protocol, match[2].strip("[]"), int(match[3]))


# --- topics


class _Topic(msgspec.Struct):
    version: int
    partitions: dict[str, list[int]]
    topic_id: str | None = None
    adding_replicas: dict[str, list[int]] = {}
    removing_replicas: dict[str, list[int]] = {}


def encode_topic(topic_id: bytes | None, partitions: Sequence[PartitionAssignment]) -> bytes:
    """Version 3."""
    document: dict[str, Any] = {
        "removing_replicas": {str(index): item.removing for index, item in enumerate(partitions) if item.removing},
        "partitions": {str(index): item.replicas for index, item in enumerate(partitions)},
    }
    if topic_id is not None:
        document["topic_id"] = encode_id(topic_id)
    document["adding_replicas"] = {str(index): item.adding for index, item in enumerate(partitions) if item.adding}
    document["version"] = 3
    return msgspec.json.encode(document)


def decode_topic(name: str, data: bytes) -> TopicAssignment:
    path = topic_path(name)
    document = _decode(path, data, _Topic)
    topic_id = None
    if document.topic_id is not None:
        try:
            topic_id = decode_id(document.topic_id)
        except ValueError as error:
            raise LayoutError(path, f"topic_id: {error}") from error
    found: list[PartitionAssignment] = []
    # Partitions are numbered from 0 without gaps.
    for index in range(len(document.partitions)):
        key = str(index)
        replicas = document.partitions.get(key)
        if not replicas or len(set(replicas)) < len(replicas) or not all(0 <= item <= _INT32_MAX for item in replicas):
            raise LayoutError(path, f"partition {key} is missing, or its replicas are not distinct brokers")
        adding = tuple(document.adding_replicas.get(key, ()))
        removing = tuple(document.removing_replicas.get(key, ()))
        found.append(PartitionAssignment(tuple(replicas), adding, removing))
    return TopicAssignment(topic_id, tuple(found))


class _TopicId(msgspec.Struct):
    version: int
    topic_id: str


def encode_topic_id(topic_id: bytes | None) -> bytes:
    """The document of the node above a topic's partitions, where Kafka has no data.

    Tools before Kafka 2.8 leave the id out when they rewrite the topic's document. Without it, the topic would be
    mistaken for another one.
    """
    return b"" if topic_id is None else msgspec.json.encode(_TopicId(1, encode_id(topic_id)))


def decode_topic_id(data: bytes) -> bytes | None:
    """None if the node has none, as in a tree of Kafka's."""
    try:
        return decode_id(msgspec.json.decode(data, type=_TopicId).topic_id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None


class _State(msgspec.Struct, omit_defaults=True):
    controller_epoch: int
    leader: int
    version: int
    leader_epoch: int
    isr: list[int]
    leader_recovery_state: int = 0
    penstock_elr: list[int] = []


def encode_partition_state(state: PartitionState) -> bytes:
    document = _State(
        state.controller_epoch, state.leader, 1, state.leader_epoch, list(state.isr), int(state.recovering),
        list(state.elr),
    )  # fmt: skip
    return msgspec.json.encode(document)


def decode_partition_state(path: str, data: bytes) -> PartitionState:
    document = _decode(path, data, _State)
    numbers = (document.leader_epoch, document.controller_epoch, *document.isr, *document.penstock_elr)
    if not NO_LEADER <= document.leader <= _INT32_MAX or not all(0 <= number <= _INT32_MAX for number in numbers):
        raise LayoutError(path, "a leader, epoch or replica is out of range")
    return PartitionState(
        document.leader,
        document.leader_epoch,
        tuple(document.isr),
        document.controller_epoch,
        document.leader_recovery_state != 0,
        tuple(document.penstock_elr),
    )


# --- requests of tools


class _Move(msgspec.Struct):
    topic: str
    partition: int
    replicas: list[int]


class _Moves(msgspec.Struct):
    version: int
    partitions: list[_Move]


class _Election(msgspec.Struct):
    topic: str
    partition: int


class _Elections(msgspec.Struct):
    version: int
    partitions: list[_Election]


def encode_reassignment(wanted: Mapping[tuple[str, int], Sequence[int]]) -> bytes:
    moves = [_Move(topic, index, list(replicas)) for (topic, index), replicas in wanted.items()]
    return msgspec.json.encode(_Moves(1, moves))


def decode_reassignment(data: bytes) -> dict[tuple[str, int], tuple[int, ...]]:
    """The replicas wanted, by topic and partition."""
    document = _decode(REASSIGN_PARTITIONS, data, _Moves)
    found = {(move.topic, move.partition): tuple(move.replicas) for move in document.partitions}
    if len(found) < len(document.partitions):
        raise LayoutError(REASSIGN_PARTITIONS, "a partition is listed twice")
    return found


def decode_preferred_election(data: bytes) -> list[tuple[str, int]]:
    """The partitions that are to be led by their preferred leaders."""
    document = _decode(PREFERRED_ELECTION, data, _Elections)
    found = [(each.topic, each.partition) for each in document.partitions]
    if len(set(found)) < len(found):
        raise LayoutError(PREFERRED_ELECTION, "a partition is listed twice")
    return found


class _ConfigChange(msgspec.Struct):
    version: int = 0
    entity_type: str | None = None
    entity_name: str | None = None
    entity_path: str | None = None


def decode_config_change(path: str, data: bytes) -> str:
    """Whose settings a tool has changed: "topics/views", "users/alice/clients/web".

    Version 2 names the path, version 1 a type and a name; Kafka 0.8 wrote only the name of a topic.
    """
    try:
        found = msgspec.json.decode(data, type=_ConfigChange | str)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LayoutError(path, str(error)) from error
    if isinstance(found, str):
        return f"topics/{found}"
    if found.entity_path is not None:
        return found.entity_path
    if found.entity_type is None or found.entity_name is None:
        raise LayoutError(path, "it does not say whose settings have changed")
    return f"{found.entity_type}/{found.entity_name}"


# --- ACLs


class _Acl(msgspec.Struct):
    principal: str
    permissionType: str  # noqa: N815 - as it is in the document
    operation: str
    host: str


class _AclList(msgspec.Struct):
    version: int
    acls: list[_Acl]


_ACL_VERSION: Final = 1


def encode_acls(entries: Iterable[AclEntry]) -> bytes:
    """Version 1. The same entries give the same bytes."""
    rows = [_Acl(each.principal, title_of(each.permission), title_of(each.operation), each.host) for each in entries]
    rows.sort(key=lambda row: (row.principal, row.permissionType, row.operation, row.host))
    return msgspec.json.encode(_AclList(_ACL_VERSION, rows))


def decode_acls(path: str, data: bytes) -> frozenset[AclEntry]:
    """A node without data has no ACLs. What cannot be understood might deny something, so it is never left out."""
    if not data:
        return frozenset()
    document = _decode(path, data, _AclList)
    if document.version != _ACL_VERSION:
        raise LayoutError(path, f"unknown version {document.version}")
    return frozenset(_acl_entry(path, row) for row in document.acls)


def _acl_entry(path: str, row: _Acl) -> AclEntry:
    try:
        operation = member_named(Operation, row.operation)
        permission = member_named(Permission, row.permissionType)
    except ValueError as error:
        raise LayoutError(path, str(error)) from error
    kind, _, name = row.principal.partition(":")
    if operation is Operation.ANY or permission is Permission.ANY or not (kind and name and row.host):
        raise LayoutError(path, f"an ACL of principal {row.principal[:60]!r} is incomplete or of an unknown kind")
    return AclEntry(row.principal, row.host, operation, permission)


# --- configuration, controller, cluster, producer ids


class _Config(msgspec.Struct):
    version: int
    config: dict[str, str]


def encode_config(config: Mapping[str, str]) -> bytes:
    return msgspec.json.encode({"version": 1, "config": config})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """A node without data has no settings."""
    return _decode(path, data, _Config).config if data else {}


class _Controller(msgspec.Struct):
    brokerid: int
    version: int = 1


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    """Version 2; the epoch of the KRaft controller is -1, because there is none."""
    return msgspec.json.encode(
        {"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1}
    )


def decode_controller(data: bytes) -> int:
    """The controller's broker id. Kafka 0.8.0 wrote only the number."""
    if data.isdigit() and len(data) <= 10:
        return int(data)
    return _decode(CONTROLLER, data, _Controller).brokerid


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    return _number(CONTROLLER_EPOCH, data.decode("latin-1"), _INT32_MAX)


class _BrokerEpochs(msgspec.Struct):
    version: int
    epochs: dict[int, int]


def encode_broker_epochs(epochs: Mapping[int, int]) -> bytes:
    """By broker id: the last epoch that a controller handled for all partitions of the broker."""
    return msgspec.json.encode(_BrokerEpochs(1, dict(sorted(epochs.items()))))


def decode_broker_epochs(data: bytes) -> dict[int, int]:
    """A node without data lists no broker."""
    return _decode(BROKER_EPOCHS, data, _BrokerEpochs).epochs if data else {}


class _ClusterId(msgspec.Struct):
    id: str


def encode_cluster_id(cluster_id: str) -> bytes:
    return msgspec.json.encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    found = _decode(CLUSTER_ID, data, _ClusterId).id
    if not found:
        raise LayoutError(CLUSTER_ID, "the id is empty")
    return found


class _ClusterSecret(msgspec.Struct):
    version: int
    secret: bytes  # base64


def encode_cluster_secret(secret: bytes) -> bytes:
    return msgspec.json.encode(_ClusterSecret(1, secret))


def decode_cluster_secret(data: bytes) -> bytes:
    """The error does not quote the document."""
    try:
        found = msgspec.json.decode(data, type=_ClusterSecret).secret
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = b""
    if len(found) != SECRET_BYTES:
        raise LayoutError(CLUSTER_SECRET, f"it does not hold a secret of {SECRET_BYTES} bytes")
    return found


class _ProducerIds(msgspec.Struct):
    version: int
    broker: int
    block_start: str
    block_end: str


def encode_producer_ids(block: ProducerIdBlock) -> bytes:
    return msgspec.json.encode(_ProducerIds(1, block.broker_id, str(block.first), str(block.last)))


def decode_producer_ids(data: bytes) -> ProducerIdBlock | None:
    """None if no block was allocated yet."""
    if not data:
        return None
    document = _decode(PRODUCER_ID_BLOCK, data, _ProducerIds)
    first = _number(PRODUCER_ID_BLOCK, document.block_start, _INT64_MAX)
    last = _number(PRODUCER_ID_BLOCK, document.block_end, _INT64_MAX)
    if last < first:
        raise LayoutError(PRODUCER_ID_BLOCK, f"the block ends at {last}, before its start at {first}")
    return ProducerIdBlock(document.broker, first, last)


def _number(path: str, text: str, maximum: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= maximum):
        raise LayoutError(path, f"{text[:40]!r} is not a number up to {maximum}")
    return int(text)


def _decode(path: str, data: bytes, kind: type[Document]) -> Document:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LayoutError(path, str(error)) from error
