"""Search: what matches, where it looks, and what it says about it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.console.visitor import Visitor

from penstock.client.admin import AsyncAdmin
from penstock.client.producer import Producer
from penstock.console.records.reading import Shown
from penstock.console.records.search import (
    InvalidSearch,
    Matcher,
    Query,
    Step,
    at_path,
    parse_path,
    search,
)
from penstock.testing import Broker

BASE_MS = 1_700_000_000_000


def record(
    value: bytes | None = None, key: bytes | None = None, headers: tuple[tuple[str, bytes | None], ...] = ()
) -> Shown:
    return Shown(0, 0, 0, key, value, headers)


@pytest.mark.parametrize(
    ("query", "value", "found"),
    [
        (Query("cat"), b"a cat", True),
        (Query("cat", is_exact=True), b"a cat", False),
        (Query("CAT"), b"a cat", False),
        (Query("CAT", ignores_case=True), b"a cat", True),
        (Query("stra\u00dfe", ignores_case=True), b"STRASSE", True),
        (Query("x", "json", "a"), b'{"a": "xyz"}', True),
        (Query("x", "json", "a", is_exact=True), b'{"a": "xyz"}', False),
        (Query("1", "json", "a"), b'{"a": 1.0}', True),
        (Query("1", "json", "a"), b'{"a": 11}', False),
        (Query("true", "json", "a"), b'{"a": true}', True),
        (Query("null", "json", "a"), b'{"a": null}', True),
        (Query("", "json", "a.b"), b'{"a": {"b": 0}}', True),
        (Query("", "json", "a.b"), b'{"a": {}}', False),
        (Query("2", "json", "items[*].n"), b'{"items": [{"n": 1}, {"n": 2}]}', True),
        (Query("2", "json", "items[0].n"), b'{"items": [{"n": 1}, {"n": 2}]}', False),
        (Query("cat", "json", "a"), b'{"a": "\\u0063at"}', True),
        (Query("cat", "json", "a"), b"not json", False),
        (Query("cat", "json", "a"), b"[" * 100_000, False),
        (Query("cat", "json", "a"), None, False),
        (Query("cat", "json", "a"), b'\0\0\0\0\x07{"a": "cat"}', True),
    ],
)
def test_what_matches(query: Query, value: bytes | None, found: bool) -> None:
    matcher = Matcher(query)
    assert matcher.matches(record(value)) is found
    if found and value is not None:
        assert matcher.may_match(value, 0, len(value))


def test_keys_and_headers_are_searched() -> None:
    one = record(b"v", b"key-7", (("trace", b"abc"), ("none", None)))
    for where, text in (("key", "key-7"), ("header", "trace"), ("header", "abc"), ("anywhere", "abc"), ("value", "v")):
        assert Matcher(Query(text, where)).matches(one), (where, text)  # type: ignore[arg-type]
    assert not Matcher(Query("abc", "value")).matches(one)
    assert not Matcher(Query("v", "key")).matches(one)


@given(st.text(min_size=1), st.binary(), st.booleans())
def test_a_batch_is_never_left_out_that_has_a_match(text: str, data: bytes, ignores_case: bool) -> None:
    matcher = Matcher(Query(text, ignores_case=ignores_case))
    value = data + text.encode("utf-8", "surrogatepass") + data
    assert matcher.may_match(value, 0, len(value))


def test_paths() -> None:
    assert parse_path("$.a.b[0][*].c") == ("a", "b", 0, None, "c")
    assert at_path({"a": [1, 2]}, ("a", None)) == [1, 2]
    for wrong in ("", "$", "a[", "a[x]", "a b", "a=1", "[" * 200):
        with pytest.raises(InvalidSearch):
            parse_path(wrong)
    with pytest.raises(InvalidSearch):
        Query("")
    with pytest.raises(InvalidSearch):
        Query("x", "json")


@pytest.fixture(scope="module")
def timed(broker: Broker) -> str:
    """A topic with a record for each minute, in two partitions and in compressed batches."""
    broker.create_topic("timed", 2)
    with Producer(broker.address, compression_type="zstd") as producer:
        for minute in range(200):
            value = b'{"minute": %d, "even": %s}' % (minute, b"true" if minute % 2 == 0 else b"false")
            producer.send("timed", value, partition=minute % 2, timestamp_ms=BASE_MS + minute * 60_000)
        producer.flush()
    return "timed"


def steps(broker: Broker, topic: str, query: Query, **options: Any) -> list[Step]:
    async def run() -> list[Step]:
        async with AsyncAdmin(broker.address) as admin:
            return [step async for step in search(admin, topic, [0, 1], query, **options)]

    return asyncio.run(run())


def test_a_search_says_what_it_has_looked_at(broker: Broker, timed: str) -> None:
    found = steps(broker, timed, Query("nowhere to be found"))
    assert found[0].progress.total == 200
    assert found[0].end == ""
    assert (found[-1].end, found[-1].progress.looked, found[-1].hits) == ("complete", 200, [])
    hits = [hit for step in steps(broker, timed, Query('"minute": 77,')) for hit in step.hits]
    assert [(hit.partition, hit.offset) for hit in hits] == [(1, 38)]


def test_times_bound_what_is_read(broker: Broker, timed: str) -> None:
    found = steps(
        broker, timed, Query("true", "json", "even"), from_ms=BASE_MS + 100 * 60_000, to_ms=BASE_MS + 110 * 60_000
    )
    assert found[-1].progress.total == 11
    assert sum(len(step.hits) for step in found) == 6


def test_a_search_pauses_after_its_hits_and_goes_on_from_there(broker: Broker, timed: str) -> None:
    first = steps(broker, timed, Query("minute", hits=20))
    assert first[-1].end == "paused"
    assert sum(len(step.hits) for step in first) == 20
    after = steps(broker, timed, Query("minute", hits=500), start=first[-1].positions)
    together = [hit.offset for step in first + after for hit in step.hits]
    assert len(together) == 200
    assert len({(hit.partition, hit.offset) for step in first + after for hit in step.hits}) == 200


def test_a_topic_that_vanishes_ends_a_search_with_the_reason(broker: Broker) -> None:
    (only,) = steps(broker, "absent", Query("x"))
    assert only.end == "failed"
    assert "absent" in only.problem


def test_the_page_gets_hits_and_progress_as_events(visitor: Visitor, timed: str) -> None:
    visitor.get("/topics/new")
    with visitor.events(f"/topics/{timed}/search.events", text='"minute": 5,') as events:
        documents = [document for name, document in events if name == "step"]
    assert documents[-1]["end"] == "complete"
    assert "1 found in all 200 offsets" in documents[-1]["text"]
    assert any("&quot;" in each["html"] or "minute" in each["html"] for each in documents)
    with visitor.events(f"/topics/{timed}/search.events", text="absent") as events:
        documents = [document for name, document in events if name == "step"]
    assert documents[0]["text"].startswith("0 found so far; looked at 0 of 200 offsets")
    assert documents[-1]["text"].startswith("Nothing found in all 200 offsets")


@pytest.mark.parametrize(
    ("query", "says"),
    [({}, "search for"), ({"text": "x", "where": "json"}, "path"), ({"text": "x", "from": "soon"}, "not a time"),
     ({"text": "x", "partition": "9"}, "no partition 9"), ({"text": "x", "at": "1:x"}, "PARTITION:OFFSET")],
)  # fmt: skip
def test_a_search_that_cannot_be_done_says_why(visitor: Visitor, timed: str, query: dict[str, str], says: str) -> None:
    answer = visitor.get(f"/topics/{timed}/search.events", **query)
    assert answer.status == 400
    assert says in answer.text


def test_a_search_of_an_absent_topic_is_not_found(visitor: Visitor) -> None:
    assert visitor.get("/topics/absent/search.events", text="x").status == 404
