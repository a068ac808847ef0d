"""All settings of brokers and topics, by Kafka's names.

A setting is declared once, where it is used: those of logs in `LogSettings`, of groups in `GroupSettings`, of
transactions in `TransactionSettings`, of followers in `FetcherSettings`, of TLS and SASL in `SECURITY`, the rest in
`ServerSettings` and `TopicSettings` here. A topic setting that has a broker setting inherits it where the topic sets
nothing. `NO_EFFECT` lists Kafka's settings that are accepted without effect.

Settings that give one value in several units (hours, minutes, milliseconds) are a family, finest first. The strongest
layer wins (dynamic, command line, file); within a layer, the finest unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.broker.settings.listener_security import SECURITY
from penstock.broker.settings.listeners import PROTOCOLS
from penstock.broker.settings.retention_class import load_retention_class
from penstock.config_def import (
    DOUBLE_MAX,
    INT_MAX,
    KIB,
    MIB,
    MINUTE_MS,
    NEVER,
    ConfigType,
    Declaration,
    Definition,
    Importance,
    InvalidValue,
    Scope,
    Unit,
    declarations,
    parse_list,
    parse_numbers,
    setting,
)
from penstock.coordination.groups.group import GroupSettings
from penstock.coordination.transactions.transaction_shard import TransactionSettings
from penstock.log.retention import PolicyFactory
from penstock.log.settings import LogSettings
from penstock.replication.follower import FetcherSettings
from penstock.security.acls import AUTHORIZERS, parse_super_users
from penstock.security.credentials import Secret
from penstock.security.principal import Principal
from penstock.security.scram import InitialUsers

_BOOLEAN, _STRING, _SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.SHORT
_INT, _LONG, _DOUBLE, _LIST = ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST
_HIGH, _LOW = Importance.HIGH, Importance.LOW

DEFAULT_LOG_DIR: Final = "penstock-data"
COMPRESSIONS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
# Kafka's default is no limit. A broker that is a Python process has no heap of a fixed size that would be one.
QUEUED_BYTES: Final = 512 * MIB
_THROTTLED: Final[dict[str, Any]] = {
    "pattern": r"\*|[0-9]{1,10}:[0-9]{1,10}",
    "pattern_words": "each partition:broker, or * for all",
}


def _secret(text: str | None) -> Secret | None:
    return None if text is None else Secret(text)


def _connections_by_address(text: str) -> Mapping[str, int]:
    numbers = parse_numbers(text)
    if min(numbers.values(), default=0) < 0:
        raise InvalidValue("a number of connections must be at least 0")
    return numbers


def _listener_names(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.upper() for name in names)


def _registry_url(text: str | None) -> str | None:
    if text is None:
        return None
    for each in text.split(","):
        try:
            parts = urlsplit(each.strip())
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise InvalidValue("must be http://HOST:PORT or https://HOST:PORT")
        if "@" in parts.netloc:
            raise InvalidValue("must not contain a login; set confluent.basic.auth.user.info")
    return text


def _principals(text: str) -> frozenset[Principal]:
    try:
        return parse_super_users(text)
    except ValueError as error:
        raise InvalidValue(str(error)) from error


def _initial_users(text: str | None) -> InitialUsers:
    try:
        return InitialUsers.parse(text or "")
    except ValueError as error:
        raise InvalidValue(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of a broker that concern no log, group or follower. Attributes are Kafka's names."""

    # --- identity

    broker_id: int = setting(
        _INT, -1, "Id of this broker, unique in its cluster. With -1 the broker chooses an id and keeps it in its data "
        "folders.", broker="broker.id", aliases=("node.id",), importance=_HIGH, min=-1,
    )  # fmt: skip
    broker_id_generation_enable: bool = setting(
        _BOOLEAN, True, "Whether ZooKeeper gives an id above reserved.broker.max.id to a broker that has none.",
        broker="broker.id.generation.enable",
    )  # fmt: skip
    reserved_broker_max_id: int = setting(
        _INT, 1000, "Largest broker.id that can be set while ids are generated.", broker="reserved.broker.max.id", min=0
    )
    broker_rack: str | None = setting(
        _STRING, None, "Rack or zone of this broker. Replicas of a partition are spread over racks.",
        broker="broker.rack",
    )  # fmt: skip
    zookeeper_connect: str | None = setting(
        _STRING, None, "ZooKeeper servers of the cluster: host:port, separated by commas, with an optional /path at "
        "the end. Without them the broker stands alone and keeps the metadata itself.",
        broker="zookeeper.connect", importance=_HIGH,
    )  # fmt: skip
    zookeeper_session_timeout_ms: int = setting(
        _INT, 6_000, "Time without heartbeats after which ZooKeeper declares this broker dead, in milliseconds.",
        broker="zookeeper.session.timeout.ms", importance=_HIGH, min=1,
    )  # fmt: skip
    zookeeper_connection_timeout_ms: int = setting(
        _INT, None, "Maximum time to connect to ZooKeeper at the start, in milliseconds. If not set, "
        "zookeeper.session.timeout.ms is used.",
        broker="zookeeper.connection.timeout.ms", importance=_HIGH, min=1,
    )  # fmt: skip
    zookeeper_auth_mechanism: str = setting(
        _STRING, "digest", "How the broker authenticates to ZooKeeper if zookeeper.auth.user is set: digest, or "
        "DIGEST-MD5 (SASL).", broker="zookeeper.auth.mechanism", one_of=("digest", "DIGEST-MD5"),
    )  # fmt: skip
    zookeeper_auth_user: str | None = setting(
        _STRING, None, "User name of this broker at ZooKeeper; the same for all brokers of a cluster.",
        broker="zookeeper.auth.user",
    )  # fmt: skip
    zookeeper_auth_password: Secret | None = setting(  # noqa: RUF009
        ConfigType.PASSWORD, None, "Password of this user; file:PATH and env:NAME are read at the start.",
        broker="zookeeper.auth.password", convert=_secret,
    )  # fmt: skip
    zookeeper_set_acl: bool = setting(
        _BOOLEAN, False, "Whether nodes that the broker creates in ZooKeeper can be changed by brokers only, and those "
        "with secrets be read by brokers only. It needs zookeeper.auth.user or a client certificate.",
        broker="zookeeper.set.acl", importance=_HIGH,
    )  # fmt: skip
    zookeeper_ssl_client_enable: bool = setting(
        _BOOLEAN, False, "Whether connections to ZooKeeper use TLS.", broker="zookeeper.ssl.client.enable"
    )
    zookeeper_ssl_truststore_location: str | None = setting(
        _STRING, None, "PEM file with the certificates of authorities that sign those of ZooKeeper servers.",
        broker="zookeeper.ssl.truststore.location",
    )  # fmt: skip
    zookeeper_ssl_keystore_location: str | None = setting(
        _STRING, None, "PEM file with this broker's certificate for ZooKeeper and its key.",
        broker="zookeeper.ssl.keystore.location",
    )  # fmt: skip
    zookeeper_ssl_keystore_password: Secret | None = setting(  # noqa: RUF009
        ConfigType.PASSWORD, None, "Password of that key; file:PATH and env:NAME are read at the start.",
        broker="zookeeper.ssl.keystore.password", convert=_secret,
    )  # fmt: skip
    zookeeper_ssl_endpoint_identification_algorithm: str = setting(
        _STRING, "HTTPS", "HTTPS: the certificate of a ZooKeeper server must name its host. Empty: it need not.",
        broker="zookeeper.ssl.endpoint.identification.algorithm",
    )  # fmt: skip

    # --- network

    socket_send_buffer_bytes: int = setting(
        _INT, -1, "Send buffer (SO_SNDBUF) of connections, in bytes; -1 leaves it to the operating system. Kafka's "
        "default is 102400.", broker="socket.send.buffer.bytes", importance=_HIGH, min=1, also=(-1,),
    )  # fmt: skip
    socket_receive_buffer_bytes: int = setting(
        _INT, -1, "Receive buffer (SO_RCVBUF) of connections, in bytes; -1 leaves it to the operating system. Kafka's "
        "default is 102400.", broker="socket.receive.buffer.bytes", importance=_HIGH, min=1, also=(-1,),
    )  # fmt: skip
    socket_request_max_bytes: int = setting(
        _INT, 100 * MIB, "Maximum size of a request, in bytes. A client that announces a larger one is disconnected.",
        broker="socket.request.max.bytes", importance=_HIGH, min=1,
    )  # fmt: skip
    socket_busy_poll_us: int = setting(
        _INT, 100, "How long the broker polls for the next request of a client that sends one at a time, in "
        "microseconds; 0 disables it. Not a setting of Kafka.", broker="socket.busy.poll.us", min=0, max=10_000,
    )  # fmt: skip
    socket_listen_backlog_size: int = setting(
        _INT, 50, "Maximum number of connections that wait to be accepted; at least 1024 are allowed.",
        broker="socket.listen.backlog.size", min=1,
    )  # fmt: skip
    connections_max_idle_ms: int = setting(
        _LONG, 10 * MINUTE_MS, "Time after which an idle connection is closed, in milliseconds; negative is never.",
        broker="connections.max.idle.ms",
    )  # fmt: skip
    max_connections: int = setting(
        _INT, INT_MAX, "Maximum number of connections to the broker.", broker="max.connections", min=0, dynamic=True
    )
    max_connections_per_ip: int = setting(
        _INT, INT_MAX, "Maximum number of connections from one IP address. 0 is useful only with "
        "max.connections.per.ip.overrides.", broker="max.connections.per.ip", min=0, dynamic=True,
    )  # fmt: skip
    max_connections_per_ip_overrides: Mapping[str, int] = setting(
        _STRING, "", "Other maximums for some IP addresses: address:number, separated by commas.",
        broker="max.connections.per.ip.overrides", dynamic=True, convert=_connections_by_address,
    )  # fmt: skip
    penstock_max_partitions: int = setting(
        _INT, 200_000, "Maximum number of partitions of all topics together. Requests beyond it are rejected.",
        broker="penstock.max.partitions", min=1, dynamic=True,
    )  # fmt: skip
    max_connection_creation_rate: int = setting(
        _INT, INT_MAX, "Maximum number of connections that the broker accepts per second; others wait.",
        broker="max.connection.creation.rate", min=1, dynamic=True,
    )  # fmt: skip
    quota_window_num: int = setting(
        _INT, 11, "Number of windows over which the rates of client quotas are measured.", broker="quota.window.num",
        min=2,
    )  # fmt: skip
    quota_window_size_seconds: int = setting(
        _INT, 1, "Length of such a window, in seconds.", broker="quota.window.size.seconds", min=1,
    )  # fmt: skip
    queued_max_request_bytes: int = setting(
        _LONG, QUEUED_BYTES, "Maximum bytes of requests that are being received or handled, over all connections. "
        "Beyond it, connections that send more than 64 KiB at once wait. Zero or less is unlimited.",
        broker="queued.max.request.bytes",
    )  # fmt: skip
    penstock_proxy_listeners: frozenset[str] = setting(
        _LIST, (), "Names of listeners whose clients reach only one address, their advertised one. There, metadata "
        "name it for every broker, and any broker serves any partition by asking its leader. Not a setting of Kafka.",
        broker="penstock.proxy.listeners", convert=_listener_names,
    )  # fmt: skip
    penstock_http_hosts: tuple[str, ...] = setting(
        _LIST, (), "Names by which HTTP requests (metrics, health) may call this broker, besides addresses, localhost, "
        "the host name and advertised.listeners; * allows all. Others are rejected, so that web pages of other sites "
        "cannot read them. Not a setting of Kafka.", broker="penstock.http.hosts",
    )  # fmt: skip
    confluent_schema_registry_url: str | None = setting(
        _STRING, None, "Address of a schema registry, or several with commas, for topics with "
        "confluent.value.schema.validation or confluent.key.schema.validation. A setting of Confluent.",
        broker="confluent.schema.registry.url", convert=_registry_url,
    )  # fmt: skip
    confluent_basic_auth_user_info: str | None = setting(
        ConfigType.PASSWORD, None, "User and password for that registry: user:password. A setting of Confluent.",
        broker="confluent.basic.auth.user.info",
    )  # fmt: skip
    confluent_ssl_truststore_location: str | None = setting(
        _STRING, None, "Certificates (PEM) of the authority of an HTTPS registry. A setting of Confluent.",
        broker="confluent.ssl.truststore.location",
    )  # fmt: skip
    penstock_http_token: str | None = setting(
        ConfigType.PASSWORD, None, "Bearer token with which other machines may read /metrics and all of /health. Not a "
        "setting of Kafka.", broker="penstock.http.token",
    )  # fmt: skip
    penstock_http_user: str | None = setting(
        _STRING, None, "User name for the same by basic authentication, with penstock.http.password. Not a setting of "
        "Kafka.", broker="penstock.http.user",
    )  # fmt: skip
    penstock_http_password: str | None = setting(
        ConfigType.PASSWORD, None, "Password of penstock.http.user. Not a setting of Kafka.",
        broker="penstock.http.password",
    )  # fmt: skip
    penstock_http_allow_anonymous: bool = setting(
        _BOOLEAN, False, "Whether other machines may read /metrics without a token or password. Not a setting of "
        "Kafka.", broker="penstock.http.allow.anonymous",
    )  # fmt: skip
    penstock_console: bool = setting(
        _BOOLEAN, True, "Whether the HTTP port shows the web console, in a process of its own that the first visit "
        "starts. Not a setting of Kafka.", broker="penstock.console",
    )  # fmt: skip
    penstock_console_warehouse: str | None = setting(
        _STRING, None, "Folder or URI of the tables that are loaded from this cluster, for the web console. Not a "
        "setting of Kafka.", broker="penstock.console.warehouse",
    )  # fmt: skip
    penstock_metrics_jmx_names: bool = setting(
        _BOOLEAN, True, "Whether /metrics shows metrics under the names of the Prometheus JMX exporter too. Not a "
        "setting of Kafka.", broker="penstock.metrics.jmx.names",
    )  # fmt: skip
    fetch_max_bytes: int = setting(
        _INT, 55 * MIB, "Maximum bytes in one fetch response, whatever the client requests. The first batch is always "
        "returned whole.", broker="fetch.max.bytes", min=1024,
    )  # fmt: skip
    max_incremental_fetch_session_cache_slots: int = setting(
        _INT, 1000, "Maximum number of fetch sessions.", broker="max.incremental.fetch.session.cache.slots", min=0
    )
    # Kafka's slots bound the sessions but not their size. A partition of a session takes some 300 bytes.
    max_incremental_fetch_session_cache_partitions: int = setting(
        _INT, 250_000, "Maximum number of partitions of all fetch sessions. Beyond it, clients get no session and name "
        "all partitions with each fetch. Not a setting of Kafka.",
        broker="max.incremental.fetch.session.cache.partitions", min=0,
    )  # fmt: skip
    max_request_partition_size_limit: int = setting(
        _INT, 2000, "Maximum number of partitions in one response of DescribeTopicPartitions.",
        broker="max.request.partition.size.limit", min=1,
    )  # fmt: skip

    # --- topics and data folders

    num_partitions: int = setting(
        _INT, 1, "Number of partitions of a topic that is created without one.", broker="num.partitions", min=1
    )
    default_replication_factor: int = setting(
        _INT, 1, "Replication factor of a topic that is created without one.",
        broker="default.replication.factor", min=1,
    )  # fmt: skip
    auto_create_topics_enable: bool = setting(
        _BOOLEAN, True, "Whether a topic is created when a client first asks for it.",
        broker="auto.create.topics.enable", importance=_HIGH,
    )  # fmt: skip
    delete_topic_enable: bool = setting(
        _BOOLEAN, True, "Whether topics can be deleted.", broker="delete.topic.enable", importance=_HIGH
    )
    log_dirs: tuple[str, ...] = setting(
        _STRING, DEFAULT_LOG_DIR, "Data folders, separated by commas, one per disk. A new partition goes to the folder "
        "with the fewest.", broker=("log.dirs", "log.dir"), importance=_HIGH,
        convert=lambda text: parse_list(str(text or "")),
    )  # fmt: skip
    penstock_strays: str = setting(
        _STRING, "refuse", "What to do if data folders hold records but no topic is known: refuse to start, or "
        "set-aside all partition folders under other names. Not a setting of Kafka.",
        broker="penstock.strays", one_of=("refuse", "set-aside"),
    )  # fmt: skip
    num_recovery_threads_per_data_dir: int = setting(
        _INT, 2, "Threads per data folder that open its logs at the start and flush them at the end.",
        broker="num.recovery.threads.per.data.dir", importance=_HIGH, min=1, dynamic=True,
    )  # fmt: skip
    log_retention_check_interval_ms: int = setting(
        _LONG, 5 * MINUTE_MS, "How often logs are checked for segments to delete, in milliseconds.",
        broker="log.retention.check.interval.ms", min=1,
    )  # fmt: skip
    log_retention_policy_class: PolicyFactory | None = setting(  # noqa: RUF009
        ConfigType.CLASS, None, "Own retention policy as module:name, a Python class or function. It decides instead "
        "of log.retention.ms and log.retention.bytes, which it is given. Not a setting of Kafka.",
        broker="log.retention.policy.class", convert=load_retention_class,
    )  # fmt: skip
    log_flush_offset_checkpoint_interval_ms: int = setting(
        _INT, MINUTE_MS, "Maximum time between checkpoints of recovery points, in milliseconds. All checkpoints are "
        "written together, at the shortest of their intervals.",
        broker="log.flush.offset.checkpoint.interval.ms", importance=_HIGH, min=0,
    )  # fmt: skip
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        _INT, MINUTE_MS, "Maximum time between checkpoints of log start offsets, in milliseconds.",
        broker="log.flush.start.offset.checkpoint.interval.ms", importance=_HIGH, min=0,
    )  # fmt: skip
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        _LONG, 5000, "Maximum time between checkpoints of high watermarks, in milliseconds.",
        broker="replica.high.watermark.checkpoint.interval.ms", importance=_HIGH, min=1,
    )  # fmt: skip
    producer_id_expiration_check_interval_ms: int = setting(
        _INT, 10 * MINUTE_MS, "How often the broker checks for idle producers, in milliseconds.",
        broker="producer.id.expiration.check.interval.ms", importance=_LOW, min=1,
    )  # fmt: skip
    log_cleaner_enable: bool = setting(_BOOLEAN, True, "Whether logs are compacted.", broker="log.cleaner.enable")
    log_cleaner_io_max_bytes_per_second: float = setting(
        _DOUBLE, DOUBLE_MAX, "Maximum bytes per second that compaction reads and writes. A change applies to the next "
        "compaction.", broker="log.cleaner.io.max.bytes.per.second", min=1, dynamic=True,
    )  # fmt: skip
    log_cleaner_dedupe_buffer_size: int = setting(
        _LONG, 128 * MIB, "Memory for the keys of a compaction, in bytes. A change applies to the next compaction.",
        broker="log.cleaner.dedupe.buffer.size", min=MIB + 1, dynamic=True,
    )  # fmt: skip
    log_cleaner_backoff_ms: int = setting(
        _LONG, 15_000, "How often the broker checks for logs to compact, in milliseconds.",
        broker="log.cleaner.backoff.ms", min=0, dynamic=True,
    )  # fmt: skip

    # --- cluster

    replica_lag_time_max_ms: int = setting(
        _LONG, 30_000, "Time after which a follower that has not caught up with its leader leaves the ISR, in "
        "milliseconds.", broker="replica.lag.time.max.ms", importance=_HIGH, min=1,
    )  # fmt: skip
    replica_socket_timeout_ms: int = setting(
        _INT, 30_000, "How long a broker waits for the response of another broker, in milliseconds.",
        broker="replica.socket.timeout.ms", importance=_HIGH, min=1,
    )  # fmt: skip
    leader_replication_throttled_rate: int = setting(
        _LONG, NEVER, "Bytes per second that this broker sends to replicas that are not in sync, of throttled "
        "partitions that it leads.", broker="leader.replication.throttled.rate", min=1, dynamic=True,
    )  # fmt: skip
    follower_replication_throttled_rate: int = setting(
        _LONG, NEVER, "Bytes per second that this broker copies of throttled partitions for which it is not in sync.",
        broker="follower.replication.throttled.rate", min=1, dynamic=True,
    )  # fmt: skip
    auto_leader_rebalance_enable: bool = setting(
        _BOOLEAN, True, "Whether leadership moves back to preferred replicas automatically.",
        broker="auto.leader.rebalance.enable", importance=_HIGH,
    )  # fmt: skip
    leader_imbalance_per_broker_percentage: int = setting(
        _INT, 10, "Percentage of a broker's preferred partitions led by others above which leadership moves back.",
        broker="leader.imbalance.per.broker.percentage", importance=_HIGH, min=0, max=100,
    )  # fmt: skip
    leader_imbalance_check_interval_seconds: int = setting(
        _LONG, 300, "How often the balance of leaders is checked, in seconds.",
        broker="leader.imbalance.check.interval.seconds", importance=_HIGH, min=1,
    )  # fmt: skip
    controlled_shutdown_enable: bool = setting(
        _BOOLEAN, True, "Whether a broker hands over its leaderships before it stops.",
        broker="controlled.shutdown.enable",
    )  # fmt: skip
    controlled_shutdown_max_retries: int = setting(
        _INT, 3, "Number of attempts at a controlled shutdown. A broker waits for at most this many times the backoff.",
        broker="controlled.shutdown.max.retries", min=0,
    )  # fmt: skip
    controlled_shutdown_retry_backoff_ms: int = setting(
        _LONG, 5000, "Time between the attempts at a controlled shutdown, in milliseconds.",
        broker="controlled.shutdown.retry.backoff.ms", min=0,
    )  # fmt: skip
    offsets_topic_num_partitions: int = setting(
        _INT, 50, "Number of partitions of __consumer_offsets. Do not change it once the topic exists.",
        broker="offsets.topic.num.partitions", importance=_HIGH, min=1,
    )  # fmt: skip
    offsets_topic_replication_factor: int = setting(
        _SHORT, 3, "Replication factor of __consumer_offsets; 1 on a broker that stands alone.",
        broker="offsets.topic.replication.factor", importance=_HIGH, min=1,
    )  # fmt: skip
    offsets_topic_segment_bytes: int = setting(
        _INT, 100 * MIB, "Segment size of __consumer_offsets, in bytes. Small segments are compacted and loaded "
        "sooner.",
        broker="offsets.topic.segment.bytes", importance=_HIGH, min=14,
    )  # fmt: skip

    # --- access control

    authorizer_class_name: str = setting(
        _STRING, "", "Whether requests are authorized by ACLs: penstock, or one of Kafka's authorizers, which all mean "
        "the same here. Empty: requests are not authorized.", broker="authorizer.class.name", importance=_LOW,
        one_of=("", *AUTHORIZERS),
    )  # fmt: skip
    super_users: frozenset[Principal] = setting(
        _STRING, "", "Principals that may do everything, separated by semicolons: User:admin;User:CN=a,OU=b.",
        broker="super.users", convert=_principals,
    )  # fmt: skip
    penstock_initial_users: InitialUsers = setting(  # noqa: RUF009
        ConfigType.PASSWORD, "", "Users with SCRAM credentials that are stored in a cluster that does not know their "
        "names yet: SCRAM-SHA-512:admin:salt=...,stored_key=...,server_key=...,iterations=..., separated by "
        "semicolons. Not a setting of Kafka.", broker="penstock.initial.users", convert=_initial_users,
    )  # fmt: skip
    allow_everyone_if_no_acl_found: bool = setting(
        _BOOLEAN, False, "Whether every principal may use a resource that has no ACLs.",
        broker="allow.everyone.if.no.acl.found",
    )  # fmt: skip
    penstock_audit_log_file: str | None = setting(
        _STRING, None, "File for the audit log: logins, denied requests and changes, as JSON lines. Not a setting of "
        "Kafka.", broker="penstock.audit.log.file",
    )  # fmt: skip
    penstock_audit_log_file_max_bytes: int = setting(
        _LONG, 100 * MIB, "Size at which the audit file is renamed and a new one begins, in bytes. Not a setting of "
        "Kafka.", broker="penstock.audit.log.file.max.bytes", min=1024,
    )  # fmt: skip
    penstock_audit_log_file_backups: int = setting(
        _INT, 10, "Number of older audit files that are kept. Not a setting of Kafka.",
        broker="penstock.audit.log.file.backups", min=0, max=10_000,
    )  # fmt: skip
    penstock_audit_topic: str | None = setting(
        _STRING, None, "Topic for the audit log, beside or instead of the file. Not a setting of Kafka.",
        broker="penstock.audit.topic", pattern=r"[a-zA-Z0-9._-]{1,249}", pattern_words="a topic name",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic: its own, and the broker's where it has none."""

    log: LogSettings
    compression_type: str = setting(
        _STRING, "producer", "Compression of stored batches; producer keeps them as they were sent.",
        broker="compression.type", topic="compression.type", importance=_HIGH, one_of=COMPRESSIONS, dynamic=True,
    )  # fmt: skip
    compression_gzip_level: int = setting(
        _INT, -1, "Compression level of gzip; -1 is its default.", broker="compression.gzip.level",
        topic="compression.gzip.level", min=1, max=9, also=(-1,), dynamic=True,
    )  # fmt: skip
    compression_lz4_level: int = setting(
        _INT, 9, "Compression level of lz4.", broker="compression.lz4.level", topic="compression.lz4.level",
        min=1, max=17, dynamic=True,
    )  # fmt: skip
    compression_zstd_level: int = setting(
        _INT, 3, "Compression level of zstd.", broker="compression.zstd.level", topic="compression.zstd.level",
        min=-131072, max=22, dynamic=True,
    )  # fmt: skip
    min_insync_replicas: int = setting(
        _INT, 1, "Number of in-sync replicas that a write with acks=all needs.",
        broker="min.insync.replicas", topic="min.insync.replicas", importance=_HIGH, min=1, dynamic=True,
    )  # fmt: skip
    unclean_leader_election_enable: bool = setting(
        _BOOLEAN, False, "Whether a replica that is not in sync may become leader if no other is left. Records can be "
        "lost.", broker="unclean.leader.election.enable", topic="unclean.leader.election.enable",
        importance=_HIGH, dynamic=True,
    )  # fmt: skip
    message_downconversion_enable: bool = setting(
        _BOOLEAN, True, "Whether batches are converted for clients that only read older formats. If false, their "
        "fetches fail with UNSUPPORTED_VERSION.", broker="log.message.downconversion.enable",
        topic="message.downconversion.enable", importance=_LOW, dynamic=True,
    )  # fmt: skip
    leader_throttled_replicas: tuple[str, ...] = setting(
        _LIST, (), "Replicas to which leaders send at leader.replication.throttled.rate while they are not in sync.",
        topic="leader.replication.throttled.replicas", **_THROTTLED, dynamic=True,
    )  # fmt: skip
    follower_throttled_replicas: tuple[str, ...] = setting(
        _LIST, (), "Replicas that copy at follower.replication.throttled.rate while they are not in sync.",
        topic="follower.replication.throttled.replicas", **_THROTTLED, dynamic=True,
    )  # fmt: skip

    @property
    def compression_level(self) -> int | None:
        """Of the codec that `compression_type` names."""
        level: int | None = getattr(self, f"compression_{self.compression_type}_level", None)
        return level


# --- settings without a field

# Read by `resolve_listeners`.
LISTENERS: Final = (
    Definition("listeners", _STRING, "PLAINTEXT://:9092", "Where the broker accepts connections: name://host:port, "
               "separated by commas. Without a host, or with 0.0.0.0, on all addresses; port 0 takes a free one.",
               _HIGH),
    Definition("advertised.listeners", _STRING, None, "Addresses that clients connect to, in the form of listeners. If "
               "not set, those of listeners, with the host name instead of 0.0.0.0.", _HIGH),
    Definition("listener.security.protocol.map", _STRING, ",".join(f"{name}:{name}" for name in PROTOCOLS),
               "Security protocol of each listener name.", _LOW),
    Definition("inter.broker.listener.name", _STRING, None, "Listener that other brokers connect to. If not set, the "
               "one named PLAINTEXT, or the first."),
    Definition("controller.listener.names", _STRING, None, "Listeners of a KRaft quorum. Penstock has none, so "
               "listeners of these names are left out of listeners and advertised.listeners.", _HIGH),
)  # fmt: skip

# Older names: they apply where the newer ones are not set.
ALIASES: Final = (
    Definition("node.id", _INT, -1, "Alias of broker.id.", _HIGH, min=-1),
    Definition("log.message.timestamp.difference.max.ms", _LONG, NEVER, "Older name for both "
               "log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms, used where they are not "
               "set.", min=0, dynamic=True),
)  # fmt: skip
TOPIC_ALIASES: Final = (
    Definition("message.timestamp.difference.max.ms", _LONG, NEVER, "Older name for both "
               "message.timestamp.before.max.ms and message.timestamp.after.max.ms, used where the topic does not set "
               "them.", min=0, dynamic=True, broker_name="log.message.timestamp.difference.max.ms"),
)  # fmt: skip


def _none(name: str, kind: ConfigType, default: Any, doc: str, importance: Importance = Importance.MEDIUM, **bounds: Any
          ) -> Definition:  # fmt: skip
    return Definition(name, kind, default, doc, importance, has_effect=False, **bounds)


NO_EFFECT: Final = (
    # identity
    _none("zookeeper.max.in.flight.requests", _INT, 10, "Maximum number of unanswered requests to ZooKeeper.", _HIGH,
          min=1),
    _none("zookeeper.sync.time.ms", _INT, 2000, "How far a ZooKeeper follower may be behind.", _LOW),
    _none("process.roles", _LIST, (), "Roles of a process in a KRaft cluster.", _HIGH, one_of=("broker", "controller")),
    _none("controller.quorum.voters", _LIST, (), "Members of a KRaft quorum.", _HIGH),
    # network
    _none("queued.max.requests", _INT, 500, "Maximum number of queued requests; see queued.max.request.bytes.", _HIGH,
          min=1),
    _none("request.timeout.ms", _INT, 30_000, "How long to wait for a response; see replica.socket.timeout.ms.", _HIGH,
          min=1),
    _none("socket.connection.setup.timeout.ms", _LONG, 10_000, "Time to connect to another broker.", min=1),
    _none("socket.connection.setup.timeout.max.ms", _LONG, 30_000, "The same after several failures.", min=1),
    # threads
    _none("num.network.threads", _INT, 3, "Threads for sockets. One event loop serves them all.", _HIGH, min=1,
          dynamic=True),
    _none("num.io.threads", _INT, 8, "Threads for requests.", _HIGH, min=1, dynamic=True),
    _none("background.threads", _INT, 10, "Threads for background tasks.", _HIGH, min=1, dynamic=True),
    _none("num.replica.alter.log.dirs.threads", _INT, None, "Threads that move replicas between disks.", _HIGH),
    # security
    _none("principal.builder.class", ConfigType.CLASS, None, "Class that builds principals."),
    _none("delegation.token.secret.key", ConfigType.PASSWORD, None, "Key of delegation tokens."),
    _none("password.encoder.secret", ConfigType.PASSWORD, None, "Key of stored passwords."),
    _none("client.quota.callback.class", ConfigType.CLASS, None, "Class that decides on quotas.", _LOW),
    _none("create.topic.policy.class.name", ConfigType.CLASS, None, "Class that validates new topics.", _LOW),
    _none("alter.config.policy.class.name", ConfigType.CLASS, None, "Class that validates changed settings.", _LOW),
    # logs
    _none("log.preallocate", _BOOLEAN, False, "Whether a new segment is allocated in full.", dynamic=True),
    _none("log.dir.failure.timeout.ms", _LONG, 30_000, "How long a failed disk may stay unreported.", _LOW, min=1),
    _none("log.initial.task.delay.ms", _LONG, 30_000, "Delay of background tasks after the start.", _LOW, min=0),
    _none("log.cleaner.threads", _INT, 1, "Threads for compaction. One log is compacted at a time.", min=0,
          dynamic=True),
    _none("log.cleaner.io.buffer.size", _INT, 512 * KIB, "Memory for the reads and writes of compactions.", min=0,
          dynamic=True),
    _none("log.cleaner.io.buffer.load.factor", _DOUBLE, 0.9, "How full the memory for keys may get.", dynamic=True),
    _none("log.message.format.version", _STRING, "3.0-IV1", "Format of stored batches. It is always the newest."),
    # replication and control
    _none("replica.socket.receive.buffer.bytes", _INT, 64 * KIB, "Receive buffer of a follower's connections.", _HIGH,
          min=1, also=(-1,)),
    _none("num.replica.fetchers", _INT, 1, "Connections to each leader. One serves all partitions.", _HIGH, min=1,
          dynamic=True),
    _none("replica.selector.class", _STRING, None, "Class that selects the replica that a consumer reads from."),
    _none("controller.socket.timeout.ms", _INT, 30_000, "How long the controller waits for a broker's response.",
          min=1),
    _none("inter.broker.protocol.version", _STRING, "3.9-IV0", "Protocol version between brokers."),
    _none("fetch.purgatory.purge.interval.requests", _INT, 1000, "How often waiting fetches are cleaned up."),
    _none("producer.purgatory.purge.interval.requests", _INT, 1000, "How often waiting writes are cleaned up."),
    _none("delete.records.purgatory.purge.interval.requests", _INT, 1, "How often waiting deletions are cleaned up."),
    # groups
    _none("group.consumer.session.timeout.ms", _INT, 45_000, "Session timeout of KIP-848 groups.", min=1),
    _none("group.consumer.min.session.timeout.ms", _INT, 45_000, "Minimum session timeout of KIP-848 groups.", min=1),
    _none("group.consumer.max.session.timeout.ms", _INT, 60_000, "Maximum session timeout of KIP-848 groups.", min=1),
    _none("group.consumer.heartbeat.interval.ms", _INT, 5000, "Heartbeat interval of KIP-848 groups.", min=1),
    _none("group.consumer.min.heartbeat.interval.ms", _INT, 5000, "Minimum heartbeat interval of KIP-848 groups.",
          min=1),
    _none("group.consumer.max.heartbeat.interval.ms", _INT, 15_000, "Maximum heartbeat interval of KIP-848 groups.",
          min=1),
    _none("group.consumer.max.size", _INT, INT_MAX, "Maximum number of members of a KIP-848 group.", min=1),
    _none("group.consumer.assignors", _LIST, ("uniform", "range"), "Assignors of KIP-848 groups."),
    _none("group.coordinator.rebalance.protocols", _LIST, ("classic",), "Group protocols."),
    _none("group.coordinator.threads", _INT, 1, "Threads for groups.", min=1),
    _none("group.coordinator.new.enable", _BOOLEAN, False, "Whether Kafka's newer coordinator is used."),
    _none("offsets.load.buffer.size", _INT, 5 * MIB, "Bytes read at once when offsets are loaded.", _HIGH, min=1),
    _none("offsets.topic.compression.codec", _INT, 0, "Compression of committed offsets.", _HIGH, min=0, max=4),
    _none("offsets.commit.required.acks", _SHORT, -1, "Replicas that a commit waits for. It always waits for the ISR.",
          _HIGH, min=-1),
    # transactions
    _none("transaction.state.log.load.buffer.size", _INT, 5 * MIB, "Bytes read at once when transactions are loaded.",
          _HIGH, min=1),
    _none("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, 10_000, "How often timed-out "
          "transactions are aborted. They are aborted when their time is over.", _LOW, min=1),
    # metrics
    _none("metric.reporters", _LIST, (), "Classes that report metrics.", _LOW, dynamic=True),
    _none("metrics.num.samples", _INT, 2, "Number of samples per metric.", _LOW, min=1),
    _none("metrics.sample.window.ms", _LONG, 30_000, "Time that a sample covers.", _LOW, min=1),
    _none("metrics.recording.level", _STRING, "INFO", "Recording level of metrics.", _LOW),
    _none("auto.include.jmx.reporter", _BOOLEAN, True, "Whether metrics are reported to JMX.", _LOW),
)  # fmt: skip

TOPIC_NO_EFFECT: Final = (
    _none("message.format.version", _STRING, "3.0-IV1", "Format of stored batches. It is always the newest.",
          dynamic=True, broker_name="log.message.format.version"),
    _none("preallocate", _BOOLEAN, False, "Whether a new segment is allocated in full.", dynamic=True,
          broker_name="log.preallocate"),
    _none("remote.storage.enable", _BOOLEAN, False, "Whether old segments move to remote storage. Penstock has none.",
          one_of=("false",), dynamic=True),
    _none("local.retention.ms", _LONG, -2, "How long records stay on the local disk with remote storage.", min=-2,
          dynamic=True),
    _none("local.retention.bytes", _LONG, -2, "How many bytes stay on the local disk with remote storage.", min=-2,
          dynamic=True),
)  # fmt: skip

# Kafka's settings that begin like this have no effect either; a file that has them has no typing error.
ELSEWHERE: Final = (
    "ssl.", "sasl.", "listener.name.", "zookeeper.ssl.",
    "zookeeper.clientCnxnSocket", "zookeeper.metadata.migration.", "delegation.token.", "password.encoder.",
    "security.providers", "remote.", "log.local.retention.", "controller.quorum.", "metadata.", "share.",
    "group.coordinator.", "group.consumer.migration.policy", "kafka.metrics.", "metrics.",
    "group.share.", "replication.quota.", "alter.log.dirs.replication.quota.", "controller.quota.", "telemetry.",
    "unstable.", "early.start.listeners", "control.plane.listener.name", "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms", "server.max.startup.", "initial.broker.registration.timeout.ms",
    "eligible.leader.replicas.enable", "unclean.leader.election.interval.ms",
)  # fmt: skip


# --- by name

SECTIONS: Final = (ServerSettings, TopicSettings, LogSettings, GroupSettings, TransactionSettings, FetcherSettings)


def _declared() -> Iterator[Declaration]:
    for section in SECTIONS:
        yield from declarations(section).values()


def _by_name(definitions: Iterable[Definition]) -> Mapping[str, Definition]:
    return MappingProxyType({each.name: each for each in sorted(definitions, key=lambda each: each.name)})


BROKER_DEFINITIONS: Final = _by_name(
    (
        *(each for declared in _declared() for each in declared.broker_definitions()),
        *LISTENERS,
        *SECURITY,
        *ALIASES,
        *NO_EFFECT,
    )
)
TOPIC_DEFINITIONS: Final = _by_name(
    (
        *(found for declared in _declared() if (found := declared.topic_definition()) is not None),
        *TOPIC_ALIASES,
        *TOPIC_NO_EFFECT,
    )
)
FAMILIES: Final[Mapping[str, tuple[Unit, ...]]] = {
    declared.family[0][0]: (*declared.family, *((alias, 1) for alias in declared.aliases[:1]))
    for declared in _declared()
    if len(declared.family) > 1 or (declared.family and (declared.aliases or declared.family[0][1] != 1))
}
"""By name, the settings that give its value, each with the factor that converts its value to the finest unit."""
_TOPIC_ALIASES: Final = {declared.topic: declared.aliases[1] for declared in _declared() if len(declared.aliases) > 1}


def family_of(name: str) -> tuple[Unit, ...]:
    """The names that give this setting its value, the setting itself first."""
    return FAMILIES.get(name, ((name, 1),))


def own_names(name: str) -> tuple[str, ...]:
    """The names by which a topic may set this, the one that applies first."""
    return (name, _TOPIC_ALIASES[name]) if name in _TOPIC_ALIASES else (name,)


def scope_of(name: str) -> Scope | None:
    """Whether brokers, topics or both have a setting of this name; None if neither."""
    if name in BROKER_DEFINITIONS:
        return Scope.BOTH if name in TOPIC_DEFINITIONS else Scope.BROKER
    return Scope.TOPIC if name in TOPIC_DEFINITIONS else None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, if any is."""
    # Imported here because it takes time and is needed only for mistakes.
    from difflib import get_close_matches

    matches = get_close_matches(name[:100].lower(), list(known), n=1, cutoff=0.75)
    return matches[0] if matches else None
