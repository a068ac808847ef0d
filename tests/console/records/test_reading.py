"""Browsing and live tail: pages of records, wrong offsets, transactions, and what arrives."""

from __future__ import annotations

import re

import pytest
from tests.console.visitor import Visitor
from tests.timeouts import until

from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.testing import Broker

_OFFSET = re.compile(r"partition=(\d+)&amp;offset=(\d+)")


def offsets(text: str) -> list[tuple[int, int]]:
    return [(int(partition), int(offset)) for partition, offset in _OFFSET.findall(text)]


def test_the_newest_records_come_first(visitor: Visitor) -> None:
    page = visitor.get("/topics/orders/records", partition=1, limit=25)
    shown = offsets(page.text)
    assert len(shown) == 25
    assert shown == sorted(shown, reverse=True)
    older = re.search(r'href="([^"]+)" rel="prev"', page.text)
    assert older is not None
    before = offsets(visitor.get(older[1].replace("&amp;", "&")).text)
    assert max(before)[1] == min(shown)[1] - 1


def test_records_from_an_offset_and_a_time(visitor: Visitor, broker: Broker) -> None:
    assert offsets(visitor.get("/topics/orders/records", partition=0, offset=10, limit=5).text)[0] == (0, 14)
    broker.create_topic("dated")
    with Producer(broker.address) as producer:
        for hour in range(24):
            producer.send("dated", b"%d" % hour, timestamp_ms=1_700_000_000_000 + hour * 3_600_000)
    page = visitor.get("/topics/dated/records", **{"from": "2023-11-15T00:00"})
    assert min(offsets(page.text)) == (0, 2)
    assert "Looked at offsets" in visitor.get("/topics/dated/records", **{"from": "2030-01-01T00:00"}).words


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"offset": "-1"}, 400), ({"offset": "x"}, 400), ({"offset": "9" * 30}, 400), ({"partition": "99"}, 400),
        ({"partition": "-1"}, 400), ({"from": "tomorrow"}, 400), ({"from": "9" * 20}, 400), ({"at": "0"}, 400),
        ({"at": "0:5," * 9000}, 431), ({"offset": "999999999"}, 200), ({"at": "7:1"}, 200),
        ({"value": "nonsense", "key": "<b>"}, 200),
    ],
)  # fmt: skip
def test_wrong_offsets_and_times_are_explained(visitor: Visitor, query: dict[str, str], status: int) -> None:
    answer = visitor.get("/topics/orders/records", **query)
    assert answer.status in (status, 400 if status == 431 else status)


def test_an_empty_topic_says_that_it_has_looked(visitor: Visitor) -> None:
    assert "the first offset of each partition is its end" in visitor.get("/topics/empty/records").words


def test_a_record_is_shown_with_its_headers_and_can_be_copied(visitor: Visitor) -> None:
    page = visitor.get("/topics/views/records")
    assert "<b>name</b>" in page.words
    assert "penstock consume views:0 --offset 0 -n 1" in page.text
    assert "consumer.seek" in page.text


def test_aborted_records_are_shown_on_request_only(visitor: Visitor, broker: Broker) -> None:
    broker.create_topic("aborted")
    with Producer(broker.address, transactional_id="aborts") as producer:
        producer.begin_transaction()
        producer.send("aborted", b"taken back").result(10)
        producer.abort_transaction()
    until(lambda: "taken back" in visitor.get("/topics/aborted/records", all="1").words, "the aborted record")
    page = visitor.get("/topics/aborted/records").words
    assert "taken back" not in page
    assert "No records from there to the end" in page


def test_a_record_is_produced(visitor: Visitor, broker: Broker) -> None:
    broker.create_topic("written", 2)
    path = "/topics/written/produce"
    for fields, says in (
        ({"format": "hex", "value": "zz"}, "not hex"), ({"format": "json", "value": "{"}, "not JSON"),
        ({"headers": "novalue"}, "NAME=VALUE"), ({"partition": "x"}, "not a whole number"),
    ):  # fmt: skip
        assert says in visitor.change(path, **fields).words
    assert visitor.change(path, key="k", value="line one\r\nline two", headers="a=b=c", partition="1").status == 200
    visitor.change(path, key="k", format="null", value="ignored", partition="1")
    visitor.change(path, format="hex", value="00 ff", partition="1")
    found = []
    with Consumer(
        "written", bootstrap_servers=broker.address, auto_offset_reset="earliest", consumer_timeout_ms=3000
    ) as consumer:
        for record in consumer:
            found.append((record.key, record.value, [(each[0], each[1]) for each in record.headers]))
            if len(found) == 3:
                break
    assert found == [(b"k", b"line one\nline two", [("a", b"b=c")]), (b"k", None, []), (None, b"\x00\xff", [])]


def test_a_live_tail_shows_what_arrives_and_goes_on_after_a_pause(visitor: Visitor, broker: Broker) -> None:
    broker.create_topic("live")
    visitor.get("/topics/new")
    with Producer(broker.address) as producer:
        producer.send("live", b"before").result(10)
        with visitor.events("/topics/live/tail.events") as events:
            assert next(events)[1]["count"] == 0
            producer.send("live", b"<b>first</b>").result(10)
            at, html = next((each["at"], each["html"]) for _, each in events if each["count"])
        assert "&lt;b&gt;first" in html
        assert "before" not in html
        producer.send("live", b"while paused").result(10)
        with visitor.events("/topics/live/tail.events", at=at) as events:
            assert "while paused" in next(each["html"] for _, each in events if each["count"])


def test_a_tail_that_is_too_fast_counts_what_it_leaves_out(visitor: Visitor, broker: Broker) -> None:
    broker.create_topic("fast")
    visitor.get("/topics/new")
    with visitor.events("/topics/fast/tail.events") as events, Producer(broker.address) as producer:
        next(events)
        for number in range(2000):
            producer.send("fast", b"%d" % number)
        producer.flush()
        seen = 0
        for _, document in events:
            assert document["count"] <= 25
            seen += document["count"] + document["skipped"]
            if seen == 2000:
                break


def test_a_record_is_produced_again(visitor: Visitor, broker: Broker) -> None:
    broker.create_topic("again")
    with Producer(broker.address) as producer:
        producer.send("again", b"\n{1} text", key=b"k", headers=[("a", b"b=c")])
        producer.send("again", b"\x00\xff")
        producer.send("again", b"one\r\ntwo")
        producer.flush()
    form = visitor.get("/topics/again/produce", again="0:0").text
    assert '<textarea name="value" rows="10" spellcheck="false">\n\n{1} text</textarea>' in form
    assert 'value="k"' in form
    assert "a=b=c" in form
    assert "00 ff</textarea>" in visitor.get("/topics/again/produce", again="0:1").text
    assert "6f 6e 65 0d 0a" in visitor.get("/topics/again/produce", again="0:2").text
    for wrong in ("0:99", "9:0"):
        assert visitor.get("/topics/again/produce", again=wrong).status == 400
    assert visitor.get("/topics/again/produce", again="x").status == 400
