"""The page's server on a real port: what it answers, to whom, and with which policy."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
from tests.activity.live.runs import HandMade, full_snapshot
from tests.timeouts import PATIENCE_S

from penstock.activity.live.page.server import STREAMS, PageServer, bound, page_app
from penstock.activity.live.progress import BROKER, TITLES, StartProgress
from penstock.testing.embedded_broker import EmbeddedBroker


class Visitor:
    """Asks, as a browser would."""

    def __init__(self, server: PageServer) -> None:
        self._address = server.url.removeprefix("http://")

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address, timeout=PATIENCE_S)

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@pytest.fixture
def seen() -> HandMade:
    made = HandMade()
    made._snapshot = full_snapshot()
    return made


@pytest.fixture
def visitor(seen: HandMade) -> Iterator[Visitor]:
    server = PageServer(bound(0), page_app(seen))
    server.start()
    yield Visitor(server)
    seen.is_closed = True
    server.close()


def test_everything_on_the_page_comes_from_here_and_the_policy_says_so(visitor: Visitor) -> None:
    status, headers, body = visitor.get("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    linked = re.findall(r'(?:src|href)="([^"#][^"]*)"', body.decode())
    assert all(each.startswith("/") for each in linked), linked
    assert not re.search(r"<script(?![^>]*src=)|style=|\son\w+=", body.decode()), "the policy would not run it"
    for path in linked:
        if path not in ("/health", "/metrics"):
            assert visitor.get(path)[0] == 200, path
    script = visitor.get("/page.js")[2].decode()
    assert "innerHTML" not in script, "what comes from events is text, never markup"
    assert not re.search(r"https?://(?!www\.w3\.org)", script)


def test_the_state_is_json(visitor: Visitor) -> None:
    status, headers, body = visitor.get("/api/state")
    state: dict[str, Any] = json.loads(body)
    assert (status, headers["content-type"], headers["cache-control"]) == (200, "application/json", "no-store")
    assert state["phase"] == "running"
    assert len(state["ranking"]) == 100
    assert state["servers"]["server-7"][0]["p95_ms"] == 77.0


def test_the_state_of_a_start_has_its_steps_and_their_time(visitor: Visitor, seen: HandMade) -> None:
    assert json.loads(visitor.get("/api/state")[2])["start"] is None
    start = StartProgress(tuple(TITLES))
    start.observe(1_200, {BROKER: True})
    seen.shows(phase="starting", start=start.view(3_000))
    state: dict[str, Any] = json.loads(visitor.get("/api/state")[2])
    assert (state["start"]["share"], state["start"]["time_text"]) == (0.2, "3 s of about 15 s")
    assert state["start"]["steps"][0] == {
        "name": "broker", "title": "The broker answers", "state": "done", "note": "", "ended_ms": 1_200,
        "expected_ms": 1_500,
    }  # fmt: skip
    assert state["waiting_text"] == "the site generates events, Spark starts"


def test_state_has_the_sections_that_the_terminal_shows(visitor: Visitor) -> None:
    state: dict[str, Any] = json.loads(visitor.get("/api/state")[2])
    sections = {one["name"]: one for one in state["sections"]}
    assert list(sections) == [one.name for one in full_snapshot().sections()]
    for one in sections.values():
        table = one.get("table", {"columns": [], "rows": []})
        assert all(len(row) == len(table["columns"]) for row in table["rows"]), one["name"]
    assert sections["ranking"]["table"]["rows"][2][:3] == [3, "Item 4003", "rising"]
    assert [one["field"] for one in sections["batches"]["charts"]] == ["batch_ms"]
    assert state["figures"][0] | {"note": ""} == {
        "title": "Events per second", "value": "111,110", "note": "", "look": "",
    }  # fmt: skip


def test_the_state_is_compressed_for_those_who_can(visitor: Visitor) -> None:
    _, headers, body = visitor.get("/api/state", **{"Accept-Encoding": "gzip"})
    assert headers["content-encoding"] == "gzip"
    assert len(body) < 20_000


def test_snapshots_come_as_they_are_made(visitor: Visitor, seen: HandMade) -> None:
    connection = visitor.connect()
    connection.request("GET", "/api/events", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")

    def next_state() -> dict[str, Any]:
        while not (line := answer.readline()).startswith(b"data: "):
            assert line, "it ended"
        state: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        return state

    assert next_state()["number"] == 5
    seen.shows(phase="draining")
    assert (state := next_state())["number"] == 6
    assert state["phase"] == "draining"
    seen.is_closed = True
    assert b"data: " not in answer.read(), "the stream ends with the run"
    connection.close()


def test_streams_are_bounded(visitor: Visitor) -> None:
    connections = [visitor.connect() for _ in range(STREAMS)]
    for connection in connections:
        connection.request("GET", "/api/events")
        connection.getresponse().readline()
    assert visitor.get("/api/events")[0] == 503
    assert visitor.get("/api/state")[0] == 200
    for connection in connections:
        connection.close()


def test_a_feed_is_of_a_member_and_a_member_is_a_number(visitor: Visitor) -> None:
    assert json.loads(visitor.get("/api/feed/17")[2])["entries"][0]["text"] == "A word on new kettle."
    assert json.loads(visitor.get("/api/feed/18")[2])["entries"] == []
    for wrong in ("x", "-1", "%D9%A3", "9" * 40, "1.5"):
        status, _, body = visitor.get(f"/api/feed/{wrong}")
        assert (status, b"Member ids are numbers" in body) == (404, True)


def test_a_name_that_is_not_this_machines_is_not_answered(visitor: Visitor) -> None:
    assert visitor.get("/api/state", Host="evil.example")[0] == 400
    assert visitor.get("/api/state", Host="localhost:1")[0] == 200


def test_it_only_reads(visitor: Visitor) -> None:
    connection = visitor.connect()
    connection.request("POST", "/api/state", body=b"x")
    assert connection.getresponse().status == 405
    connection.close()


def test_metrics_and_health_are_the_brokers() -> None:
    with EmbeddedBroker(http_port=0) as broker:
        server = PageServer(bound(0), page_app(HandMade(), f"http://127.0.0.1:{broker.http_port}"))
        server.start()
        visitor = Visitor(server)
        assert visitor.get("/health")[0] == 200
        status, headers, body = visitor.get("/metrics")
        assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
        assert b"# TYPE" in body
    assert visitor.get("/health")[0] == 503
    server.close()


def test_health_of_an_existing_cluster_is_not_shown(visitor: Visitor) -> None:
    assert visitor.get("/health")[0] == 404


def test_it_stops_with_a_listener_connected(seen: HandMade) -> None:
    server = PageServer(bound(0), page_app(seen))
    server.start()
    connection = Visitor(server).connect()
    connection.request("GET", "/api/events")
    answer = connection.getresponse()
    answer.readline()
    closing = threading.Thread(target=server.close)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    connection.close()


def test_the_files_are_in_the_package() -> None:
    static = resources.files("penstock.activity.live.page") / "static"
    assert {each.name for each in static.iterdir()} == {"index.html", "page.css", "page.js", "icon.svg"}
