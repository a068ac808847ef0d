"""A mirror on a separate thread, and what tests compare: records of a partition, and batches as they are stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

from tests.timeouts import PATIENCE_S, until

from penstock.client.admin import Admin, TopicSpec
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.client.producer import Producer
from penstock.mirror import Mirror, MirrorSettings, MirrorStatus, mirror_status
from penstock.mirror.batches import Data, steps_of
from penstock.mirror.source import EARLIEST, LATEST, fetch_once, offset_of
from penstock.records import HEADER_SIZE, records_of, scan

FAST: Mapping[str, Any] = {
    "refresh.interval.ms": 100,
    "groups.interval.ms": 100,
    "transaction.interval.ms": 5,
    "session.timeout.ms": 6_000,
    "shards": 3,
}


def settings_of(sources: Mapping[str, str], target: str, **more: Any) -> MirrorSettings:
    """Sources by alias; names of other settings have _ for dots."""
    return MirrorSettings.of(
        {
            **FAST,
            **{f"source.{alias}.bootstrap.servers": address for alias, address in sources.items()},
            "target.bootstrap.servers": target,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )


class RunningMirror:
    """Runs a mirror from the beginning of the block to its end."""

    def __init__(self, settings: MirrorSettings) -> None:
        self.settings = settings
        self.mirror: Mirror | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised by the test's thread
            self._failure = error

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with Mirror(self.settings) as self.mirror:
            self._task = asyncio.create_task(self.mirror.run())
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()

    def __enter__(self) -> RunningMirror:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        until(lambda: self._task is not None or not self._thread.is_alive(), "the mirror starts")
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._failure is not None and kind is None:
            raise self._failure

    def status(self) -> MirrorStatus | None:
        if self._failure is not None:
            raise self._failure
        return status_of(self.settings)

    def caught_up(self, partitions: int, **ends: int) -> MirrorStatus:
        """Wait until all partitions are mirrored to their ends, and this many of them exist."""
        return wait_for(self.settings, lambda status: is_caught_up(status, partitions))

    def stopped(self, count: int = 1) -> MirrorStatus:
        """Wait until this many partitions or topics are reported as stopped."""
        return wait_for(self.settings, lambda status: len(status.stopped) == count)


def is_caught_up(status: MirrorStatus, partitions: int) -> bool:
    return len(status.partitions) == partitions and all(each.lag_records == 0 for each in status.partitions)


def status_of(settings: MirrorSettings) -> MirrorStatus | None:
    try:
        return asyncio.run(mirror_status(settings))
    except PenstockError:
        return None  # no state topic yet, or a broker that is being killed


def wait_for(settings: MirrorSettings, is_so: Any) -> MirrorStatus:
    found: list[MirrorStatus] = []

    def look() -> bool:
        status = status_of(settings)
        if status is not None:
            found[:] = [status]
        return status is not None and bool(is_so(status))

    try:
        until(look, "the mirror's status")
    except TimeoutError:
        raise AssertionError(f"the status stays: {found}") from None
    return found[0]


# --------------------------------------------------------------------------------------------------- topics, records


def create_topic(address: str, name: str, partitions: int = 1, **configs: str) -> None:
    with Admin(address) as admin:
        admin.create_topic(
            TopicSpec(name, partitions=partitions, config={key.replace("_", "."): to for key, to in configs.items()})
        )


def produce(
    address: str, topic: str, count: int, *, start: int = 0, partition: int | None = None, **options: Any
) -> None:
    """Records with key, value, headers and a timestamp of their own."""
    with Producer(address, **options) as producer:
        for number in range(start, start + count):
            producer.send(
                topic,
                f"value-{number}".encode() * 5,
                key=f"{number}".encode(),
                headers=[("h", b"x"), ("n", None)],
                timestamp_ms=1_700_000_000_000 + number,
                partition=partition,
            )


class StoredRecord(NamedTuple):
    """A record as a reader of committed records gets it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Stored(NamedTuple):
    """A partition: where it starts and ends, its records, and the payload of each batch with its base offset."""

    start: int
    end: int
    records: list[StoredRecord]
    batches: list[tuple[int, bytes]]


async def _stored(address: str, partition: TopicPartition) -> Stored:
    async with ClusterClient(address) as cluster:
        start = position = await offset_of(cluster, partition, EARLIEST)
        end = await offset_of(cluster, partition, LATEST, isolation=1)
        records: list[StoredRecord] = []
        batches: list[tuple[int, bytes]] = []
        while position < end:
            answer = await fetch_once(cluster, partition, position, max_bytes=1024 * 1024)
            steps = steps_of(answer.records, position, answer.aborted).steps
            for step in steps:
                if isinstance(step, Data):
                    header = scan(step.batch, most=1).headers[0]
                    batches.append((step.offset, bytes(step.batch[HEADER_SIZE:])))
                    records += [
                        StoredRecord(step.offset + index, each.timestamp, each.key, each.value, tuple(each.headers))
                        for index, each in enumerate(records_of(step.batch, header))
                    ]
            if not steps:
                break
            position = steps[-1].next_offset
        return Stored(start, end, records, batches)


def stored(address: str, topic: str, partition: int = 0) -> Stored:
    """What a partition holds."""
    return asyncio.run(_stored(address, TopicPartition(topic, partition)))


def same(source: str, target: str, topic: str, partitions: int, target_topic: str | None = None) -> None:
    """Both topics have the same offsets, records and batches."""
    for index in range(partitions):
        theirs, ours = stored(source, topic, index), stored(target, target_topic or topic, index)
        assert ours.records == theirs.records, f"partition {index}"
        assert ours == theirs, f"partition {index}"
