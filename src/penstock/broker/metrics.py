"""Metrics of a broker, and the text format in which Prometheus reads them.

`Counter`, `Gauge` and `Histogram` are one series each; a `Family` is the series of one name; a `Reading` asks its
owner at each scrape. Names follow Kafka's MBeans in Prometheus spelling: `BytesInPerSec,topic=t` is
`kafka_server_bytes_in_total{topic="t"}`; a rate per second becomes a total.

Events are counted where they happen, through a handle that the owner keeps (`ApiMetrics`, `TopicMetrics`), so counting
is one method call. State (sizes, connections, groups) is read from its owner at each scrape. Labels are bounded;
beyond the bound, series are folded into `(others)`. A value that cannot be read is left out. Metrics belong to the
event loop.
"""

from __future__ import annotations

import logging
import math
import platform
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from penstock import __version__
from penstock.runtime.process import ProcessMetrics
from penstock.runtime.threads import Outcome, Workers
from penstock.wire.protocol import ApiKey, ErrorCode, error_code

if TYPE_CHECKING:
    from penstock.broker.cluster_services import ClusterServices
    from penstock.broker.request import Services
    from penstock.runtime.network import Counters

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHERS = "(others)"

#: 10 microseconds to 50 seconds, three to a decade.
DURATION_BOUNDS_S = tuple(float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 2, 5))

_SERIES_MAX = 1000
_TOPICS_MAX = 5000
_LAGS_MAX = 5000
_LABEL_CHARS_MAX = 255
_CHUNK_CHARS = 16 * 1024
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Kind = Literal["counter", "gauge", "histogram"]
Row = tuple[tuple[str | int, ...], Sequence[float | None]]


class MetricError(ValueError):
    """A metric that was declared or labelled wrongly: a programming error."""


class Counter:
    """A number that only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount

    def read(self) -> float | None:
        return self.value


class Gauge:
    """A number that rises and falls: set by its owner, or read from where it is kept. Before that it has no sample."""

    __slots__ = ("_follow", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self._follow: Callable[[], float | None] | None = None

    def set(self, value: float) -> None:
        self.value = value

    def add(self, amount: float) -> None:
        self.value = (self.value or 0) + amount

    def follow(self, read: Callable[[], float | None]) -> None:
        """Call `read` at each scrape instead of showing what was set."""
        self._follow = read

    def read(self) -> float | None:
        return self.value if self._follow is None else self._follow()


class Histogram:
    """Counts of values between fixed bounds. A value on a bound counts below it, as `le` says."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        self._bounds = list(bounds)
        if not bounds or not all(map(math.isfinite, bounds)) or self._bounds != sorted(set(bounds)):
            raise MetricError(f"the bounds of a histogram must be finite and rising, not {self._bounds}")
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """(upper bound, number of values not above it); the last bound is infinite."""
        upto = 0
        result = []
        for bound, count in zip([*self._bounds, math.inf], self._counts, strict=True):
            upto += count
            result.append((bound, upto))
        return result

    def quantile(self, q: float) -> float | None:
        """The value below which the share `q` of all lies, if values are spread evenly in a bucket; None if there are
        none. With bounds 1, 2 and 4, and ten values between 2 and 4, `quantile(0.5)` is 3. Values above the last bound
        count as the last bound."""
        buckets = self.buckets()
        rank = q * buckets[-1][1]
        below, lower = 0, 0.0
        for bound, upto in buckets:
            if upto >= rank and upto > below:
                return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (upto - below)
            below = upto
            lower = lower if math.isinf(bound) else bound
        return None


Instrument = Counter | Gauge | Histogram
S = TypeVar("S", Counter, Gauge, Histogram)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Description:
    """A metric without its values."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _METRIC_NAME.fullmatch(self.name):
            raise MetricError(f"{self.name!r} is not a valid metric name")
        for label in self.labels:
            if not _LABEL_NAME.fullmatch(label) or label == "le" or self.labels.count(label) > 1:
                raise MetricError(f"{label!r} cannot be a label of {self.name}")

    def sample_names(self) -> list[str]:
        if self.kind != "histogram":
            return [self.name]
        return [self.name, *(self.name + ending for ending in ("_bucket", "_sum", "_count"))]


Value = float | Histogram
Rows = Sequence[tuple[tuple[str, ...], Value]]
Collected = tuple[Description, Iterable[tuple[tuple[str, ...], Value]]]


class Source(Protocol):
    @property
    def names(self) -> tuple[str, ...]: ...

    """Something that has series to show."""

    def collect(self) -> Iterator[Collected]:
        """Each family with its current values."""


class Family(Generic[S]):
    """The series of one metric. Call `labelled` once per series and keep what it returns."""

    def __init__(self, description: Description, make: Callable[[], S], series_max: int = _SERIES_MAX) -> None:
        self.description = description
        self._make: Callable[[], S] = make
        self._series_max = series_max
        self._series: dict[tuple[str, ...], S] = {}
        self._others: dict[tuple[str, ...], S] = {}  # at most one series, which takes no other's place

    def labelled(self, **labels: str | int) -> S:
        """The series with these labels, made on first use; `(others)` beyond the limit of series."""
        values = self._values(labels)
        found = self._series.get(values)
        if found is None:
            kept, others = self._series, (OTHERS,) * len(values)
            if len(kept) >= self._series_max or (values and values == others):
                kept, values = self._others, others
            found = kept.get(values)
            if found is None:
                found = kept[values] = self._make()
        return found

    def drop(self, **labels: str | int) -> None:
        """Stop showing this series; counts through a kept handle are lost."""
        self._series.pop(self._values(labels), None)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.description.name,)

    def collect(self) -> Iterator[Collected]:
        # A copy: the loop runs between two pieces of the text, and topics are created and deleted.
        series = self._series | self._others
        yield self.description, _present(series, (_value(self.description, one) for one in series.values()))

    def _values(self, labels: dict[str, str | int]) -> tuple[str, ...]:
        if labels.keys() != set(self.description.labels):
            raise MetricError(f"{self.description.name} has the labels {self.description.labels}, not {tuple(labels)}")
        return tuple([str(labels[name]) for name in self.description.labels])


class Reading:
    """Families that share their labels and are read in one go: rows of (label values, a value for each family)."""

    def __init__(self, descriptions: Sequence[Description], read: Callable[[], Iterable[Row]]) -> None:
        self._descriptions = tuple(descriptions)
        self._read = read

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self._descriptions)

    def collect(self) -> Iterator[Collected]:
        try:
            # Prometheus rejects two samples with the same labels: the last one is shown.
            rows = {tuple(map(str, labels)): values for labels, values in self._read()}
            columns = list(zip(*rows.values(), strict=True)) or [()] * len(self._descriptions)
            families = list(zip(self._descriptions, columns, strict=True))
            if any(len(labels) != len(description.labels) for description, _ in families for labels in rows):
                raise MetricError("a row needs as many label values as labels")
        except Exception:
            logger.exception("metrics not readable: name=%s", self._descriptions[0].name)
            return
        for description, column in families:
            yield description, _present(rows, column)


class Registry:
    """All metrics of a process, in the order in which they were declared."""

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._names: set[str] = set()
        self.aliases: Mapping[str, Callable[[Description, Rows], Iterator[Collected]]] = {}
        """By name, what the text shows besides a metric, from the same values; JSON leaves it out."""

    def counter(self, name: str, help_text: str) -> Counter:
        return self.counters(name, help_text).labelled()

    def counters(self, name: str, help_text: str, *labels: str, series_max: int = _SERIES_MAX) -> Family[Counter]:
        return self._add(Family(Description("counter", name, help_text, labels), Counter, series_max))

    def gauge(self, name: str, help_text: str) -> Gauge:
        return self.gauges(name, help_text).labelled()

    def gauges(self, name: str, help_text: str, *labels: str, series_max: int = _SERIES_MAX) -> Family[Gauge]:
        return self._add(Family(Description("gauge", name, help_text, labels), Gauge, series_max))

    def histogram(self, name: str, help_text: str, bounds: Sequence[float] = DURATION_BOUNDS_S) -> Histogram:
        return self.histograms(name, help_text, bounds=bounds).labelled()

    def histograms(
        self,
        name: str,
        help_text: str,
        *labels: str,
        bounds: Sequence[float] = DURATION_BOUNDS_S,
        series_max: int = _SERIES_MAX,
    ) -> Family[Histogram]:
        description = Description("histogram", name, help_text, labels)
        return self._add(Family(description, lambda: Histogram(bounds), series_max))

    def readings(self, descriptions: Sequence[Description], read: Callable[[], Iterable[Row]]) -> None:
        for description in descriptions:
            self._claim(description)
        self._sources.append(Reading(descriptions, read))

    def render(self, names: frozenset[str] = frozenset()) -> Iterator[bytes]:
        """The text format, in pieces of some kilobytes, between which the loop may run; with `names`, only of those.

        Metrics that are not shown are not read.
        """
        parts: list[str] = []
        size = 0
        for description, rows in self._collected(names):
            for part in _family_text(description, rows):
                parts.append(part)
                size += len(part)
                if size >= _CHUNK_CHARS:
                    yield "".join(parts).encode("utf-8", "replace")
                    parts.clear()
                    size = 0
        if parts:
            yield "".join(parts).encode("utf-8", "replace")

    def _collected(self, names: frozenset[str]) -> Iterator[Collected]:
        for source in self._sources:
            if names and names.isdisjoint(source.names):
                continue
            for description, rows in source.collect():
                if names:
                    if description.name in names:
                        yield description, rows
                    continue
                alias = self.aliases.get(description.name)
                if alias is None:
                    yield description, rows
                    continue
                kept = list(rows)
                yield description, kept
                if kept:
                    yield from alias(description, kept)

    def snapshot(self) -> dict[str, Any]:
        """The same for JSON: name to type, help and series. Numbers that JSON does not have are None."""
        return {
            description.name: {
                "type": description.kind,
                "help": description.help,
                "series": [
                    {"labels": dict(zip(description.labels, labels, strict=True)), **_plain(value)}
                    for labels, value in rows
                ],
            }
            for source in self._sources
            for description, rows in source.collect()
        }

    def _add(self, family: Family[S]) -> Family[S]:
        self._claim(family.description)
        self._sources.append(family)
        return family

    def _claim(self, description: Description) -> None:
        names = description.sample_names()
        taken = self._names.intersection(names)
        if taken:
            raise MetricError(f"metric {min(taken)} already exists")
        self._names.update(names)


def _present(
    labels: Iterable[tuple[str, ...]], values: Iterable[Value | None]
) -> Iterator[tuple[tuple[str, ...], Value]]:
    return ((key, value) for key, value in zip(labels, values, strict=True) if value is not None)


def _value(description: Description, series: Instrument) -> Value | None:
    if isinstance(series, Histogram):
        return series
    try:
        return series.read()
    except Exception:
        logger.exception("metric not readable: name=%s", description.name)
        return None


def _family_text(description: Description, rows: Iterable[tuple[tuple[str, ...], Value]]) -> Iterator[str]:
    name = description.name
    for place, (labels, value) in enumerate(rows):
        if place == 0:
            yield f"# HELP {name} {description.help.translate(_HELP_ESCAPES)}\n# TYPE {name} {description.kind}\n"
        inner = ",".join(  # a sum has no label
            f'{key}="{label.translate(_LABEL_ESCAPES)}"' for key, label in zip(description.labels, labels, strict=False)
        )
        outer = f"{{{inner}}}" if inner else ""
        if not isinstance(value, Histogram):
            yield f"{name}{outer} {_number(value)}\n"
            continue
        start = f"{name}_bucket{{{inner}," if inner else f"{name}_bucket{{"
        lines = [f'{start}le="{_number(bound)}"}} {count}\n' for bound, count in value.buckets()]
        lines.append(f"{name}_sum{outer} {_number(value.total)}\n{name}_count{outer} {value.count}\n")
        yield "".join(lines)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _plain(value: Value) -> dict[str, Any]:
    if isinstance(value, Histogram):
        return {
            "count": value.count,
            "sum": _finite(value.total),
            "buckets": [[_finite(bound), count] for bound, count in value.buckets()],
            "p50": value.quantile(0.5),
            "p99": value.quantile(0.99),
        }
    return {"value": _finite(value)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- the metrics of a broker

Committed = tuple[str, str, int, int]
"""Group, topic, partition and committed offset."""
EndOf = Callable[[str, int], int | None]
"""The end of a partition for consumers; None if this broker does not know it."""


class LogMetrics(NamedTuple):
    """One partition's log."""

    topic: str
    partition: int
    size_bytes: int
    segments: int
    start_offset: int
    end_offset: int


class NetworkMetrics(NamedTuple):
    """The socket server: open connections, and totals since its start."""

    connections: int
    accepted: int
    rejected: int
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class TopicMetrics:
    """The counters of one topic."""

    messages_in: Counter
    bytes_in: Counter
    bytes_out: Counter
    bytes_rejected: Counter
    produce_requests: Counter
    fetch_requests: Counter
    failed_produce_requests: Counter
    failed_fetch_requests: Counter


_TOPIC_FAMILIES = {
    "messages_in": "Records that producers appended.",
    "bytes_in": "Bytes of record batches that producers appended.",
    "bytes_out": "Bytes of record batches that consumers fetched.",
    "bytes_rejected": "Bytes of record batches that were rejected.",
    "produce_requests": "Produce requests, counted for each topic in them.",
    "fetch_requests": "Fetch requests, counted for each topic in their response.",
    "failed_produce_requests": "Produce requests that failed for the topic.",
    "failed_fetch_requests": "Fetch requests that failed for the topic.",
}


class ApiMetrics:
    """The counters of one API."""

    __slots__ = ("_api", "_counters", "_errors", "duration_seconds", "requests")

    def __init__(self, api: str, requests: Counter, duration_seconds: Histogram, errors: Family[Counter]) -> None:
        self._api = api
        self._errors = errors
        self._counters: dict[int, Counter] = {}
        self.requests = requests
        self.duration_seconds = duration_seconds

    def count_error(self, code: int) -> None:
        """Count a response that carries this error code; `NONE` is not one."""
        if code == ErrorCode.NONE:
            return
        counter = self._counters.get(code)
        if counter is None:
            counter = self._errors.labelled(api=self._api, error=error_code(code).name)
            self._counters[code] = counter
        counter.add()


class BrokerMetrics:
    """All metrics of a broker. Others may add to `registry`."""

    def __init__(self, process: ProcessMetrics, *, topics_max: int = _TOPICS_MAX) -> None:
        self.registry = registry = Registry()
        self._topics_max = topics_max
        self._topics: dict[str, TopicMetrics] = {}
        self._apis: dict[int, ApiMetrics] = {}
        build = registry.gauges(
            "penstock_build_info", "1, labelled with the versions of Penstock and Python.", "version", "python"
        )
        build.labelled(version=__version__, python=platform.python_version()).set(1)

        self._requests = registry.counters("kafka_server_requests_total", "Requests that were received.", "api")
        self._durations = registry.histograms(
            "kafka_network_request_duration_seconds",
            "Time from a request's last byte to its response being handed to the socket.",
            "api",
        )
        self._errors = registry.counters(
            "kafka_network_request_errors_total", "Error codes in responses.", "api", "error", series_max=5000
        )
        self._topic_families = {
            name: registry.counters(f"kafka_server_{name}_total", text, "topic", series_max=topics_max)
            for name, text in _TOPIC_FAMILIES.items()
        }
        self._dropped = {name: Counter() for name in _TOPIC_FAMILIES}
        self.authentications = registry.counters(
            "kafka_network_authentications_total",
            "Logins by SASL, by outcome: success or failure.",
            "listener",
            "outcome",
        )
        self.log_flush_seconds = registry.histogram("kafka_log_flush_duration_seconds", "Duration of syncs to disk.")
        self.partitions = registry.gauge("kafka_server_partitions", "Partitions on this broker.")
        self.leaders = registry.gauge("kafka_server_leaders", "Partitions that this broker leads.")
        self.under_replicated_partitions = registry.gauge(
            "kafka_server_under_replicated_partitions",
            "Partitions led by this broker with a replica that is not in sync.",
        )
        self.under_min_isr_partitions = registry.gauge(
            "kafka_server_under_min_isr_partitions",
            "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas.",
        )
        self.active_controller = registry.gauge(
            "kafka_controller_active_controller", "1 if this broker is the controller of its cluster, else 0."
        )
        self.offline_partitions = registry.gauge(
            "kafka_controller_offline_partitions",
            "Partitions of the cluster without a leader, on the controller.",
        )
        self.replica_max_lag = registry.gauge(
            "kafka_server_replica_fetcher_max_lag",
            "Largest lag of the partitions that this broker follows, in records.",
        )
        self.offline_log_directories = registry.gauge(
            "kafka_log_offline_log_directories", "Data folders that failed and are offline."
        )
        _declare_process(registry, process)

    def api(self, key: int) -> ApiMetrics:
        """The handle of an API, made on first use."""
        found = self._apis.get(key)
        if found is None:
            name = _api_name(ApiKey(key))
            requests, durations = self._requests.labelled(api=name), self._durations.labelled(api=name)
            found = self._apis[key] = ApiMetrics(name, requests, durations, self._errors)
        return found

    def observe(self, key: int, seconds: float) -> None:
        """A request was answered after this time."""
        api = self._apis.get(key) or self.api(key)
        api.requests.add()
        api.duration_seconds.observe(seconds)

    def count_error(self, key: int, code: int) -> None:
        self.api(key).count_error(code)

    def topic(self, topic: str) -> TopicMetrics:
        """The handle of a topic that exists, made on first use; that of `(others)` beyond the limit of topics."""
        found = self._topics.get(topic)
        if found is None:
            found = TopicMetrics(
                **{name: family.labelled(topic=topic) for name, family in self._topic_families.items()}
            )
            if len(self._topics) < self._topics_max:
                self._topics[topic] = found
        return found

    def drop_topic(self, topic: str) -> None:
        """The topic was deleted; a later one of the same name counts from 0."""
        if self._topics.pop(topic, None) is not None:
            for name, family in self._topic_families.items():
                self._dropped[name].add(family.labelled(topic=topic).value)
                family.drop(topic=topic)

    def show_jmx_names(self) -> None:
        """Show metrics under the names of the JMX exporter too."""
        from penstock.broker.jmx_names import jmx_aliases

        self.registry.aliases = jmx_aliases(self._dropped)

    def read_from(self, services: Services, cluster_services: Callable[[], ClusterServices | None]) -> None:
        """Read the state of a broker at each scrape. Until it serves requests, most of it has no value."""

        def once_ready(read: Callable[[], int]) -> Callable[[], int | None]:
            return lambda: read() if services.is_ready else None

        def of_cluster(read: Callable[[ClusterServices], int]) -> Callable[[], int | None]:
            """0 for a broker that stands alone."""
            return once_ready(lambda: 0 if (found := cluster_services()) is None else read(found))

        def end_of(topic: str, index: int) -> int | None:
            # A follower knows it as of its last fetch.
            partition = services.replicas.get(topic, index)
            return None if partition is None else partition.log.high_watermark

        self.read_logs_from(lambda: _logs(services) if services.is_ready else ())
        self.read_network_from(lambda: _network(services.server.counters))
        self.partitions.follow(once_ready(lambda: sum(1 for _ in services.replicas.logs.logs())))
        self.leaders.follow(once_ready(lambda: sum(1 for _ in services.replicas.led())))
        self.under_replicated_partitions.follow(of_cluster(lambda cluster: cluster.under_replicated()))
        self.under_min_isr_partitions.follow(once_ready(lambda: _under_min_isr(services)))
        self.active_controller.follow(of_cluster(lambda cluster: cluster.is_controller()))
        self.offline_partitions.follow(of_cluster(lambda cluster: cluster.offline_partitions()))
        self.replica_max_lag.follow(of_cluster(lambda cluster: cluster.max_lag()))
        # Also of a broker that has left its cluster for that reason.
        self.offline_log_directories.follow(
            lambda: len(services.replicas.logs.offline) if hasattr(services, "replicas") else None
        )
        self.read_groups_from(lambda: services.groups.count_by_state() if services.is_ready else {})
        self.read_lag_from(lambda: services.groups.committed() if services.is_ready else (), end_of)
        self.read_transactions_from(lambda: services.transactions.open_transactions() if services.is_ready else None)

    def read_logs_from(self, read: Callable[[], Iterable[LogMetrics]]) -> None:
        labels = ("topic", "partition")
        descriptions = [
            Description("gauge", "kafka_log_size_bytes", "Bytes of a partition's segments.", labels),
            Description("gauge", "kafka_log_segments", "Segments of a partition.", labels),
            Description("gauge", "kafka_log_start_offset", "First offset of a partition.", labels),
            Description("gauge", "kafka_log_end_offset", "Offset after the last one of a partition.", labels),
        ]
        self.registry.readings(descriptions, lambda: (((log[0], log[1]), log[2:]) for log in read()))

    def read_groups_from(self, read: Callable[[], Mapping[str, int]]) -> None:
        """`read` returns the number of groups by state (`Stable`, `Empty`...)."""
        count = Description("gauge", "kafka_group_count", "Consumer groups that this broker coordinates.", ("state",))
        self.registry.readings([count], lambda: (((state,), (number,)) for state, number in read().items()))

    def read_lag_from(self, committed: Callable[[], Iterable[Committed]], end_of: EndOf) -> None:
        """Committed offsets of groups, and their lag where this broker knows the partition's end.

        A scrape shows at most `_LAGS_MAX` partitions, and no group whose name is too long for a label: both are chosen
        by clients. `kafka_group_lag_truncated` says whether something is missing.
        """
        labels = ("group", "topic", "partition")
        offset = Description("gauge", "kafka_group_committed_offset", "Offset that a group has committed.", labels)
        lag = Description("gauge", "kafka_group_lag", "Records from a group's committed offset to the end.", labels)

        def read() -> Iterator[Row]:
            found = list(islice(committed(), _LAGS_MAX + 1))
            shown = [each for each in found[:_LAGS_MAX] if len(each[0]) <= _LABEL_CHARS_MAX]
            truncated.set(int(len(shown) < len(found)))
            for group, topic, partition, position in shown:
                end = end_of(topic, partition)
                yield (group, topic, partition), (position, None if end is None else max(0, end - position))

        self.registry.readings([offset, lag], read)
        # Declared after the readings that set it: a scrape reads in the order of declarations.
        truncated = self.registry.gauge(
            "kafka_group_lag_truncated", "1 if groups have more partitions than shown, else 0."
        )

    def read_transactions_from(self, read: Callable[[], tuple[int, float] | None]) -> None:
        """`read` returns the number of open transactions and the age of the oldest, in seconds."""
        descriptions = [
            Description("gauge", "kafka_transaction_open_count", "Open transactions that this broker coordinates."),
            Description(
                "gauge", "kafka_transaction_oldest_seconds", "Age of the oldest open transaction that it coordinates."
            ),
        ]

        def rows() -> Iterator[Row]:
            found = read()
            if found is not None:
                yield (), found

        self.registry.readings(descriptions, rows)

    def read_network_from(self, read: Callable[[], NetworkMetrics]) -> None:
        descriptions = [
            Description("gauge", "kafka_server_connections", "Open connections."),
            Description("counter", "kafka_server_connections_accepted_total", "Accepted connections."),
            Description("counter", "kafka_server_connections_rejected_total", "Connections rejected by a limit."),
            Description("counter", "kafka_network_received_bytes_total", "Bytes received."),
            Description("counter", "kafka_network_sent_bytes_total", "Bytes sent."),
        ]
        self.registry.readings(descriptions, lambda: [((), read())])


def _logs(services: Services) -> Iterator[LogMetrics]:
    for hosted in services.replicas.logs.logs():
        log = hosted.log
        yield LogMetrics(
            hosted.topic, hosted.partition, log.size, log.segment_count, log.log_start_offset, log.log_end_offset
        )


def _network(counters: Counters) -> NetworkMetrics:
    return NetworkMetrics(
        counters.connections, counters.accepted, counters.rejected, counters.bytes_in, counters.bytes_out
    )


def _under_min_isr(services: Services) -> int:
    return sum(1 for each in services.replicas.led() if each.insync_replicas < each.min_insync_replicas)


def _declare_process(registry: Registry, process: ProcessMetrics) -> None:
    descriptions = [
        Description("counter", "process_cpu_seconds_total", "CPU time, user and system."),
        Description("gauge", "process_resident_memory_bytes", "Memory in RAM."),
        Description("gauge", "process_virtual_memory_bytes", "Address space."),
        Description("gauge", "process_open_fds", "Open file descriptors."),
        Description("gauge", "process_max_fds", "Limit of open file descriptors."),
        Description("gauge", "process_start_time_seconds", "Start of the process, in seconds since 1970."),
    ]

    def read() -> Iterator[Row]:
        yield (
            (),
            (
                process.cpu_seconds(),
                process.resident_bytes(),
                process.virtual_bytes(),
                process.open_files(),
                process.open_files_max(),
                process.start_time_s(),
            ),
        )

    registry.readings(descriptions, read)


def _api_name(key: ApiKey) -> str:
    """`ApiKey.LIST_OFFSETS` as `ListOffsets`, as in Kafka's metrics."""
    return "".join(word.capitalize() for word in key.name.split("_"))


class TimedWorkers:
    """Passes work to `workers`, and the seconds it took to `took`, also if it failed."""

    def __init__(
        self, workers: Workers, took: Callable[[float], None], seconds: Callable[[], float] = perf_counter
    ) -> None:
        self._workers = workers
        self._took = took
        self._seconds = seconds

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        took_s = 0.0

        def timed() -> T:
            nonlocal took_s
            begin_s = self._seconds()
            try:
                return work()
            finally:
                took_s = self._seconds() - begin_s

        def finished(outcome: Outcome[T]) -> None:
            self._took(took_s)
            done(outcome)

        self._workers.run(timed, finished)

    def close(self) -> None:
        self._workers.close()
