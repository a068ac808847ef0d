"""The options of the data source: names, defaults, precedence, and where reading starts and ends. Pure.

Names and meanings are those of Spark's stock Kafka connector, so that a query moves by changing the name of its
format; our own names begin with `penstock.`. Case is ignored. What the connector rejects is rejected, and so is an
unknown name, with the closest known one. `kafka.*` accepts every setting of the Java clients; those about their inside
have no effect.

A `Position` (earliest or latest, an offset per partition, or a timestamp) says which timestamps to look up and turns
the answers into offsets. It must cover every partition. Offsets outside the log are data loss and follow
failOnDataLoss.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple, TypeVar

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import ConfigError
from penstock.spark.errors import DataLost, UnknownOption
from penstock.spark.formats.spec import OPTION_NAMES as DECODE_NAMES

_log = logging.getLogger("penstock.spark")

Isolation = Literal["read_uncommitted", "read_committed"]
T = TypeVar("T")
MIB: Final = 1024 * 1024
EARLIEST: Final = -2
LATEST: Final = -1
_POLL_TIMEOUT_MS: Final = 120_000
_DEFAULT_DELAY_MS: Final = 15 * 60 * 1000
_UNITS_MS: Final = {
    "": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
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
SINK_NAMES: Final = (
    "topic", "includeHeaders", "penstock.delivery", "penstock.transaction.timeout.ms", "penstock.ledger.topic",
    "penstock.write.id", "penstock.lost.rows",
)  # fmt: skip
_REJECTED: Final = {
    "kafka.auto.offset.reset": "set startingOffsets to earliest or latest: Spark keeps the offsets, not the consumer",
    "kafka.key.deserializer": "keys are binary: convert them with DataFrame operations",
    "kafka.value.deserializer": "values are binary: use DataFrame operations, or the option penstock.decode",
    "kafka.enable.auto.commit": "Spark's checkpoint holds the offsets; the option visibleLag shows them to others",
    "kafka.interceptor.classes": "interceptors need the Java consumer, which is not used",
}
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

# ---------------------------------------------------------------------------------------------- the options


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """TLS and SASL settings by Kafka's names, for the clients of a task. They may be secrets, so `repr` is empty.

    Write secrets as `file:/path` or `env:NAME`: executors follow them, and plans have only the reference.
    """

    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What a task needs to read a range. It is sent to the executors."""

    include_headers: bool = False
    batch_rows: int = 20_000
    fetch_bytes: int = 8 * MIB
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = _POLL_TIMEOUT_MS
    """A task fails after this time without progress."""
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    check_crcs: bool = True
    client_id: str = "penstock-spark"
    rack: str | None = None
    security: SecurityOptions | None = None

    def connection_options(self) -> ReaderOptions:
        """The part that decides whether two readers can share a connection."""
        return replace(
            _DEFAULTS, request_timeout_ms=self.request_timeout_ms, connect_timeout_ms=self.connect_timeout_ms,
            client_id=self.client_id, rack=self.rack, security=self.security,
        )  # fmt: skip


_DEFAULTS: Final = ReaderOptions()


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics to read: exactly one of the three fields is set."""

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
    """Bounds on the number of offsets in a micro-batch."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = _DEFAULT_DELAY_MS


@dataclass(frozen=True, slots=True)
class TaskSplit:
    """How a read is split into tasks."""

    min_partitions: int | None = None
    max_records: int | None = None


class Bounds(NamedTuple):
    """The offsets of a partition: [earliest, latest)."""

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The start or the end of every partition: EARLIEST or LATEST."""

    end: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, which may be EARLIEST or LATEST."""

    offsets: Mapping[TopicPartition, int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first record at or after a timestamp: one for all partitions, or one for each.

    A partition without such a record is an error, or with `or_latest` its end.
    """

    time_ms: int | None
    times_ms: Mapping[TopicPartition, int] = field(hash=False)
    or_latest: bool = False


Position = AtEnd | AtOffsets | AtTimes


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of a reader, checked."""

    bootstrap: str
    topics: Topics
    starting: Position
    ending: Position
    limits: Limits
    splitting: TaskSplit
    reader: ReaderOptions
    isolation: Isolation = "read_uncommitted"
    group_id: str | None = None
    group_id_prefix: str = ""
    visible_lag: bool = True


# ---------------------------------------------------------------------------------------------- parsing


def parse_source(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a reader. Raises ConfigError, UnknownOption."""
    options = _RawOptions(given)
    options.check_names((*SOURCE_NAMES, *SINK_NAMES, *_prefixed(CONSUMER_NAMES)))
    for name, instead in _REJECTED.items():
        if options.has(name):
            raise ConfigError(f"option {name} is not supported", hint=instead[0].upper() + instead[1:])
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if options.has(name):
                raise ConfigError(f"option {name} is for batch queries", hint="A stream has no end. Remove the option")
    starting, ending = _positions(options, streaming=streaming)
    return SourceOptions(
        bootstrap=bootstrap_of(given),
        topics=_topics(options),
        starting=starting,
        ending=ending,
        limits=_limits(options),
        splitting=TaskSplit(options.count("minPartitions"), options.count("maxRecordsPerPartition")),
        reader=_reader(options),
        isolation=options.one_of("kafka.isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted"),
        group_id=options.text("kafka.group.id"),
        group_id_prefix=options.text("groupIdPrefix") or "",
        visible_lag=options.flag("visibleLag", True),
    )


def bootstrap_of(given: Mapping[str, str]) -> str:
    """The bootstrap servers, for readers and writers."""
    found = _RawOptions(given).text("kafka.bootstrap.servers")
    if not found:
        raise ConfigError(
            "option kafka.bootstrap.servers is missing", hint='Write .option("kafka.bootstrap.servers", "host:9092")'
        )
    return found


def check_sink_names(given: Mapping[str, str]) -> None:
    """Rejects options that a writer does not know. Raises UnknownOption."""
    names = (*SOURCE_NAMES, *SINK_NAMES, "checkpointLocation", *_prefixed(PRODUCER_NAMES), *_prefixed(CONSUMER_NAMES))
    _RawOptions(given).check_names(names)


def security_of(given: Mapping[str, str]) -> SecurityOptions | None:
    """TLS and SASL settings; None if kafka.security.protocol is PLAINTEXT. ConfigError.

    Logs a warning for secrets as plain text: they are in the options that Spark keeps.
    """
    options = _RawOptions(given)
    protocol = (options.text("kafka.security.protocol") or "PLAINTEXT").upper()
    if protocol == "PLAINTEXT":
        return None
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"kafka.security.protocol {protocol} is not supported", hint=f"Use {', '.join(_PROTOCOLS)}")
    for name in ("kafka.ssl.truststore.type", "kafka.ssl.keystore.type"):
        kind = options.text(name)
        if kind is not None and kind.upper() not in ("PEM", "PKCS12"):
            raise ConfigError(f"{name} {kind} is not supported", hint="Convert the store to PEM or PKCS12")
    if protocol.startswith("SASL_") and not options.text("kafka.sasl.mechanism"):
        raise ConfigError("option kafka.sasl.mechanism is missing", hint="Use PLAIN, SCRAM-SHA-512 or OAUTHBEARER")
    found = {"security.protocol": protocol}
    for name in _SECURITY_NAMES:
        text = options.given(f"kafka.{name}")
        if text is not None:
            found[name] = text
    for name in plain_secrets(found):
        _warn_of(name)
    return SecurityOptions(tuple(found.items()))


def plain_secrets(settings: Mapping[str, str]) -> list[str]:
    """The settings, by Kafka's names, with a secret that is not a reference: file:/path or env:NAME."""
    found = [name for name in _SECRETS if name in settings and not settings[name].startswith(_REFERENCES)]
    jaas = settings.get(_JAAS, "")
    if not jaas.startswith(_REFERENCES) and _SECRET_IN_JAAS.search(jaas):
        found.append(_JAAS)
    return found


@functools.cache
def _warn_of(name: str) -> None:
    """Log a warning, once per process: options are parsed for every batch."""
    _log.warning(
        "secret as plain text in an option, which Spark keeps with the query: option=kafka.%s. Plans show it redacted "
        "if the session has spark.sql.redaction.options.regex=%s. Write file:/path or env:NAME, which executors follow",
        name,
        REDACTION,
    )


def _topics(options: _RawOptions) -> Topics:
    ways = [name for name in ("assign", "subscribe", "subscribePattern") if options.has(name)]
    if len(ways) != 1:
        if not ways:
            raise ConfigError("one of assign, subscribe or subscribePattern is required; none is set")
        raise ConfigError(f"set exactly one of assign, subscribe and subscribePattern; {' and '.join(ways)} are set")
    text = options.text(ways[0])
    if ways[0] == "assign":
        return Topics(partitions=options.parsed("assign", partitions_from_json))
    if not text:
        raise ConfigError(f"option {ways[0]} is empty")
    if ways[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern {text!r} is not a valid regular expression: {error}") from None
        return Topics(pattern=text)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"option subscribe is {text!r} and names no topic")
    return Topics(names=names)


def _positions(options: _RawOptions, *, streaming: bool) -> tuple[Position, Position]:
    strategy = options.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    starting = _position(options, "starting", AtEnd(LATEST if streaming else EARLIEST), or_latest=strategy == "latest")
    ending = _position(options, "ending", AtEnd(LATEST), or_latest=True)
    if not streaming:
        _reject_end(starting, LATEST, "startingOffsets", "latest")
        _reject_end(ending, EARLIEST, "endingOffsets", "earliest")
    return starting, ending


def _position(options: _RawOptions, edge: str, default: Position, *, or_latest: bool) -> Position:
    """A position by one timestamp for all partitions, else by timestamps, else by offsets."""
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


def _reject_end(position: Position, end: int, name: str, word: str) -> None:
    if position == AtEnd(end):
        raise ConfigError(f"{name} cannot be {word} in a batch query", hint="The query would read nothing")
    if isinstance(position, AtOffsets):
        for partition, offset in position.offsets.items():
            if offset == end:
                raise ConfigError(f"{name} of {partition} cannot be {word} ({end}) in a batch query")


def _limits(options: _RawOptions) -> Limits:
    most, least = options.count("maxOffsetsPerTrigger"), options.count("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger {least} is larger than maxOffsetsPerTrigger {most}")
    return Limits(most, least, options.duration_ms("maxTriggerDelay", _DEFAULT_DELAY_MS))


def _reader(options: _RawOptions) -> ReaderOptions:
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
        security=security_of(options.all),
    )


def _prefixed(names: Iterable[str]) -> list[str]:
    return [f"kafka.{name}" for name in names]


class _RawOptions:
    """The given options, looked up by name in any case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.all = {name.lower(): value for name, value in given.items()}

    def check_names(self, known: Iterable[str]) -> None:
        names = {name.lower(): name for name in known}
        for name in self.all:
            if name not in names:
                near = get_close_matches(name, names, n=1, cutoff=0.6)
                hint = f"Did you mean {names[near[0]]}?" if near else "docs/spark.md lists the options"
                raise UnknownOption(f"unknown option {name}", hint=hint)

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
            raise ConfigError(f"option {name} is {value!r}; it must be an integer >= {least}")
        return int(value)

    def count(self, name: str, *, least: int = 1) -> int | None:
        return self.whole(name, least=least) if self.has(name) else None

    def duration_ms(self, name: str, default: int) -> int:
        """Milliseconds, or a number with a unit as in Spark: 30s, 15m."""
        value = self.text(name)
        if value is None:
            return default
        found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", value.lower())
        if found is None or found[2] not in _UNITS_MS:
            raise ConfigError(f"option {name} is {value!r}, which is not a duration such as 500ms, 30s, 15m or 1h")
        return int(found[1]) * _UNITS_MS[found[2]]

    def parsed(self, name: str, parse: Callable[[Any], T]) -> T:
        text = self.text(name) or ""
        try:
            return parse(json.loads(text))
        except ValueError as error:
            reason = error.message if isinstance(error, ConfigError) else "it is not valid JSON"
            raise ConfigError(f"option {name} is {text}: {reason}", hint=_EXAMPLES.get(name, "")) from None


# ---------------------------------------------------------------------------------------------- positions


def timestamps_to_look_up(position: Position, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The timestamps to look up by partition, besides both ends."""
    if not isinstance(position, AtTimes):
        return {}
    wanted = set(partitions)
    if position.time_ms is not None:
        return dict.fromkeys(wanted, position.time_ms)
    _check_covers(position.times_ms, wanted, "timestamp")
    return dict(position.times_ms)


def resolve_position(
    position: Position,
    bounds: Mapping[TopicPartition, Bounds],
    found: Mapping[TopicPartition, int],
    *,
    fail_on_data_loss: bool = True,
) -> dict[TopicPartition, int]:
    """The offset in each partition. `found` has the offsets of the timestamps, -1 where there is no such record.

    bounds 10..50: earliest 10, latest 50, offset 5 is data loss or 10, a time after the last record an error or 50.
    """
    if isinstance(position, AtEnd):
        return {partition: ends[position.end + 2] for partition, ends in bounds.items()}
    if isinstance(position, AtTimes):
        return {partition: _at_time(position, partition, ends, found) for partition, ends in bounds.items()}
    _check_covers(position.offsets, set(bounds), "offset")
    return {
        partition: _at_offset(partition, position.offsets[partition], ends, fail_on_data_loss)
        for partition, ends in bounds.items()
    }


def _at_time(position: AtTimes, partition: TopicPartition, ends: Bounds, found: Mapping[TopicPartition, int]) -> int:
    offset = found.get(partition, -1)
    if offset >= 0:
        return offset
    if position.or_latest:
        return ends.latest
    time_ms = position.time_ms if position.time_ms is not None else position.times_ms[partition]
    raise ConfigError(
        f"{partition} has no record at or after {time_ms} (startingTimestamp or startingOffsetsByTimestamp)",
        hint="Set startingOffsetsByTimestampStrategy=latest to start at the end of such partitions",
    )


def _at_offset(partition: TopicPartition, offset: int, ends: Bounds, fail_on_data_loss: bool) -> int:
    if offset in (EARLIEST, LATEST):
        return ends[offset + 2]
    if ends.earliest <= offset <= ends.latest:
        return offset
    if fail_on_data_loss:
        raise DataLost(
            f"{partition} has no offset {offset}; it has {ends.earliest} to {ends.latest}",
            hint="Use existing offsets, or set failOnDataLoss=false to read what is available",
        )
    return min(max(offset, ends.earliest), ends.latest)


def _check_covers(given: Mapping[TopicPartition, int], wanted: set[TopicPartition], what: str) -> None:
    missing, strange = sorted(wanted - given.keys()), sorted(given.keys() - wanted)
    if missing:
        raise ConfigError(
            f"no {what} is given for {', '.join(map(str, missing))}",
            hint="Give one for every partition of every topic"
            + ("; -2 stands for earliest, -1 for latest" if what == "offset" else ""),
        )
    if strange:
        raise ConfigError(f"a {what} is given for {', '.join(map(str, strange))}, which the query does not read")


# ---------------------------------------------------------------------------------------------- JSON of positions


def partitions_from_json(value: Any) -> frozenset[TopicPartition]:
    """{"views": [0, 1]}"""
    if not isinstance(value, dict) or not value:
        raise ConfigError("it lists no partitions")
    found: set[TopicPartition] = set()
    for topic, numbers in value.items():
        if not isinstance(numbers, list) or not all(_is_whole(one) and one >= 0 for one in numbers):
            raise ConfigError(f"the partitions of {topic} are not a list of numbers")
        found.update(TopicPartition(topic, one) for one in numbers)
    if not found:
        raise ConfigError("it lists no partitions")
    return frozenset(found)


def offsets_from_json(value: Any) -> dict[TopicPartition, int]:
    """{"views": {"0": 23, "1": -2}}"""
    return _numbers(value, least=EARLIEST, what="offset")


def times_from_json(value: Any) -> dict[TopicPartition, int]:
    """{"views": {"0": 1700000000000}}"""
    return _numbers(value, least=0, what="timestamp")


def _numbers(value: Any, *, least: int, what: str) -> dict[TopicPartition, int]:
    if not isinstance(value, dict):
        raise ConfigError("it is not a JSON object")
    found: dict[TopicPartition, int] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ConfigError(f"the value of {topic} is not an object of partitions")
        for number, one in partitions.items():
            if not number.isdecimal():
                raise ConfigError(f"{number!r} is not a partition of {topic}")
            if not _is_whole(one) or one < least:
                raise ConfigError(f"{one!r} is not a valid {what} for {topic}-{number}")
            found[TopicPartition(topic, int(number))] = one
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# ---------------------------------------------------------------------------------- settings of the Java clients


_BOTH: Final = """
    auto.include.jmx.reporter bootstrap.servers client.dns.lookup client.id config.providers
    connections.max.idle.ms enable.metrics.push interceptor.classes metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms receive.buffer.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
    sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    security.protocol security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
"""
_CONSUMER: Final = """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs client.rack
    default.api.timeout.ms enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
    fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
    internal.leave.group.on.close internal.throw.on.fetch.stable.offset.unsupported isolation.level
    key.deserializer max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    partition.assignment.strategy session.timeout.ms share.acknowledgement.mode share.acquire.mode
    value.deserializer
"""
_PRODUCER: Final = """
    acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delivery.timeout.ms enable.idempotence key.serializer linger.ms max.block.ms
    max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys retries transaction.timeout.ms transaction.two.phase.commit.enable transactional.id
    value.serializer
"""
_JAAS: Final = "sasl.jaas.config"
_SECRETS: Final = (
    "ssl.key.password", "ssl.keystore.key", "ssl.keystore.password", "ssl.truststore.password",
    "sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.assertion.private.key.passphrase",
)  # fmt: skip
_REFERENCES: Final = ("file:", "env:")
_SECRET_IN_JAAS: Final = re.compile(r"""(?:password|clientsecret)\s*=\s*["']?(?!["']?(?:file|env):)""", re.IGNORECASE)
REDACTION: Final = "(?i)url|secret|password|passphrase|token|jaas|keystore[.]key"
"""Spark's default for spark.sql.redaction.options.regex, and what else of Kafka's settings is secret."""
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SECURITY_NAMES: Final = tuple(name for name in _BOTH.split() if name.startswith(("ssl.", "sasl.")))
CONSUMER_NAMES: Final = tuple((_BOTH + _CONSUMER).split())
PRODUCER_NAMES: Final = tuple((_BOTH + _PRODUCER).split())
