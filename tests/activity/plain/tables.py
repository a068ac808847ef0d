"""A warehouse beside plain Python: the tables of each pipeline against what the same events, read back from the log,
come to when they are counted one by one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import fastavro
from tests.activity.pipelines.engine_stories import kept_windows, records, windows_of
from tests.activity.plain import feeds, minutes, reports

from penstock.activity.events import KINDS, Kind
from penstock.activity.pipelines import definition
from penstock.activity.pipelines.engine import results
from penstock.spark.tables import Warehouse

Events = Mapping[str, Sequence[Mapping[str, Any]]]
Decode = Callable[[Kind, bytes], Any]
_AHEAD_MS = 600_000
_EXACT = ("views", "led", "seconds", "posts", "linked", "calls", "refused", "failed")


def from_json(kind: Kind, value: bytes) -> Any:
    return json.loads(value)


def from_avro(kind: Kind, value: bytes) -> Any:
    """Raises for bytes that are left over too."""
    stream = io.BytesIO(value)
    found = fastavro.schemaless_reader(stream, json.loads(kind.avro), None)
    if stream.read(1):
        raise ValueError("there is more")
    return found


def logged(address: str, decode: Decode = from_json) -> dict[str, list[dict[str, Any]]]:
    """All events that are whole, by topic; none of times to come."""
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in KINDS:
        rows = found[kind.topic] = []
        for _, value, stamp_ms in records(address, kind.topic):
            try:
                event = decode(kind, value or b"")
            except (ValueError, EOFError, IndexError, UnicodeDecodeError, OverflowError):
                continue
            if _is_whole(kind, event) and event["time"] <= stamp_ms + _AHEAD_MS:
                rows.append(event)
    return found


def _is_whole(kind: Kind, event: Any) -> bool:
    types = {"STRING": str, "DOUBLE": (float, int), "INT": int, "BIGINT": int}
    return (
        isinstance(event, dict)
        and set(event) == set(kind.names)
        and all(isinstance(event[name], types[spark]) and event[name] is not True for name, spark in kind.columns)  # type: ignore[arg-type]
    )


def assert_same(warehouse: str, events: Events, pipelines: Iterable[str] = definition.pipeline_names()) -> None:
    """Every table of these pipelines that is counted from events, row by row."""
    for name in pipelines:
        _CHECKS[name](warehouse, events)


def _rows(warehouse: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = results.read_result_table(warehouse, name).to_pylist()
    return found


def _search(warehouse: str, events: Events) -> None:
    kept = _rows(warehouse, "keyword_minutes")
    plain = minutes.keyword_minutes(events)
    assert {(row["minute"], row["user_group"], row["keyword"]): row["searches"] for row in kept} == {
        key: searches for key, (searches, _) in plain.items()
    }
    assert len(kept) == len(plain)


def _relevance(warehouse: str, events: Events) -> None:
    kept = _rows(warehouse, "item_minutes")
    plain = minutes.item_minutes(events)
    names = ("impressions", "clicks", "views", "votes_up", "votes_down")
    assert {(row["minute"], row["item"]): {name: row[name] for name in names} for row in kept} == plain
    assert len(kept) == len(plain)


def _security(warehouse: str, events: Events) -> None:
    kept = _rows(warehouse, "behaviour")
    plain = minutes.behaviour(events)
    assert {(row["minute"], row["kind"], row["actor"]): {name: row[name] for name in _EXACT} for row in kept} == {
        key: {name: found[name] for name in _EXACT} for key, found in plain.items()
    }
    assert len(kept) == len(plain)


def _operations(warehouse: str, events: Events) -> None:
    assert kept_windows(results.read_result_table(warehouse, "server_windows")) == windows_of(
        events["requests"], events["servers"]
    )


def _feed(warehouse: str, events: Events) -> None:
    """Of the rows of an entry and a member, the last follow or unfollow decides."""
    decides: dict[feeds.Seen, tuple[Any, int, str]] = {}
    for row in _rows(warehouse, "feed_entries"):
        time_ms = round(row["time"].timestamp() * 1000)
        entry = feeds.Seen(time_ms, row["member"], row["author"], row["kind"], row["id"], row["item"])
        said = row["follow_time"], row["follow_id"], row["action"]
        decides[entry] = max(decides.get(entry, said), said)
    assert {entry for entry, (_, _, action) in decides.items() if action == "follow"} == feeds.seen(events)


def _reporting(warehouse: str, events: Events) -> None:
    opened = Warehouse(warehouse)
    for topic, rows in events.items():
        landed = opened.open(topic).store.delta.to_pyarrow_table(columns=["id"]).column("id").to_pylist()
        assert sorted(landed) == sorted(row["id"] for row in rows), topic
    sessions: dict[tuple[int, int, int], dict[str, Any]] = {}
    for row in _rows(warehouse, "sessions"):
        start, end = (round(row.pop(name).timestamp() * 1000) for name in ("start", "end"))
        place = start, row.pop("member"), row.pop("session")
        sessions[place] = {"end": end, **row}
    assert sessions == reports.sessions(events)


_CHECKS: dict[str, Callable[[str, Events], None]] = {
    "search": _search,
    "relevance": _relevance,
    "security": _security,
    "operations": _operations,
    "feed": _feed,
    "reporting": _reporting,
}
