"""What is known of a run at a moment: `Snapshot`, and the `Board` that builds it. No I/O, no clock.

The terminal and the page show a snapshot and nothing else; it is immutable, plain JSON, and bounded however long a run
is. Structs of output topics have the columns of their tables, times in milliseconds, null as None.

A record of an output topic replaces the value of its key, a tombstone removes it, the oldest are dropped when there
are too many, and records that cannot be decoded are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock.activity.live.processes import Usage

if TYPE_CHECKING:
    from penstock.activity.pipelines.engine.status import PipelineStatus


STARTING: Final = "starting"
RUNNING: Final = "running"
DRAINING: Final = "draining"
REPORTING: Final = "reporting"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"
GONE: Final = "gone"
"""Of a pipeline whose process is not there, though it did not say that it had ended."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `alerts`: a window of a server in which something was out of the ordinary."""

    start: int
    server: str
    kind: str
    state: str
    severity: str = "warning"
    value: float | None = None
    usual: float | None = None
    opened: int
    message: str = ""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """All alerts of a server and a kind that opened at the same time."""

    server: str
    kind: str
    opened: int
    until: int
    is_open: bool
    severity: str
    worst: float | None
    usual: float | None
    message: str


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `ranking`."""

    rank: int
    item: int
    score: float
    views: float | None = None
    click_through: float | None = None
    votes: float | None = None
    trend: float | None = None
    rising: bool = False


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `suspects`."""

    kind: str
    actor: str
    verdict: str
    score: float
    evidence: str = ""
    first_seen: int
    last_seen: int


class Rising(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `rising`."""

    minute: int
    user_group: str
    keyword: str
    searches: int
    expected: float | None = None
    ratio: float | None = None
    score: float


class ServerWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `server_windows`, as much of it as is drawn."""

    start: int
    server: str
    requests: int = 0
    error_rate: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    cpu: float | None = None


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of events: records in it, and how many come a second."""

    name: str
    total: int
    rate: float


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A query of a pipeline, or its loads."""

    pipeline: str
    name: str
    state: str
    batch_id: int
    batch_ms: int
    rows_per_s: float
    rows: int
    malformed: int
    lag: int
    restarts: int
    message: str
    updated_ms: int = 0
    """When this was said of it."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A child."""

    name: str
    pid: int
    memory_bytes: int
    cores: float


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was told."""

    time_ms: int
    text: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A second of a run, for charts and the report."""

    time_ms: int
    rates: dict[str, float]
    lag: dict[str, int]
    batch_ms: dict[str, int]
    memory_bytes: dict[str, int] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known."""

    number: int = 0
    """Grows by one with each."""
    time_ms: int = 0
    phase: str = STARTING
    waits_for: str = ""
    started_ms: int = 0
    generating_since_ms: int = 0
    ends_ms: int = 0
    """When generating will end; 0 if it was not said."""
    facts: dict[str, str] = {}
    topics: list[Topic] = []
    queries: list[Query] = []
    processes: list[Process] = []
    incidents: list[Incident] = []
    ranking: list[Ranked] = []
    suspects: list[Suspect] = []
    suspects_total: int = 0
    rising: list[Rising] = []
    servers: dict[str, list[ServerWindow]] = {}
    samples: list[Sample] = []
    members: list[int] = []
    """Some who have news, those with most first."""
    members_total: int = 0
    lines: list[Line] = []
    unreadable: int = 0
    """Records of output topics that are not what they should be."""

    @property
    def rate(self) -> float:
        return sum(topic.rate for topic in self.topics)

    @property
    def events(self) -> int:
        return sum(topic.total for topic in self.topics)

    @property
    def lag(self) -> int:
        """Records that the slowest query has yet to read; -1 while nobody knows."""
        return max((query.lag for query in self.queries), default=-1)

    @property
    def malformed(self) -> int:
        return sum(query.malformed for query in self.queries)

    @property
    def open_incidents(self) -> list[Incident]:
        return [one for one in self.incidents if one.is_open]


class FeedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a member's feed."""

    time_ms: int
    author: int
    kind: str
    item: int
    text: str = ""
    relevance: float = 0.0


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `feed`."""

    member: int
    newest: int = 0
    entries: list[FeedEntry] = []


SAMPLES: Final = 300
"""Of a second each, on charts."""
_KEPT_SAMPLES: Final = 3_600
"""For the report."""
_ALERTS: Final = 2_000
_RANKED: Final = 200
_SUSPECTS: Final = 2_000
_RISING: Final = 2_000
_WINDOWS: Final = 32 * 120
_FEEDS: Final = 5_000
_LINES: Final = 200
_SHOWN_SUSPECTS: Final = 100
_SHOWN_INCIDENTS: Final = 60
_SHOWN_RISING: Final = 20
_SHOWN_MEMBERS: Final = 40
_LOOKED_AT_MEMBERS: Final = 1_000
_SHOWN_LINES: Final = 20
_RISING_FOR_MS: Final = 300_000
_RATE_OVER_MS: Final = 4_000
_SEVERITIES: Final = ("info", "warning", "critical")
_CLOSED: Final = "closed"
_WINDOW_MS: Final = 5_000
_FORGOTTEN_MS: Final = 60_000
"""An incident of which nothing was heard for so long, while other windows came, has ended."""

T = TypeVar("T")


class _Latest(dict[bytes, T]):
    """Values by key, the ones that changed last at the end, and no more than `most`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: bytes, value: T | None) -> None:
        self.pop(key, None)
        if value is None:
            return
        self[key] = value
        if len(self) > self._most:
            del self[next(iter(self))]


class Board:
    """For one thread at a time."""

    def __init__(self, started_ms: int, facts: Mapping[str, str] | None = None) -> None:
        self.facts = dict(facts or {})
        self.phase = STARTING
        self.waits_for = ""
        self.generating_since_ms = 0
        self.ends_ms = 0
        self._started_ms = started_ms
        self._number = 0
        self._alerts: _Latest[Alert] = _Latest(_ALERTS)
        self._ranking: _Latest[Ranked] = _Latest(_RANKED)
        self._suspects: _Latest[Suspect] = _Latest(_SUSPECTS)
        self._rising: _Latest[Rising] = _Latest(_RISING)
        self._windows: _Latest[ServerWindow] = _Latest(_WINDOWS)
        self._feeds: _Latest[bytes] = _Latest(_FEEDS)
        self._ends: deque[tuple[int, dict[str, int]]] = deque(maxlen=64)
        self._topics: list[Topic] = []
        self._queries: list[Query] = []
        self._processes: list[Process] = []
        self._samples: deque[Sample] = deque(maxlen=_KEPT_SAMPLES)
        self._lines: deque[Line] = deque(maxlen=_LINES)
        self._unreadable = 0
        self._takes: dict[str, Callable[[bytes, bytes | None], None]] = {
            "alerts": _into(self._alerts, Alert),
            "ranking": _into(self._ranking, Ranked),
            "suspects": _into(self._suspects, Suspect),
            "rising": _into(self._rising, Rising),
            "server_windows": _into(self._windows, ServerWindow),
            "feed": self._feeds.put,
        }

    # ------------------------------------------------------------------------------------------ what comes in

    def record(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """A record of an output topic; of those that nobody shows, nothing is kept."""
        take = self._takes.get(topic)
        if take is None:
            return
        try:
            take(key or b"", value)
        except msgspec.DecodeError:
            self._unreadable += 1

    def offsets(self, now_ms: int, ends: Mapping[str, int]) -> None:
        """How many records each topic of events has."""
        if self._ends and now_ms <= self._ends[-1][0]:
            return
        self._ends.append((now_ms, dict(ends)))
        since_ms, before = next(each for each in self._ends if now_ms - each[0] <= _RATE_OVER_MS)
        seconds = (now_ms - since_ms) / 1000

        def rate(topic: str) -> float:
            # A topic that had not been asked for before has no rate yet, however much is in it.
            return max(ends[topic] - before.get(topic, ends[topic]), 0) / seconds if seconds else 0.0

        self._topics = [Topic(name=name, total=end, rate=round(rate(name), 1)) for name, end in ends.items()]

    def statuses(self, statuses: Iterable[PipelineStatus]) -> None:
        """What pipelines say of themselves; what they said of an earlier run is not about this one."""
        self._queries = [
            Query(
                pipeline=one.name, name=query.name, state=_state(one, query.state),
                batch_id=query.batch_id, batch_ms=query.batch_ms, rows_per_s=query.rows_per_s,
                rows=query.input_rows_total, malformed=query.malformed_total, lag=query.lag, restarts=query.restarts,
                message=query.message or one.message, updated_ms=one.updated_ms,
            )
            for one in statuses
            if one.updated_ms >= self._started_ms
            for query in one.queries
        ]  # fmt: skip

    def usages(self, usages: Mapping[str, Usage]) -> None:
        self._processes = [
            Process(name=name, pid=one.pid, memory_bytes=one.memory_bytes, cores=round(one.cores, 2))
            for name, one in usages.items()
        ]

    def told(self, now_ms: int, text: str) -> None:
        self._lines.append(Line(time_ms=now_ms, text=text))

    # ------------------------------------------------------------------------------------------ what goes out

    def snapshot(self, now_ms: int) -> Snapshot:
        """All of it. Each also adds a sample to the charts, once generating has begun."""
        self._number += 1
        if self.generating_since_ms and self.phase in (RUNNING, DRAINING):
            self._sample(now_ms)
        suspects = sorted(self._suspects.values(), key=lambda one: (-one.score, one.verdict, one.actor))
        newest_ms = max((one.minute for one in self._rising.values()), default=0)
        return Snapshot(
            number=self._number, time_ms=now_ms, phase=self.phase, waits_for=self.waits_for,
            started_ms=self._started_ms, generating_since_ms=self.generating_since_ms, ends_ms=self.ends_ms,
            facts=dict(self.facts), topics=self._topics, queries=self._queries, processes=self._processes,
            incidents=self._incidents(), ranking=sorted(self._ranking.values(), key=lambda one: one.rank),
            suspects=suspects[:_SHOWN_SUSPECTS], suspects_total=len(suspects),
            rising=_best_of_each(one for one in self._rising.values() if newest_ms - one.minute <= _RISING_FOR_MS),
            servers=self._servers(), samples=list(self._samples)[-SAMPLES:],
            members=self._members(),
            members_total=len(self._feeds), lines=list(self._lines)[-_SHOWN_LINES:], unreadable=self._unreadable,
        )  # fmt: skip

    def feed(self, member: int) -> Feed:
        """What a member would be shown; nothing if there is nothing."""
        value = self._feeds.get(str(member).encode())
        if value is not None:
            try:
                return msgspec.json.decode(value, type=Feed)
            except msgspec.DecodeError:
                self._unreadable += 1
        return Feed(member=member)

    def samples(self) -> list[dict[str, Any]]:
        """A second each, of the last hour, as plain values."""
        return [msgspec.to_builtins(one) for one in self._samples]

    def _sample(self, now_ms: int) -> None:
        lag: dict[str, int] = {}
        batch_ms: dict[str, int] = {}
        for query in self._queries:
            lag[query.pipeline] = max(lag.get(query.pipeline, 0), query.lag)
            batch_ms[query.pipeline] = max(batch_ms.get(query.pipeline, 0), query.batch_ms)
        rates = {topic.name: topic.rate for topic in self._topics}
        memory_bytes = {one.name: one.memory_bytes for one in self._processes}
        self._samples.append(Sample(time_ms=now_ms, rates=rates, lag=lag, batch_ms=batch_ms, memory_bytes=memory_bytes))

    def _members(self) -> list[int]:
        """Those with most entries in their feeds, of the ones that changed last."""
        newest = list(self._feeds.items())[: -_LOOKED_AT_MEMBERS - 1 : -1]
        # In JSON a quote within a text has a backslash before it: so this is one of each entry, and of nothing else.
        fullest = sorted(newest, key=lambda each: -each[1].count(b'"author":'))
        return [int(key) for key, _ in fullest[:_SHOWN_MEMBERS] if key.isdigit()]

    def _servers(self) -> dict[str, list[ServerWindow]]:
        found: dict[str, list[ServerWindow]] = {}
        for window in sorted(self._windows.values(), key=lambda one: (one.server, one.start)):
            found.setdefault(window.server, []).append(window)
        return found

    def _incidents(self) -> list[Incident]:
        groups: dict[tuple[str, str, int], list[Alert]] = {}
        for alert in self._alerts.values():
            groups.setdefault((alert.server, alert.kind, alert.opened), []).append(alert)
        starts = [*(one.start for one in self._windows.values()), *(one.start for one in self._alerts.values())]
        newest_ms = max(starts, default=0)
        found = [_incident(sorted(group, key=lambda one: one.start), newest_ms) for group in groups.values()]
        found.sort(key=lambda one: (one.is_open, one.opened, one.server, one.kind), reverse=True)
        return found[:_SHOWN_INCIDENTS]


def _into(kept: _Latest[T], kind: type[T]) -> Callable[[bytes, bytes | None], None]:
    decoder = msgspec.json.Decoder(kind)

    def take(key: bytes, value: bytes | None) -> None:
        kept.put(key, None if value is None else decoder.decode(value))

    return take


def _incident(alerts: list[Alert], newest_ms: int) -> Incident:
    """From the alerts of one, in order."""
    last = alerts[-1]
    is_open = last.state != _CLOSED and newest_ms - last.start < _FORGOTTEN_MS
    told = [one for one in alerts if one.state != _CLOSED] or alerts
    worst = max(told, key=lambda one: (_severity(one.severity), one.value or 0.0))
    return Incident(
        server=last.server, kind=last.kind, opened=last.opened,
        until=last.start if last.state == _CLOSED else last.start + _WINDOW_MS, is_open=is_open,
        severity=worst.severity, worst=worst.value, usual=worst.usual, message=worst.message,
    )  # fmt: skip


def _state(pipeline: PipelineStatus, of_query: str) -> str:
    if pipeline.is_alive:
        return of_query
    return pipeline.state if pipeline.has_ended else GONE


def _severity(name: str) -> int:
    return _SEVERITIES.index(name) if name in _SEVERITIES else 0


def _best_of_each(rows: Iterable[Rising]) -> list[Rising]:
    """The best score of each group and keyword, the best first."""
    best: dict[tuple[str, str], Rising] = {}
    for row in rows:
        key = row.user_group, row.keyword
        if key not in best or row.score > best[key].score:
            best[key] = row
    return sorted(best.values(), key=lambda one: (-one.score, one.keyword, one.user_group))[:_SHOWN_RISING]
