"""Reading an audit log back from its end, over partitions with different shares of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock.client.admin import AsyncAdmin
from penstock.client.producer import Producer
from penstock.console.records import audit
from penstock.console.records.audit import AuditFilter, AuditPage, AuditRecord, line_of, read_audit
from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name

START_MS = 1_790_000_000_000


def line(number: int, **more: object) -> bytes:
    return json.dumps(
        {"event": "request", "outcome": "allowed", "action": "CreateTopics", "principal": "User:alice",
         "resources": [f"Topic t{number}"], **more}
    ).encode()  # fmt: skip


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    name = topic_name(request.node.name)
    broker.create_topic(name, 3)
    return name


def fill(broker: Broker, topic: str, count: int) -> None:
    """One line each second. Partition 0 has most, partition 1 every tenth, partition 2 none."""
    with Producer(broker.address) as producer:
        for number in range(count):
            more = {"outcome": "denied", "principal": "User:eve"} if number % 7 == 0 else {}
            producer.send(
                topic, line(number, **more), partition=int(number % 10 == 0), timestamp_ms=START_MS + number * 1000
            )
        producer.flush()


def read(broker: Broker, topic: str, wanted: AuditFilter | None = None, **options: object) -> AuditPage:
    async def run() -> AuditPage:
        async with AsyncAdmin(broker.address) as admin:
            return await read_audit(admin, topic, range(3), wanted or AuditFilter(), **options)  # type: ignore[arg-type]

    return asyncio.run(run())


def all_pages(broker: Broker, topic: str, wanted: AuditFilter | None = None, limit: int = 40) -> list[AuditRecord]:
    found: list[AuditRecord] = []
    before = None
    while True:
        page = read(broker, topic, wanted, before=before, limit=limit)
        found += page.records
        if not page.older:
            return found
        assert page.older != before
        before = page.older


@pytest.mark.parametrize("chunk", [7, 500])
def test_pages_follow_each_other_without_a_gap_newest_first(
    broker: Broker, topic: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_CHUNK", chunk)
    fill(broker, topic, 230)
    found = all_pages(broker, topic)
    assert [record.time_ms for record in found] == [START_MS + number * 1000 for number in reversed(range(230))]


def test_a_page_that_has_looked_at_enough_goes_on_at_the_same_place(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_CHUNK", 5)
    monkeypatch.setattr(audit, "_MOST_LOOKED_AT", 12)
    fill(broker, topic, 120)
    page = read(broker, topic, AuditFilter(principal="nobody"))
    assert page.records == []
    assert page.older
    assert page.looked < 20
    found = all_pages(broker, topic, AuditFilter(outcome="denied"))
    assert [record.line.resources[0] for record in found] == [f"Topic t{n}" for n in reversed(range(0, 120, 7))]


@pytest.mark.parametrize("bound", ["_MOST_LOOKED_AT", "_PAGE_S"])
def test_no_bound_ends_a_page_before_each_partition_was_read(
    broker: Broker, topic: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_CHUNK", 5)
    monkeypatch.setattr(audit, bound, -1)
    fill(broker, topic, 60)
    found = all_pages(broker, topic)
    assert [record.time_ms for record in found] == [START_MS + number * 1000 for number in reversed(range(60))]


def test_lines_are_found_by_principal_request_resource_and_time(broker: Broker, topic: str) -> None:
    fill(broker, topic, 70)
    assert len(all_pages(broker, topic, AuditFilter(principal="EVE"))) == 10
    assert len(all_pages(broker, topic, AuditFilter(principal="eve", outcome="allowed"))) == 0
    assert len(all_pages(broker, topic, AuditFilter(action="createtopics"))) == 70
    assert [one.time_ms for one in all_pages(broker, topic, AuditFilter(resource="Topic t33"))] == [START_MS + 33_000]
    within = AuditFilter(from_ms=START_MS + 10_000, to_ms=START_MS + 12_000)
    assert [one.time_ms - START_MS for one in all_pages(broker, topic, within)] == [12_000, 11_000, 10_000]


def test_lines_of_one_time_stay_together(broker: Broker, topic: str) -> None:
    with Producer(broker.address) as producer:
        for number in range(30):
            producer.send(topic, line(number), partition=number % 2, timestamp_ms=START_MS)
    assert len(all_pages(broker, topic, limit=10)) == 30


@pytest.mark.parametrize(
    "value",
    [None, b"", b"{", b"[]", b"1", b'{"a": 1}', b'{"event": 3}', b"[" * 100_000, b'{"event": "x", "broker": "y"}'],
)  # fmt: skip
def test_what_is_not_a_line_is_counted_and_skipped(broker: Broker, topic: str, value: bytes | None) -> None:
    assert line_of(value) is None
    with Producer(broker.address) as producer:
        producer.send(topic, value, partition=0)
        producer.send(topic, line(1), partition=0).result(30)
    page = read(broker, topic)
    assert (len(page.records), page.unreadable, page.looked) == (1, 1, 2)
