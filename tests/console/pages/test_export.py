"""Records as files: whole, bounded, and harmless in a spreadsheet."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from typing import IO, Any

import pytest
from tests.cli.commands import Shell
from tests.console.visitor import Answer, Visitor
from tests.timeouts import until

from penstock.cli.records.codecs import record_of
from penstock.client.producer import Producer
from penstock.console.pages import export
from penstock.console.pages.records import indexes_of
from penstock.console.records.decoding import Decoded, Registry
from penstock.console.records.reading import Shown
from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name

BINARY = b"\xff\x00\xfe"


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    name = topic_name(request.node.name)
    broker.create_topic(name, 2)
    return name


def lines(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def file_name(answer: Answer) -> str:
    return answer.headers["content-disposition"].partition("filename=")[2].strip('"')


def send(broker: Broker, topic: str, *values: bytes | None) -> None:
    with Producer(broker.address) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, key=BINARY if number == 0 else None, partition=number % 2,
                          headers=[("h", BINARY), ("n", None)])  # fmt: skip
        producer.flush()


def without_place(records: list[dict[str, Any]]) -> list[str]:
    """Records apart from where they are."""
    place = ("topic", "partition", "offset", "timestamp", "timestampType")
    return sorted(json.dumps({name: each[name] for name in sorted(each) if name not in place}) for each in records)


def test_a_browse_is_downloaded_as_lines_that_produce_reads_back(visitor: Visitor, broker: Broker, topic: str) -> None:
    send(broker, topic, b"one", BINARY, None, b"")
    answer = visitor.get(f"/topics/{topic}/export", **{"as": "jsonl"})
    found = lines(answer)
    assert file_name(answer) == f"{topic}-4-records.jsonl"
    assert int(answer.headers["content-length"]) == len(answer.text.encode())
    shell = Shell(broker.address)
    printed = shell.lines("consume", topic, "--exit", "--from-beginning", "--format", "json")
    assert without_place(found) == without_place([json.loads(line) for line in printed])
    broker.create_topic(f"{topic}-again", 2)
    shell.done("produce", f"{topic}-again", "--format", "json", stdin=answer.text)
    assert without_place(lines(visitor.get(f"/topics/{topic}-again/export"))) == without_place(found)


def test_a_line_with_what_a_registry_decodes_and_without_a_time_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "decode", lambda *_: Decoded('{"id": 1}', "avro"))
    record = Shown(0, 7, -1, b"k", b"\0\0\0\0\x01\x02", ())
    document = export.document_of("views", record, Registry("http://127.0.0.1:1"))
    assert document["decoded"] == '{"id": 1}'
    read_back = record_of(export._json_line(document))
    assert (read_back["value"], read_back["timestamp"]) == (record.value, None)
    cells = dict(zip(export._COLUMNS, export._cells(document), strict=True))
    assert (cells["timestamp"], cells["time"]) == ("", "")


def test_a_search_is_downloaded_with_what_it_found(visitor: Visitor) -> None:
    answer = visitor.get("/topics/orders/export?text=u77&where=json&path=user.id")
    assert [each["key"] for each in lines(answer)] == ["k77"]
    assert file_name(answer) == "orders-1-records.jsonl"
    assert lines(visitor.get("/topics/orders/export", text="nowhere")) == []
    assert len(lines(visitor.get("/topics/orders/export", text="user", most=7))) == 7


@pytest.mark.parametrize("step", [1, 40, 100, 500])
def test_a_search_is_continued_until_the_file_is_whole(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(export, "_STEP", step)
    monkeypatch.setattr(export, "_AT_A_TIME", 7)
    found = lines(visitor.get("/topics/orders/export", find=1, text='"u1', most=90))
    assert len(found) == 90
    assert len({each["key"] for each in found}) == 90
    whole = lines(visitor.get("/topics/orders/export", find=1, text='"u1'))
    assert sorted(each["key"] for each in whole) == sorted(f"k{n}" for n in range(300) if str(n)[0] == "1")


def test_a_browse_begins_where_it_is_told_and_has_at_most_what_is_asked(visitor: Visitor) -> None:
    found = lines(visitor.get("/topics/orders/export", partition=1, offset=90))
    assert [each["offset"] for each in found] == list(range(90, 90 + len(found)))
    assert len(found) >= 10
    assert len(lines(visitor.get("/topics/orders/export", most=9))) <= 9
    assert len(lines(visitor.get("/topics/orders/export"))) >= 300


def test_a_value_is_not_a_formula_in_a_spreadsheet(visitor: Visitor, broker: Broker, topic: str) -> None:
    hostile = ["=HYPERLINK(1)", "+1+1", "@SUM(1)", "-1-1", "\t=1", 'a"b,c\nd', "-5", "plain"]
    send(broker, topic, *(each.encode() for each in hostile))
    answer = visitor.get(f"/topics/{topic}/export", **{"as": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = {
        int(row["offset"]) * 2 + int(row["partition"]): row["value"] for row in csv.DictReader(io.StringIO(answer.text))
    }
    shown = ["'=HYPERLINK(1)", "'+1+1", "'@SUM(1)", "'-1-1", "'\t=1", 'a"b,c\nd', "-5", "plain"]
    assert [rows[number] for number in range(len(hostile))] == shown


def test_bytes_and_time_end_a_file_and_its_name_says_so(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_MOST_BYTES", 2_000)
    answer = visitor.get("/topics/orders/export")
    assert len(answer.text) <= 2_000
    assert file_name(answer) == f"orders-{len(lines(answer))}-records-incomplete.jsonl"
    monkeypatch.setattr(export, "_MOST_BYTES", 2_000_000)
    monkeypatch.setattr(export, "_MOST_S", 0.0)
    for query in ({}, {"find": 1, "text": "nowhere"}):
        assert file_name(visitor.get("/topics/orders/export", **query)).endswith("-incomplete.jsonl")


def test_only_so_many_files_at_once(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_AT_ONCE", 0)
    assert visitor.get("/topics/orders/export").status == 503
    monkeypatch.setattr(export, "_AT_ONCE", 1)
    for _ in range(3):
        assert visitor.get("/topics/orders/export").status == 200
        until(lambda: not export._running, "the end of the file")


def test_a_file_counts_from_the_request_until_it_was_sent(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    pieces = export._pieces

    async def counted_indexes(*given: Any) -> list[int]:
        seen.append(len(export._running))
        return await indexes_of(*given)

    def counted_pieces(file: IO[bytes]) -> Iterator[bytes]:
        seen.append(len(export._running))
        yield from pieces(file)

    monkeypatch.setattr(export, "indexes_of", counted_indexes)
    monkeypatch.setattr(export, "_pieces", counted_pieces)
    assert visitor.get("/topics/orders/export").status == 200
    assert seen == [1, 1]
    assert visitor.get("/topics/absent/export").status == 404
    until(lambda: not export._running, "no file")


def test_a_visitor_who_goes_away_leaves_no_file_behind() -> None:
    file = io.BytesIO(b"x" * 10)
    export._running.add(file)

    async def send(_: Any) -> None:
        raise OSError("the visitor is gone")

    async def receive() -> Any:
        await asyncio.Event().wait()

    response = export._FileResponse(file, "text/csv", {})
    with pytest.raises(Exception):  # noqa: B017, PT011 - Starlette's own error, by version
        asyncio.run(response({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send))
    assert file.closed
    assert file not in export._running


@pytest.mark.parametrize(
    ("path", "status"),
    [("orders/export?as=exe", 400), ("absent/export", 404), ("orders/export?where=json&path=a+b", 400),
     ("orders/export?partition=9", 400), ("orders/export?most=x", 200),
     ("orders/export?find=1&text=", 400), ("orders/export?find=1&text=u1&partition=1", 200), ("empty/export", 200)],
)  # fmt: skip
def test_odd_downloads(visitor: Visitor, path: str, status: int) -> None:
    assert visitor.get(f"/topics/{path}").status == status


def test_the_records_page_offers_both_files(visitor: Visitor) -> None:
    until(lambda: "orders" in visitor.get("/topics").words, "topics")
    assert visitor.get("/topics/orders/records").text.count('formaction="/topics/orders/export"') == 4


def test_a_search_is_downloaded_with_the_partition_and_the_transactions_of_the_page(visitor: Visitor) -> None:
    found = lines(visitor.get("/topics/orders/export", find=1, text="user", partition=1, all=1))
    assert len(found) == 100
    assert {each["partition"] for each in found} == {1}
    page = visitor.get("/topics/orders/records").text
    assert page.count('<input type="hidden" name="find" value="1">') == 1
    script = visitor.get("/static/console.js").text
    # One query for the search on the screen and for its file.
    assert script.count("const query = wanted();") == 2
