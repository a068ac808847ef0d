"""Producer options and their checks. Names and defaults are Kafka's unless noted.

Combinations that would silently break a guarantee are rejected: idempotence needs acks=all, retries, and at most five
requests in flight, since a broker remembers that many batches of a producer. A transactional_id needs idempotence.

Two defaults differ from Kafka's. `batch_size` is 1 MB, not 16 KiB: a request costs a Python client more than its bytes
(docs/decisions/031). A topic whose brokers take less gets smaller batches after the first that was too large.
`buffer_memory` is 16 MiB, not 32: five full requests in flight, and twice as much that waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.client.errors import ConfigError
from penstock.client.producer.interceptors import ProducerInterceptor
from penstock.client.settings import ClientOptions, ClientSettings, OnStatistics, at_least, function_of, one_of
from penstock.records.compression import LEVELS, Codec

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Plain = bytes | bytearray | memoryview | str

    K = TypeVar("K", default=Plain)
    V = TypeVar("V", default=Plain)
else:
    # Defaults of type variables are for type checkers, and newer than the oldest Python that is supported.
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

Acks = Literal["all", -1, 0, 1, "0", "1", "-1"]
Partitioner = Callable[[str, bytes | None, int], int]
"""Topic, key and partition count to the partition of a record."""

MAX_IN_FLIGHT_IDEMPOTENT: Final = 5
_STAGES: Final = ("enqueued", "batched", "sent", "acknowledged", "failed")
_ACKS: Final = {"all": -1, "-1": -1, -1: -1, "0": 0, 0: 0, "1": 1, 1: 1}
_CODECS: Final = {None: Codec.NONE, "none": Codec.NONE} | {codec.name.lower(): codec for codec in Codec}


class ProducerOptions(ClientOptions, total=False):
    """What `Producer` and `AsyncProducer` take besides addresses and serializers; `ProducerSettings` has the
    defaults."""

    acks: Acks
    enable_idempotence: bool | None
    compression_type: str | None
    compression_level: int | None
    batch_size: int
    linger_ms: float
    buffer_memory: int
    max_block_ms: float
    max_request_size: int
    max_in_flight_requests_per_connection: int
    retries: int
    delivery_timeout_ms: float
    partitioner: Partitioner | None
    interceptors: Sequence[ProducerInterceptor]
    on_statistics: OnStatistics | None
    statistics_interval_ms: float
    start_timeout_ms: int | None
    transactional_id: str | None
    transaction_timeout_ms: int
    transaction_two_phase_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """The options with their defaults, and what follows from them."""

    client_id: str = "penstock-producer"
    acks: Acks = field(default="all", metadata=one_of("all", 1, 0, "1", "0", -1, "-1"))
    enable_idempotence: bool | None = None
    compression_type: str | None = field(default=None, metadata=one_of(*_CODECS))
    compression_level: int | None = field(default=None, metadata=at_least(float("-inf")))
    batch_size: int = 1_000_000
    linger_ms: float = 0
    buffer_memory: int = field(default=16 * 1024 * 1024, metadata=at_least(1))
    max_block_ms: float = 60_000
    max_request_size: int = field(default=1024 * 1024, metadata=at_least(1))
    max_in_flight_requests_per_connection: int = field(default=5, metadata=at_least(1))
    retries: int = 2**31 - 1
    delivery_timeout_ms: float = field(default=120_000, metadata=at_least(1))
    partitioner: Partitioner | None = field(default=None, metadata=function_of("topic, key and partition count"))
    interceptors: Sequence[ProducerInterceptor] = ()
    on_statistics: OnStatistics | None = field(default=None, metadata=function_of("a dictionary of metrics"))
    statistics_interval_ms: float = field(default=10_000, metadata=at_least(1))
    start_timeout_ms: int | None = field(default=None, metadata=at_least(1))
    transactional_id: str | None = None
    transaction_timeout_ms: int = field(default=60_000, metadata=at_least(1))
    transaction_two_phase_commit: bool = False
    required_acks: int = field(init=False)
    """`acks` as a Produce request has it."""
    max_in_flight: int = field(init=False)
    """Requests in flight to a broker."""
    is_idempotent: bool = field(init=False)
    codec: Codec = field(init=False)

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        self._check_interceptors()
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ConfigError(
                f"delivery_timeout_ms is {self.delivery_timeout_ms}, less than linger_ms + request_timeout_ms "
                f"({self.linger_ms} + {self.request_timeout_ms})",
                hint="A record would expire before its first attempt can end: raise it, or lower the others",
            )
        if self.max_request_size > self.buffer_memory:
            raise ConfigError(
                f"buffer_memory is {self.buffer_memory}, less than max_request_size ({self.max_request_size})",
                hint="A record of the largest size must fit: raise buffer_memory, or lower max_request_size",
            )
        self._set("required_acks", _ACKS[self.acks])
        self._set("max_in_flight", self.max_in_flight_requests_per_connection)
        self._check_transactions()
        self._set("is_idempotent", self._idempotence())
        self._set("codec", self._codec())
        self._set("batch_size", min(max(self.batch_size, 1), self.max_request_size))
        self._set("retry_backoff_max_ms", max(self.retry_backoff_max_ms, self.retry_backoff_ms))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_interceptors(self) -> None:
        if not isinstance(self.interceptors, (list, tuple)):
            raise ConfigError(
                f"interceptors is {self.interceptors!r}", hint="Give a list of ProducerInterceptor objects"
            )
        for each in self.interceptors:
            if isinstance(each, type) or not all(hasattr(each, name) for name in _STAGES):
                raise ConfigError(
                    f"interceptors has {each!r}", hint="Give instances of subclasses of ProducerInterceptor"
                )

    def _idempotence(self) -> bool:
        in_flight = self.max_in_flight
        obstacle, hint = None, ""
        if self.required_acks != -1:
            obstacle, hint = f"acks is {self.acks}", 'Use acks="all", or enable_idempotence=False'
        elif self.retries == 0:
            obstacle, hint = "retries is 0", "Allow retries, or use enable_idempotence=False"
        elif in_flight > MAX_IN_FLIGHT_IDEMPOTENT:
            obstacle = f"max_in_flight_requests_per_connection is {in_flight}"
            hint = f"At most {MAX_IN_FLIGHT_IDEMPOTENT} are possible, or use enable_idempotence=False"
        if obstacle and self.transactional_id is not None:
            hint = hint.replace("enable_idempotence=False", "leave transactional_id out")
            raise ConfigError(f"transactional_id is given, but {obstacle}", hint=hint)
        if self.enable_idempotence and obstacle:
            raise ConfigError(f"enable_idempotence is on, but {obstacle}", hint=hint)
        return obstacle is None if self.enable_idempotence is None else self.enable_idempotence

    def _check_transactions(self) -> None:
        if self.transactional_id is None:
            if self.transaction_two_phase_commit:
                raise ConfigError("transaction_two_phase_commit is on, but there is no transactional_id")
            return
        if not self.transactional_id:
            raise ConfigError("transactional_id is empty", hint="Name it, or leave it out to send without transactions")
        if self.enable_idempotence is False:
            raise ConfigError("transactional_id is given, but enable_idempotence is off", hint="Leave it out")

    def _codec(self) -> Codec:
        codec, level = _CODECS[self.compression_type], self.compression_level
        if level is None:
            return codec
        levels = LEVELS.get(codec)
        if levels is None:
            raise ConfigError(f"compression_level is {level}, but {codec.name.lower()} has no levels")
        if level not in levels:
            raise ConfigError(
                f"compression_level is {level!r}", hint=f"{codec.name.lower()} takes {levels[0]} to {levels[-1]}"
            )
        return codec


# --------------------------------------------------------------------------------------------------- partitioners
#
# To choose instead of the default, which hashes keys and fills one batch after another without them. A partitioner is
# called for each record, under the producer's lock, so one of several threads needs no lock of its own. Both of these
# ignore keys: records of one key go to several partitions.


class RoundRobinPartitioner:
    """Every partition of a topic in turn, as Kafka's RoundRobinPartitioner: with 3 partitions 0, 1, 2, 0, ..."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, partition_count: int) -> int:
        # A topic may have got more partitions since.
        chosen = self._next.get(topic, 0) % partition_count
        self._next[topic] = chosen + 1
        return chosen


class RandomPartitioner:
    """A random partition for each record, all equally likely, as Kafka 0.7 did without a key.

    `randrange` gives the random numbers; a test passes that of a seeded generator.
    """

    def __init__(self, randrange: Callable[[int], int] = random.randrange) -> None:
        self._randrange = randrange

    def __call__(self, topic: str, key: bytes | None, partition_count: int) -> int:
        return self._randrange(partition_count)
