"""Events on a broker, a warehouse, and what plain Python makes of the same events, read back from the log."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from penstock import Producer
from penstock.activity.events import REQUESTS, SERVERS, Kind
from penstock.activity.pipelines.engine import results
from penstock.client.admin import Admin
from penstock.spark.fetch import read_range
from penstock.spark.options import ReaderOptions
from penstock.spark.tables.load_plan import log_state

FIRST_MS = 1_790_000_000_000
KEPT = {"log.retention.ms": "-1"}
"""For brokers: events are of a time that is long past, and on a busy machine a test may last until somebody looks."""
WINDOW_MS = 5_000
Event = Mapping[str, Any]


def request(number: int, time_ms: int, *, server: str = "server-1", status: int = 200, took_ms: float = 20.0) -> Event:
    return {
        "id": number, "time": time_ms, "server": server, "path": "/", "status": status, "duration_ms": took_ms,
        "level": "INFO", "message": "served",
    }  # fmt: skip


def measure(number: int, time_ms: int, *, server: str = "server-1", cpu: float = 0.3) -> Event:
    return {
        "id": number, "time": time_ms, "server": server, "cpu": cpu, "io_wait": 0.05, "disk_mb_s": 20.0, "memory": 0.5,
    }  # fmt: skip


def traffic(seconds: int, first_ms: int = FIRST_MS, *, servers: int = 3, slow: tuple[str, int, int] | None = None) -> (
    list[tuple[Kind, Event]]
):  # fmt: skip
    """Requests and measures of some seconds, the same for the same arguments. `slow` is a server and its seconds."""
    found: list[tuple[Kind, Event]] = []
    for second in range(seconds):
        for number in range(servers):
            server = f"server-{number}"
            is_slow = slow is not None and slow[0] == server and slow[1] <= second < slow[2]
            base_ms = first_ms + second * 1000
            for each in range(8):
                took_ms = (10.0 + (second * 7 + each * 13 + number * 3) % 17) * (8 if is_slow else 1)
                status = 500 if is_slow and each % 4 == 0 else 200
                key = (base_ms + each * 100) * 10 + number
                found.append(
                    (REQUESTS, request(key, base_ms + each * 100, server=server, status=status, took_ms=took_ms))
                )
            load = 0.93 if is_slow else 0.3 + (second % 3) / 100
            found.append((SERVERS, measure(base_ms * 10 + number, base_ms + number, server=server, cpu=load)))
    return found


def send(address: str, events: Iterable[tuple[Kind, Event | bytes]], *, timestamp_ms: int | None = None) -> None:
    """In order, keyed as the site does, with the time of the event unless told otherwise; bytes are malformed."""
    with Producer(address) as producer:
        for kind, event in events:
            value = event if isinstance(event, bytes) else json.dumps(event).encode()
            key = b"?" if isinstance(event, bytes) else str(event[kind.key]).encode()
            time_ms = FIRST_MS if isinstance(event, bytes) else int(event["time"])
            producer.send(kind.topic, value, key=key, timestamp_ms=timestamp_ms or time_ms)


def records(address: str, topic: str) -> Iterator[tuple[bytes | None, bytes | None, int]]:
    """Keys, values and timestamps, as they are in the log."""
    with Admin(address) as admin:
        state = log_state(admin, topic, "read_committed")
    for partition, (begin, end) in state.bounds.items():
        for batch in read_range(address, ReaderOptions(), topic, partition, begin, end, isolation="read_committed"):
            columns = [batch.column(name).to_pylist() for name in ("key", "value", "timestamp")]
            for key, value, stamp in zip(*columns, strict=True):
                yield key, value, round(stamp.timestamp() * 1000)


def logged(address: str, kind: Kind) -> list[Event]:
    """The events of a topic that are whole, and not of times to come."""
    found: list[Event] = []
    for _, value, stamp_ms in records(address, kind.topic):
        try:
            event = json.loads(value or b"")
        except ValueError:
            continue
        if isinstance(event, dict) and set(event) == set(kind.names) and event["time"] <= stamp_ms + 600_000:
            found.append(event)
    return found


def plain_windows(address: str) -> dict[tuple[int, str], dict[str, Any]]:
    """What `server_windows` must have, by the start of the window in ms and the server."""
    return windows_of(logged(address, REQUESTS), logged(address, SERVERS))


def windows_of(requests: Iterable[Event], measures: Iterable[Event]) -> dict[tuple[int, str], dict[str, Any]]:
    """The same, of events at hand."""
    times: dict[tuple[int, str], list[tuple[float, bool]]] = defaultdict(list)
    loads: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for event in requests:
        place = event["time"] // WINDOW_MS * WINDOW_MS, event["server"]
        times[place].append((event["duration_ms"], event["status"] >= 500))
    for event in measures:
        place = event["time"] // WINDOW_MS * WINDOW_MS, event["server"]
        loads[place].append((event["cpu"], event["io_wait"]))
    return {place: _window(times.get(place, []), loads.get(place, [])) for place in {*times, *loads}}


def _window(times: list[tuple[float, bool]], loads: list[tuple[float, float]]) -> dict[str, Any]:
    ordered = sorted(took for took, _ in times)
    errors = sum(failed for _, failed in times)
    found: dict[str, Any] = {"requests": len(ordered), "errors": errors, "measures": len(loads)}
    found["error_rate"] = errors / len(ordered) if ordered else None
    for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99)):
        found[name] = ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
    for number, name in enumerate(("cpu", "io_wait")):
        found[name] = round(sum(round(each[number] * 1e6) for each in loads) / len(loads) / 1e6, 9) if loads else None
    return found


def kept_windows(rows: pa.Table) -> dict[tuple[int, str], dict[str, Any]]:
    """The rows of `server_windows`, likewise; each key must be there once."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows.to_pylist():
        place = int(row.pop("start").timestamp() * 1000), row.pop("server")
        assert place not in found
        for name in ("cpu", "io_wait"):
            row[name] = None if row[name] is None else round(row[name], 9)
        found[place] = row
    return found


def table(warehouse: str, name: str, *by: str) -> list[dict[str, Any]]:
    """The rows of a table in the order of some columns."""
    rows: list[dict[str, Any]] = (
        results.read_result_table(warehouse, name).sort_by([(one, "ascending") for one in by]).to_pylist()
    )
    return rows
