"""Settings of one partition's log: Kafka's topic settings, with underscores, and Kafka's defaults.

The value is immutable. A change of settings replaces it and takes effect with the next append or tick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.config_def import DAY_MS, GIB, HOUR_MS, MIB, MINUTE_MS, ConfigType, Importance, setting

NEVER: Final = 2**63 - 1
UNLIMITED: Final = -1

DELETE: Final = "delete"
COMPACT: Final = "compact"
LOG_APPEND_TIME: Final = "LogAppendTime"

_INT, _LONG, _HIGH = ConfigType.INT, ConfigType.LONG, Importance.HIGH


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Each setting is declared here once: a broker's, and a topic's that overrides it."""

    segment_bytes: int = setting(
        _INT, GIB, "Size at which a log rolls to a new segment, in bytes.",
        broker="log.segment.bytes", topic="segment.bytes", importance=_HIGH, min=14, dynamic=True,
    )  # fmt: skip
    segment_ms: int = setting(
        _LONG, 7 * DAY_MS, "Age at which a log rolls to a new segment, in milliseconds.",
        broker=("log.roll.ms", ("log.roll.hours", HOUR_MS)), topic="segment.ms",
        importance=_HIGH, min=1, dynamic=True,
    )  # fmt: skip
    segment_jitter_ms: int = setting(
        _LONG, 0, "Maximum random time by which the age at which a log rolls is shortened, so that not all logs roll "
        "at once.", broker=("log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS)), topic="segment.jitter.ms",
        importance=_HIGH, min=0, dynamic=True,
    )  # fmt: skip
    segment_index_bytes: int = setting(
        _INT, 10 * MIB, "Size of an index at which a log rolls to a new segment, in bytes.",
        broker="log.index.size.max.bytes", topic="segment.index.bytes", min=4, dynamic=True,
    )  # fmt: skip
    index_interval_bytes: int = setting(
        _INT, 4096, "Bytes of log per index entry.",
        broker="log.index.interval.bytes", topic="index.interval.bytes", min=0, dynamic=True,
    )  # fmt: skip

    flush_messages: int = setting(
        _LONG, NEVER, "Number of records after which a log is synced to disk. If neither this nor the interval in "
        "milliseconds is set, acks=all waits for the sync.",
        broker="log.flush.interval.messages", topic="flush.messages", importance=_HIGH, min=1, dynamic=True,
    )  # fmt: skip
    flush_ms: int = setting(
        _LONG, NEVER, "Maximum time before a record is synced to disk, in milliseconds. If neither this nor the number "
        "of records is set, acks=all waits for the sync.",
        broker=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"), topic="flush.ms",
        importance=_HIGH, min=0, dynamic=True,
    )  # fmt: skip
    sync_before_ack: bool = True  # False where the operator set a flush policy: then acks=all does not wait for a sync

    retention_ms: int = setting(
        _LONG, 7 * DAY_MS, "How long records are kept, in milliseconds; -1 keeps them forever.",
        broker=("log.retention.ms", ("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
        topic="retention.ms", topic_min=-1, importance=_HIGH, excluded=(0,), dynamic=True,
    )  # fmt: skip
    retention_bytes: int = setting(
        _LONG, UNLIMITED, "Size of a partition above which its oldest segments are deleted, in bytes; -1 is unlimited.",
        broker="log.retention.bytes", topic="retention.bytes", importance=_HIGH, dynamic=True,
        convert=lambda size: max(UNLIMITED, size),
    )  # fmt: skip
    cleanup_policy: frozenset[str] = setting(
        ConfigType.LIST, (DELETE,), "How old records are removed: delete by age and size, compact to the last record "
        "of each key, or both.",
        broker="log.cleanup.policy", topic="cleanup.policy", one_of=(COMPACT, DELETE), dynamic=True, convert=frozenset,
    )  # fmt: skip
    file_delete_delay_ms: int = setting(
        _LONG, MINUTE_MS, "Time before the files of a removed segment are deleted, in milliseconds.",
        broker="log.segment.delete.delay.ms", topic="file.delete.delay.ms", importance=_HIGH, min=0, dynamic=True,
    )  # fmt: skip

    delete_retention_ms: int = setting(
        _LONG, DAY_MS, "How long compaction keeps tombstones (records that delete a key), in milliseconds.",
        broker="log.cleaner.delete.retention.ms", topic="delete.retention.ms", min=0, dynamic=True,
    )  # fmt: skip
    min_compaction_lag_ms: int = setting(
        _LONG, 0, "Minimum age of a record before it is compacted, in milliseconds.",
        broker="log.cleaner.min.compaction.lag.ms", topic="min.compaction.lag.ms", min=0, dynamic=True,
    )  # fmt: skip
    max_compaction_lag_ms: int = setting(
        _LONG, NEVER, "Maximum age of a record before it is compacted, in milliseconds.",
        broker="log.cleaner.max.compaction.lag.ms", topic="max.compaction.lag.ms", min=1, dynamic=True,
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = setting(
        ConfigType.DOUBLE, 0.5, "Share of a log that must be new before it is compacted again.",
        broker="log.cleaner.min.cleanable.ratio", topic="min.cleanable.dirty.ratio", min=0, max=1, dynamic=True,
    )  # fmt: skip

    max_message_bytes: int = setting(
        _INT, MIB + 12, "Maximum size of a record batch, as stored (after compression), in bytes.",
        broker="message.max.bytes", topic="max.message.bytes", importance=_HIGH, min=0, dynamic=True,
    )  # fmt: skip
    message_timestamp_append_time: bool = setting(
        ConfigType.STRING, "CreateTime", "Source of record timestamps: the producer (CreateTime) or the broker "
        "(LogAppendTime).",
        broker="log.message.timestamp.type", topic="message.timestamp.type", one_of=("CreateTime", LOG_APPEND_TIME),
        dynamic=True, convert=LOG_APPEND_TIME.__eq__,
    )  # fmt: skip
    message_timestamp_before_max_ms: int = setting(
        _LONG, NEVER, "How far in the past a record's timestamp may be, in milliseconds.",
        broker="log.message.timestamp.before.max.ms", topic="message.timestamp.before.max.ms",
        aliases=("log.message.timestamp.difference.max.ms", "message.timestamp.difference.max.ms"),
        min=0, dynamic=True,
    )  # fmt: skip
    message_timestamp_after_max_ms: int = setting(
        _LONG, HOUR_MS, "How far in the future a record's timestamp may be, in milliseconds.",
        broker="log.message.timestamp.after.max.ms", topic="message.timestamp.after.max.ms",
        aliases=("log.message.timestamp.difference.max.ms", "message.timestamp.difference.max.ms"),
        min=0, dynamic=True,
    )  # fmt: skip

    compression_codec: int | None = None  # None: batches stay as their producers compressed them
    compression_level: int | None = None  # None: the codec's own default

    producer_id_expiration_ms: int = setting(
        _INT, DAY_MS, "Time after which a partition forgets an idle producer, in milliseconds.",
        broker="producer.id.expiration.ms", importance=Importance.LOW, min=1, dynamic=True,
    )  # fmt: skip

    value_schema_validation: bool = setting(
        ConfigType.BOOLEAN, False, "Whether each value must begin with the id of a schema that the registry "
        "(confluent.schema.registry.url of the broker) has under the subject TOPIC-value. A setting of Confluent.",
        topic="confluent.value.schema.validation",
    )  # fmt: skip
    key_schema_validation: bool = setting(
        ConfigType.BOOLEAN, False, "Whether each key must begin with the id of a schema that the registry has under "
        "the subject TOPIC-key. A setting of Confluent.", topic="confluent.key.schema.validation",
    )  # fmt: skip

    # Of the settings above. Fields, because every append reads them.
    compacts: bool = field(init=False, repr=False, compare=False)
    deletes: bool = field(init=False, repr=False, compare=False)
    validates_schemas: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compacts", COMPACT in self.cleanup_policy)
        object.__setattr__(self, "deletes", DELETE in self.cleanup_policy)
        object.__setattr__(self, "validates_schemas", self.value_schema_validation or self.key_schema_validation)
