"""Consumer options and their checks: an invalid value raises ConfigError with its name before connecting."""

from __future__ import annotations

import ssl as tls
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from penstock.client.consumer.assignors import Assignor, assignors_from
from penstock.client.errors import ConfigError, DeserializationError
from penstock.client.fetch_state import ResetPolicy
from penstock.client.metrics import OnStatistics, check_statistics
from penstock.client.offset_stores.base import OffsetStore

OnDecodeErrorOption = Literal["raise", "skip"] | Callable[[DeserializationError], None]


class ConsumerOptions(TypedDict, total=False):
    """What `Consumer` and `AsyncConsumer` take besides topics and decoders; `ConsumerSettings` has the defaults."""

    group_id: str | None
    client_id: str
    group_instance_id: str | None
    auto_offset_reset: ResetPolicy
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: Literal["read_uncommitted", "read_committed"]
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    buffer_memory: int
    check_crcs: bool
    allow_auto_create_topics: bool
    consumer_timeout_ms: int | None
    request_timeout_ms: int
    connect_timeout_ms: int
    default_api_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    ssl: tls.SSLContext | None
    client_rack: str | None
    offset_store: OffsetStore | None
    on_decode_error: OnDecodeErrorOption
    on_statistics: OnStatistics | None
    statistics_interval_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The options with their defaults, which are Kafka's where Kafka has them.

    `heartbeat_interval_ms` 0 means a fifteenth of the session, at most three seconds. `buffer_memory` bounds what is
    fetched ahead. `consumer_timeout_ms` ends an iteration that waits longer than that for a record; None waits on.
    """

    group_id: str | None = None
    client_id: str = "penstock"
    group_instance_id: str | None = None
    auto_offset_reset: ResetPolicy = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor] = ("range",)
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 0
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 * 1024 * 1024
    max_partition_fetch_bytes: int = 1024 * 1024
    buffer_memory: int = 64 * 1024 * 1024
    check_crcs: bool = True
    allow_auto_create_topics: bool = True
    consumer_timeout_ms: int | None = None
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    default_api_timeout_ms: int = 60_000
    metadata_max_age_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    ssl: tls.SSLContext | None = None
    client_rack: str | None = None
    offset_store: OffsetStore | None = None
    on_decode_error: OnDecodeErrorOption = "raise"
    on_statistics: OnStatistics | None = None
    statistics_interval_ms: float = 10_000
    assignors: tuple[Assignor, ...] = field(init=False)

    def __post_init__(self) -> None:
        check_statistics(self.on_statistics, self.statistics_interval_ms)
        for name in _TEXT:
            _text(name, getattr(self, name))
        for name in _BOOLEAN:
            _true_or_false(name, getattr(self, name))
        for name in _POSITIVE:
            _at_least(name, getattr(self, name), 1)
        for name in _NOT_NEGATIVE:
            _at_least(name, getattr(self, name), 0)
        _one_of("auto_offset_reset", self.auto_offset_reset, ("earliest", "latest", "none"))
        _one_of("isolation_level", self.isolation_level, ("read_uncommitted", "read_committed"))
        if self.consumer_timeout_ms is not None:
            _at_least("consumer_timeout_ms", self.consumer_timeout_ms, 0)
        if not callable(self.on_decode_error):
            _one_of("on_decode_error", self.on_decode_error, ("raise", "skip"))
        if self.group_id is not None and not self.group_id:
            raise ConfigError("group_id is empty", hint="Name the group, or leave group_id out to read without one")
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigError("group_instance_id is given without group_id", hint="A static member needs a group")
        object.__setattr__(self, "assignors", self._assignors())
        if not self.heartbeat_interval_ms:
            object.__setattr__(self, "heartbeat_interval_ms", max(1, min(3_000, self.session_timeout_ms // 15)))
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat_interval_ms {self.heartbeat_interval_ms} is not below session_timeout_ms "
                f"{self.session_timeout_ms}",
                hint="A third of the session or less leaves room for a lost heartbeat",
            )

    def _assignors(self) -> tuple[Assignor, ...]:
        strategies = self.partition_assignment_strategy
        chosen = strategies if isinstance(strategies, list | tuple) else (strategies,)
        try:
            return tuple(assignors_from(chosen))
        except ValueError as reason:
            raise ConfigError(f"partition_assignment_strategy: {reason}") from None

    @property
    def is_cooperative(self) -> bool:
        """Only if every assignor that the group may choose is."""
        return all(assignor.protocol == "cooperative" for assignor in self.assignors)

    @property
    def commits_by_itself(self) -> bool:
        return self.enable_auto_commit and self.group_id is not None


_TEXT = ("group_id", "client_id", "group_instance_id", "client_rack")
_BOOLEAN = ("enable_auto_commit", "check_crcs", "allow_auto_create_topics")
_POSITIVE = (
    "session_timeout_ms", "max_poll_interval_ms", "max_poll_records", "fetch_max_bytes", "max_partition_fetch_bytes",
    "buffer_memory", "request_timeout_ms", "connect_timeout_ms", "default_api_timeout_ms", "metadata_max_age_ms",
    "auto_commit_interval_ms",
)  # fmt: skip
_NOT_NEGATIVE = (
    "heartbeat_interval_ms", "fetch_min_bytes", "fetch_max_wait_ms", "retry_backoff_ms", "retry_backoff_max_ms",
)  # fmt: skip


def _at_least(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ConfigError(f"{name} is {value}; it must be {least} or more")


def _text(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name} must be text, not {value!r}")


def _true_or_false(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; it can be {', '.join(allowed)}")


def settings_from(options: ConsumerOptions) -> ConsumerSettings:
    unknown = sorted(options.keys() - ConsumerOptions.__annotations__.keys())
    if unknown:
        near = get_close_matches(unknown[0], ConsumerOptions.__annotations__, n=1)
        raise ConfigError(
            f"a consumer has no option {', '.join(unknown)}",
            hint=f"Did you mean {near[0]}?"
            if near
            else f"There are {', '.join(sorted(ConsumerOptions.__annotations__))}",
        )
    return ConsumerSettings(**options)
