"""The options of the data source: names, defaults, precedence, refusals. Pure.

Noun: `SourceOptions`, what a reader was asked for, checked. Rule: the names and meanings are those of Spark's stock
Kafka connector, so that a query moves by its format's name alone; our own begin with `penstock.`. Names are compared
without regard to case. What the connector refuses is refused; what nobody knows is refused too, with the nearest name,
since an option that is ignored because of a letter costs more than an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeVar

from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import ConfigError
from penstock.spark.decode_spec import OPTION_NAMES as DECODE_NAMES
from penstock.spark.errors import UnknownOption
from penstock.spark.kafka_names import CONSUMER_NAMES, PRODUCER_NAMES
from penstock.spark.positions import (
    EARLIEST,
    LATEST,
    AtEnd,
    AtOffsets,
    AtTimes,
    Position,
    offsets_from_json,
    partitions_from_json,
    times_from_json,
)

Isolation = Literal["read_uncommitted", "read_committed"]
T = TypeVar("T")

MIB: Final = 1024 * 1024

SOURCE_NAMES: Final = (
    "assign", "subscribe", "subscribePattern",
    "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "startingOffsets",
    "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets",
    "failOnDataLoss", "includeHeaders", "minPartitions", "maxRecordsPerPartition",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
    "groupIdPrefix", "visibleLag", "penstock.batchRows", "penstock.fetchBytes", *DECODE_NAMES,
)  # fmt: skip
SINK_NAMES: Final = ("topic", "includeHeaders")

_REFUSED: Final = {
    "kafka.auto.offset.reset": "set startingOffsets to earliest or latest: Spark keeps the offsets, not the consumer",
    "kafka.key.deserializer": "keys are binary: turn them into something else by DataFrame operations",
    "kafka.value.deserializer": "values are binary: use DataFrame operations, or the option penstock.decode",
    "kafka.enable.auto.commit": "Spark's checkpoint holds the offsets; the option visibleLag shows them to others",
    "kafka.interceptor.classes": "there is no Java consumer whose records could be changed",
}
_POLL_TIMEOUT_MS: Final = 120_000
_DEFAULT_DELAY_MS: Final = 15 * 60 * 1000
_UNITS_MS: Final = {
    "": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How to speak TLS, with PEM files."""

    truststore: str | None = None
    certificates: str | None = None
    keystore: str | None = None
    key_password: str | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What a task needs to know to read a range; it travels to the executors."""

    include_headers: bool = False
    batch_rows: int = 20_000
    fetch_bytes: int = 8 * MIB
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = _POLL_TIMEOUT_MS
    """How long a task may get no further before it gives up."""
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    check_crcs: bool = True
    client_id: str = "penstock-spark"
    rack: str | None = None
    tls: TlsOptions | None = None

    def connection_part(self) -> ReaderOptions:
        """The same for all options that can share a connection."""
        return replace(
            _DEFAULTS, request_timeout_ms=self.request_timeout_ms, connect_timeout_ms=self.connect_timeout_ms,
            client_id=self.client_id, rack=self.rack, tls=self.tls,
        )  # fmt: skip


_DEFAULTS: Final = ReaderOptions()


@dataclass(frozen=True, slots=True)
class Topics:
    """Which topics: exactly one of the three."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics like {self.pattern}"
        return f"topic{'s' if len(self.wanted) > 1 else ''} {', '.join(self.wanted)}"

    @property
    def wanted(self) -> tuple[str, ...]:
        """The topics by name; none for a pattern."""
        return self.names or tuple(sorted({one.topic for one in self.partitions}))

    def takes(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.wanted


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a micro-batch may and should have."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = _DEFAULT_DELAY_MS


@dataclass(frozen=True, slots=True)
class Splitting:
    """How many tasks."""

    min_partitions: int | None = None
    max_records: int | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All of them."""

    bootstrap: str
    topics: Topics
    starting: Position
    ending: Position
    limits: Limits
    splitting: Splitting
    reader: ReaderOptions
    isolation: Isolation = "read_uncommitted"
    group_id: str | None = None
    group_id_prefix: str = ""
    visible_lag: bool = True


def parse_source(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a reader. Raises ConfigError, UnknownOption."""
    options = _Given(given)
    options.check_names((*SOURCE_NAMES, *SINK_NAMES, *_prefixed(CONSUMER_NAMES)))
    for name, instead in _REFUSED.items():
        if options.has(name):
            raise ConfigError(f"option {name} is not supported", hint=instead[0].upper() + instead[1:])
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if options.has(name):
                raise ConfigError(f"option {name} is for batch queries", hint="A stream has no end; leave it out")
    starting, ending = _positions(options, streaming=streaming)
    return SourceOptions(
        bootstrap=bootstrap_of(given),
        topics=_topics(options),
        starting=starting,
        ending=ending,
        limits=_limits(options),
        splitting=Splitting(options.count("minPartitions"), options.count("maxRecordsPerPartition")),
        reader=_reader(options),
        isolation=options.one_of("kafka.isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted"),
        group_id=options.text("kafka.group.id"),
        group_id_prefix=options.text("groupIdPrefix") or "",
        visible_lag=options.flag("visibleLag", True),
    )


def bootstrap_of(given: Mapping[str, str]) -> str:
    """Where the cluster is; readers and writers need it alike."""
    found = _Given(given).text("kafka.bootstrap.servers")
    if not found:
        raise ConfigError(
            "option kafka.bootstrap.servers is missing", hint='Write .option("kafka.bootstrap.servers", "host:9092")'
        )
    return found


def check_sink_names(given: Mapping[str, str]) -> None:
    """Refuse what a writer does not know. Raises UnknownOption."""
    names = (*SOURCE_NAMES, *SINK_NAMES, "checkpointLocation", *_prefixed(PRODUCER_NAMES), *_prefixed(CONSUMER_NAMES))
    _Given(given).check_names(names)


def tls_of(given: Mapping[str, str]) -> TlsOptions | None:
    """TLS, if kafka.security.protocol asks for it; what is not supported is refused."""
    options = _Given(given)
    protocol = (options.text("kafka.security.protocol") or "PLAINTEXT").upper()
    if protocol == "PLAINTEXT":
        return None
    if protocol != "SSL":
        raise ConfigError(
            f"kafka.security.protocol {protocol} is not supported", hint="PLAINTEXT and SSL are, SASL is not"
        )
    for name in ("kafka.ssl.truststore.type", "kafka.ssl.keystore.type"):
        kind = options.text(name)
        if kind is not None and kind.upper() != "PEM":
            raise ConfigError(f"{name} is {kind}", hint="Only PEM files are read here: convert the store to PEM")
    return TlsOptions(
        truststore=options.text("kafka.ssl.truststore.location"),
        certificates=options.text("kafka.ssl.truststore.certificates"),
        keystore=options.text("kafka.ssl.keystore.location"),
        key_password=options.text("kafka.ssl.key.password"),
        check_hostname=(options.given("kafka.ssl.endpoint.identification.algorithm") or "https").strip() != "",
    )


def _topics(options: _Given) -> Topics:
    ways = [name for name in ("assign", "subscribe", "subscribePattern") if options.has(name)]
    if len(ways) != 1:
        said = "none is given" if not ways else f"{' and '.join(ways)} are given"
        raise ConfigError(f"exactly one of assign, subscribe, subscribePattern says what to read; {said}")
    text = options.text(ways[0])
    if ways[0] == "assign":
        return Topics(partitions=options.parsed("assign", partitions_from_json))
    if not text:
        raise ConfigError(f"option {ways[0]} is empty")
    if ways[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern {text!r} is no regular expression: {error}") from None
        return Topics(pattern=text)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"option subscribe is {text!r}: it names no topic")
    return Topics(names=names)


def _positions(options: _Given, *, streaming: bool) -> tuple[Position, Position]:
    strategy = options.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    starting = _position(options, "starting", AtEnd(LATEST if streaming else EARLIEST), or_latest=strategy == "latest")
    ending = _position(options, "ending", AtEnd(LATEST), or_latest=True)
    if not streaming:
        _refuse_end(starting, LATEST, "startingOffsets", "latest")
        _refuse_end(ending, EARLIEST, "endingOffsets", "earliest")
    return starting, ending


def _position(options: _Given, edge: str, default: Position, *, or_latest: bool) -> Position:
    """By one time for all, else by times, else by offsets."""
    time_name, times_name, offsets_name = f"{edge}Timestamp", f"{edge}OffsetsByTimestamp", f"{edge}Offsets"
    if options.has(time_name):
        return AtTimes(options.whole(time_name, least=0), {}, or_latest)
    if options.has(times_name):
        return AtTimes(None, options.parsed(times_name, times_from_json), or_latest)
    text = options.text(offsets_name)
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return AtEnd(EARLIEST if text.lower() == "earliest" else LATEST)
    return AtOffsets(options.parsed(offsets_name, offsets_from_json))


def _refuse_end(position: Position, end: int, name: str, word: str) -> None:
    if position == AtEnd(end):
        raise ConfigError(f"{name} cannot be {word} in a batch query", hint="Nothing would ever be read")
    if isinstance(position, AtOffsets):
        for partition, offset in position.offsets.items():
            if offset == end:
                raise ConfigError(f"{name} of {partition} cannot be {word} ({end}) in a batch query")


def _limits(options: _Given) -> Limits:
    most, least = options.count("maxOffsetsPerTrigger"), options.count("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger {least} is larger than maxOffsetsPerTrigger {most}")
    return Limits(most, least, options.duration_ms("maxTriggerDelay", _DEFAULT_DELAY_MS))


def _reader(options: _Given) -> ReaderOptions:
    default = _DEFAULTS
    fetch = options.count("penstock.fetchBytes") or options.count("kafka.max.partition.fetch.bytes")
    return ReaderOptions(
        include_headers=options.flag("includeHeaders", default.include_headers),
        batch_rows=options.count("penstock.batchRows") or default.batch_rows,
        fetch_bytes=min(fetch or default.fetch_bytes, options.count("kafka.fetch.max.bytes") or 512 * MIB),
        fail_on_data_loss=options.flag("failOnDataLoss", default.fail_on_data_loss),
        poll_timeout_ms=options.count("kafkaConsumer.pollTimeoutMs") or default.poll_timeout_ms,
        request_timeout_ms=options.count("kafka.request.timeout.ms") or default.request_timeout_ms,
        connect_timeout_ms=options.count("kafka.socket.connection.setup.timeout.ms") or default.connect_timeout_ms,
        check_crcs=options.flag("kafka.check.crcs", default.check_crcs),
        client_id=options.text("kafka.client.id") or default.client_id,
        rack=options.text("kafka.client.rack"),
        tls=tls_of(options.all),
    )


def _prefixed(names: Iterable[str]) -> list[str]:
    return [f"kafka.{name}" for name in names]


class _Given:
    """Options as they were given, asked for by name."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.all = {name.lower(): value for name, value in given.items()}

    def check_names(self, known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        for name in self.all:
            if name not in names:
                near = get_close_matches(name, names, n=1, cutoff=0.6)
                hint = f"Did you mean {names[near[0]]}?" if near else "Look at the documentation for those there are"
                raise UnknownOption(f"there is no option {name}", hint=hint)

    def has(self, name: str) -> bool:
        return name.lower() in self.all

    def given(self, name: str) -> str | None:
        return self.all.get(name.lower())

    def text(self, name: str) -> str | None:
        value = self.given(name)
        return value.strip() if value is not None else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"option {name} is {value!r}; it can be true or false")
        return value.lower() == "true"

    def one_of(self, name: str, values: tuple[Any, ...], default: Any) -> Any:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in values:
            raise ConfigError(f"option {name} is {value!r}; it can be {' or '.join(values)}")
        return value.lower()

    def whole(self, name: str, *, least: int = 1) -> int:
        value = self.text(name) or ""
        if not re.fullmatch(r"-?[0-9]{1,19}", value) or int(value) < least:
            raise ConfigError(f"option {name} is {value!r}; it must be a whole number of at least {least}")
        return int(value)

    def count(self, name: str, *, least: int = 1) -> int | None:
        return self.whole(name, least=least) if self.has(name) else None

    def duration_ms(self, name: str, default: int) -> int:
        """A number of milliseconds, or one with a unit, as Spark writes them: 30s, 15m."""
        value = self.text(name)
        if value is None:
            return default
        found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", value.lower())
        if found is None or found[2] not in _UNITS_MS:
            raise ConfigError(f"option {name} is {value!r}; write a time like 500ms, 30s, 15m or 1h")
        return int(found[1]) * _UNITS_MS[found[2]]

    def parsed(self, name: str, parse: Callable[[Any], T]) -> T:
        text = self.text(name) or ""
        try:
            return parse(json.loads(text))
        except ValueError as error:
            said = error.message if isinstance(error, ConfigError) else "it is no JSON"
            raise ConfigError(f"option {name} is {text}: {said}", hint=_EXAMPLES.get(name, "")) from None


_EXAMPLES: Final = {
    "assign": 'Write partitions by topic: {"views": [0, 1]}',
    **dict.fromkeys(
        ("startingOffsets", "endingOffsets"),
        'Write offsets by topic and partition: {"views": {"0": 23, "1": -2}}; -2 is earliest, -1 is latest',
    ),
    **dict.fromkeys(
        ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
        'Write milliseconds by topic and partition: {"views": {"0": 1700000000000}}',
    ),
}
