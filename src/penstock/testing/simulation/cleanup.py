"""Topics whose old records are removed during a run, and the checks on them.

`table` is compacted. `window` has retention by size, in some runs also by time, and DeleteRecords. One process writes
to both, and to nothing else. Segments are small, so that cleanup happens within seconds.

Every replica of `table` has the newest record of every key, tombstones included. A replica of `window` has every
record between log start and log end. The log start moves only as far as a request or the retention of whole segments
allows, never above the high watermark, and never back within a leadership. Records that all live replicas were asked
to delete are deleted in the end. An offset has the same record on all replicas, and that record was sent. Tombstones
stay: delete.retention.ms is longer than a run, because a replica that is offline longer keeps what they delete, as in
Kafka.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.admin.results import TopicSpec
from penstock.client.errors import PenstockError, TopicExists
from penstock.client.producer.async_producer import AsyncProducer
from penstock.client.producer.delivery import Delivery
from penstock.log.compaction.job import Compaction
from penstock.log.log_dirs import log_manager
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import enforce_retention
from penstock.records import records_of, scan
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulation.cluster import SimulatedCluster, SimulatedHost
from penstock.testing.simulation.history import PADDING
from penstock.testing.simulation.workload import CONNECT_TIMEOUT_MS, REQUEST_TIMEOUT_MS, new_producer

TABLE: Final = "table"
WINDOW: Final = "window"
CLEANED: Final = frozenset({TABLE, WINDOW})
SETTINGS: Final = {"log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "300"}
"""Broker settings of a run with these topics."""
COMPACTIONS: Final = "compacted segments installed"
RETENTIONS: Final = "segments deleted by retention"
DELETIONS: Final = "records deleted by request"

_ONE_SEED_IN: Final = 3
_SEGMENT_BYTES: Final = 6_144
_WINDOW_BYTES: Final = 24_576
_WINDOW_MS: Final = 2_500
_KEYS: Final = 7
_RETRY_S: Final = 0.25
_CALL_TIMEOUT_MS: Final = 2_500
_TICK_S: Final = 0.02

Key = bytes | None


class Stored(NamedTuple):
    """A record and its leader epoch in a log."""

    key: Key
    value: bytes | None
    epoch: int

    def __str__(self) -> str:
        shown = "nothing" if self.value is None else repr(self.value[:16])
        return f"{shown} for {self.key!r} of epoch {self.epoch}"


def is_drawn(seed: int) -> bool:
    """Whether the run of a seed has these topics."""
    return not SeededRandom(f"{seed}/cleanup").below(_ONE_SEED_IN)


class Cleanup:
    """Writes to the two topics and checks them. `report` gets a sentence for each broken rule."""

    def __init__(
        self, host: SimulatedHost, cluster: SimulatedCluster, report: Callable[[str | None], None], *, replicas: int
    ) -> None:
        self.host = host
        self.done: Counter[str] = Counter()
        self.is_ending = False
        self._cluster = cluster
        self._report = report
        self._replicas = replicas
        self._random: Random = SeededRandom(f"{host.random.seed}/cleanup")
        self._sent: dict[str, dict[bytes, Key]] = {TABLE: {}, WINDOW: {}}
        self._acknowledged: dict[str, dict[int, tuple[Key, bytes | None]]] = {TABLE: {}, WINDOW: {}}
        self._numbers = 0
        self._requested = 0
        """Deletion of the records of `window` below this offset was requested."""
        self._deleted = 0
        """Every replica was live while the records below this offset were deleted."""
        self._starts: dict[tuple[int, int], int] = {}
        self.task = host.spawn(self._run())
        cluster.network.kernel.call_later(_TICK_S, self._tick)

    # --- workload

    async def _run(self) -> None:
        bootstrap = self._cluster.bootstrap
        admin = AsyncAdmin(
            bootstrap,
            client_id=self.host.name,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
        )
        timed = self._random.below(2)
        table = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.05"}
        window = {"retention.bytes": str(_WINDOW_BYTES), "retention.ms": str(_WINDOW_MS if timed else -1)}
        for name, settings in ((TABLE, table), (WINDOW, window)):
            await self._create(
                admin, name, {"segment.bytes": str(_SEGMENT_BYTES), "file.delete.delay.ms": "50", **settings}
            )
        producer = new_producer(bootstrap, self.host.name)
        await producer.start()
        while not self.is_ending:
            deliveries = [await self._send(producer) for _ in range(1 + self._random.below(6))]
            for name, key, value, delivery in deliveries:
                await self._settle(name, key, value, delivery)
            if not self._random.below(12):
                await self._delete(admin)
            await asyncio.sleep(self._random.uniform(0.0, 0.12))
        await producer.close()
        await admin.close()

    async def _create(self, admin: AsyncAdmin, name: str, settings: Mapping[str, str]) -> None:
        while True:
            try:
                await admin.create_topic(
                    TopicSpec(name, 1, self._replicas, config=dict(settings)), timeout_ms=_CALL_TIMEOUT_MS
                )
            except TopicExists:
                return  # created by an earlier attempt without a response
            except PenstockError:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _send(self, producer: AsyncProducer[bytes, bytes]) -> tuple[str, Key, bytes | None, Delivery]:
        random = self._random
        name = TABLE if random.below(2) else WINDOW
        key = None if name == WINDOW else b"key-%d" % random.below(_KEYS)
        self._numbers += 1
        value: bytes | None = b"%d:" % self._numbers + PADDING[: random.below(1_500)]
        if name == TABLE and not random.below(6):
            value = None
        if value is not None:
            self._sent[name][value] = key
        return name, key, value, await producer.enqueue(name, value, key, partition=0)

    async def _settle(self, name: str, key: Key, value: bytes | None, delivery: Delivery) -> None:
        try:
            stored = await delivery
        except PenstockError:
            return
        before = self._acknowledged[name].get(stored.offset)
        if before is not None:
            self._report(f"{name}-0: offset {stored.offset} was given to {before[1]!r:.20} and to {value!r:.20}")
        self._acknowledged[name][stored.offset] = key, value

    async def _delete(self, admin: AsyncAdmin) -> None:
        """Delete the oldest records of `window`: mostly some of them, sometimes all acknowledged ones."""
        known = max(self._acknowledged[WINDOW], default=-1) + 1
        offset = known if not self._random.below(4) else self._requested + self._random.below(1 + known // 3)
        offset = min(offset, known)
        if offset <= self._requested:
            return
        self._requested = offset
        before_deletion = self._live_processes()
        try:
            outcome = (await admin.delete_records({(WINDOW, 0): offset}, timeout_ms=_CALL_TIMEOUT_MS))[WINDOW, 0]  # type: ignore[index]
        except PenstockError:
            return
        if isinstance(outcome, PenstockError):
            return
        self.done[DELETIONS] += 1
        # A replica that is offline during the deletion may return with the records and become the leader.
        if before_deletion and before_deletion == self._live_processes():
            self._deleted = max(self._deleted, offset)

    def _live_processes(self) -> list[tuple[str, int]]:
        """The processes of all brokers; empty unless all of them serve."""
        nodes = self._cluster.nodes
        return [(node.name, node.incarnation) for node in nodes] if all(node.is_ready for node in nodes) else []

    # --- checks during the run

    def _tick(self) -> None:
        for node in self._cluster.nodes:
            partition = node.broker.replicas.get(WINDOW, 0) if node.broker is not None and node.is_ready else None
            if partition is None or partition.leadership is None or partition.log.failure is not None:
                continue
            leadership, start = (partition.leadership.epoch, node.incarnation), partition.log.log_start_offset
            before = self._starts.get(leadership, 0)
            if start < before:
                self._report(f"{WINDOW}-0: the log of {node.name}, which leads, starts at {start} after {before}")
            self._starts[leadership] = start
        self._cluster.network.kernel.call_later(_TICK_S, self._tick)

    def segments_deleted(self, log: PartitionLog, start: int, rows: list[tuple[int, int]], now_ms: int) -> None:
        """Retention deleted segments of a log that began at `start`.

        `rows` are the base offset and the newest timestamp of each segment before the deletion.
        """
        settings = log.settings
        ends = [base for base, _ in rows[1:]] + [log.log_end_offset]
        deleted = [
            (base, newest_ms, end)
            for (base, newest_ms), end in zip(rows, ends, strict=True)
            if end <= log.log_start_offset
        ]
        self.done[RETENTIONS] += len(deleted)
        if log.log_start_offset > log.high_watermark:
            self._report(f"{log.folder} starts at {log.log_start_offset}, above {log.high_watermark}")
        for base, newest_ms, end in deleted:
            is_old = 0 <= settings.retention_ms < now_ms - newest_ms
            is_too_much = 0 <= settings.retention_bytes <= log.size
            if not (end <= start or (settings.deletes and (is_old or is_too_much))):
                self._report(
                    f"{log.folder}: {base}..{end - 1} is deleted, {log.size} bytes are left, and no limit is exceeded"
                )

    # --- checks at the end

    @property
    def is_settled(self) -> bool:
        """Whether every replica of `window` starts at or above the requested offset."""
        return all(log.log_start_offset >= self._deleted for _, log in self._logs(WINDOW))

    def findings(self) -> list[str]:
        found: list[str] = []
        for name, check in ((TABLE, self._check_table), (WINDOW, self._check_window)):
            logs = [(broker, log, _records(log)) for broker, log in self._logs(name)]
            all_records: dict[int, Stored] = {}
            for broker, log, records in logs:
                found += self._check_records(f"{name}-0 of {broker}", name, log, records, all_records)
            for broker, log, records in logs:
                found += check(f"{name}-0 of {broker}", log, records, all_records)
        return found

    def _check_records(
        self, where: str, name: str, log: PartitionLog, records: dict[int, Stored], all_records: dict[int, Stored]
    ) -> Iterator[str]:
        for offset, stored in records.items():
            other = all_records.setdefault(offset, stored)
            if other != stored:
                yield f"{where}: at {offset} is {stored}, elsewhere {other}"
            if stored.value is not None and self._sent[name].get(stored.value, b"unsent") != stored.key:
                yield f"{where}: at {offset} is {stored}, which was never sent"
            acknowledged = self._acknowledged[name].get(offset)
            if acknowledged is not None and acknowledged != (stored.key, stored.value):
                key, value = acknowledged
                yield f"{where}: at {offset} is {stored}, where {value!r:.20} for {key!r} was acknowledged"

    def _check_table(
        self, where: str, log: PartitionLog, records: dict[int, Stored], all_records: dict[int, Stored]
    ) -> Iterator[str]:
        if log.log_start_offset:
            yield f"{where} begins at {log.log_start_offset}"
        newest = {stored.key: offset for offset, stored in sorted(all_records.items())}
        for offset, (key, _) in sorted(self._acknowledged[TABLE].items()):
            if offset > newest.get(key, -1):
                yield f"{where}: the newest of {key!r} was acknowledged at {offset}, but is lost"
        for key, offset in newest.items():
            if offset not in records:
                yield f"{where} lacks {all_records[offset]} at {offset}, which is the newest of {key!r}"

    def _check_window(
        self, where: str, log: PartitionLog, records: dict[int, Stored], all_records: dict[int, Stored]
    ) -> Iterator[str]:
        start = log.log_start_offset
        missing = [offset for offset in range(start, log.log_end_offset) if offset not in records]
        if missing:
            yield f"{where} begins at {start}, and lacks {missing[:3]} of its {log.log_end_offset}"
        beyond = [offset for offset in self._acknowledged[WINDOW] if offset >= log.log_end_offset]
        if beyond:
            yield f"{where} ends at {log.log_end_offset}, and {max(beyond)} was acknowledged"

    def _logs(self, name: str) -> Iterator[tuple[str, PartitionLog]]:
        for node in self._cluster.nodes:
            partition = None if node.broker is None else node.broker.replicas.get(name, 0)
            if partition is not None:
                yield node.name, partition.log


def _records(log: PartitionLog) -> dict[int, Stored]:
    found: dict[int, Stored] = {}
    for index in range(log.segment_count):
        segment = log.segment_at(index)
        data = segment.file.read_at(0, segment.size)
        for header in scan(data).headers:
            for record in records_of(data, header):
                if record.offset >= log.log_start_offset:
                    found[record.offset] = Stored(record.key, record.value, header.leader_epoch)
    return found


@contextmanager
def watched(cleanup: Cleanup) -> Iterator[None]:
    """Patch the real code so that it reports retention and compaction to `cleanup`."""
    install = Compaction.install

    def retained(log: PartitionLog, now_ms: int, *given: Any) -> list[str]:
        table, active = log.table, log.active
        rows = [(table[index].base_offset, table[index].max_timestamp) for index in range(len(table))]
        rows.append((active.base_offset, active.max_timestamp))
        start = log.log_start_offset
        deleted = enforce_retention(log, now_ms, *given)
        if deleted:
            cleanup.segments_deleted(log, start, rows, now_ms)
        return deleted

    def installed(compaction: Compaction, log: PartitionLog, *given: Any) -> None:
        install(compaction, log, *given)
        cleanup.done[COMPACTIONS] += 1

    with (
        mock.patch.object(log_manager, "enforce_retention", retained),
        mock.patch.object(Compaction, "install", installed),
    ):
        yield
