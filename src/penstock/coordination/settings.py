"""How groups behave: Kafka's broker settings `group.*` and `offsets.*`, in their units.

Rule: an immutable value, with Kafka's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MINUTE_MS: Final = 60_000
NO_LIMIT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GroupSettings:
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 30 * _MINUTE_MS
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = NO_LIMIT
    # What a member brings with JoinGroup, and what those of all groups of a broker have brought.
    max_member_bytes: int = 1024 * 1024
    max_members_bytes: int = 256 * 1024 * 1024
    # A member that joins for the first time cannot send heartbeats yet; its wait is bounded by this instead.
    new_member_join_timeout_ms: int = 5 * _MINUTE_MS

    offsets_retention_ms: int = 7 * 24 * 60 * _MINUTE_MS
    offsets_retention_check_interval_ms: int = 10 * _MINUTE_MS
    offset_metadata_max_bytes: int = 4096
    commit_timeout_ms: int = 5_000  # of anything that is written
    # What one round of expiry writes; the next round follows as soon as it is written.
    expiry_batch_records: int = 1_000
