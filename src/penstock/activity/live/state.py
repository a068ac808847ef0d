"""What is known of a run at a moment. Plain values: the terminal's view and the page show nothing else.

Noun: `Snapshot`, all of it; immutable, and JSON as it is.

Rule: structs that come from output topics have the columns of their pipelines' tables, by name, times in milliseconds;
what is null or missing there is None here. Everything has a bound, however long a run is.
"""

from __future__ import annotations

from typing import Final

import msgspec

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
