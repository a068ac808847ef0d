"""Settings that a topic may have of its own.

Rule: nearly all stand for a setting of the broker, which counts where the topic says nothing. So type, range and
default are the broker's; what differs is written here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from penstock.broker.settings import log_table
from penstock.broker.settings.definitions import ConfigType, Definition, Importance
from penstock.log.settings import LogSettings

_BROKER = {definition.name: definition for definition in log_table.DEFINITIONS}
_LOG = LogSettings()

_THROTTLED = r"\*|[0-9]{1,10}:[0-9]{1,10}"
_THROTTLED_WORDS = "each partition:broker, or * for all"


def _of(broker_name: str, name: str, doc: str, **changes: Any) -> Definition:
    return replace(
        _BROKER[broker_name], name=name, doc=doc, broker_name=broker_name, dynamic=True,
        importance=Importance.MEDIUM, **changes,
    )  # fmt: skip


DEFINITIONS: Final = (
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
