"""Which partitions to fetch from which broker. Pure.

Rule: a partition is asked for while it is ready, not paused, led by somebody, and less than one answer's worth of it is
buffered; a broker is asked while the memory that is buffered or on its way is below the bound. Every partition that a
broker leads is in the one request that is under way to it, so a quiet partition waits for nobody.

Brokers fill their answers in the order of the request. Those that had their turn go to the end, so that with more data
than an answer holds all partitions come by.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.client.consumer.fetch_session import Wanted
from penstock.client.consumer.positions import Place, Standing
from penstock.client.consumer.types import TopicPartition


class Leader(NamedTuple):
    """Whom to ask, and the epoch of who leads: the two differ where a nearer replica is read."""

    node_id: int
    epoch: int


class NodePlan(NamedTuple):
    """One broker's next fetch. `is_partial`: some of its partitions wait for their buffers to empty, or are asked for
    by another request, so the broker should not hold this one long."""

    wanted: dict[TopicPartition, Wanted]
    is_partial: bool


class Budget:
    """The memory that fetched records may take: what is buffered, and what may arrive."""

    __slots__ = ("_buffered", "_expected", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffered = 0
        self._expected: dict[Hashable, int] = {}

    @property
    def room(self) -> int:
        return self.limit - self._buffered - sum(self._expected.values())

    @property
    def buffered(self) -> int:
        return self._buffered

    def expect(self, request: Hashable, size: int) -> None:
        self._expected[request] = size

    def arrived(self, request: Hashable) -> None:
        self._expected.pop(request, None)

    def add(self, size: int) -> None:
        self._buffered += size

    def release(self, size: int) -> None:
        self._buffered -= size


def plan(
    places: Iterable[Place],
    leaders: Mapping[TopicPartition, Leader],
    idle_nodes: frozenset[int] | None,
    now_ms: float,
) -> dict[int, NodePlan]:
    """The fetches to send now, by broker. `idle_nodes`: those without one under way; None means all."""
    plans: dict[int, dict[TopicPartition, Wanted]] = {}
    full: set[int] = set()
    for place in places:
        if place.standing is not Standing.READY or place.paused or now_ms < place.not_before_ms:
            continue
        leader = leaders.get(place.partition)
        if leader is None or (idle_nodes is not None and leader.node_id not in idle_nodes):
            continue
        if place.buffered_bytes >= place.fetch_bytes:
            full.add(leader.node_id)
            continue
        plans.setdefault(leader.node_id, {})[place.partition] = Wanted(
            place.fetch_offset, place.fetch_bytes, leader.epoch, place.fetch_epoch
        )
    return {node_id: NodePlan(wanted, node_id in full) for node_id, wanted in plans.items()}


class Turns:
    """Whose turn it is: the places in the order in which they should be asked for."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[TopicPartition, Place] = {}

    def __iter__(self) -> Iterator[Place]:
        return iter(list(self._places.values()))

    def set(self, places: Iterable[Place]) -> None:
        wanted = {place.partition: place for place in places}
        kept = {partition: wanted[partition] for partition in self._places if partition in wanted}
        self._places = {**kept, **wanted}

    def had_turn(self, partition: TopicPartition) -> None:
        place = self._places.pop(partition, None)
        if place is not None:
            self._places[partition] = place
