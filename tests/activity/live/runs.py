"""Runs to test with: children that are small scripts, what is seen of them given by hand."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from penstock.activity.live.run import Plan
from penstock.activity.live.state import (
    Feed,
    FeedEntry,
    Incident,
    Line,
    Process,
    Query,
    Ranked,
    Rising,
    Sample,
    ServerWindow,
    Snapshot,
    Suspect,
    Topic,
)

PIPELINES = ("feed", "relevance", "security", "operations", "search", "reporting")
NOW_MS = 1_794_766_500_000

UNTIL_THE_PIPE_CLOSES = "import sys; print('up', flush=True); sys.stdin.read()"
LISTENS = """
import socket, sys
listener = socket.create_server(("127.0.0.1", {port}))
print("serves", flush=True)
sys.stdin.read()
"""


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


@dataclass(frozen=True)
class ScriptPlan(Plan):
    """A plan whose children are scripts."""

    broker_script: str = LISTENS
    pipelines_script: str = UNTIL_THE_PIPE_CLOSES
    generator_script: str = UNTIL_THE_PIPE_CLOSES

    def broker_command(self) -> list[str]:
        return script(self.broker_script.format(port=self.port))

    def pipelines_command(self) -> list[str]:
        return script(self.pipelines_script)

    def generator_command(self, origin_ms: int) -> list[str]:
        return script(self.generator_script)


class HandMade:
    """What is seen of a run: whatever a test says."""

    def __init__(self, *queries: Query, rate: float = 100.0) -> None:
        self.lines: list[str] = []
        self.phases: list[str] = []
        self.is_closed = False
        self._lock = threading.Lock()
        topics = [Topic(name="views", total=1000, rate=rate)]
        self._snapshot = Snapshot(number=1, time_ms=NOW_MS, topics=topics, queries=list(queries))

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def shows(self, **changes: Any) -> None:
        with self._lock:
            changes.setdefault("number", self._snapshot.number + 1)
            self._snapshot = msgspec.structs.replace(self._snapshot, **changes)

    def cluster_ready(self) -> None:
        self.lines.append("cluster")

    def add_line(self, text: str) -> None:
        self.lines.append(text)

    def set(self, **values: Any) -> None:
        if "phase" in values:
            self.phases.append(values["phase"])

    def feed(self, member: int) -> Feed:
        entry = FeedEntry(time_ms=NOW_MS, author=7, kind="post", item=9, text="A word on new kettle.", relevance=2.0)
        return Feed(member=member, newest=NOW_MS, entries=[entry] if member == 17 else [])


@dataclass
class Heard:
    """A display that remembers."""

    lines: list[str] = field(default_factory=list)
    refreshed: int = 0

    def step(self, name: str, text: str) -> None:
        self.lines.append(f"{name} {text}")

    def line(self, text: str) -> None:
        self.lines.append(text)

    def refresh(self, snapshot: Snapshot) -> None:
        self.refreshed += 1


def query(pipeline: str, name: str = "rows", **values: Any) -> Query:
    usual: dict[str, Any] = {
        "state": "running", "batch_id": 3, "batch_ms": 800, "rows_per_s": 100.0, "rows": 5000, "malformed": 0, "lag": 0,
        "restarts": 0, "message": "", "updated_ms": NOW_MS,
    }  # fmt: skip
    return Query(pipeline=pipeline, name=name, **(usual | values))


def script_plan(folder: Path, port: int, **values: Any) -> ScriptPlan:
    return replace(ScriptPlan(folder, ("operations",), port=port), **values)


def full_snapshot() -> Snapshot:
    """Of a run in which there is something of everything, with numbers and texts that need room."""
    topics = ("views", "impressions", "votes", "searches", "posts", "follows", "api_calls", "servers", "requests")
    seconds = [NOW_MS - 1000 * back for back in range(120, 0, -1)]
    return Snapshot(
        number=5, time_ms=NOW_MS, phase="running", started_ms=NOW_MS - 200_000, generating_since_ms=NOW_MS - 150_000,
        ends_ms=NOW_MS + 60_000, facts={"page": "http://127.0.0.1:8092", "cluster": "127.0.0.1:9092"},
        topics=[Topic(name=name, total=12_345_678, rate=12_345.6) for name in topics],
        queries=[query(name, lag=123_456, batch_ms=12_345, rows=98_765_432) for name in PIPELINES],
        processes=[Process(name=name, pid=1, memory_bytes=3 << 30, cores=1.25) for name in ("broker", "pipelines")],
        incidents=[
            Incident(
                server=f"server-{number}", kind=kind, opened=NOW_MS - 60_000, until=NOW_MS - 5_000, is_open=number == 7,
                severity="critical", worst=681.0, usual=74.5, message="p95 latency 681 ms, usually 74.5 ms",
            )
            for number in (7, 3)
            for kind in ("latency", "errors", "cpu")
        ],
        ranking=[
            Ranked(
                rank=rank, item=4000 + rank, score=30.0 - rank / 4, views=1234.5, click_through=0.0943, votes=0.61,
                trend=[0.5, 1.0, 1.2, 2.0][rank % 4], rising=rank == 3,
            )
            for rank in range(1, 101)
        ],
        suspects=[
            Suspect(
                kind="member", actor=str(10_000 + number), verdict=("crawler", "spammer", "abuser")[number % 3],
                score=0.98, evidence="118 views in 1 min, 118 items, evenly", first_seen=NOW_MS, last_seen=NOW_MS,
            )
            for number in range(32)
        ],
        suspects_total=32,
        rising=[
            Rising(minute=NOW_MS, user_group=group, keyword="quiet desk", searches=112, ratio=16.5, score=9.0)
            for group in ("all", "regular")
        ],
        servers={
            f"server-{number}": [
                ServerWindow(start=at, server=f"server-{number}", p50_ms=25.0, p95_ms=70.0 + number, p99_ms=98.0)
                for at in seconds[::5]
            ]
            for number in range(1, 9)
        },
        samples=[
            Sample(
                time_ms=at, rates=dict.fromkeys(topics, 100.0), lag=dict.fromkeys(PIPELINES, 50),
                batch_ms=dict.fromkeys(PIPELINES, 900),
            )
            for at in seconds
        ],
        members=[17, 18], members_total=2,
        lines=[Line(time_ms=NOW_MS, text="pipelines was killed by SIGKILL; restarting")],
    )  # fmt: skip
