"""Metrics under the JMX exporter's names, and the dashboard and alert rules: what they ask for is there."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.timeouts import PATIENCE_MS, PATIENCE_S

from penstock import Admin, Consumer, Producer
from penstock.testing import Broker

MONITORING = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
OUR_NAME = re.compile(r"\b(?:kafka|penstock|process)_[a-z0-9_]+")
SELECTOR = re.compile(r"\b((?:kafka|penstock|process)_[a-z0-9_]+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
FROM_PROMETHEUS = {"job", "instance", "le"}  # labels that a scrape adds, or a histogram has

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(broker: Broker) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker at work: a topic with records, a group that has read some, a transaction that is open."""
    with Broker(http_port=0) as broker, Producer(broker.address, transactional_id="open") as transactional:
        broker.create_topic("views", 2)
        with Producer(broker.address) as producer:
            for number in range(10):
                producer.send("views", b"12345", partition=number % 2)
            too_large = producer.send("views", b"x", partition=0, timestamp_ms=2**61)
            with pytest.raises(Exception, match="INVALID_TIMESTAMP"):
                too_large.result(PATIENCE_S)
        with Consumer(
            "views", bootstrap_servers=broker.address, group_id="feed", auto_offset_reset="earliest",
            enable_auto_commit=False, consumer_timeout_ms=PATIENCE_MS,
        ) as consumer:  # fmt: skip
            for _ in range(3):
                next(iter(consumer))
            consumer.commit()
        transactional.begin_transaction()
        transactional.send("views", b"not yet").result(PATIENCE_S)
        yield broker


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


# --- names


def test_counters_by_topic_have_a_sum_over_topics_that_never_falls() -> None:
    with Broker(http_port=0) as broker, Producer(broker.address) as producer, Admin(broker.address) as admin:
        for topic, count in (("views", 3), ("clicks", 2)):
            for _ in range(count):
                producer.send(topic, b"x").result(PATIENCE_S)
        name = "kafka_server_brokertopicmetrics_messagesin_total"
        found = samples(broker)
        assert value(found, name, topic="views") == 3
        assert value(found, name) == 5
        admin.delete_topic("views")
        found = samples(broker)
        assert (name, frozenset({("topic", "views")})) not in found
        assert value(found, name) == 5
        producer.send("clicks", b"x").result(PATIENCE_S)
        assert value(samples(broker), name) == 6


@pytest.mark.parametrize(
    ("jmx", "ours", "labels"),
    [
        ("kafka_server_replicamanager_partitioncount", "kafka_server_partitions", {}),
        ("kafka_server_replicamanager_leadercount", "kafka_server_leaders", {}),
        ("kafka_controller_kafkacontroller_activecontrollercount", "kafka_controller_active_controller", {}),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", "kafka_controller_offline_partitions", {}),
        ("kafka_log_log_size", "kafka_log_size_bytes", {"topic": "views", "partition": "1"}),
        ("kafka_log_log_logendoffset", "kafka_log_end_offset", {"topic": "views", "partition": "0"}),
        ("kafka_server_brokertopicmetrics_bytesin_total", "kafka_server_bytes_in_total", {"topic": "views"}),
        ("kafka_log_logflushstats_logflushrateandtimems_count", "kafka_log_flush_duration_seconds_count", {}),
    ],
)
def test_a_metric_has_the_same_value_under_both_names(
    broker: Broker, jmx: str, ours: str, labels: dict[str, str]
) -> None:
    found = samples(broker)
    assert value(found, jmx, **labels) == value(found, ours, **labels)


def test_requests_and_groups_are_counted_under_kafkas_words(broker: Broker) -> None:
    found = samples(broker)
    requests = value(found, "kafka_server_requests_total", api="Produce")
    assert value(found, "kafka_network_requestmetrics_requests_total", request="Produce") == requests
    assert value(found, "kafka_network_requestmetrics_totaltimems_count", request="Produce") == requests
    errors = {"error": "INVALID_TIMESTAMP"}
    assert value(found, "kafka_network_requestmetrics_errors_total", request="Produce", **errors) == 1
    assert value(found, "kafka_coordinator_group_groupmetadatamanager_numgroups") == 1


def test_the_names_can_be_left_out() -> None:
    with Broker(http_port=0, settings={"penstock.metrics.jmx.names": "false"}) as broker:
        broker.create_topic("views")
        names = {name for name, _ in samples(broker)}
    assert "kafka_server_partitions" in names
    assert not {name for name in names if "replicamanager" in name or "brokertopicmetrics" in name}


# --- the files in deploy/monitoring


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def alerts() -> dict[str, str]:
    """Expressions by alert. The file has one key per line, which spares a parser of YAML."""
    lines = [line.strip() for line in (MONITORING / "alerts.yml").read_text().splitlines()]
    names = [line.removeprefix("- alert: ") for line in lines if line.startswith("- alert: ")]
    expressions = [line.removeprefix("expr: ") for line in lines if line.startswith("expr: ")]
    return dict(zip(names, expressions, strict=True))


def test_every_metric_and_label_of_the_dashboard_and_the_alerts_exists(broker: Broker) -> None:
    labels: dict[str, set[str]] = {}
    for name, pairs in samples(broker):
        labels.setdefault(name, set(FROM_PROMETHEUS)).update(label for label, _ in pairs)
    expressions = [*dashboard_expressions(), *alerts().values()]
    assert len(expressions) > 40
    missing = []
    for expression in expressions:
        named = set(OUR_NAME.findall(expression))
        missing += [f"{name} ({expression})" for name in sorted(named - labels.keys())]
        for name, selector in SELECTOR.findall(expression):
            used = {part.partition("=")[0].rstrip("!~") for part in selector.split(",") if part}
            missing += [f"{name}{{{label}}}" for label in sorted(used - labels.get(name, set()))]
        for group in GROUPING.findall(expression):
            known = set().union(*(labels.get(name, set()) for name in named))
            missing += [f"by ({label}) in {expression}" for label in group.split(", ") if label not in known]
    assert missing == []


def test_panels_do_not_overlap_and_each_says_what_it_shows() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        box = panel["gridPos"]
        cells = {(x, y) for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])}
        assert not cells & taken, panel["title"]
        assert panel["description"], panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_parentheses_of_every_expression_match() -> None:
    for expression in [*dashboard_expressions(), *alerts().values()]:
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), expression
