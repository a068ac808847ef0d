"""The figures that a broker keeps.

Names follow Kafka's MBeans in Prometheus' spelling, so that who knows the one finds the other: `kafka.server:
type=BrokerTopicMetrics,name=BytesInPerSec,topic=t` is `kafka_server_bytes_in_total{topic="t"}`. A rate per second
becomes a total, which Prometheus turns into a rate over any time.

Rule: what happens is counted where it happens, through a handle that its owner keeps (`ApiMetrics` for an API,
`TopicMetrics` for a topic). What is a state (sizes, connections, groups) is not kept here a second time, but read from
its owner at each scrape: the `read_..._from` methods say from whom. A topic's series end with the topic.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from penstock import __version__
from penstock.broker.instruments import Counter, Description, Family, Histogram, Registry, Row
from penstock.runtime.process import ProcessFigures
from penstock.wire.api_keys import ApiKey
from penstock.wire.error_codes import ErrorCode, error_code

_TOPICS_MAX = 5000
_LAGS_MAX = 5000
_LABEL_CHARS_MAX = 255

Committed = tuple[str, str, int, int]
"""Group, topic, partition, and the offset that the group has committed."""
EndOf = Callable[[str, int], int | None]
"""Where a partition ends for its readers; None where this broker does not know."""


class LogFigures(NamedTuple):
    """One partition's log."""

    topic: str
    partition: int
    size_bytes: int
    segments: int
    start_offset: int
    end_offset: int


class NetworkFigures(NamedTuple):
    """The socket server: connections that are open, and totals since its start."""

    connections: int
    accepted: int
    rejected: int
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class TopicMetrics:
    """The handle for what happens to one topic."""

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
    "bytes_rejected": "Bytes of record batches that were refused.",
    "produce_requests": "Produce requests, counted for each topic in them.",
    "fetch_requests": "Fetch requests, counted for each topic that their answer tells of.",
    "failed_produce_requests": "Produce requests that failed for the topic.",
    "failed_fetch_requests": "Fetch requests that failed for the topic.",
}


class ApiMetrics:
    """The handle for what happens to requests of one API."""

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
    """The concrete set. Others may add to `registry` what is theirs."""

    def __init__(self, process: ProcessFigures, *, topics_max: int = _TOPICS_MAX) -> None:
        self.registry = registry = Registry()
        self._topics_max = topics_max
        self._topics: dict[str, TopicMetrics] = {}
        self._apis: dict[ApiKey, ApiMetrics] = {}
        build = registry.gauges("penstock_build_info", "1, labelled with what runs.", "version", "python")
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
        self.log_flush_seconds = registry.histogram("kafka_log_flush_duration_seconds", "Time that a sync took.")
        self.delayed_operations = registry.gauges(
            "kafka_server_delayed_operations", "Requests that wait: Produce for acks, Fetch for bytes.", "operation"
        )
        self.partitions = registry.gauge("kafka_server_partitions", "Partitions on this broker.")
        self.leaders = registry.gauge("kafka_server_leaders", "Partitions that this broker leads.")
        self.under_replicated_partitions = registry.gauge(
            "kafka_server_under_replicated_partitions", "Partitions led here that lack a replica in sync."
        )
        self.under_min_isr_partitions = registry.gauge(
            "kafka_server_under_min_isr_partitions", "Partitions led here with fewer in sync than the topic demands."
        )
        self.active_controller = registry.gauge(
            "kafka_controller_active_controller", "1 if this broker is the controller of its cluster, else 0."
        )
        self.offline_partitions = registry.gauge(
            "kafka_controller_offline_partitions",
            "Partitions of the cluster that nobody leads, as the controller knows.",
        )
        self.replica_max_lag = registry.gauge(
            "kafka_server_replica_fetcher_max_lag",
            "Records by which the last of the partitions followed here is behind.",
        )
        self.offline_log_directories = registry.gauge(
            "kafka_log_offline_log_directories", "Data folders that failed and are out of use."
        )
        _declare_process(registry, process)

    def api(self, key: ApiKey) -> ApiMetrics:
        """The handle of an API, made on first use."""
        found = self._apis.get(key)
        if found is None:
            name = _api_name(key)
            requests, durations = self._requests.labelled(api=name), self._durations.labelled(api=name)
            found = self._apis[key] = ApiMetrics(name, requests, durations, self._errors)
        return found

    def topic(self, topic: str) -> TopicMetrics:
        """The handle of a topic that exists, made on first use; of `(others)`, when there are too many topics."""
        found = self._topics.get(topic)
        if found is None:
            found = TopicMetrics(
                **{name: family.labelled(topic=topic) for name, family in self._topic_families.items()}
            )
            if len(self._topics) < self._topics_max:
                self._topics[topic] = found
        return found

    def drop_topic(self, topic: str) -> None:
        """The topic was deleted; one of the same name that comes later counts from 0."""
        if self._topics.pop(topic, None) is not None:
            for family in self._topic_families.values():
                family.drop(topic=topic)

    def read_logs_from(self, read: Callable[[], Iterable[LogFigures]]) -> None:
        labels = ("topic", "partition")
        descriptions = [
            Description("gauge", "kafka_log_size_bytes", "Bytes of a partition's segments.", labels),
            Description("gauge", "kafka_log_segments", "Segments of a partition.", labels),
            Description("gauge", "kafka_log_start_offset", "First offset of a partition.", labels),
            Description("gauge", "kafka_log_end_offset", "Offset after the last one of a partition.", labels),
        ]
        self.registry.readings(descriptions, lambda: (((log[0], log[1]), log[2:]) for log in read()))

    def read_groups_from(self, read: Callable[[], Mapping[str, int]]) -> None:
        """`read` tells how many groups there are in each state (`Stable`, `Empty`...)."""
        count = Description("gauge", "kafka_group_count", "Consumer groups that this broker coordinates.", ("state",))
        self.registry.readings([count], lambda: (((state,), (number,)) for state, number in read().items()))

    def read_lag_from(self, committed: Callable[[], Iterable[Committed]], end_of: EndOf) -> None:
        """What groups have committed, and how many records lie behind it where the partition's end is known here.

        A scrape looks at `_LAGS_MAX` partitions of groups at most, however many there are, and a group whose name is
        too long for a label is left out: both are the clients' choice. `kafka_group_lag_truncated` says when.
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
        # Declared after what sets it, since a scrape reads in the order of declarations.
        truncated = self.registry.gauge(
            "kafka_group_lag_truncated", "1 if groups have more partitions than are shown, else 0."
        )

    def read_network_from(self, read: Callable[[], NetworkFigures]) -> None:
        descriptions = [
            Description("gauge", "kafka_server_connections", "Connections that are open."),
            Description("counter", "kafka_server_connections_accepted_total", "Connections that were accepted."),
            Description("counter", "kafka_server_connections_rejected_total", "Connections beyond a limit."),
            Description("counter", "kafka_network_received_bytes_total", "Bytes that came through sockets."),
            Description("counter", "kafka_network_sent_bytes_total", "Bytes that went through sockets."),
        ]
        self.registry.readings(descriptions, lambda: [((), read())])


def _declare_process(registry: Registry, process: ProcessFigures) -> None:
    descriptions = [
        Description("counter", "process_cpu_seconds_total", "CPU time, user and system."),
        Description("gauge", "process_resident_memory_bytes", "Memory in RAM."),
        Description("gauge", "process_virtual_memory_bytes", "Address space."),
        Description("gauge", "process_open_fds", "Open file descriptors."),
        Description("gauge", "process_max_fds", "How many file descriptors may be open."),
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
    """`ApiKey.LIST_OFFSETS` as `ListOffsets`, which is how Kafka's own metrics call it."""
    return "".join(word.capitalize() for word in key.name.split("_"))
