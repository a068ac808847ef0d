"""Rates and quantiles from two scrapes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ports import free_port

from penstock.console.cluster.metrics import Scrape, health_of, parse, quantile, rates, scrape

TEXT = """# TYPE kafka_server_bytes_in_total counter
kafka_server_bytes_in_total{topic="a"} 100
kafka_server_bytes_in_total{topic="b \\"x\\""} 20
kafka_server_bytes_out_total{topic="a"} 7
kafka_network_request_duration_seconds_bucket{api="Produce",le="0.1"} 90
kafka_network_request_duration_seconds_bucket{api="Produce",le="+Inf"} 100
kafka_network_request_duration_seconds_bucket{api="Fetch",le="x"} 5
kafka_server_bytes_in_total malformed
"""


def test_counters_are_read_and_what_is_malformed_is_left_out() -> None:
    found = parse(TEXT, 1.0)
    assert (found.bytes_in, found.bytes_out) == (120.0, 7.0)
    assert found.latencies["Produce"] == {0.1: 90.0, float("inf"): 100.0}


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse(text, 0.0)


def test_rates_are_those_between_two_scrapes_of_the_same_brokers() -> None:
    one, two = Scrape(0.0, 100, 50, {}), Scrape(2.0, 300, 60, {})
    found = rates({"a": one, "b": one}, {"a": two, "c": two})
    assert (found.bytes_in, found.bytes_out) == (100.0, 5.0)
    assert rates({}, {"a": two}).bytes_in is None
    restarted = Scrape(2.0, 0, 0, {})
    assert rates({"a": one}, {"a": restarted}).bytes_in is None


def test_a_quantile_is_that_of_the_requests_in_between() -> None:
    before = Scrape(0.0, 0, 0, {"Produce": {0.1: 1000.0, 1.0: 1000.0, float("inf"): 1000.0}})
    after = Scrape(1.0, 0, 0, {"Produce": {0.1: 1000.0, 1.0: 1100.0, float("inf"): 1100.0}})
    found = rates({"a": before}, {"a": after})
    assert found.produce_p99_s == pytest.approx(0.991)
    assert found.fetch_p99_s is None
    assert quantile(0.99, {0.1: 0.0, float("inf"): 5.0}) == 0.1
    assert quantile(0.5, {}) is None


def test_what_does_not_answer_is_none() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert health_of(url, None) is None
    assert scrape(url, "token", 0.0) is None
