"""What an accumulator decides: which batches go into which requests, and when to look again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.client.producer.batches import ProducerBatch

NEVER: Final = float("inf")


class OutgoingRequest:
    """Batches that go to a node in one request: at most one of each partition."""

    __slots__ = ("batches", "node", "size")

    def __init__(self, node: int) -> None:
        self.node = node
        self.batches: list[ProducerBatch] = []
        self.size = 0

    def add(self, batch: ProducerBatch) -> None:
        self.batches.append(batch)
        self.size += batch.size


class Plan:
    """What to do now: `requests` in this order; look again at `wake_at_ms` at the latest."""

    __slots__ = ("leaderless", "needs_producer_id", "requests", "to_connect", "to_pack", "wake_at_ms")

    def __init__(self) -> None:
        self.requests: list[OutgoingRequest] = []
        self.leaderless: set[str] = set()
        self.to_connect: set[int] = set()
        self.to_pack: list[ProducerBatch] = []
        self.needs_producer_id = False
        self.wake_at_ms = NEVER


class Slots:
    """How many requests a node may still be given, and those that this plan gives it."""

    __slots__ = ("free", "node", "requests")

    def __init__(self, node: int, free: int) -> None:
        self.node = node
        self.free = free
        self.requests: list[OutgoingRequest] = []
