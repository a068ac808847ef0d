"""Which brokers hold the replicas: of new partitions, and after a rebalance. Pure.

`assign_replicas` gives each new partition as first replica the broker that leads fewest partitions of the topic, and as
followers brokers in racks that the partition has least of, then those with fewest replicas of the topic. Leaders per
broker differ by at most one. Ties go to the broker with less of the whole cluster, then to randomness, so that two
controllers do not choose alike. A follower that has followed the same leader less often is preferred: when a broker
fails, its load spreads over all others. A broker without a rack is a rack of its own.

`plan_rebalance` is deterministic and moves as little as it can, in steps that keep what the previous one achieved:

    drain     replicas on brokers that are not to be used move to the broker with the fewest
    resize    replicas are added or dropped until the replication factor is met
    mend      a replica that shares its rack while another rack has none moves there
    level     replicas move from the fullest broker to the emptiest until they differ by one, or racks forbid it
    lead      another replica becomes the preferred leader; nothing is copied
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.cluster.controller.transaction import TopicPartition
from penstock.runtime.randomness import Random

Rack = int | str

_CANDIDATES: Final = 200
"""How many more partitions are considered once one is found that can move."""


# --- new partitions


@dataclass(slots=True)
class Load:
    """What brokers already hold."""

    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)
    follows: Counter[tuple[int, int]] = field(default_factory=Counter)  # (leader, follower)

    def add(self, replicas: Sequence[int]) -> None:
        # A topic may have 10,000 partitions: `Counter.update` would take most of the time.
        leader = replicas[0]
        self.leaders[leader] += 1
        held, follows = self.replicas, self.follows
        for broker in replicas:
            held[broker] += 1
            if broker != leader:
                follows[leader, broker] += 1


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
    """Replicas for new partitions on the brokers of `racks` (broker to rack), the preferred leader first.

    `existing` are the replicas of the topic's current partitions, `elsewhere` is the load of other topics. ValueError
    unless 1 <= replication_factor <= number of brokers.
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
        leaders, replicas, follows = topic.leaders, topic.replicas, topic.follows
        leader = min(
            self._order,
            key=lambda broker: (leaders[broker], replicas[broker], cluster.leaders[broker], cluster.replicas[broker]),
        )
        chosen = [leader]
        rack = self._rack
        in_rack: defaultdict[int | str, int] = defaultdict(int, {rack[leader]: 1})
        while len(chosen) < replication_factor:
            follower = min(
                (broker for broker in self._order if broker not in chosen),
                key=lambda broker: (
                    in_rack[rack[broker]],
                    replicas[broker],
                    # A broker that is about to lead gets a replica anyway.
                    -leaders[broker],
                    follows[leader, broker],
                    cluster.replicas[broker],
                ),
            )
            chosen.append(follower)
            in_rack[rack[follower]] += 1
        placed = tuple(chosen)
        topic.add(placed)
        cluster.add(placed)
        return placed


# --- rebalance


class Plan(NamedTuple):
    """The partitions that get other replicas or another order, and how many replicas are copied."""

    assignments: dict[TopicPartition, tuple[int, ...]]
    copies: int


def plan_rebalance(
    assignments: Mapping[TopicPartition, Sequence[int]],
    racks: Mapping[int, str | None],
    replication_factor: int | None = None,
) -> Plan:
    """Plan a rebalance of these partitions, on the brokers of `racks` (broker to rack) and no others.

    ValueError if there are fewer brokers than replicas of a partition.
    """
    largest = max((len(replicas) for replicas in assignments.values()), default=1)
    wanted = largest if replication_factor is None else replication_factor
    if not 1 <= wanted <= len(racks):
        available = f"{len(racks)} {'is' if len(racks) == 1 else 'are'} available"
        raise ValueError(f"replication factor {wanted} needs {wanted} brokers; {available}")
    planner = _Planner(assignments, racks)
    planner.drain(replication_factor)
    planner.resize(replication_factor)
    planner.mend()
    planner.level()
    planner.lead()
    changed = {
        key: tuple(replicas) for key, replicas in planner.replicas.items() if tuple(replicas) != tuple(assignments[key])
    }
    copies = sum(len(set(replicas).difference(assignments[key])) for key, replicas in changed.items())
    return Plan(changed, copies)


class _Planner:
    def __init__(self, assignments: Mapping[TopicPartition, Sequence[int]], racks: Mapping[int, str | None]) -> None:
        # A broker without a rack is a rack of its own.
        self._rack: dict[int, Rack] = {broker: broker if rack is None else rack for broker, rack in racks.items()}
        self._brokers = sorted(racks)
        self._all_racks = len(set(self._rack.values()))
        self.replicas = {key: list(assignments[key]) for key in sorted(assignments)}
        # Dicts instead of sets, because their order is deterministic.
        self._held: dict[int, dict[TopicPartition, None]] = {broker: {} for broker in self._brokers}
        self._of_topic: Counter[tuple[str, int]] = Counter()
        for key, replicas in self.replicas.items():
            for broker in replicas:
                self._held.setdefault(broker, {})[key] = None
                self._of_topic[key[0], broker] += 1

    # --- steps

    def drain(self, replication_factor: int | None) -> None:
        for broker in sorted(set(self._held) - set(self._brokers)):
            for key in list(self._held[broker]):
                replicas = self.replicas[key]
                if replication_factor is not None and len(replicas) > replication_factor:
                    # The partition has too many replicas anyway.
                    replicas.remove(broker)
                    self._remove(key, broker)
                else:
                    self._move(key, broker, self._taker(key, without=broker))

    def resize(self, replication_factor: int | None) -> None:
        if replication_factor is None:
            return
        for key, replicas in self.replicas.items():
            while len(replicas) < replication_factor:
                taker = self._taker(key)
                replicas.append(taker)
                self._add(key, taker)
            while len(replicas) > replication_factor:
                giver = max(replicas[1:], key=lambda each: (self._in_rack(key, each), len(self._held[each]), each))
                replicas.remove(giver)
                self._remove(key, giver)

    def mend(self) -> None:
        for key, replicas in self.replicas.items():
            in_racks = Counter(self._rack[broker] for broker in replicas)
            # The first replica last, because it leads.
            for broker in reversed(list(replicas)):
                if in_racks[self._rack[broker]] > 1 and len(in_racks) < self._all_racks:
                    taker = self._taker(key, without=broker)
                    in_racks[self._rack[broker]] -= 1
                    in_racks[self._rack[taker]] += 1
                    self._move(key, broker, taker)

    def level(self) -> None:
        stuck: set[int] = set()
        while len(stuck) < len(self._brokers):
            giver = max((each for each in self._brokers if each not in stuck), key=lambda each: len(self._held[each]))
            if len(self._held[giver]) - min(len(self._held[each]) for each in self._brokers) < 2:
                return
            if not self._give(giver):
                stuck.add(giver)

    def lead(self) -> None:
        led: dict[int, dict[TopicPartition, None]] = {broker: {} for broker in self._brokers}
        for key, replicas in self.replicas.items():
            led[replicas[0]][key] = None
        stuck: set[int] = set()
        while len(stuck) < len(self._brokers):
            most = max((each for each in self._brokers if each not in stuck), key=lambda each: len(led[each]))
            if len(led[most]) - min(map(len, led.values())) < 2:
                return
            chain = self._chain(led, most)
            if not chain:
                stuck.add(most)
            for key, leader, other in chain:
                replicas = self.replicas[key]
                replicas.remove(other)
                replicas.insert(0, other)
                del led[leader][key]
                led[other][key] = None

    # --- parts of steps

    def _give(self, giver: int) -> bool:
        """Move one replica from a broker to the emptiest one that can hold it."""
        held = len(self._held[giver])
        takers = (each for each in self._brokers if len(self._held[each]) <= held - 2)
        for taker in sorted(takers, key=lambda each: len(self._held[each])):
            key = self._best(giver, taker)
            if key is not None:
                self._move(key, giver, taker)
                return True
        return False

    def _best(self, giver: int, taker: int) -> TopicPartition | None:
        best, surplus, seen = None, 0, 0
        for key in self._held[giver]:
            if key in self._held[taker]:
                continue
            more = self._of_topic[key[0], giver] - self._of_topic[key[0], taker]
            if best is not None and more <= surplus:
                seen += 1
            elif self._may_replace(key, giver, taker):
                best, surplus = key, more
            if best is not None and seen >= _CANDIDATES:
                break
        return best

    def _may_replace(self, key: TopicPartition, giver: int, taker: int) -> bool:
        """Whether the partition spans no fewer racks with `taker` instead of `giver`."""
        others = [self._rack[broker] for broker in self.replicas[key] if broker != giver]
        return others.count(self._rack[taker]) <= others.count(self._rack[giver])

    def _chain(
        self, led: Mapping[int, Mapping[TopicPartition, None]], start: int
    ) -> list[tuple[TopicPartition, int, int]]:
        """The shortest chain that moves one leadership from `start` to a broker that leads at least two fewer: steps of
        partition, leader and next leader. Empty if there is none.
        """
        reached: dict[int, tuple[TopicPartition, int]] = {}
        waiting = deque((start,))
        while waiting:
            leader = waiting.popleft()
            for key in led[leader]:
                for other in self.replicas[key][1:]:
                    if other == start or other in reached:
                        continue
                    reached[other] = (key, leader)
                    if len(led[other]) <= len(led[start]) - 2:
                        return _steps(reached, start, other)
                    waiting.append(other)
        return []

    def _taker(self, key: TopicPartition, without: int | None = None) -> int:
        replicas = self.replicas[key]
        in_racks = Counter(self._rack[broker] for broker in replicas if broker != without and broker in self._rack)
        return min(
            (broker for broker in self._brokers if broker not in replicas),
            key=lambda broker: (
                in_racks[self._rack[broker]],
                len(self._held[broker]),
                self._of_topic[key[0], broker],
                broker,
            ),
        )

    def _in_rack(self, key: TopicPartition, broker: int) -> int:
        return sum(self._rack[each] == self._rack[broker] for each in self.replicas[key])

    def _move(self, key: TopicPartition, giver: int, taker: int) -> None:
        replicas = self.replicas[key]
        replicas[replicas.index(giver)] = taker
        self._remove(key, giver)
        self._add(key, taker)

    def _add(self, key: TopicPartition, broker: int) -> None:
        self._held[broker][key] = None
        self._of_topic[key[0], broker] += 1

    def _remove(self, key: TopicPartition, broker: int) -> None:
        del self._held[broker][key]
        self._of_topic[key[0], broker] -= 1


def _steps(
    reached: Mapping[int, tuple[TopicPartition, int]], start: int, end: int
) -> list[tuple[TopicPartition, int, int]]:
    found: list[tuple[TopicPartition, int, int]] = []
    while end != start:
        key, leader = reached[end]
        found.append((key, leader, end))
        end = leader
    return found
