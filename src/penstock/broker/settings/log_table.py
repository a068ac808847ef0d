"""Settings of topics' defaults and of logs on disk: where, how large, how long, flushed when, compacted how.

The defaults of logs are those of `LogSettings`, so that a log behaves alike with and without a broker around it.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.settings.definitions import (
    DOUBLE_MAX,
    KIB,
    MIB,
    MINUTE_MS,
    NEVER,
    ConfigType,
    Definition,
    Importance,
)
from penstock.log.settings import COMPACT, DELETE, LogSettings

_BOOLEAN, _STRING, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_DOUBLE, _LIST = ConfigType.DOUBLE, ConfigType.LIST
_HIGH, _LOW = Importance.HIGH, Importance.LOW
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

DEFINITIONS: Final = (*TOPICS, *SEGMENTS, *FLUSHES, *RETENTION, *CLEANER, *TIMESTAMPS)
