"""What a broker counts, and how it is shown."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.exposition import NotExposition, ParsedFamily, parse

from penstock.broker.metrics import (
    DURATION_BOUNDS_S,
    OTHERS,
    BrokerMetrics,
    Description,
    Histogram,
    LogMetrics,
    MetricError,
    NetworkMetrics,
    Registry,
    Row,
)
from penstock.runtime.process import SystemProcess
from penstock.wire.protocol import ApiKey, ErrorCode


class _Process:
    """A process with known metrics; the others are None."""

    def cpu_seconds(self) -> float | None:
        return 12.5

    def resident_bytes(self) -> float | None:
        return 64 << 20

    def virtual_bytes(self) -> float | None:
        return None

    def open_files(self) -> float | None:
        return 7

    def open_files_max(self) -> float | None:
        return math.inf

    def start_time_s(self) -> float | None:
        return 1_700_000_000.25


def _text(registry: Registry) -> str:
    return b"".join(registry.render()).decode()


def _shown(registry: Registry) -> dict[str, ParsedFamily]:
    return parse(_text(registry))


@pytest.mark.parametrize(
    "text",
    [
        "a 1\n",
        "# HELP a b\n# TYPE a counter\na 1",
        "# HELP a b\n# TYPE a counter\na 1\na 2\n",
        '# HELP a b\n# TYPE a counter\na{x="\\q"} 1\n',
        '# HELP a b\n# TYPE a counter\na{x="1"y="2"} 1\n',
        "# HELP a b\n# TYPE a counter\na 1.5x\n",
        "# HELP a b\n# TYPE a counter\na 1\n# HELP a b\n",
        '# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n',
        '# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 1\na_sum 1\na_count 1\n',
    ],
)
def test_the_parser_rejects_other_formats(text: str) -> None:
    with pytest.raises(NotExposition):
        parse(text)


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "a\n", "ä"])
def test_an_invalid_metric_name_is_rejected_when_declared(name: str) -> None:
    with pytest.raises(MetricError):
        Registry().counter(name, "x")


@pytest.mark.parametrize("labels", [("",), ("__a",), ("a:b",), ("le",), ("a", "a"), ("a\n",)])
def test_an_invalid_label_name_is_rejected_when_declared(labels: tuple[str, ...]) -> None:
    with pytest.raises(MetricError):
        Registry().counters("a", "x", *labels)


def test_a_name_is_declared_once_be_it_as_part_of_a_histogram() -> None:
    registry = Registry()
    registry.histogram("a", "x")
    for name in ("a", "a_bucket", "a_sum", "a_count"):
        with pytest.raises(MetricError, match=name):
            registry.counter(name, "x")
    registry.counter("b_count", "x")
    with pytest.raises(MetricError, match="b_count"):
        registry.histogram("b", "x")


@pytest.mark.parametrize("labels", [{}, {"api": "a"}, {"api": "a", "error": "b", "more": "c"}, {"api": "a", "x": "b"}])
def test_labels_other_than_the_declared_ones_are_rejected(labels: dict[str, str | int]) -> None:
    with pytest.raises(MetricError):
        Registry().counters("a", "x", "api", "error").labelled(**labels)


@pytest.mark.parametrize("bounds", [(), (2.0, 1.0), (1.0, 1.0), (1.0, math.inf), (math.nan,)])
def test_bounds_that_do_not_rise_are_rejected(bounds: tuple[float, ...]) -> None:
    with pytest.raises(MetricError):
        Histogram(bounds)


def test_counters_and_gauges_are_shown_in_the_order_of_declaration() -> None:
    registry = Registry()
    registry.counter("b_total", "Second letter.").add(3)
    registry.gauges("a", "First letter.", "y", "x").labelled(x=1, y="two").set(-0.5)
    assert _text(registry) == (
        "# HELP b_total Second letter.\n# TYPE b_total counter\nb_total 3\n"
        '# HELP a First letter.\n# TYPE a gauge\na{y="two",x="1"} -0.5\n'
    )


def test_a_large_counter_is_shown_exactly() -> None:
    registry = Registry()
    counter = registry.counter("a_total", "x")
    counter.add(2**60)
    counter.add()
    assert f"a_total {2**60 + 1}\n" in _text(registry)


@pytest.mark.parametrize(
    ("value", "shown"), [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (True, "1"), (1e-7, "1e-07")]
)
def test_numbers_are_spelt_as_prometheus_spells_them(value: float, shown: str) -> None:
    registry = Registry()
    registry.gauge("a", "x").set(value)
    assert _text(registry).endswith(f"\na {shown}\n")
    _shown(registry)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(), min_size=2, max_size=2), st.text())
def test_any_text_survives_help_and_labels(values: list[str], help_text: str) -> None:
    registry = Registry()
    registry.gauges("a", help_text, "x", "y").labelled(x=values[0], y=values[1]).set(1)
    registry.histograms("h", help_text, "x", "y").labelled(x=values[0], y=values[1]).observe(1)
    shown = _shown(registry)
    assert shown["a"].help == help_text
    assert shown["a"].value(x=values[0], y=values[1]) == 1
    assert shown["h"].value("h_count", x=values[0], y=values[1]) == 1


def test_half_a_character_in_a_label_does_not_spoil_the_rest() -> None:
    registry = Registry()
    registry.gauges("a", "x", "name").labelled(name="\ud800").set(1)
    registry.gauge("b", "x").set(2)
    assert _shown(registry)["b"].value() == 2


def test_a_gauge_without_a_value_is_absent() -> None:
    registry = Registry()
    gauge = registry.gauge("a", "x")
    assert _shown(registry) == {}
    gauge.add(2)
    gauge.add(-3)
    assert _shown(registry)["a"].value() == -1


def test_a_gauge_that_follows_is_read_at_each_scrape() -> None:
    registry = Registry()
    queue: list[int] = []
    registry.gauge("a", "x").follow(lambda: len(queue))
    assert _shown(registry)["a"].value() == 0
    queue.append(1)
    assert _shown(registry)["a"].value() == 1


def test_a_value_that_cannot_be_read_is_left_out_and_the_rest_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> float:
        raise OSError("the disk is gone")

    def broken_rows() -> Iterator[Row]:
        yield (("t",), (1,))
        raise OSError("the disk is gone")

    registry = Registry()
    gauges = registry.gauges("a", "x", "n")
    gauges.labelled(n=1).follow(broken)
    gauges.labelled(n=2).set(2)
    registry.readings([Description("gauge", "b", "x", ("topic",))], broken_rows)
    registry.gauge("c", "x").set(3)
    with caplog.at_level(logging.ERROR):
        shown = _shown(registry)
    assert list(shown) == ["a", "c"]
    assert list(shown["a"].samples) == [("a", (("n", "2"),))]
    assert [record.getMessage() for record in caplog.records] == [
        "metric not readable: name=a",
        "metrics not readable: name=b",
    ]


@pytest.mark.parametrize("row", [((), (1, 2)), (("t", "u"), (1, 2)), (("t",), (1,)), (("t",), (1, 2, 3))])
def test_rows_of_the_wrong_shape_are_left_out(row: Row) -> None:
    registry = Registry()
    pair = [Description("gauge", name, "x", ("topic",)) for name in ("a", "b")]
    registry.readings(pair, lambda: [row])
    assert _shown(registry) == {}


def test_a_duplicate_row_is_shown_once() -> None:
    registry = Registry()
    registry.readings([Description("gauge", "a", "x", ("topic",))], lambda: [(("t",), (1,)), (("t",), (2,))])
    assert _shown(registry)["a"].samples == {("a", (("topic", "t"),)): 2.0}


def test_a_value_on_a_bound_counts_below_it() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0, 1, 1.5, 2, 3, 4, 5, 1000):
        histogram.observe(value)
    assert histogram.buckets() == [(1.0, 2), (2.0, 4), (4.0, 6), (math.inf, 8)]
    assert histogram.count == 8
    assert histogram.total == 1016.5


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 100), max_size=60))
def test_a_histogram_shows_what_counting_one_by_one_gives(values: list[float]) -> None:
    registry = Registry()
    histogram = registry.histogram("h", "x")
    for value in values:
        histogram.observe(value)
    shown = _shown(registry)["h"]
    for bound in DURATION_BOUNDS_S:
        assert shown.value("h_bucket", le=repr(bound)) == sum(value <= bound for value in values)
    assert shown.value("h_sum") == pytest.approx(sum(values))
    assert shown.value("h_count") == len(values)


def test_durations_from_ten_microseconds_to_fifty_seconds_are_distinguished() -> None:
    assert DURATION_BOUNDS_S[:4] == (0.00001, 0.00002, 0.00005, 0.0001)
    assert DURATION_BOUNDS_S[-1] == 50.0
    assert len(DURATION_BOUNDS_S) == 21


def test_quantiles_lie_within_the_bucket_that_holds_them() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    assert histogram.quantile(0.5) is None
    for _ in range(10):
        histogram.observe(2.5)
    assert histogram.quantile(0.5) == 3.0
    assert histogram.quantile(1.0) == 4.0
    histogram.observe(1000)
    assert histogram.quantile(1.0) == 4.0
    only_above = Histogram((1.0, 2.0))
    only_above.observe(3)
    assert only_above.quantile(0.5) == 2.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.00001, 50), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_off_by_one_bucket_at_most(values: list[float], q: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    estimate = histogram.quantile(q)
    exact = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    assert estimate is not None
    assert estimate <= next(bound for bound in DURATION_BOUNDS_S if exact <= bound)
    assert estimate >= max((bound for bound in DURATION_BOUNDS_S if bound < exact), default=0)


def test_series_beyond_the_limit_are_folded_into_one() -> None:
    registry = Registry()
    family = registry.counters("a_total", "x", "topic", series_max=3)
    for number in range(1000):
        family.labelled(topic=f"t{number}").add()
    shown = _shown(registry)["a_total"]
    assert len(shown.samples) == 4
    assert shown.value(topic="t2") == 1
    assert shown.value(topic=OTHERS) == 997
    family.drop(topic="t0")
    family.labelled(topic="t3").add(5)
    family.labelled(topic=OTHERS).add()
    shown = _shown(registry)["a_total"]
    assert (shown.value(topic="t3"), shown.value(topic=OTHERS)) == (5, 998)


def test_a_dropped_series_disappears_and_a_new_one_starts_from_zero() -> None:
    registry = Registry()
    family = registry.counters("a_total", "x", "topic")
    kept = family.labelled(topic="t")
    assert family.labelled(topic="t") is kept
    kept.add(5)
    family.drop(topic="t")
    family.drop(topic="t")
    kept.add(5)
    assert _shown(registry) == {}
    family.labelled(topic="t").add(1)
    assert _shown(registry)["a_total"].value(topic="t") == 1


def test_topics_may_be_created_and_deleted_between_pieces_of_the_text() -> None:
    registry = Registry()
    family = registry.counters("a_total", "x", "topic", series_max=10_000)
    for number in range(3000):
        family.labelled(topic=f"topic-number-{number}")
    pieces = registry.render()
    text = [next(pieces)]
    family.drop(topic="topic-number-2999")
    family.labelled(topic="new")
    text += pieces
    assert len(text) > 3
    assert max(map(len, text)) < 20_000
    assert len(parse(b"".join(text).decode())["a_total"].samples) == 3000


def test_the_snapshot_is_json_down_to_infinities() -> None:
    registry = Registry()
    registry.counters("a_total", "Letters.", "x").labelled(x="y").add(2)
    registry.gauge("g", "x").set(math.nan)
    registry.histogram("h", "x", bounds=(1, 2)).observe(1.5)
    assert json.loads(json.dumps(registry.snapshot(), allow_nan=False)) == {
        "a_total": {"type": "counter", "help": "Letters.", "series": [{"labels": {"x": "y"}, "value": 2}]},
        "g": {"type": "gauge", "help": "x", "series": [{"labels": {}, "value": None}]},
        "h": {
            "type": "histogram",
            "help": "x",
            "series": [
                {
                    "labels": {},
                    "count": 1,
                    "sum": 1.5,
                    "buckets": [[1, 0], [2, 1], [None, 1]],
                    "p50": 1.5,
                    "p99": 1.99,
                }
            ],
        },
    }


def test_requests_are_counted_under_kafkas_names_for_apis_and_errors() -> None:
    metrics = BrokerMetrics(_Process())
    produce = metrics.api(ApiKey.PRODUCE)
    assert metrics.api(ApiKey.PRODUCE) is produce
    produce.requests.add()
    produce.duration_seconds.observe(0.0015)
    for code in (ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE, 10, 31_000):
        produce.count_error(code)
    metrics.api(ApiKey.LIST_OFFSETS).requests.add(2)
    shown = _shown(metrics.registry)
    assert shown["kafka_server_requests_total"].value(api="ListOffsets") == 2
    durations = shown["kafka_network_request_duration_seconds"]
    assert durations.value("kafka_network_request_duration_seconds_bucket", api="Produce", le="0.001") == 0
    assert durations.value("kafka_network_request_duration_seconds_bucket", api="Produce", le="0.002") == 1
    errors = shown["kafka_network_request_errors_total"]
    assert errors.value(api="Produce", error="MESSAGE_TOO_LARGE") == 2
    assert errors.value(api="Produce", error="UNKNOWN_SERVER_ERROR") == 1
    assert len(errors.samples) == 2


def test_a_topic_has_its_metrics_until_it_is_deleted() -> None:
    metrics = BrokerMetrics(_Process())
    clicks = metrics.topic("clicks")
    assert metrics.topic("clicks") is clicks
    clicks.messages_in.add(10)
    clicks.bytes_in.add(1000)
    clicks.bytes_out.add(3000)
    metrics.topic("views").bytes_in.add(1)
    shown = _shown(metrics.registry)
    assert shown["kafka_server_messages_in_total"].value(topic="clicks") == 10
    assert shown["kafka_server_bytes_in_total"].value(topic="clicks") == 1000
    assert shown["kafka_server_bytes_out_total"].value(topic="clicks") == 3000
    metrics.drop_topic("clicks")
    metrics.drop_topic("never there")
    assert "clicks" not in _text(metrics.registry)
    assert _shown(metrics.registry)["kafka_server_bytes_in_total"].value(topic="views") == 1
    assert metrics.topic("clicks").bytes_in.value == 0


def test_topics_beyond_the_limit_share_their_metrics() -> None:
    metrics = BrokerMetrics(_Process(), topics_max=2)
    for number in range(100):
        metrics.topic(f"t{number}").bytes_in.add()
    bytes_in = _shown(metrics.registry)["kafka_server_bytes_in_total"]
    assert len(bytes_in.samples) == 3
    assert bytes_in.value(topic=OTHERS) == 98
    metrics.drop_topic("t50")
    assert metrics.topic("t60").bytes_in is metrics.topic("t61").bytes_in


def test_deleting_a_topic_makes_room_for_one_that_shared() -> None:
    metrics = BrokerMetrics(_Process(), topics_max=2)
    for topic in ("a", "b", "c"):
        metrics.topic(topic).bytes_in.add()
    metrics.drop_topic("a")
    metrics.topic("c").bytes_in.add(5)
    metrics.topic("d").bytes_in.add(7)
    bytes_in = _shown(metrics.registry)["kafka_server_bytes_in_total"]
    assert {dict(labels)["topic"]: value for (_, labels), value in bytes_in.samples.items()} == {
        "b": 1,
        "c": 5,
        OTHERS: 1 + 7,
    }


def test_sizes_groups_and_connections_are_read_from_their_owners() -> None:
    metrics = BrokerMetrics(_Process())
    logs = [LogMetrics("clicks", 0, 4096, 2, 10, 99), LogMetrics("clicks", 1, 0, 1, 0, 0)]
    metrics.read_logs_from(lambda: iter(logs))
    metrics.read_groups_from(lambda: {"Stable": 3, "Empty": 1})
    metrics.read_network_from(lambda: NetworkMetrics(5, 100, 1, 2000, 3000))
    metrics.partitions.set(2)
    shown = _shown(metrics.registry)
    assert shown["kafka_log_size_bytes"].value(topic="clicks", partition="0") == 4096
    assert shown["kafka_log_segments"].value(topic="clicks", partition="1") == 1
    assert shown["kafka_log_start_offset"].value(topic="clicks", partition="0") == 10
    assert shown["kafka_log_end_offset"].value(topic="clicks", partition="0") == 99
    assert shown["kafka_group_count"].value(state="Stable") == 3
    assert shown["kafka_server_connections"].value() == 5
    assert shown["kafka_server_connections_accepted_total"].kind == "counter"
    assert shown["kafka_network_sent_bytes_total"].value() == 3000
    assert shown["kafka_server_partitions"].value() == 2
    assert "kafka_server_leaders" not in shown
    logs.clear()
    assert "kafka_log_size_bytes" not in _shown(metrics.registry)


def test_the_lag_of_groups_is_shown_where_the_end_is_known() -> None:
    metrics = BrokerMetrics(_Process())
    ends = {("views", 0): 100, ("views", 1): 7}
    committed = [("audit", "views", 0, 40), ("audit", "views", 1, 9), ("audit", "elsewhere", 3, 5)]
    metrics.read_lag_from(lambda: committed, lambda topic, partition: ends.get((topic, partition)))
    shown = _shown(metrics.registry)
    assert shown["kafka_group_committed_offset"].value(group="audit", topic="elsewhere", partition="3") == 5
    assert {tuple(dict(labels).values()): value for (_, labels), value in shown["kafka_group_lag"].samples.items()} == {
        ("audit", "views", "0"): 60,
        ("audit", "views", "1"): 0,  # committed behind the end that is known here
    }
    assert shown["kafka_group_lag_truncated"].value() == 0


def test_the_lag_of_groups_is_bounded_whatever_clients_commit() -> None:
    metrics = BrokerMetrics(_Process())
    looked_at = 0

    def committed() -> Iterator[tuple[str, str, int, int]]:
        nonlocal looked_at
        yield "x" * 30_000, "views", 0, 0
        for number in range(1_000_000):
            looked_at += 1
            yield f"g{number}", "views", 0, number

    metrics.read_lag_from(committed, lambda topic, partition: 10)
    shown = _shown(metrics.registry)
    assert looked_at == 5_000
    assert len(shown["kafka_group_committed_offset"].samples) == 4_999
    assert shown["kafka_group_lag_truncated"].value() == 1


def test_the_process_is_shown_under_the_names_that_dashboards_know() -> None:
    shown = _shown(BrokerMetrics(_Process()).registry)
    assert shown["process_cpu_seconds_total"].value() == 12.5
    assert shown["process_resident_memory_bytes"].value() == 64 << 20
    assert "process_virtual_memory_bytes" not in shown
    assert shown["process_open_fds"].value() == 7
    assert shown["process_max_fds"].value() == math.inf
    assert shown["process_start_time_seconds"].value() == 1_700_000_000.25


def test_the_real_process_notices_a_file_that_is_opened(tmp_path: Path) -> None:
    process = SystemProcess()
    before = process.open_files()
    assert before is not None
    with open(tmp_path / "file", "wb"):
        assert process.open_files() == before + 1
    assert process.open_files() == before


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="this system has no /proc")
def test_the_real_process_started_after_its_machine_and_before_this_test(tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    now_s = os.stat(tmp_path / "now").st_mtime
    process = SystemProcess()
    start_s = process.start_time_s()
    assert start_s is not None
    assert now_s - 7 * 86_400 < start_s < now_s + 1
    assert (process.cpu_seconds() or 0) > 0
    assert 1 << 20 < (process.resident_bytes() or 0) < (process.virtual_bytes() or 0)
    assert (process.open_files_max() or 0) > 3


def test_metrics_that_the_system_does_not_provide_are_absent(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_bytes(b"nonsense")
    (tmp_path / "self" / "stat").write_bytes(b"1 (a b) c) S 0")
    process = SystemProcess(str(tmp_path))
    assert process.resident_bytes() is None
    assert process.virtual_bytes() is None
    assert (process.start_time_s() or 0) > 1_600_000_000


def test_the_start_is_found_behind_a_command_with_odd_characters(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    fields = " ".join(["S", *["0"] * 18, str(50 * os.sysconf("SC_CLK_TCK"))])
    (tmp_path / "self" / "stat").write_text(f"42 (a ) b) {fields} 1 2 3")
    (tmp_path / "stat").write_text("cpu 1 2 3\nbtime 1000\nprocesses 7\n")
    assert SystemProcess(str(tmp_path)).start_time_s() == 1050
