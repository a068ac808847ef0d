"""All settings of brokers and topics, by Kafka's names.

The defaults of logs are those of `LogSettings`, so that a log behaves alike with and without a broker. Most topic
settings stand for a broker setting, which applies where the topic sets nothing: type, bounds and default are the
broker's.

Settings that give one value in several units (hours, minutes, milliseconds) are a family, finest first. The strongest
layer wins (dynamic, command line, file); within a layer, the finest unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from penstock.broker.settings.config_def import (
    DAY_MS,
    DOUBLE_MAX,
    HOUR_MS,
    INT_MAX,
    KIB,
    MIB,
    MINUTE_MS,
    NEVER,
    ConfigType,
    Definition,
    Importance,
    Scope,
)
from penstock.log.settings import COMPACT, DELETE, LogSettings

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_HIGH, _LOW = Importance.HIGH, Importance.LOW

# Kafka's default is no limit. A broker that is a Python process has no heap of a fixed size that would be one.
QUEUED_BYTES: Final = 512 * MIB
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

IDENTITY: Final = (
    Definition(
        "broker.id", _INT, -1, "The number of this broker, another one for each broker of a cluster; -1 leaves the "
        "choice to the broker, which keeps it in its data folders.", _HIGH, least=-1,
    ),
    Definition("node.id", _INT, -1, "Another name of broker.id.", _HIGH, least=-1),
    Definition(
        "broker.id.generation.enable", _BOOLEAN, True, "Whether a broker without a number may be given one by "
        "ZooKeeper, above reserved.broker.max.id.",
    ),
    Definition("reserved.broker.max.id", _INT, 1000, "The largest number for broker.id, where numbers are also "
               "generated.", least=0),
    Definition(
        "broker.rack", _STRING, None, "The rack or zone that this broker stands in; replicas of a partition are spread "
        "over racks.",
    ),
    Definition(
        "zookeeper.connect", _STRING, None, "The ZooKeeper servers of the cluster, host:port parted by commas, with an "
        "optional /path at the end. Without them a broker stands alone and keeps the metadata itself.", _HIGH,
    ),
    Definition(
        "zookeeper.session.timeout.ms", _INT, 6_000, "After how long without a sign of life ZooKeeper takes this "
        "broker for dead.", _HIGH, least=1,
    ),
    Definition(
        "zookeeper.connection.timeout.ms", _INT, None, "How long to wait for the first connection to ZooKeeper; if not "
        "set, as long as zookeeper.session.timeout.ms.", _HIGH, least=1,
    ),
    Definition("zookeeper.max.in.flight.requests", _INT, 10, "Requests to ZooKeeper that may wait for an answer.",
               _HIGH, least=1, has_effect=False),
    Definition("zookeeper.set.acl", _BOOLEAN, False, "Whether nodes in ZooKeeper are protected by access lists.", _HIGH,
               has_effect=False),
    Definition("zookeeper.ssl.client.enable", _BOOLEAN, False, "Whether connections to ZooKeeper are encrypted.",
               has_effect=False),
    Definition("zookeeper.sync.time.ms", _INT, 2000, "How far a ZooKeeper follower may be behind.", _LOW,
               has_effect=False),
    Definition("process.roles", ConfigType.LIST, (), "The roles of a process in a cluster without ZooKeeper.", _HIGH,
               one_of=("broker", "controller"), has_effect=False),
    Definition(
        "controller.listener.names", _STRING, None, "Listeners for a metadata quorum. There is none here, so listeners "
        "of these names are left out of listeners and advertised.listeners.", _HIGH,
    ),
    Definition("controller.quorum.voters", ConfigType.LIST, (), "The members of a metadata quorum.", _HIGH,
               has_effect=False),
)  # fmt: skip

SOCKETS: Final = (
    Definition(
        "listeners", _STRING, "PLAINTEXT://:9092", "Where the broker accepts connections: name://host:port, parted by "
        "commas. Without a host, or with 0.0.0.0, on all addresses of the machine; port 0 takes a free one.", _HIGH,
    ),
    Definition(
        "advertised.listeners", _STRING, None, "What clients are told to connect to, in the form of listeners: "
        "addresses that they can reach. If not set, those of listeners, with the machine's name for 0.0.0.0.", _HIGH,
    ),
    Definition(
        "listener.security.protocol.map", _STRING, ",".join(f"{name}:{name}" for name in _PROTOCOLS),
        "Which security protocol a listener of each name speaks.", _LOW,
    ),
    Definition(
        "inter.broker.listener.name", _STRING, None, "The listener by which brokers reach each other; if not set, the "
        "one that is named or speaks PLAINTEXT.",
    ),
    Definition("security.inter.broker.protocol", _STRING, "PLAINTEXT", "The protocol among brokers.",
               one_of=_PROTOCOLS, has_effect=False),
    Definition(
        "socket.send.buffer.bytes", _INT, 100 * KIB, "The send buffer (SO_SNDBUF) of connections; -1 leaves it to the "
        "operating system.", _HIGH, least=1, also=(-1,),
    ),
    Definition(
        "socket.receive.buffer.bytes", _INT, 100 * KIB, "The receive buffer (SO_RCVBUF) of connections; -1 leaves it "
        "to the operating system.", _HIGH, least=1, also=(-1,),
    ),
    Definition("socket.request.max.bytes", _INT, 100 * MIB, "The largest request that is read; whoever announces a "
               "larger one is disconnected.", _HIGH, least=1),
    Definition(
        "socket.busy.poll.us",
        _INT,
        100,
        "Microseconds to stay awake for the next request of a client that asks one by one; 0 is never. Not Kafka's.",
        least=0,
        most=10_000,
    ),
    Definition("socket.listen.backlog.size", _INT, 50, "Connections that may wait to be accepted.", least=1),
    Definition("connections.max.idle.ms", _LONG, 10 * MINUTE_MS, "A connection on which nothing happens for this long "
               "is closed; negative never."),
    Definition("max.connections", _INT, INT_MAX, "The most connections that the broker has open.", least=0,
               dynamic=True),
    Definition("max.connections.per.ip", _INT, INT_MAX, "The most connections from one address; 0 only together with "
               "max.connections.per.ip.overrides.", least=0, dynamic=True),
    Definition("max.connections.per.ip.overrides", _STRING, "", "Another maximum for some addresses: address:number, "
               "parted by commas.", dynamic=True),
    Definition("max.connection.creation.rate", _INT, INT_MAX, "The most connections that are accepted in a second.",
               least=0, dynamic=True),
    Definition("queued.max.requests", _INT, 500, "Requests that may be waiting or in work before the broker stops to "
               "read more.", _HIGH, least=1),
    Definition("queued.max.request.bytes", _LONG, QUEUED_BYTES, "Bytes of requests that are being received or in work, "
               "over all connections; beyond, connections that bring more than 64 KiB at once wait. Zero or less is no "
               "limit."),
    Definition("request.timeout.ms", _INT, 30_000, "How long this broker waits for an answer of another one.", _HIGH,
               least=1),
    Definition("socket.connection.setup.timeout.ms", _LONG, 10_000, "How long a connection to another broker may take "
               "to come about.", least=1),
    Definition("socket.connection.setup.timeout.max.ms", _LONG, 30_000, "The same after several failures.", least=1,
               has_effect=False),
    Definition("penstock.http.hosts", ConfigType.LIST, (), "Names by which this broker is called over HTTP (metrics, "
               "health), besides addresses, localhost, the machine's name and those of advertised.listeners; * is any. "
               "Requests for other names are rejected, so that pages from elsewhere cannot read them. Not Kafka's."),
    Definition("connection.failed.authentication.delay.ms", _INT, 100, "The pause before a failed login is answered.",
               _LOW, least=0, has_effect=False),
    Definition("connections.max.reauth.ms", _LONG, 0, "How long a login counts.", has_effect=False),
)  # fmt: skip

FETCHES: Final = (
    Definition("fetch.max.bytes", _INT, 55 * MIB, "The most bytes in one answer to a fetch, whatever the client asks "
               "for; the first batch always comes whole.", least=1024),
    Definition("max.incremental.fetch.session.cache.slots", _INT, 1000, "Fetch sessions that the broker remembers.",
               least=0),
    # Not Kafka's, whose slots bound the sessions but not their size. A partition of a session takes some 300 bytes.
    Definition("max.incremental.fetch.session.cache.partitions", _INT, 250_000, "Partitions of all fetch sessions "
               "together; beyond, clients get no session and name all partitions with each fetch.", least=0),
    Definition("max.request.partition.size.limit", _INT, 2000, "The most partitions in one answer to a description of "
               "topics.", least=1),
)  # fmt: skip

THREADS: Final = (
    Definition("num.network.threads", _INT, 3, "Threads for sockets; here one event loop serves them all.", _HIGH,
               least=1, dynamic=True, has_effect=False),
    Definition("num.io.threads", _INT, 8, "Threads for requests.", _HIGH, least=1, dynamic=True, has_effect=False),
    Definition("background.threads", _INT, 10, "Threads for work in the background.", _HIGH, least=1, dynamic=True,
               has_effect=False),
    Definition("num.recovery.threads.per.data.dir", _INT, 2, "Threads that open a data folder's logs at the start and "
               "flush them at the end.", _HIGH, least=1, dynamic=True),
    Definition("num.replica.alter.log.dirs.threads", _INT, None, "Threads that move partitions from disk to disk.",
               _HIGH, has_effect=False),
)  # fmt: skip

SECURITY: Final = (
    Definition("authorizer.class.name", _STRING, "", "The class that decides who may do what.", _LOW,
               has_effect=False),
    Definition("principal.builder.class", ConfigType.CLASS, None, "The class that names who is connected.",
               has_effect=False),
    Definition("delegation.token.secret.key", ConfigType.PASSWORD, None, "The key of delegation tokens.",
               has_effect=False),
    Definition("password.encoder.secret", ConfigType.PASSWORD, None, "The key of stored passwords.", has_effect=False),
    Definition("client.quota.callback.class", ConfigType.CLASS, None, "The class that decides on quotas.", _LOW,
               has_effect=False),
    Definition("create.topic.policy.class.name", ConfigType.CLASS, None, "The class that judges new topics.", _LOW,
               has_effect=False),
    Definition("alter.config.policy.class.name", ConfigType.CLASS, None, "The class that judges changes of settings.",
               _LOW, has_effect=False),
)  # fmt: skip

NETWORK_CONFIGS: Final = (*IDENTITY, *SOCKETS, *FETCHES, *THREADS, *SECURITY)


_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST
_LOG = LogSettings()

COMPRESSIONS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
DEFAULT_LOG_DIR: Final = "penstock-data"

TOPICS: Final = (
    Definition("num.partitions", _INT, 1, "Partitions of a topic that is created without saying how many.", least=1),
    Definition("default.replication.factor", _INT, 1, "Copies of each partition of a topic that is created without "
               "saying how many.", least=1),
    Definition("auto.create.topics.enable", _BOOLEAN, True, "Whether a topic comes into being when a client first asks "
               "for it.", _HIGH),
    Definition("delete.topic.enable", _BOOLEAN, True, "Whether topics can be deleted.", _HIGH),
    Definition("message.max.bytes", _INT, _LOG.max_message_bytes, "The largest batch of records that is accepted, as "
               "it is on disk, compressed.", _HIGH, least=0, dynamic=True),
    Definition("min.insync.replicas", _INT, 1, "How many replicas must be in sync for a write with acks=all to be "
               "accepted.", _HIGH, least=1, dynamic=True),
    Definition("unclean.leader.election.enable", _BOOLEAN, False, "Whether a replica that was not in sync may lead "
               "when no other is left, at the price of records.", _HIGH, dynamic=True),
    Definition("compression.type", _STRING, "producer", "How records are compressed on disk; producer leaves them as "
               "they come.", _HIGH, one_of=COMPRESSIONS, dynamic=True),
    Definition("compression.gzip.level", _INT, -1, "How hard gzip tries; -1 is its default.", least=1, most=9,
               also=(-1,), dynamic=True),
    Definition("compression.lz4.level", _INT, 9, "How hard lz4 tries.", least=1, most=17, dynamic=True),
    Definition("compression.zstd.level", _INT, 3, "How hard zstd tries.", least=-131072, most=22, dynamic=True),
)  # fmt: skip

SEGMENTS: Final = (
    Definition("log.dirs", _STRING, None, "The data folders, parted by commas, one on each disk; a new partition goes "
               "where the fewest are.", _HIGH),
    Definition("log.dir", _STRING, DEFAULT_LOG_DIR, "The data folder, if log.dirs is not set.", _HIGH),
    Definition("penstock.strays", _STRING, "refuse", "What to do at a start where data folders hold records, but no "
               "topic is known: refuse it, or set-aside all partitions' folders under other names. Not Kafka's.",
               one_of=("refuse", "set-aside")),
    Definition("log.segment.bytes", _INT, _LOG.segment_bytes, "The size at which a log begins a new segment file.",
               _HIGH, least=14, dynamic=True),
    Definition("log.roll.ms", _LONG, None, "The age at which a log begins a new segment file; if not set, "
               "log.roll.hours counts.", _HIGH, least=1, dynamic=True),
    Definition("log.roll.hours", _INT, 168, "The same in hours.", _HIGH, least=1),
    Definition("log.roll.jitter.ms", _LONG, None, "By how much that age is shortened at most, at random, so that not "
               "all logs roll at once; if not set, log.roll.jitter.hours counts.", _HIGH, least=0, dynamic=True),
    Definition("log.roll.jitter.hours", _INT, 0, "The same in hours.", _HIGH, least=0),
    Definition("log.index.size.max.bytes", _INT, _LOG.segment_index_bytes, "The size of an index at which a log begins "
               "a new segment.", least=4, dynamic=True),
    Definition("log.index.interval.bytes", _INT, _LOG.index_interval_bytes, "Bytes of log for each entry of its index.",
               least=0, dynamic=True),
    Definition("log.segment.delete.delay.ms", _LONG, _LOG.file_delete_delay_ms, "How long the file of a segment that "
               "was removed stays, for those who still read it.", _HIGH, least=0, dynamic=True),
    Definition("log.preallocate", _BOOLEAN, False, "Whether a new segment takes all its room on disk at once.",
               dynamic=True, has_effect=False),
    Definition("log.dir.failure.timeout.ms", _LONG, 30_000, "How long a failed disk may stay unreported.", _LOW,
               least=1, has_effect=False),
    Definition("log.initial.task.delay.ms", _LONG, 30_000, "How long after the start the regular work on logs begins.",
               _LOW, least=0),
)  # fmt: skip

FLUSHES: Final = (
    Definition("log.flush.interval.messages", _LONG, _LOG.flush_messages, "After how many records a log is synced to "
               "disk.", _HIGH, least=1, dynamic=True),
    Definition("log.flush.interval.ms", _LONG, None, "How old a record may get before its log is synced to disk; if "
               "not set, log.flush.scheduler.interval.ms counts.", _HIGH, least=0, dynamic=True),
    Definition("log.flush.scheduler.interval.ms", _LONG, NEVER, "How often to look for logs that must be synced.",
               _HIGH, least=0),
    Definition("log.flush.offset.checkpoint.interval.ms", _INT, MINUTE_MS, "How often to write down how far each log "
               "is synced, which is where its recovery begins.", _HIGH, least=0),
    Definition("log.flush.start.offset.checkpoint.interval.ms", _INT, MINUTE_MS, "How often to write down where each "
               "log starts.", _HIGH, least=0),
)  # fmt: skip

RETENTION: Final = (
    Definition("log.retention.ms", _LONG, None, "How long records are kept; negative for ever. If not set, "
               "log.retention.minutes counts, then log.retention.hours.", _HIGH, excluded=(0,), dynamic=True),
    Definition("log.retention.minutes", _INT, None, "The same in minutes.", _HIGH, excluded=(0,)),
    Definition("log.retention.hours", _INT, 168, "The same in hours.", _HIGH, excluded=(0,)),
    Definition("log.retention.bytes", _LONG, _LOG.retention_bytes, "How large a partition may grow before its oldest "
               "segments go; negative without limit.", _HIGH, dynamic=True),
    Definition("log.retention.check.interval.ms", _LONG, 5 * MINUTE_MS, "How often to look for what may go.", least=1),
    Definition("log.cleanup.policy", _LIST, tuple(sorted(_LOG.cleanup_policy)), "What happens to old records: delete "
               "them by age and size, compact them to the last of each key, or both.",
               one_of=(COMPACT, DELETE), dynamic=True),
)  # fmt: skip

CLEANER: Final = (
    Definition("log.cleaner.enable", _BOOLEAN, True, "Whether logs are compacted at all."),
    Definition("log.cleaner.threads", _INT, 1, "Threads for compaction; here one log at a time is compacted.", least=0,
               dynamic=True, has_effect=False),
    Definition("log.cleaner.io.max.bytes.per.second", _DOUBLE, DOUBLE_MAX, "How many bytes compaction may read and "
               "write in a second.", least=1, dynamic=True),
    Definition("log.cleaner.dedupe.buffer.size", _LONG, 128 * MIB, "Memory for the keys of a compaction.",
               least=MIB + 1, dynamic=True),
    Definition("log.cleaner.io.buffer.size", _INT, 512 * KIB, "Memory for the reads and writes of a compaction.",
               least=0, dynamic=True, has_effect=False),
    Definition("log.cleaner.io.buffer.load.factor", _DOUBLE, 0.9, "How full the memory for keys may get.",
               dynamic=True, has_effect=False),
    Definition("log.cleaner.backoff.ms", _LONG, 15_000, "How long to wait when nothing is to be compacted.", least=0,
               dynamic=True),
    Definition("log.cleaner.min.cleanable.ratio", _DOUBLE, _LOG.min_cleanable_dirty_ratio, "The share of a log that "
               "must be new before it is compacted again.", least=0, most=1, dynamic=True),
    Definition("log.cleaner.delete.retention.ms", _LONG, _LOG.delete_retention_ms, "How long the mark that a key was "
               "deleted is kept.", least=0, dynamic=True),
    Definition("log.cleaner.min.compaction.lag.ms", _LONG, _LOG.min_compaction_lag_ms, "How long a record is safe from "
               "compaction.", least=0, dynamic=True),
    Definition("log.cleaner.max.compaction.lag.ms", _LONG, _LOG.max_compaction_lag_ms, "After how long a record must "
               "have been compacted.", least=1, dynamic=True),
)  # fmt: skip

TIMESTAMPS: Final = (
    Definition("log.message.timestamp.type", _STRING, "CreateTime", "Whose clock gives a record its time: the "
               "producer's (CreateTime) or the broker's (LogAppendTime).", one_of=("CreateTime", "LogAppendTime"),
               dynamic=True),
    Definition("log.message.timestamp.before.max.ms", _LONG, _LOG.message_timestamp_before_max_ms, "How far in the "
               "past a record's time may be.", least=0, dynamic=True),
    Definition("log.message.timestamp.after.max.ms", _LONG, _LOG.message_timestamp_after_max_ms, "How far in the "
               "future a record's time may be.", least=0, dynamic=True),
    Definition("log.message.timestamp.difference.max.ms", _LONG, NEVER, "An older name for both "
               "log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms, where they are not set.",
               least=0, dynamic=True),
    Definition("log.message.downconversion.enable", _BOOLEAN, True, "Whether records are converted for clients that "
               "only know older formats.", _LOW, dynamic=True),
    Definition("log.message.format.version", _STRING, "3.0-IV1", "The format of records on disk, which is always the "
               "newest.", has_effect=False),
)  # fmt: skip

LOG_CONFIGS: Final = (*TOPICS, *SEGMENTS, *FLUSHES, *RETENTION, *CLEANER, *TIMESTAMPS)


_SHORT, _LIST_TYPE = ConfigType.SHORT, ConfigType.LIST

REPLICATION: Final = (
    Definition("replica.lag.time.max.ms", _LONG, 30_000, "A follower that has not caught up with its leader for this "
               "long is out of sync.", _HIGH, least=1),
    Definition("replica.socket.timeout.ms", _INT, 30_000, "How long a follower waits for an answer of its leader.",
               _HIGH, least=1),
    Definition("replica.socket.receive.buffer.bytes", _INT, 64 * KIB, "The receive buffer (SO_RCVBUF) of a follower's "
               "connection; -1 leaves it to the operating system.", _HIGH, least=1, also=(-1,)),
    Definition("replica.fetch.max.bytes", _INT, MIB, "What a follower asks for of one partition; a larger batch comes "
               "all the same.", least=0),
    Definition("replica.fetch.response.max.bytes", _INT, 10 * MIB, "What a follower asks for in one request; a larger "
               "batch comes all the same.", least=0),
    Definition("replica.fetch.wait.max.ms", _INT, 500, "How long a leader may wait for new records before it answers a "
               "follower.", _HIGH, least=0),
    Definition("replica.fetch.min.bytes", _INT, 1, "How many bytes a follower waits for.", _HIGH, least=0),
    Definition("replica.fetch.backoff.ms", _INT, 1000, "The pause of a follower after a failed fetch.", least=0),
    Definition("num.replica.fetchers", _INT, 1, "Connections by which a broker follows each other broker.", _HIGH,
               least=1, dynamic=True),
    Definition("replica.high.watermark.checkpoint.interval.ms", _LONG, 5000, "How often to write down the high "
               "watermarks.", _HIGH, least=1),
    Definition("leader.replication.throttled.rate", _LONG, 2**63 - 1, "Bytes a second that this broker may send of "
               "throttled partitions that it leads to replicas that are not in sync.", least=1, dynamic=True),
    Definition("follower.replication.throttled.rate", _LONG, 2**63 - 1, "Bytes a second that this broker may copy of "
               "throttled partitions that are not in sync.", least=1, dynamic=True),
    Definition("replica.selector.class", _STRING, None, "The class that picks the replica a consumer reads from.",
               has_effect=False),
)  # fmt: skip

CONTROL: Final = (
    Definition("auto.leader.rebalance.enable", _BOOLEAN, True, "Whether leadership goes back to the preferred replicas "
               "by itself.", _HIGH),
    Definition("leader.imbalance.per.broker.percentage", _INT, 10, "How much of a broker's leadership may be with "
               "others before it does.", _HIGH, least=0, most=100),
    Definition("leader.imbalance.check.interval.seconds", _LONG, 300, "How often to look.", _HIGH, least=1),
    Definition("controlled.shutdown.enable", _BOOLEAN, True, "Whether a broker hands its leadership over before it "
               "stops."),
    Definition("controlled.shutdown.max.retries", _INT, 3, "How often it tries.", least=0),
    Definition("controlled.shutdown.retry.backoff.ms", _LONG, 5000, "The pause between two tries.", least=0),
    Definition("controller.socket.timeout.ms", _INT, 30_000, "How long the controller waits for a broker's answer.",
               least=1),
    Definition("inter.broker.protocol.version", _STRING, "3.9-IV0", "The version that brokers speak among themselves.",
               has_effect=False),
    Definition("fetch.purgatory.purge.interval.requests", _INT, 1000, "When waiting fetches are tidied up.",
               has_effect=False),
    Definition("producer.purgatory.purge.interval.requests", _INT, 1000, "When waiting writes are tidied up.",
               has_effect=False),
    Definition("delete.records.purgatory.purge.interval.requests", _INT, 1, "When waiting deletions are tidied up.",
               has_effect=False),
)  # fmt: skip

GROUPS: Final = (
    Definition("group.min.session.timeout.ms", _INT, 6000, "The shortest session timeout that a member of a group may "
               "ask for.", least=0),
    Definition("group.max.session.timeout.ms", _INT, 30 * MINUTE_MS, "The longest.", least=0),
    Definition("group.initial.rebalance.delay.ms", _INT, 3000, "How long a new group waits for more members before it "
               "shares out partitions.", least=0),
    Definition("group.max.size", _INT, INT_MAX, "The most members of a group.", least=1),
    # Not Kafka's, where only the size of a request bounds what a member brings. A consumer brings its subscription and
    # what it owns: some 30 bytes a partition.
    Definition("group.max.member.metadata.bytes", _INT, MIB, "The most bytes that a member of a group may bring with "
               "JoinGroup.", least=1),
    Definition("group.max.metadata.bytes", _LONG, 256 * MIB, "The most bytes that the members of all groups of a broker"
               " may have brought; beyond, new members are rejected with GROUP_MAX_SIZE_REACHED.", least=1),
    Definition("group.consumer.session.timeout.ms", _INT, 45_000, "The session timeout of groups whose assignment the "
               "broker makes.", least=1),
    Definition("group.consumer.min.session.timeout.ms", _INT, 45_000, "The shortest for any such group.", least=1),
    Definition("group.consumer.max.session.timeout.ms", _INT, 60_000, "The longest for any such group.", least=1),
    Definition("group.consumer.heartbeat.interval.ms", _INT, 5000, "How often members of such groups report.", least=1),
    Definition("group.consumer.min.heartbeat.interval.ms", _INT, 5000, "The shortest for any such group.", least=1),
    Definition("group.consumer.max.heartbeat.interval.ms", _INT, 15_000, "The longest for any such group.", least=1),
    Definition("group.consumer.max.size", _INT, INT_MAX, "The most members of such a group.", least=1),
    Definition("group.consumer.assignors", _LIST_TYPE, ("uniform", "range"), "The ways to share out partitions that such "
               "groups may name, the first being the usual one."),
    Definition("group.coordinator.rebalance.protocols", _LIST_TYPE, ("classic",), "The group protocols in use.",
               has_effect=False),
    Definition("group.coordinator.threads", _INT, 1, "Threads for groups.", least=1, has_effect=False),
    Definition("group.coordinator.new.enable", _BOOLEAN, False, "Kafka's newer coordinator.", has_effect=False),
)  # fmt: skip

OFFSETS: Final = (
    Definition("offset.metadata.max.bytes", _INT, 4096, "The longest note that may go with a committed offset.", _HIGH,
               least=0),
    Definition("offsets.topic.num.partitions", _INT, 50, "Partitions of __consumer_offsets; not to be changed once the "
               "topic is there.", _HIGH, least=1),
    Definition("offsets.topic.replication.factor", _SHORT, 3, "Copies of each of them; a broker that stands alone "
               "keeps one.", _HIGH, least=1),
    Definition("offsets.topic.segment.bytes", _INT, 100 * MIB, "The size of their segments: small ones are compacted "
               "and loaded sooner.", _HIGH, least=14),
    Definition("offsets.retention.minutes", _INT, 7 * 24 * 60, "How long the offsets of a group are kept after its "
               "last member left.", _HIGH, least=1),
    Definition("offsets.retention.check.interval.ms", _LONG, 10 * MINUTE_MS, "How often to look for offsets that may "
               "go.", _HIGH, least=1),
    Definition("offsets.commit.timeout.ms", _INT, 5000, "How long a commit may wait for its replicas.", _HIGH, least=1),
    Definition("offsets.load.buffer.size", _INT, 5 * MIB, "Bytes read at once when offsets are loaded.", _HIGH, least=1,
               has_effect=False),
    Definition("offsets.topic.compression.codec", _INT, 0, "How committed offsets are compressed.", _HIGH, least=0,
               most=4, has_effect=False),
    Definition("offsets.commit.required.acks", _SHORT, -1, "Replicas that a commit waits for, which are always all "
               "that are in sync.", _HIGH, least=-1, has_effect=False),
)  # fmt: skip

TRANSACTIONS: Final = (
    Definition("transaction.max.timeout.ms", _INT, 15 * MINUTE_MS, "The longest timeout that a producer may ask for "
               "its transactions.", _HIGH, least=1),
    Definition("transactional.id.expiration.ms", _INT, 7 * DAY_MS, "How long a transactional id is remembered without "
               "being used.", _HIGH, least=1),
    Definition("transaction.state.log.num.partitions", _INT, 50, "Partitions of __transaction_state; not to be changed "
               "once the topic is there.", _HIGH, least=1),
    Definition("transaction.state.log.replication.factor", _SHORT, 3, "Copies of each of them; a broker that stands "
               "alone keeps one.", _HIGH, least=1),
    Definition("transaction.state.log.min.isr", _INT, 2, "Their min.insync.replicas; a broker that stands alone needs "
               "one.", _HIGH, least=1),
    Definition("transaction.state.log.segment.bytes", _INT, 100 * MIB, "The size of their segments.", _HIGH, least=14),
    Definition("transaction.state.log.load.buffer.size", _INT, 5 * MIB, "Bytes read at once when they are loaded.",
               _HIGH, least=1, has_effect=False),
    Definition("transaction.abort.timed.out.transaction.cleanup.interval.ms", _INT, 10_000, "How often to look for "
               "transactions that took too long, and abort them.", _LOW, least=1),
    Definition("transaction.remove.expired.transaction.cleanup.interval.ms", _INT, HOUR_MS, "How often to look for "
               "transactional ids to forget.", _LOW, least=1),
    Definition("transaction.partition.verification.enable", _BOOLEAN, True, "Whether a transactional write is checked "
               "against its coordinator first.", _LOW, dynamic=True),
    Definition("producer.id.expiration.ms", _INT, DAY_MS, "How long a partition remembers a producer that has stopped "
               "writing to it.", _LOW, least=1, dynamic=True),
    Definition("producer.id.expiration.check.interval.ms", _INT, 10 * MINUTE_MS, "How often to look for producers to "
               "forget.", _LOW, least=1),
)  # fmt: skip

METRICS: Final = (
    Definition("metric.reporters", _LIST_TYPE, (), "Classes that report metrics.", _LOW, dynamic=True, has_effect=False),
    Definition("metrics.num.samples", _INT, 2, "Samples of a metric that are kept.", _LOW, least=1, has_effect=False),
    Definition("metrics.sample.window.ms", _LONG, 30_000, "The time that a sample covers.", _LOW, least=1,
               has_effect=False),
    Definition("metrics.recording.level", _STRING, "INFO", "How many metrics are kept.", _LOW, has_effect=False),
    Definition("auto.include.jmx.reporter", _BOOLEAN, True, "Whether metrics go to JMX.", _LOW, has_effect=False),
)  # fmt: skip

CLUSTER_CONFIGS: Final = (*REPLICATION, *CONTROL, *GROUPS, *OFFSETS, *TRANSACTIONS, *METRICS)


_BROKER = {definition.name: definition for definition in LOG_CONFIGS}

_THROTTLED = r"\*|[0-9]{1,10}:[0-9]{1,10}"
_THROTTLED_WORDS = "each partition:broker, or * for all"


def _of(broker_name: str, name: str, doc: str, **changes: Any) -> Definition:
    return replace(
        _BROKER[broker_name], name=name, doc=doc, broker_name=broker_name, dynamic=True,
        importance=Importance.MEDIUM, **changes,
    )  # fmt: skip


TOPIC_CONFIGS: Final = (
    _of("log.cleanup.policy", "cleanup.policy", "What happens to old records: delete, compact, or both."),
    _of("compression.type", "compression.type", "How records are compressed on disk; producer leaves them be."),
    _of("compression.gzip.level", "compression.gzip.level", "How hard gzip tries, where compression.type is gzip."),
    _of("compression.lz4.level", "compression.lz4.level", "How hard lz4 tries, where compression.type is lz4."),
    _of("compression.zstd.level", "compression.zstd.level", "How hard zstd tries, where compression.type is zstd."),
    _of("log.cleaner.delete.retention.ms", "delete.retention.ms", "How long the mark that a key was deleted is kept."),
    _of("log.segment.delete.delay.ms", "file.delete.delay.ms", "How long a removed segment's file stays."),
    _of("log.flush.interval.messages", "flush.messages", "After how many records a log is synced to disk."),
    _of("log.flush.interval.ms", "flush.ms", "How old a record may get before its log is synced to disk.",
        default=_LOG.flush_ms),
    _of("log.index.interval.bytes", "index.interval.bytes", "Bytes of log for each entry of its index."),
    _of("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms", "After how long a record must be compacted."),
    _of("message.max.bytes", "max.message.bytes", "The largest batch of records that is accepted."),
    _of("log.message.downconversion.enable", "message.downconversion.enable", "Whether records are converted for "
        "clients that only know older formats."),
    _of("log.message.format.version", "message.format.version", "The format of records on disk."),
    _of("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms", "How far in the future a record's time "
        "may be."),
    _of("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms", "How far in the past a record's time "
        "may be."),
    _of("log.message.timestamp.difference.max.ms", "message.timestamp.difference.max.ms", "An older name for both of "
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms, for where the topic does not set them."),
    _of("log.message.timestamp.type", "message.timestamp.type", "Whose clock gives a record its time: CreateTime or "
        "LogAppendTime."),
    _of("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio", "The share of a log that must be new before it "
        "is compacted again."),
    _of("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms", "How long a record is safe from compaction."),
    _of("min.insync.replicas", "min.insync.replicas", "How many replicas must be in sync for a write with acks=all."),
    _of("log.preallocate", "preallocate", "Whether a new segment takes all its room on disk at once."),
    _of("log.retention.bytes", "retention.bytes", "How large a partition may grow; negative without limit."),
    _of("log.retention.ms", "retention.ms", "How long records are kept; -1 for ever.",
        default=_LOG.retention_ms, least=-1, excluded=()),
    _of("log.segment.bytes", "segment.bytes", "The size at which a log begins a new segment file."),
    _of("log.index.size.max.bytes", "segment.index.bytes", "The size of an index at which a log begins a new segment."),
    _of("log.roll.jitter.ms", "segment.jitter.ms", "By how much segment.ms is at most shortened, at random.",
        default=0),
    _of("log.roll.ms", "segment.ms", "The age at which a log begins a new segment file.", default=_LOG.segment_ms),
    _of("unclean.leader.election.enable", "unclean.leader.election.enable", "Whether a replica that was not in sync "
        "may lead when no other is left."),
    Definition("follower.replication.throttled.replicas", ConfigType.LIST, (), "Replicas whose following is slowed "
               "down.", pattern=_THROTTLED, pattern_words=_THROTTLED_WORDS, dynamic=True),
    Definition("leader.replication.throttled.replicas", ConfigType.LIST, (), "Replicas whose leading is slowed down.",
               pattern=_THROTTLED, pattern_words=_THROTTLED_WORDS, dynamic=True),
    Definition("remote.storage.enable", ConfigType.BOOLEAN, False, "Whether old segments move to a remote storage, "
               "of which there is none.", one_of=("false",), dynamic=True, has_effect=False),
    Definition("local.retention.ms", ConfigType.LONG, -2, "How long records stay on this disk, with a remote storage.",
               least=-2, dynamic=True, has_effect=False),
    Definition("local.retention.bytes", ConfigType.LONG, -2, "How much stays on this disk, with a remote storage.",
               least=-2, dynamic=True, has_effect=False),
)  # fmt: skip


def _by_name(definitions: Iterable[Definition]) -> Mapping[str, Definition]:
    return MappingProxyType({each.name: each for each in sorted(definitions, key=lambda each: each.name)})


BROKER_DEFINITIONS: Final = _by_name((*NETWORK_CONFIGS, *LOG_CONFIGS, *CLUSTER_CONFIGS))
TOPIC_DEFINITIONS: Final = _by_name(TOPIC_CONFIGS)

# Name: its family, each member with the factor that makes its value one of the first.
FAMILIES: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "broker.id": (("broker.id", 1), ("node.id", 1)),
    "log.dirs": (("log.dirs", 1), ("log.dir", 1)),
    "log.roll.ms": (("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
    "log.roll.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
    "log.flush.interval.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "log.retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    ),
    "log.message.timestamp.before.max.ms": (
        ("log.message.timestamp.before.max.ms", 1),
        ("log.message.timestamp.difference.max.ms", 1),
    ),
    "log.message.timestamp.after.max.ms": (
        ("log.message.timestamp.after.max.ms", 1),
        ("log.message.timestamp.difference.max.ms", 1),
    ),
}

# Names of Kafka's that begin like this are known to have no effect here, and are no typing errors.
ELSEWHERE: Final = (
    "ssl.", "sasl.", "listener.name.", "super.users", "allow.everyone.if.no.acl.found", "zookeeper.ssl.",
    "zookeeper.clientCnxnSocket", "zookeeper.metadata.migration.", "delegation.token.", "password.encoder.",
    "security.providers", "remote.", "log.local.retention.", "controller.quorum.", "metadata.", "share.",
    "group.coordinator.", "group.consumer.migration.policy", "kafka.metrics.", "metrics.", "quota.",
    "group.share.", "replication.quota.", "alter.log.dirs.replication.quota.", "controller.quota.", "telemetry.",
    "unstable.", "early.start.listeners", "control.plane.listener.name", "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms", "server.max.startup.", "initial.broker.registration.timeout.ms",
    "eligible.leader.replicas.enable", "unclean.leader.election.interval.ms",
)  # fmt: skip


def family_of(name: str) -> tuple[tuple[str, int], ...]:
    """The names that give this setting its value, the setting itself first."""
    return FAMILIES.get(name, ((name, 1),))


def scope_of(name: str) -> Scope | None:
    """Who has a setting of this name; None if nobody."""
    if name in BROKER_DEFINITIONS:
        return Scope.BOTH if name in TOPIC_DEFINITIONS else Scope.BROKER
    return Scope.TOPIC if name in TOPIC_DEFINITIONS else None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, if any is."""
    # Costly to import, and needed only where something is wrong.
    from difflib import get_close_matches

    matches = get_close_matches(name[:100].lower(), list(known), n=1, cutoff=0.75)
    return matches[0] if matches else None
