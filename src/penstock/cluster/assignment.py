"""Which brokers hold the replicas of a topic's partitions. Pure.

Theory: one partition after another takes the broker that leads fewest of the topic's partitions as its first replica,
and as the others those in the racks that the partition has least of, and there the ones that hold fewest of the
topic's replicas. So a topic's leaders differ by one at most between brokers, its replicas hardly more where racks
allow it, and the replicas of a partition are in as many racks as there are. Among equals, the broker with less of the
whole cluster goes first, so that many small topics spread too; then chance, so that two controllers do not think alike.
A follower that has followed the same leader less often is preferred: when a broker fails, its load falls on all others.

A broker that names no rack is a rack of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.runtime.randomness import Random


@dataclass(slots=True)
class Load:
    """How much brokers hold already."""

    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)
    follows: Counter[tuple[int, int]] = field(default_factory=Counter)  # (leader, follower)

    def add(self, replicas: Sequence[int]) -> None:
        leader = replicas[0]
        self.leaders[leader] += 1
        self.replicas.update(replicas)
        self.follows.update((leader, follower) for follower in replicas[1:])


def load_of(assignments: Iterable[Sequence[int]]) -> Load:
    load = Load()
    for replicas in assignments:
        load.add(replicas)
    return load


def assign_replicas(
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    random: Random,
    *,
    existing: Iterable[Sequence[int]] = (),
    elsewhere: Load | None = None,
) -> list[tuple[int, ...]]:
    """Replicas for so many new partitions on the brokers of `racks` (broker to rack), the preferred leader first.

    `existing` are the replicas of the partitions that the topic has already, `elsewhere` is the load of the others.
    ValueError unless 1 <= replication_factor <= number of brokers.
    """
    if not 1 <= replication_factor <= len(racks):
        raise ValueError(f"{replication_factor} replicas on {len(racks)} brokers")
    order = sorted(racks)
    random.shuffle(order)
    placer = _Placer(racks, order, load_of(existing), Load() if elsewhere is None else elsewhere)
    return [placer.place(replication_factor) for _ in range(partitions)]


class _Placer:
    def __init__(self, racks: Mapping[int, str | None], order: list[int], topic: Load, cluster: Load) -> None:
        self._rack = {broker: (broker if rack is None else rack) for broker, rack in racks.items()}
        self._order = order
        self._topic = topic
        self._cluster = cluster

    def place(self, replication_factor: int) -> tuple[int, ...]:
        topic, cluster = self._topic, self._cluster
        leader = min(
            self._order,
            key=lambda broker: (
                topic.leaders[broker],
                topic.replicas[broker],
                cluster.leaders[broker],
                cluster.replicas[broker],
            ),
        )
        chosen = [leader]
        in_rack = Counter((self._rack[leader],))
        while len(chosen) < replication_factor:
            follower = min(
                (broker for broker in self._order if broker not in chosen),
                key=lambda broker: (
                    in_rack[self._rack[broker]],
                    topic.replicas[broker],
                    # Whoever is to lead soon gets a replica then anyway.
                    -topic.leaders[broker],
                    topic.follows[leader, broker],
                    cluster.replicas[broker],
                ),
            )
            chosen.append(follower)
            in_rack[self._rack[follower]] += 1
        replicas = tuple(chosen)
        topic.add(replicas)
        cluster.add(replicas)
        return replicas
