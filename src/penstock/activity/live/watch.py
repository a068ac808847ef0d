"""Observes a run from outside: output topics, end offsets, status files, processes.

Two threads keep a board and the latest snapshot. The watch only reads and commits nothing. If the cluster is
unreachable it retries, and the last state is shown. Of each output topic it starts a bounded number of records before
the end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.activity.cluster import Cluster, cluster_of
from penstock.activity.events import KINDS
from penstock.activity.live.state import Board, Feed, Snapshot
from penstock.activity.live.usage import UsageSampler
from penstock.client.admin import Admin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.consumer.consumer import Consumer
    from penstock.records.kernel import ConsumerRecord

_CLIENT: Final = "penstock-activity-watch"
_POLL_S: Final = 1.0
_POLL_MS: Final = 250
_RETRY_S: Final = 0.5
_TIMEOUT_MS: Final = 3_000
_FROM_END: Final = 20_000
_CLOSE_S: Final = 2.0


class Watch:
    """Observes a run. Start it once; read `snapshot` from any thread."""

    def __init__(
        self,
        board: Board,
        where: Cluster | str,
        warehouse_uri: str,
        pipelines: Sequence[str],
        output_topics: Sequence[str],
        *,
        pids: Callable[[], Mapping[str, int | None]] = dict,
    ) -> None:
        self._board = board
        self._cluster = cluster_of(where)
        self._warehouse_uri = warehouse_uri
        self._pipelines = list(pipelines)
        self._output_topics = list(output_topics)
        self._pids = pids
        self._usages = UsageSampler()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._begun = threading.Event()
        self._admin: Admin | None = None
        self._partitions: list[TopicPartition] = []
        self._snapshot = board.snapshot(_now_ms())
        self._threads = [
            threading.Thread(target=self._poll_loop, name="activity-polls", daemon=True),
            threading.Thread(target=self._read_loop, name="activity-reads", daemon=True),
        ]

    # ------------------------------------------------------------------------------------------ the interface

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def cluster_ready(self) -> None:
        """Starts to query the cluster; before, that would only wait."""
        self.set(has_cluster=True)
        self._begun.set()

    def close(self) -> None:
        self._stop.set()
        self._begun.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_CLOSE_S)

    @property
    def is_closed(self) -> bool:
        return self._stop.is_set()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def feed(self, member: int) -> Feed:
        with self._lock:
            return self._board.feed(member)

    def samples(self) -> list[dict[str, Any]]:
        with self._lock:
            return self._board.samples()

    def add_line(self, text: str) -> None:
        """Adds a line to the run's log."""
        with self._lock:
            self._board.add_line(_now_ms(), text)

    def set(self, **values: Any) -> None:
        """Sets attributes of the board (phase, waits_for, ...) and takes a snapshot at once."""
        with self._lock:
            for name, value in values.items():
                setattr(self._board, name, value)
            self._snapshot = self._board.snapshot(_now_ms())

    # ------------------------------------------------------------------------------------------ polling

    def _poll_loop(self) -> None:
        next_s = time.monotonic()
        while not self._stop.wait(max(0.0, next_s - time.monotonic())):
            next_s = max(next_s + _POLL_S, time.monotonic())
            self._poll()
        self._close_admin()

    def _poll(self) -> None:
        ends = self._event_ends() if self._begun.is_set() else None
        statuses = self._statuses()
        usages = self._usages.sample(self._pids(), time.monotonic())
        now_ms = _now_ms()
        with self._lock:
            if ends is not None:
                self._board.offsets(now_ms, ends)
            self._board.statuses(statuses)
            self._board.usages(usages)
            self._snapshot = self._board.snapshot(now_ms)

    def _statuses(self) -> list[Any]:
        from penstock.activity.pipelines.engine import status

        try:
            return status.read_all(self._warehouse_uri, self._pipelines)
        except (PenstockError, OSError):
            return []

    def _event_ends(self) -> dict[str, int] | None:
        """Records by topic of events; None if unknown."""
        try:
            if self._admin is None:
                self._admin = self._cluster.admin(
                    _CLIENT, request_timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS
                )
            topics = [kind.topic for kind in KINDS]
            if {one.topic for one in self._partitions} != set(topics):
                described = self._admin.describe_topics(topics)
                self._partitions = [
                    TopicPartition(name, partition.index)
                    for name, one in described.items()
                    if not isinstance(one, PenstockError)
                    for partition in one.partitions
                ]
            if not self._partitions:
                return None
            answers = self._admin.list_offsets(dict.fromkeys(self._partitions, "latest"), timeout_ms=_TIMEOUT_MS)
        except PenstockError:
            self._close_admin()
            return None
        ends: dict[str, int] = {topic: 0 for topic in topics if any(one.topic == topic for one in self._partitions)}
        for partition, answer in answers.items():
            if isinstance(answer, PenstockError):
                return None
            ends[partition.topic] += answer.offset
        return ends

    def _close_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(PenstockError):
                admin.close(1.0)

    # ------------------------------------------------------------------------------------------ reading

    def _read_loop(self) -> None:
        self._begun.wait()
        while not self._stop.is_set():
            # The broker may be unreachable, or topics may not exist yet.
            with contextlib.suppress(PenstockError):
                self._read()
            self._stop.wait(_RETRY_S)

    def _read(self) -> None:
        from penstock.client.consumer.consumer import Consumer

        with self._cluster.admin(_CLIENT, request_timeout_ms=_TIMEOUT_MS) as admin:
            there = set(admin.list_topics())
        topics = [topic for topic in self._output_topics if topic in there]
        if not topics:
            return
        consumer: Consumer[bytes, bytes]
        with Consumer(
            bootstrap_servers=self._cluster.bootstrap,
            client_id=_CLIENT,
            auto_offset_reset="earliest",
            **self._cluster.security(),
        ) as consumer:
            partitions = [
                TopicPartition(topic, index) for topic in topics for index in consumer.partitions_for_topic(topic)
            ]
            consumer.assign(partitions)
            begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            for partition in partitions:
                consumer.seek(partition, max(begins[partition], ends[partition] - _FROM_END))
            while not self._stop.is_set():
                polled = consumer.poll(timeout_ms=_POLL_MS)
                records = [record for each in polled.values() for record in each]
                self._take(records)
                if len(topics) < len(self._output_topics) and not records:
                    return  # Check whether the other topics exist now.

    def _take(self, records: Sequence[ConsumerRecord[bytes, bytes]]) -> None:
        with self._lock:
            for record in records:
                self._board.record(record.topic, record.key, record.value)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
