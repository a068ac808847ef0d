"""Consumer options and their checks. Names and defaults are Kafka's where Kafka has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.client.consumer.assignors import Assignor, assignors_from
from penstock.client.errors import ConfigError, DeserializationError
from penstock.client.fetch_state import ResetPolicy
from penstock.client.offset_stores.base import OffsetStore
from penstock.client.settings import ClientOptions, ClientSettings, OnStatistics, at_least, function_of, one_of

IsolationLevel = Literal["read_uncommitted", "read_committed"]
OnDecodeErrorOption = Literal["raise", "skip"] | Callable[[DeserializationError], None]


class ConsumerOptions(ClientOptions, total=False):
    """What `Consumer` and `AsyncConsumer` take besides topics and decoders; `ConsumerSettings` has the defaults."""

    group_id: str | None
    group_instance_id: str | None
    auto_offset_reset: ResetPolicy
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: IsolationLevel
    exactly_once: bool
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
    default_api_timeout_ms: int
    client_rack: str | None
    offset_store: OffsetStore | None
    on_decode_error: OnDecodeErrorOption
    on_statistics: OnStatistics | None
    statistics_interval_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """The options with their defaults.

    `heartbeat_interval_ms` 0 means a fifteenth of the session, at most three seconds. `buffer_memory` bounds what is
    fetched ahead. `exactly_once` means isolation_level="read_committed" and enable_auto_commit=False: offsets are
    committed by the transactions of a producer. `consumer_timeout_ms` ends an iteration that waits longer than that
    for a record; None waits on.
    """

    group_id: str | None = None
    group_instance_id: str | None = None
    auto_offset_reset: ResetPolicy = field(default="latest", metadata=one_of("earliest", "latest", "none"))
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = field(default=5_000, metadata=at_least(1))
    isolation_level: IsolationLevel = field(
        default="read_uncommitted", metadata=one_of("read_uncommitted", "read_committed")
    )
    exactly_once: bool = False
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor] = ("range",)
    session_timeout_ms: int = field(default=45_000, metadata=at_least(1))
    heartbeat_interval_ms: int = 0
    max_poll_interval_ms: int = field(default=300_000, metadata=at_least(1))
    max_poll_records: int = field(default=500, metadata=at_least(1))
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = field(default=50 * 1024 * 1024, metadata=at_least(1))
    max_partition_fetch_bytes: int = field(default=1024 * 1024, metadata=at_least(1))
    buffer_memory: int = field(default=64 * 1024 * 1024, metadata=at_least(1))
    check_crcs: bool = True
    allow_auto_create_topics: bool = True
    consumer_timeout_ms: int | None = None
    default_api_timeout_ms: int = field(default=60_000, metadata=at_least(1))
    client_rack: str | None = None
    offset_store: OffsetStore | None = None
    on_decode_error: OnDecodeErrorOption = field(default="raise", metadata=one_of("raise", "skip", or_function=True))
    on_statistics: OnStatistics | None = field(default=None, metadata=function_of("a dictionary of metrics"))
    statistics_interval_ms: float = field(default=10_000, metadata=at_least(1))
    assignors: tuple[Assignor, ...] = field(init=False)

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        if self.group_id is not None and not self.group_id:
            raise ConfigError("group_id is empty", hint="Name the group, or leave group_id out to read without one")
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigError("group_instance_id is given without group_id", hint="A static member needs a group")
        if self.exactly_once:
            if self.group_id is None:
                raise ConfigError(
                    "exactly_once is given without group_id", hint="Transactions commit offsets of a group"
                )
            object.__setattr__(self, "isolation_level", "read_committed")
            object.__setattr__(self, "enable_auto_commit", False)
        object.__setattr__(self, "assignors", self._assignors())
        if not self.heartbeat_interval_ms:
            object.__setattr__(self, "heartbeat_interval_ms", max(1, min(3_000, self.session_timeout_ms // 15)))
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat_interval_ms {self.heartbeat_interval_ms} is not below session_timeout_ms "
                f"{self.session_timeout_ms}",
                hint="A third of the session or less leaves room for a lost heartbeat",
            )

    @classmethod
    def check_given(cls, options: Mapping[str, Any]) -> None:
        if options.get("exactly_once") is not True:
            return
        if options.get("enable_auto_commit") is True:
            raise ConfigError("exactly_once and enable_auto_commit contradict each other", hint="Leave one of them out")
        if options.get("isolation_level") == "read_uncommitted":
            raise ConfigError("exactly_once needs isolation_level read_committed", hint="Leave isolation_level out")

    def _assignors(self) -> tuple[Assignor, ...]:
        strategies = self.partition_assignment_strategy
        chosen = strategies if isinstance(strategies, list | tuple) else (strategies,)
        try:
            return tuple(assignors_from(chosen))
        except ValueError as reason:
            raise ConfigError(f"partition_assignment_strategy: {reason}") from None

    @property
    def is_cooperative(self) -> bool:
        """Whether all assignors that the group may choose are cooperative."""
        return all(assignor.protocol == "cooperative" for assignor in self.assignors)

    @property
    def commits_by_itself(self) -> bool:
        return self.enable_auto_commit and self.group_id is not None
