"""Settings of one partition's log: Kafka's topic settings, with underscores, and Kafka's defaults.

The value is immutable. A change of settings replaces it and takes effect with the next append or tick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

NEVER: Final = 2**63 - 1
UNLIMITED: Final = -1

DELETE: Final = "delete"
COMPACT: Final = "compact"

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogSettings:
    """See Kafka's documentation of topic settings."""

    segment_bytes: int = 1024 * _MIB
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * _MIB
    index_interval_bytes: int = 4096

    flush_messages: int = NEVER
    flush_ms: int = NEVER
    sync_before_ack: bool = True  # False where the operator set a flush policy: then acks=all does not wait for a sync

    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = UNLIMITED
    cleanup_policy: frozenset[str] = frozenset({DELETE})
    file_delete_delay_ms: int = _MINUTE_MS

    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER
    min_cleanable_dirty_ratio: float = 0.5

    max_message_bytes: int = _MIB + 12
    message_timestamp_append_time: bool = False
    message_timestamp_before_max_ms: int = NEVER
    message_timestamp_after_max_ms: int = 60 * _MINUTE_MS

    compression_codec: int | None = None  # None: batches stay as their producers compressed them
    compression_level: int | None = None  # None: the codec's own default

    producer_id_expiration_ms: int = _DAY_MS

    # Of cleanup_policy. Fields, because every append reads them.
    compacts: bool = field(init=False, repr=False, compare=False)
    deletes: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compacts", COMPACT in self.cleanup_policy)
        object.__setattr__(self, "deletes", DELETE in self.cleanup_policy)
