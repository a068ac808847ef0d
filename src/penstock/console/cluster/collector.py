"""Refreshes the snapshot of one login, in a thread with an event loop of its own.

Decoding the metadata of 100,000 partitions takes a second of CPU. In another thread it delays a page by some
milliseconds; on the pages' event loop it would stop them. The cost is bounded: a refresh takes at most a quarter of the
time, covers a limited number of partitions and groups (the others follow in turn), and stops when nobody looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from penstock.client.admin import (
    AsyncAdmin,
    ClusterDescription,
    GroupListing,
    LogDirectory,
    OffsetResult,
    PartitionReassignment,
    TopicDescription,
)
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.diagnosis import (
    NOTE,
    OK,
    PROBLEM,
    Finding,
    clock_findings,
    disk_finding,
    is_loopback,
    min_insync_findings,
    min_insync_of,
    replica_findings,
    transaction_findings,
)
from penstock.client.errors import BootstrapError, PenstockError
from penstock.console.cluster.metrics import Scrape, health_of, rates, scrape
from penstock.console.cluster.state import (
    HISTORY,
    GroupRow,
    LeaderChange,
    Leaders,
    Snapshot,
    TopicRow,
    Traffic,
    broker_rows,
    group_rows,
    leader_changes,
    leaders_of,
    newest_leaders,
    state_findings,
    topic_rows,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

INTERVAL_S: Final = 3.0
_SHARE: Final = 4
"""A refresh that takes a second is followed by a pause of at least this many."""
_SLOW_S: Final = 30.0
_WANTED_S: Final = 60.0
_MOST_PARTITIONS: Final = 20_000
_MOST_GROUPS: Final = 2_000
_MEASURED: Final = 50
_MEASURED_AGE_S: Final = 10.0
_TIMEOUT_MS: Final = 15_000
_MOST_ERRORS: Final = 8
_MOST_ELECTIONS: Final = 500


class Collector:
    """Keeps `snapshot` up to date while somebody looks."""

    def __init__(
        self, admin: Callable[[], AsyncAdmin], *, http_urls: Iterable[str] = (), http_port: int = 0,
        http_token: str | None = None,
    ) -> None:  # fmt: skip
        """`admin` makes a client; `http_urls` are brokers' HTTP addresses, `http_port` is tried on every broker."""
        self.snapshot = Snapshot()
        self._make_admin = admin
        self._urls = list(http_urls)
        self._http_port = http_port
        self._token = http_token
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._admin: AsyncAdmin | None = None
        self._wake: asyncio.Event | None = None
        self._wanted_at = 0.0
        self._closing = False
        self._resting = False
        self._ready = threading.Event()
        # What is read less often than the rest.
        self._slow_at = 0.0
        self._disks: Mapping[int, tuple[LogDirectory, ...] | PenstockError] = {}
        self._slow_findings: list[Finding] = []
        self._min_insync: dict[str, int] = {}
        self._starts: dict[str, int] = {}
        # Turns through what is too much for one refresh.
        self._ends: dict[TopicPartition, int] = {}
        self._ends_at: dict[str, tuple[float, int]] = {}
        self._next_partition = 0
        self._next_group = 0
        self._scrapes: dict[str, Scrape] = {}
        self._versions: dict[int, str] = {}
        self._http: dict[str, str] = {}
        self._looked_for: tuple[Any, ...] = ()
        self._leaders: dict[str, Leaders] = {}
        self._controller: int | None = None
        self._elections: deque[LeaderChange] = deque(maxlen=_MOST_ELECTIONS)
        self._seen_since_ms = 0
        self._traffic: deque[Traffic] = deque(maxlen=HISTORY * 2)
        self._errors: list[str] = []
        self._measured_at: dict[str, float] = {}

    # ------------------------------------------------------------------------------------------ for the pages

    def look(self) -> Snapshot:
        """The snapshot, which is kept up to date from now on for a while."""
        self._wanted_at = time.monotonic()
        with self._lock:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="penstock-console-collector", daemon=True)
                self._thread.start()
        self._nudge()
        return self.snapshot

    async def first(self, timeout_s: float) -> Snapshot:
        """The snapshot, after the first refresh if that comes in time."""
        found = self.look()
        if not found.is_known:
            await asyncio.to_thread(self._ready.wait, timeout_s)
        return self.snapshot

    async def measure(self, groups: Iterable[GroupRow], timeout_s: float) -> None:
        """Measure the lag in seconds of these groups, unless it was a moment ago. Late answers are in the next page."""
        loop = self._loop
        old = time.monotonic() - _MEASURED_AGE_S
        names = [row.name for row in groups if self._measured_at.get(row.name, 0.0) < old]
        if loop is None or not names:
            return
        work = asyncio.run_coroutine_threadsafe(self._measure(names[:_MEASURED]), loop)
        with contextlib.suppress(TimeoutError, PenstockError, asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(work)), timeout_s)

    @property
    def is_resting(self) -> bool:
        """Whether nobody has looked for a while."""
        return self._resting

    def refresh_soon(self) -> None:
        """Something was changed: read the cluster again."""
        self._slow_at = 0.0
        self._nudge(now=True)

    def close(self) -> None:
        """End the thread. It may be called twice."""
        self._closing = True
        self._nudge(now=True)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _nudge(self, *, now: bool = False) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and (now or not wake.is_set()):
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._woken, now)

    def _woken(self, now: bool) -> None:
        if self._wake is not None:
            self._wake.set()
        if now:
            self._pause.set()

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:  # noqa: BLE001 - a bug in one part must not end the console
            _log.exception("the collector of the console ended")

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake, self._pause = asyncio.Event(), asyncio.Event()
        self._admin = self._make_admin()
        try:
            while not self._closing:
                if time.monotonic() - self._wanted_at > _WANTED_S:
                    self._resting = True
                    self._wake.clear()
                    await self._wake.wait()
                    self._resting = False
                    continue
                self._pause.clear()
                started = time.monotonic()
                await self._refresh()
                self._ready.set()
                took = time.monotonic() - started
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(INTERVAL_S - took, _SHARE * took)):
                        await self._pause.wait()
        finally:
            await self._admin.close()

    async def _refresh(self) -> None:
        started = time.monotonic()
        self._errors = []
        snapshot = Snapshot(time_ms=time.time_ns() // 1_000_000)
        try:
            await self._fill(snapshot)
        except BootstrapError as error:
            snapshot.findings = tuple(
                Finding(PROBLEM, "connect", address, detail, hint) for address, _, detail, hint in error.attempts
            )
        except PenstockError as error:
            snapshot.findings = (Finding(PROBLEM, "connect", "the cluster", error.message, error.hint),)
        if snapshot.cluster is None and self.snapshot.cluster is not None:
            # What was known is still the best that can be shown; the finding says that it is old.
            old = self.snapshot
            snapshot.cluster, snapshot.brokers, snapshot.topics = old.cluster, old.brokers, old.topics
            snapshot.groups, snapshot.moves = old.groups, old.moves
            snapshot.may_describe_cluster = old.may_describe_cluster
        snapshot.elections, snapshot.seen_since_ms = tuple(reversed(self._elections)), self._seen_since_ms
        snapshot.traffic = tuple(self._traffic)
        snapshot.errors = tuple(self._errors[:_MOST_ERRORS])
        snapshot.metered = len(self._scrapes)
        snapshot.took_s = time.monotonic() - started
        self.snapshot = snapshot

    async def _fill(self, snapshot: Snapshot) -> None:
        admin = self._client
        cluster = await admin.describe_cluster(timeout_ms=_TIMEOUT_MS)
        described = await admin.describe_topics(timeout_ms=_TIMEOUT_MS)
        topics = [each for each in described.values() if isinstance(each, TopicDescription)]
        self._compare_leaders(cluster, topics, snapshot.time_ms)
        if time.monotonic() - self._slow_at > _SLOW_S:
            await self._slow(cluster, topics)
            self._slow_at = time.monotonic()
        rows = topic_rows(topics, self.snapshot.topics)
        await self._read_ends(topics, rows)
        listed = await self._part("consumer groups", admin.list_groups(timeout_ms=_TIMEOUT_MS), [])
        groups = group_rows(listed, self.snapshot.groups)
        await self._read_lags(listed, groups)
        moves: dict[TopicPartition, PartitionReassignment] | None = await self._part(
            "moves", admin.list_partition_reassignments(timeout_ms=_TIMEOUT_MS), None
        )
        await self._find_http(cluster)
        await self._meter(rows.values(), snapshot.time_ms)
        brokers = broker_rows(cluster, topics, self._disks, self._versions)
        snapshot.cluster, snapshot.brokers, snapshot.topics = cluster, brokers, rows
        snapshot.groups, snapshot.moves = groups, moves or {}
        snapshot.may_describe_cluster = moves is not None
        findings = replica_findings(topics) + min_insync_findings(self._min_insync, topics) + self._slow_findings
        findings += state_findings(brokers, groups.values())
        order = {PROBLEM: 0, NOTE: 1, OK: 2}
        snapshot.findings = tuple(sorted(findings, key=lambda each: order.get(each.level, 3)))

    @property
    def _client(self) -> AsyncAdmin:
        if self._admin is None:
            raise RuntimeError("the collector has not started")
        return self._admin

    async def _part(self, what: str, call: Awaitable[T], default: T) -> T:
        """A part of the snapshot that may be forbidden, or unknown to old brokers, without the others failing."""
        try:
            return await call
        except PenstockError as error:
            self._errors.append(f"{what}: {error.message}")
            return default

    # ------------------------------------------------------------------------------------------ parts

    def _compare_leaders(self, cluster: ClusterDescription, topics: list[TopicDescription], time_ms: int) -> None:
        """Notes the elections since the last refresh. Brokers keep no history, so it begins with the first one."""
        leaders = leaders_of(topics)
        controller = cluster.controller.id if cluster.controller else None
        self._seen_since_ms = self._seen_since_ms or time_ms
        changes = leader_changes(self._leaders, leaders, time_ms)
        if controller is not None:
            # Kafka with KRaft names any broker as controller, another one each time. Only Penstock's can be believed.
            is_known = any(node.id in self._versions for node in cluster.nodes)
            if is_known and self._controller is not None and self._controller != controller:
                changes.append(LeaderChange(time_ms, None, self._controller, controller))
            self._controller = controller
        self._elections.extend(changes)
        self._leaders = newest_leaders(self._leaders, leaders)

    async def _slow(self, cluster: ClusterDescription, topics: list[TopicDescription]) -> None:
        """Disks, settings, transactions and clocks: what changes slowly, or costs more."""
        admin = self._client
        self._disks = await self._part(
            "disks", admin.describe_log_dirs([node.id for node in cluster.nodes], timeout_ms=_TIMEOUT_MS), {}
        )
        hosts = {node.id: node.host for node in cluster.nodes}
        findings = [
            finding
            for broker, folders in self._disks.items()
            if not isinstance(folders, PenstockError)
            for folder in folders
            if (finding := disk_finding(f"broker {broker}", folder, is_loopback(hosts[broker]))).level == PROBLEM
        ]
        self._min_insync = await min_insync_of(admin, topics)
        led = [(topic.name, part.index) for topic in topics for part in topic.partitions if part.leader]
        findings += [each for each in await transaction_findings(admin, led) if each.level == PROBLEM]
        findings += await clock_findings(admin, led)
        self._slow_findings = findings
        starts = await self._part(
            "first offsets",
            admin.list_offsets(dict.fromkeys(led[:_MOST_PARTITIONS], "earliest"), timeout_ms=_TIMEOUT_MS),
            {},
        )
        self._starts = {}
        for partition, found in starts.items():
            if isinstance(found, OffsetResult) and found.offset >= 0:
                self._starts[partition.topic] = self._starts.get(partition.topic, 0) + found.offset

    async def _read_ends(self, topics: list[TopicDescription], rows: dict[str, TopicRow]) -> None:
        """The ends of partitions, topic by topic; with more than the limit, the next ones at each refresh."""
        chosen: list[TopicDescription] = []
        count, start = 0, self._next_partition if self._next_partition < len(topics) else 0
        for step in range(len(topics)):
            topic = topics[(start + step) % len(topics)]
            if count and count + len(topic.partitions) > _MOST_PARTITIONS:
                break
            chosen.append(topic)
            count += len(topic.partitions)
        self._next_partition = (start + len(chosen)) % len(topics) if topics else 0
        wanted = [TopicPartition(each.name, part.index) for each in chosen for part in each.partitions if part.leader]
        asked_at = time.monotonic()
        found = await self._part(
            "last offsets",
            self._client.list_offsets(dict.fromkeys(wanted, "latest"), timeout_ms=_TIMEOUT_MS),
            {},
        )
        sums: dict[str, int] = {}
        for partition, result in found.items():
            if isinstance(result, OffsetResult) and result.offset >= 0:
                self._ends[partition] = result.offset
                sums[partition.topic] = sums.get(partition.topic, 0) + result.offset
        sizes = self._sizes()
        for name, end in sums.items():
            self._ended(rows[name], end, asked_at)
        for row in rows.values():
            row.size = sizes.get(row.name, 0) if sizes else row.size
            if row.end is not None and row.name in self._starts:
                row.records = max(0, row.end - self._starts[row.name])
        if len(self._ends) > 2 * sum(row.partitions for row in rows.values()) + 1000:
            self._ends = {key: end for key, end in self._ends.items() if key.topic in rows}

    def _ended(self, row: TopicRow, end: int, at: float) -> None:
        before = self._ends_at.get(row.name)
        self._ends_at[row.name] = (at, end)
        row.end = end
        if before is not None and at > before[0]:
            row.rate = max(0, end - before[1]) / (at - before[0])
            row.history.append(row.rate)

    def _sizes(self) -> dict[str, int]:
        """Bytes by topic, of all replicas."""
        sizes: dict[str, int] = {}
        for folders in self._disks.values():
            if isinstance(folders, PenstockError):
                continue
            for folder in folders:
                for partition, held in folder.sizes.items():
                    sizes[partition.topic] = sizes.get(partition.topic, 0) + held
        return sizes

    async def _read_lags(self, listed: list[GroupListing], rows: dict[str, GroupRow]) -> None:
        """The lag in records of groups; with more than the limit, of the next ones at each refresh."""
        start = self._next_group if self._next_group < len(listed) else 0
        chosen = (listed + listed)[start : start + min(_MOST_GROUPS, len(listed))]
        self._next_group = (start + len(chosen)) % len(listed) if listed else 0
        found = await self._part(
            "committed offsets", self._client.offsets_of_groups(chosen, timeout_ms=_TIMEOUT_MS), {}
        )
        failed: PenstockError | None = None
        for name, offsets in found.items():
            if isinstance(offsets, PenstockError):
                failed = offsets
                continue
            row = rows[name]
            row.topics = tuple(sorted({partition.topic for partition in offsets}))
            lags = [
                max(0, self._ends[partition] - stored.offset)
                for partition, stored in offsets.items()
                if partition in self._ends
            ]
            row.lag_records = sum(lags) if lags else None
            if lags:
                row.history.append(sum(lags))
            if row.lag_records == 0:
                row.lag_seconds = 0.0
        if failed is not None:
            self._errors.append(f"committed offsets: {failed.message}")
        behind = sorted((row for row in rows.values() if row.lag_records), key=lambda row: -(row.lag_records or 0))
        old = time.monotonic() - _MEASURED_AGE_S
        names = [row.name for row in behind[:_MEASURED] if self._measured_at.get(row.name, 0.0) < old]
        await self._part("lag in seconds", self._measure(names, rows), None)

    async def _measure(self, names: list[str], rows: Mapping[str, GroupRow] | None = None) -> None:
        """The lag in seconds, exactly: the age of the first unread record."""
        if not names:
            return
        at = time.monotonic()
        found = await self._client.describe_groups(names, timeout_ms=_TIMEOUT_MS)
        for name, group in found.items():
            self._measured_at[name] = at
            row = (self.snapshot.groups if rows is None else rows).get(name)
            if row is not None and not isinstance(group, PenstockError):
                row.lag_seconds = group.lag_seconds
                row.lag_records = group.lag_records if group.partitions else row.lag_records
        if len(self._measured_at) > 4 * _MOST_GROUPS:
            self._measured_at.clear()

    # ------------------------------------------------------------------------------------------ HTTP of brokers

    async def _find_http(self, cluster: ClusterDescription) -> None:
        """Which brokers have HTTP: the addresses that were given, and the port on every host, and those after it.

        Brokers of one machine have ports that follow each other. Looked for again when the brokers change.
        """
        known = (cluster.nodes, self._http_port, len(self._urls))
        if known == self._looked_for:
            return
        self._looked_for = known
        urls = list(self._urls)
        if self._http_port:
            by_host: dict[str, int] = {}
            for node in cluster.nodes:
                by_host[node.host] = by_host.get(node.host, 0) + 1
            urls += [
                f"http://[{host}]:{self._http_port + step}"
                if ":" in host
                else f"http://{host}:{self._http_port + step}"
                for host, count in by_host.items()
                for step in range(count)
            ]
        urls = list(dict.fromkeys(urls))[:64]
        found = await asyncio.gather(*(asyncio.to_thread(health_of, url, self._token) for url in urls))
        self._http, self._versions = {}, {}
        for url, health in zip(urls, found, strict=True):
            if health is None:
                continue
            self._http[url] = urlsplit(url).netloc
            broker = health.get("broker_id")
            if isinstance(broker, int):
                self._versions[broker] = f"Penstock {health.get('version', '')}"

    async def _meter(self, topics: Iterable[TopicRow], time_ms: int) -> None:
        at_s = time.monotonic()
        answers = await asyncio.gather(*(asyncio.to_thread(scrape, url, self._token, at_s) for url in self._http))
        after = {url: found for url, found in zip(self._http, answers, strict=True) if found is not None}
        measured = rates(self._scrapes, after)
        self._scrapes = after
        known = [row.rate for row in topics if row.rate is not None]
        self._traffic.append(Traffic(time_ms, sum(known) if known else None, *measured))
