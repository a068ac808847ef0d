"""A topic with records, a warehouse, and a look at what became of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock import Producer
from penstock.client.admin import Admin
from penstock.spark.fetch import read_range
from penstock.spark.options import ReaderOptions
from penstock.spark.tables import Limits, Loader, OpenTable, Table, Warehouse, create, from_mapping
from penstock.spark.tables.load_plan import log_state
from penstock.spark.tables.runner import LocalRunner, Runner

VIEWS = "user string not null, ms int, at timestamp_ms"
FIRST_MS = 1_767_225_600_000  # 2026-01-01T00:00Z
MINUTE_MS = 60_000

Place = tuple[int, int]


def view(number: int) -> bytes:
    return json.dumps({"user": f"u{number % 7}", "ms": number, "at": FIRST_MS + number * MINUTE_MS}).encode()


class Cluster(Protocol):
    """Where topics are: our own broker, or any Kafka."""

    @property
    def address(self) -> str: ...

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None: ...


class World:
    """One topic and one table of it."""

    def __init__(self, broker: Cluster, topic: str, folder: Path, admin: Admin) -> None:
        self.broker = broker
        self.topic = topic
        self.admin = admin
        self.warehouse = Warehouse(str(folder / "warehouse"))

    @property
    def address(self) -> str:
        return self.broker.address

    def send(
        self,
        values: Iterable[bytes | None],
        *,
        key: Callable[[int], bytes | None] = lambda number: f"u{number % 7}".encode(),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        with Producer(self.address) as producer:
            for number, value in enumerate(values):
                producer.send(
                    self.topic, value, key=key(number), partition=partition, timestamp_ms=timestamp_ms,
                    headers={"n": str(number).encode()},
                )  # fmt: skip

    def views(self, count: int, first: int = 0) -> None:
        self.send(view(number) for number in range(first, first + count))

    def declare(self, **settings: Any) -> Table:
        return from_mapping({"name": "views", "topic": self.topic, **settings})

    def make(self, **settings: Any) -> OpenTable:
        return create(self.warehouse, self.declare(**settings), self.address)

    def loader(self, opened: OpenTable, *, runner: Runner | None = None, **limits: int) -> Loader:
        return Loader(opened, self.admin, self.address, runner or LocalRunner(2), limits=Limits(**limits))

    # ------------------------------------------------------------------------------------------ looking

    def log(self) -> dict[Place, bytes | None]:
        """What the topic holds, by partition and offset."""
        state = log_state(self.admin, self.topic, "read_committed")
        found: dict[Place, bytes | None] = {}
        for partition, (begin, end) in state.bounds.items():
            batches = read_range(
                self.address, ReaderOptions(), self.topic, partition, begin, end, isolation="read_committed"
            )
            for batch in batches:
                pairs = zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
                found.update({(partition, offset): value for offset, value in pairs})
        return found


@contextmanager
def world_of(broker: Cluster, topic: str, folder: Path) -> Iterator[World]:
    with Admin(broker.address) as admin:
        yield World(broker, topic, folder, admin)


def rows(opened: OpenTable) -> pa.Table:
    opened.store.refresh()
    return opened.store.read()


def dead(opened: OpenTable) -> pa.Table:
    opened.dead.refresh()
    return opened.dead.read()


def places(table: pa.Table) -> Counter[Place]:
    return Counter(zip(table.column("_partition").to_pylist(), table.column("_offset").to_pylist(), strict=True))


def column(table: pa.Table, name: str) -> Mapping[Place, Any]:
    """The values of a column, by partition and offset."""
    where = zip(table.column("_partition").to_pylist(), table.column("_offset").to_pylist(), strict=True)
    return dict(zip(where, table.column(name).to_pylist(), strict=True))


def once(wanted: Iterable[Place]) -> Counter[Place]:
    return Counter(dict.fromkeys(wanted, 1))


def reasons(opened: OpenTable) -> Sequence[str]:
    found: Sequence[str] = dead(opened).column("reason").to_pylist()
    return found
