"""Settings of replication, the controller, groups, committed offsets and transactions."""

from __future__ import annotations

from typing import Final

from penstock.broker.settings.definitions import (
    DAY_MS,
    HOUR_MS,
    INT_MAX,
    KIB,
    MIB,
    MINUTE_MS,
    ConfigType,
    Definition,
    Importance,
)

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_SHORT, _LIST = ConfigType.SHORT, ConfigType.LIST
_HIGH, _LOW = Importance.HIGH, Importance.LOW

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
    Definition("group.consumer.assignors", _LIST, ("uniform", "range"), "The ways to share out partitions that such "
               "groups may name, the first being the usual one."),
    Definition("group.coordinator.rebalance.protocols", _LIST, ("classic",), "The group protocols in use.",
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
    Definition("metric.reporters", _LIST, (), "Classes that report metrics.", _LOW, dynamic=True, has_effect=False),
    Definition("metrics.num.samples", _INT, 2, "Samples of a metric that are kept.", _LOW, least=1, has_effect=False),
    Definition("metrics.sample.window.ms", _LONG, 30_000, "The time that a sample covers.", _LOW, least=1,
               has_effect=False),
    Definition("metrics.recording.level", _STRING, "INFO", "How many metrics are kept.", _LOW, has_effect=False),
    Definition("auto.include.jmx.reporter", _BOOLEAN, True, "Whether metrics go to JMX.", _LOW, has_effect=False),
)  # fmt: skip

DEFINITIONS: Final = (*REPLICATION, *CONTROL, *GROUPS, *OFFSETS, *TRANSACTIONS, *METRICS)
