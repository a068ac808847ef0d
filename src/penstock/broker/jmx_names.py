"""Metrics under the names that the Prometheus JMX exporter gives to Kafka's MBeans.

Dashboards and alert rules that were made for Kafka with that exporter (its example configuration for Kafka 2) ask for
`kafka_server_brokertopicmetrics_messagesin_total`, where Penstock has `kafka_server_messages_in_total`. /metrics shows
both unless `penstock.metrics.jmx.names` is false. A value is read once for both.

    MBean                                                         here
    kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec       kafka_server_brokertopicmetrics_bytesin_total
    kafka.server:type=ReplicaManager,name=LeaderCount             kafka_server_replicamanager_leadercount
    kafka.network:type=RequestMetrics,name=TotalTimeMs            kafka_network_requestmetrics_totaltimems_count

As in Kafka, a counter by topic has another series without a topic, for the whole broker. Percentiles, which Kafka
takes over the last minutes, have no counterpart: use the histograms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from penstock.broker.metrics import Collected, Counter, Description, Histogram, Kind, Rows

Alias = Callable[[Description, Rows], Iterator[Collected]]

_TOPICS: Final = {
    "messages_in": "messagesin", "bytes_in": "bytesin", "bytes_out": "bytesout", "bytes_rejected": "bytesrejected",
    "produce_requests": "totalproducerequests", "fetch_requests": "totalfetchrequests",
    "failed_produce_requests": "failedproducerequests", "failed_fetch_requests": "failedfetchrequests",
}  # fmt: skip
# Name here: name there, and the labels there.
_RENAMED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "kafka_server_partitions": ("kafka_server_replicamanager_partitioncount", ()),
    "kafka_server_leaders": ("kafka_server_replicamanager_leadercount", ()),
    "kafka_server_under_replicated_partitions": ("kafka_server_replicamanager_underreplicatedpartitions", ()),
    "kafka_server_under_min_isr_partitions": ("kafka_server_replicamanager_underminisrpartitioncount", ()),
    "kafka_server_replica_fetcher_max_lag": ("kafka_server_replicafetchermanager_maxlag", ()),
    "kafka_controller_active_controller": ("kafka_controller_kafkacontroller_activecontrollercount", ()),
    "kafka_controller_offline_partitions": ("kafka_controller_kafkacontroller_offlinepartitionscount", ()),
    "kafka_log_offline_log_directories": ("kafka_log_logmanager_offlinelogdirectorycount", ()),
    "kafka_log_size_bytes": ("kafka_log_log_size", ("topic", "partition")),
    "kafka_log_segments": ("kafka_log_log_numlogsegments", ("topic", "partition")),
    "kafka_log_start_offset": ("kafka_log_log_logstartoffset", ("topic", "partition")),
    "kafka_log_end_offset": ("kafka_log_log_logendoffset", ("topic", "partition")),
    "kafka_server_requests_total": ("kafka_network_requestmetrics_requests_total", ("request",)),
    "kafka_network_request_errors_total": ("kafka_network_requestmetrics_errors_total", ("request", "error")),
}
_COUNTED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "kafka_network_request_duration_seconds": ("kafka_network_requestmetrics_totaltimems_count", ("request",)),
    "kafka_log_flush_duration_seconds": ("kafka_log_logflushstats_logflushrateandtimems_count", ()),
}
_GROUPS: Final = "kafka_coordinator_group_groupmetadatamanager_numgroups"


def jmx_aliases(dropped: Mapping[str, Counter]) -> dict[str, Alias]:
    """By name, what /metrics shows besides a metric. `dropped` has what deleted topics had counted, by family."""
    found: dict[str, Alias] = {
        f"kafka_server_{here}_total": _with_sum(f"kafka_server_brokertopicmetrics_{there}_total", dropped[here])
        for here, there in _TOPICS.items()
    }
    found.update((here, _renamed(*there)) for here, there in _RENAMED.items())
    found.update((here, _counted(*there)) for here, there in _COUNTED.items())
    found["kafka_group_count"] = _groups
    return found


def _described(kind: Kind, name: str, like: Description, labels: tuple[str, ...]) -> Description:
    return Description(kind, name, f"Same as {like.name}.", labels)


def _renamed(name: str, labels: tuple[str, ...]) -> Alias:
    def alias(like: Description, rows: Rows) -> Iterator[Collected]:
        yield _described(like.kind, name, like, labels), rows

    return alias


def _with_sum(name: str, dropped: Counter) -> Alias:
    def alias(like: Description, rows: Rows) -> Iterator[Collected]:
        total = dropped.value + sum(value for _, value in rows if not isinstance(value, Histogram))
        yield _described("counter", name, like, ("topic",)), [((), total), *rows]

    return alias


def _counted(name: str, labels: tuple[str, ...]) -> Alias:
    def alias(like: Description, rows: Rows) -> Iterator[Collected]:
        counts = [(row, value.count) for row, value in rows if isinstance(value, Histogram)]
        # Parsers of the newer format add _total to the name of a counter.
        yield _described("gauge", name, like, labels), counts

    return alias


def _groups(like: Description, rows: Rows) -> Iterator[Collected]:
    numbers = {labels[0]: value for labels, value in rows if not isinstance(value, Histogram)}
    yield _described("gauge", _GROUPS, like, ()), [((), sum(numbers.values()))]
    for state, number in numbers.items():
        yield _described("gauge", f"{_GROUPS}{state.lower()}", like, ()), [((), number)]
