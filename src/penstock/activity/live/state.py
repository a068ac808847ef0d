"""The state of a run at a moment: `Snapshot`, and the `Board` that builds it. No I/O, no clock.

A snapshot is immutable, plain JSON, and bounded however long a run is. The terminal and the page show its `figures()`
and `sections()` and nothing else. Structs of output topics have the columns of their tables, times in milliseconds,
null as None.

A record of an output topic replaces the value of its key, a tombstone removes it, the oldest are dropped when there
are too many, and records that cannot be decoded are counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock.activity.live import progress
from penstock.activity.live.progress import Progress, StartProgress
from penstock.activity.live.usage import Usage
from penstock.activity.report.sections import (
    BATCH_DURATION,
    EVENT_RATES,
    LAG,
    Chart,
    Column,
    Figure,
    Section,
    Table,
    short_number,
)

if TYPE_CHECKING:
    from penstock.activity.pipelines.engine.status import PipelineStatus


STARTING: Final = "starting"
RUNNING: Final = "running"
DRAINING: Final = "draining"
REPORTING: Final = "reporting"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"
_LOADS: Final = "loads"
_STARTED: Final = ("starting", "running", "waiting")
GONE: Final = "gone"
"""The process of a pipeline is gone without a final status."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `alerts`: an anomalous window of a server."""

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
    """The alerts of a server and a kind that have the same start."""

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
    """A row of `server_windows`, without the columns that are not drawn."""

    start: int
    server: str
    requests: int = 0
    error_rate: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    cpu: float | None = None


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of events: its records, and records per second."""

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
    """When this status was written."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A child process."""

    name: str
    pid: int
    memory_bytes: int
    cores: float


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the run's log."""

    time_ms: int
    text: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One second of a run, for charts and the report."""

    time_ms: int
    rates: dict[str, float]
    lag: dict[str, int]
    batch_ms: dict[str, int]
    memory_bytes: dict[str, int] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run."""

    number: int = 0
    """Grows by one with each snapshot."""
    time_ms: int = 0
    phase: str = STARTING
    waits_for: str = ""
    start: Progress | None = None
    """The steps of the start, until all of them are done."""
    started_ms: int = 0
    generating_since_ms: int = 0
    ends_ms: int = 0
    """When generating ends; 0 if it has no end."""
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
    """Members with feeds, the longest first."""
    members_total: int = 0
    lines: list[Line] = []
    unreadable: int = 0
    """Records of output topics that could not be decoded."""

    @property
    def rate(self) -> float:
        return sum(topic.rate for topic in self.topics)

    @property
    def events(self) -> int:
        return sum(topic.total for topic in self.topics)

    @property
    def lag(self) -> int:
        """Records that the slowest query has not read yet; -1 if unknown."""
        return max((query.lag for query in self.queries), default=-1)

    @property
    def has_results(self) -> bool:
        """Whether a pipeline has results of events. Loaded events are results only where nothing else is computed."""
        shown = self.ranking, self.suspects, self.rising, self.servers, self.incidents, self.members
        computing = [query for query in self.queries if query.name != _LOADS] or self.queries
        return any(shown) or any(query.rows for query in computing)

    @property
    def malformed(self) -> int:
        return sum(query.malformed for query in self.queries)

    @property
    def open_incidents(self) -> list[Incident]:
        return [one for one in self.incidents if one.is_open]

    @property
    def waiting_text(self) -> str:
        """What the run waits for; empty if for nothing."""
        if self.waits_for or self.start is None or self.start.is_done:
            return self.waits_for
        return self.start.waits_for()

    def figures(self) -> list[Figure]:
        """The run at a glance."""
        rate, lag, is_open = self.rate, self.lag, self.open_incidents
        # The newest window is still being filled.
        windows = [windows[-2] if len(windows) > 1 else windows[-1] for windows in self.servers.values() if windows]
        slow = max(windows, key=lambda one: one.p95_ms or 0.0, default=None)
        busy = max(self.queries, key=lambda query: query.batch_ms, default=None)
        malformed = f", {short_number(self.malformed)} malformed" if self.malformed else ""
        events = Figure("Events per second", f"{rate:,.0f}", f"{short_number(self.events)} in the log")
        if lag < 0:
            behind = Figure("Lag", "-", "not known yet")
        else:
            note = f"{lag / rate:,.1f} s of events" if rate > 1 else "records"
            behind = Figure("Lag", short_number(lag), note, "warn" if lag > 10 * rate > 10 else "")
        if slow is None or slow.p95_ms is None:
            slowest = Figure("Slowest server, p95", "-", "no window yet")
        else:
            slowest = Figure("Slowest server, p95", f"{slow.p95_ms:,.0f} ms", slow.server)
        servers = ", ".join(dict.fromkeys(one.server for one in is_open)) or f"{len(self.incidents)} so far"
        alerts = Figure("Open alerts", f"{len(is_open)}", servers, "bad" if is_open else "")
        suspects = Figure("Suspects", f"{self.suspects_total:,}", "in the last 30 minutes")
        if busy is None or not busy.batch_ms:
            batch = Figure("Slowest batch", "-", "no batch yet")
        else:
            batch = Figure("Slowest batch", f"{busy.batch_ms:,} ms", busy.pipeline + malformed)
        return [events, behind, slowest, alerts, suspects, batch]

    def sections(self) -> list[Section]:
        """What the terminal and the page show, by name."""
        waiting = f"Waiting for {self.waiting_text} ..." if self.waiting_text else "Waiting for the first results ..."
        alerts = f"{len(self.open_incidents)} open, {len(self.incidents)} in total" if self.incidents else "none yet"
        best = f"top {len(self.ranking)} of the last 30 minutes" if self.ranking else ""
        topics = self.topics
        if topics:
            topics = [*topics, Topic(name="all", total=self.events, rate=self.rate)]
        return [
            Section("topics", "Topics", table=Table("topics", _TOPICS, topics)),
            Section("alerts", "Alerts", alerts, table=Table("incidents", _INCIDENTS, self.incidents, _NO_ALERTS)),
            Section("ranking", "Ranking", best, table=Table("ranking", _RANKING, self.ranking, _NO_RANKING)),
            Section(
                "suspects", "Suspects", _verdicts(self), table=Table("suspects", _SUSPECTS, self.suspects, _NO_SUSPECTS)
            ),
            Section("rising", "Rising search terms", table=Table("rising", _RISING, self.rising, _NO_RISING)),
            Section("rates", EVENT_RATES.title, charts=(replace(EVENT_RATES, empty=waiting),)),
            Section("latency", _LATENCY.title, charts=(_LATENCY,)),
            Section("batches", BATCH_DURATION.title, charts=(BATCH_DURATION,)),
            Section("lag", LAG.title, charts=(LAG,)),
            Section("queries", "Pipelines", table=Table("queries", _QUERIES, self.queries, _NO_QUERIES)),
            Section("processes", "Processes", table=Table("processes", _PROCESSES, self.processes)),
        ]


# ---------------------------------------------------------------------------------------------- columns of sections

_LAG_WARNING: Final = 30_000
_NO_ALERTS: Final = (
    "No alerts so far. Each server is compared with its own past and with the other servers every five seconds."
)
_NO_RANKING: Final = "The ranking comes with the first batch of views."
_NO_SUSPECTS: Final = "No suspects yet. Crawlers, spammers and API abusers show up after the first minute."
_NO_RISING: Final = (
    "No rising terms. A term rises when it is searched far more often than in the minutes before."
)  # fmt: skip
_NO_QUERIES: Final = "The pipelines are starting."
_LATENCY: Final = Chart(
    "servers", "Request latency by server", unit="ms", least=10,
    empty="Windows of five seconds come with the first requests.",
)  # fmt: skip
_TOPICS: Final = (
    Column("name", "Topic"), Column("rate", "events/s", "number"), Column("total", "total", "short"),
)  # fmt: skip
_QUERIES: Final = (
    Column("pipeline", "Pipeline", "strong"),
    Column("name", "Table", detail=2),
    Column("state", "State", "state"),
    Column("batch_id", "Batch", "number", detail=2, value=lambda one: None if one.batch_id < 0 else one.batch_id),
    Column("batch_ms", "Batch ms", "number", value=lambda one: one.batch_ms if one.rows else None),
    Column("rows_per_s", "Rows/s", "number", detail=2),
    Column("lag", "Lag", "short", warn_above=_LAG_WARNING, value=lambda one: None if one.lag < 0 else one.lag),
    Column("rows", "Read", "short"),
    Column("malformed", "Malformed", "number", detail=2),
)
_PROCESSES: Final = (
    Column("name", "Process", "strong"),
    Column("pid", "Process id", detail=1, value=lambda one: str(one.pid)),
    Column("memory_bytes", "Memory", "number", unit="MB", value=lambda one: one.memory_bytes / 2**20),
    Column("cores", "CPU", "share"),
)
_INCIDENTS: Final = (
    Column("severity", "State", "chip", value=lambda one: one.severity if one.is_open else "closed"),
    Column("server", "Server", "strong"),
    Column("kind", "Kind", value=lambda one: "load" if one.kind == "cpu" else one.kind),
    Column("opened", "Start", "clock", detail=1),
    Column("until", "Duration", "elapsed", value=lambda one: max(one.until - one.opened, 0)),
    Column("message", "Alert"),
)
_RANKING: Final = (
    Column("rank", "", "number", detail=1),
    Column("item", "Item", "strong", value=lambda one: f"Item {one.item}"),
    Column("rising", "", "chip", value=lambda one: "rising" if one.rising else ""),
    Column("trend", "Trend", "trend", detail=1),
    Column("score", "Score", "bar", 1),
    Column("views", "Views", "number", detail=2),
    Column("click_through", "Clicked", "share", 1, detail=2),
    Column("votes", "Votes up", "share", 1, detail=2),
)
_SUSPECTS: Final = (
    Column("verdict", "Verdict", "chip"),
    Column("kind", "Kind", "quiet", detail=1),
    Column("actor", "Actor", "strong"),
    Column("score", "Score", "number", 2),
    Column("evidence", "Evidence", "quiet", detail=1),
    Column("last_seen", "Last seen", "clock", detail=2),
)
_RISING: Final = (
    Column("keyword", "Term", "strong"),
    Column("user_group", "Among", "quiet", detail=1, value=lambda one: _group(one.user_group)),
    Column("ratio", "x usual", "bar", 1),
    Column("searches", "Searches", "number", detail=1),
    Column("minute", "Minute", "clock", detail=2),
)


def _group(name: str) -> str:
    return "everybody" if name == "all" else f"{name} users"


def _verdicts(snapshot: Snapshot) -> str:
    """ "12 crawlers, 1 spammer"."""
    counts = Counter(one.verdict for one in snapshot.suspects)
    return ", ".join(f"{count} {verdict}{'' if count == 1 else 's'}" for verdict, count in sorted(counts.items()))


# ---------------------------------------------------------------------------------------------- feeds


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


# ---------------------------------------------------------------------------------------------- the board

SAMPLES: Final = 300
"""Seconds on charts."""
_KEPT_SAMPLES: Final = 3_600
"""Seconds kept for the report."""
_KEPT_ALERTS: Final = 2_000
_KEPT_RANKS: Final = 200
_KEPT_SUSPECTS: Final = 2_000
_KEPT_RISING: Final = 2_000
_KEPT_WINDOWS: Final = 32 * 120
_KEPT_FEEDS: Final = 5_000
_KEPT_LINES: Final = 200
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
"""An incident is closed if it has no alert for this long while other windows come."""

T = TypeVar("T")


class _Latest(dict[bytes, T]):
    """Keeps at most `most` values by key, in the order of their last change."""

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
    """Builds snapshots from what is observed. Not thread-safe."""

    def __init__(
        self, started_ms: int, facts: Mapping[str, str] | None = None, start: StartProgress | None = None,
        queries: int = 0,
    ) -> None:  # fmt: skip
        self.facts = dict(facts or {})
        self.phase = STARTING
        self.waits_for = ""
        self.has_cluster = False
        """Whether the cluster answers."""
        self._start = start
        self._queries_expected = queries
        self._has_spark = False
        self.generating_since_ms = 0
        self.ends_ms = 0
        self._started_ms = started_ms
        self._number = 0
        self._alerts: _Latest[Alert] = _Latest(_KEPT_ALERTS)
        self._ranking: _Latest[Ranked] = _Latest(_KEPT_RANKS)
        self._suspects: _Latest[Suspect] = _Latest(_KEPT_SUSPECTS)
        self._rising: _Latest[Rising] = _Latest(_KEPT_RISING)
        self._windows: _Latest[ServerWindow] = _Latest(_KEPT_WINDOWS)
        self._feeds: _Latest[bytes] = _Latest(_KEPT_FEEDS)
        self._ends: deque[tuple[int, dict[str, int]]] = deque(maxlen=64)
        self._topics: list[Topic] = []
        self._queries: list[Query] = []
        self._processes: list[Process] = []
        self._samples: deque[Sample] = deque(maxlen=_KEPT_SAMPLES)
        self._lines: deque[Line] = deque(maxlen=_KEPT_LINES)
        self._unreadable = 0
        self._takes: dict[str, Callable[[bytes, bytes | None], None]] = {
            "alerts": _into(self._alerts, Alert),
            "ranking": _into(self._ranking, Ranked),
            "suspects": _into(self._suspects, Suspect),
            "rising": _into(self._rising, Rising),
            "server_windows": _into(self._windows, ServerWindow),
            "feed": self._feeds.put,
        }

    # ------------------------------------------------------------------------------------------ observations

    def record(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """A record of an output topic. Topics that are not shown are ignored."""
        take = self._takes.get(topic)
        if take is None:
            return
        try:
            take(key or b"", value)
        except msgspec.DecodeError:
            self._unreadable += 1

    def offsets(self, now_ms: int, ends: Mapping[str, int]) -> None:
        """The number of records of each topic of events."""
        if self._ends and now_ms <= self._ends[-1][0]:
            return
        self._ends.append((now_ms, dict(ends)))
        since_ms, before = next(each for each in self._ends if now_ms - each[0] <= _RATE_OVER_MS)
        seconds = (now_ms - since_ms) / 1000

        def rate(topic: str) -> float:
            # A topic has no rate before its second observation.
            return max(ends[topic] - before.get(topic, ends[topic]), 0) / seconds if seconds else 0.0

        self._topics = [Topic(name=name, total=end, rate=round(rate(name), 1)) for name, end in ends.items()]

    def statuses(self, statuses: Iterable[PipelineStatus]) -> None:
        """The status of pipelines. A status from before this run is ignored."""
        statuses = [one for one in statuses if one.updated_ms >= self._started_ms]
        # The pipelines write their first status when Spark runs.
        self._has_spark = self._has_spark or bool(statuses)
        self._queries = [
            Query(
                pipeline=one.name, name=query.name, state=_state(one, query.state),
                batch_id=query.batch_id, batch_ms=query.batch_ms, rows_per_s=query.rows_per_s,
                rows=query.input_rows_total, malformed=query.malformed_total, lag=query.lag, restarts=query.restarts,
                message=query.message or one.message, updated_ms=one.updated_ms,
            )
            for one in statuses
            for query in one.queries
        ]  # fmt: skip

    def usages(self, usages: Mapping[str, Usage]) -> None:
        self._processes = [
            Process(name=name, pid=one.pid, memory_bytes=one.memory_bytes, cores=round(one.cores, 2))
            for name, one in usages.items()
        ]

    def add_line(self, now_ms: int, text: str) -> None:
        self._lines.append(Line(time_ms=now_ms, text=text))

    # ------------------------------------------------------------------------------------------ snapshots

    def snapshot(self, now_ms: int) -> Snapshot:
        """The current state. Adds a sample to the charts once the generator runs."""
        self._number += 1
        if self.generating_since_ms and self.phase in (STARTING, RUNNING, DRAINING):
            self._sample(now_ms)
        found = self._observed(now_ms)
        return found if self._start is None else msgspec.structs.replace(found, start=self._progress(found))

    def _progress(self, found: Snapshot) -> Progress | None:
        """The start as it is now; None if it is over or was given up."""
        start = self._start
        if start is None or self.phase not in (STARTING, RUNNING):
            return None
        started = sum(query.state in _STARTED for query in found.queries)
        start.observe(
            found.time_ms - self._started_ms,
            {
                progress.BROKER: self.has_cluster,
                progress.SITE: found.rate > 0,
                progress.SPARK: self._has_spark,
                progress.QUERIES: 0 < self._queries_expected <= started,
                progress.RESULTS: found.has_results,
            },
            {progress.QUERIES: f"{started} of {self._queries_expected}"},
        )
        return None if start.is_done else start.view(found.time_ms - self._started_ms)

    def _observed(self, now_ms: int) -> Snapshot:
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
        """A member's feed, which may be empty."""
        value = self._feeds.get(str(member).encode())
        if value is not None:
            try:
                return msgspec.json.decode(value, type=Feed)
            except msgspec.DecodeError:
                self._unreadable += 1
        return Feed(member=member)

    def samples(self) -> list[dict[str, Any]]:
        """The samples of the last hour, as plain values."""
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
        """The members with the longest feeds, of those that changed last."""
        newest = list(self._feeds.items())[: -_LOOKED_AT_MEMBERS - 1 : -1]
        # A quote inside a JSON text is escaped, so this counts the entries and nothing else.
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
    """An incident from its alerts, in order."""
    last = alerts[-1]
    is_open = last.state != _CLOSED and newest_ms - last.start < _FORGOTTEN_MS
    raised = [one for one in alerts if one.state != _CLOSED] or alerts
    worst = max(raised, key=lambda one: (_severity(one.severity), one.value or 0.0))
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
    """The best row of each group and keyword, by score."""
    best: dict[tuple[str, str], Rising] = {}
    for row in rows:
        key = row.user_group, row.keyword
        if key not in best or row.score > best[key].score:
            best[key] = row
    return sorted(best.values(), key=lambda one: (-one.score, one.keyword, one.user_group))[:_SHOWN_RISING]
