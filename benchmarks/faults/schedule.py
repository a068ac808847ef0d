"""What is done to a cluster, to whom, and for how long: decided beforehand, from a seed. Pure.

Faults come from shuffled decks in which each pair of kind and target has its place, so that a run of any length
has all of them about equally often; a leader's death has three places, since it is what users see. The same seed and
cluster give the same faults in the same order; who is the leader when its turn comes is up to the cluster.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    KILL = "killed"
    PAUSE = "paused"
    CUT = "cut off"
    CUT_PEERS = "cut off from the brokers"
    CUT_KEEPERS = "cut off from ZooKeeper"
    MUTE = "not heard by the others"
    STOP = "restarted"


class Target(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    CONTROLLER = "controller"
    KEEPER = "ZooKeeper's leader"
    ALL = "all brokers"


Pair = tuple[Kind, Target]

# The shortest are over before anybody notices; the longest outlast every session.
_SHORTEST_S, _LONGEST_S = 0.5, 6.0
_SIGNALS: Final[tuple[Pair, ...]] = (
    (Kind.KILL, Target.LEADER),
    (Kind.KILL, Target.LEADER),
    (Kind.KILL, Target.LEADER),
    (Kind.KILL, Target.FOLLOWER),
    (Kind.KILL, Target.CONTROLLER),
    (Kind.PAUSE, Target.LEADER),
    (Kind.PAUSE, Target.FOLLOWER),
    (Kind.PAUSE, Target.CONTROLLER),
)
_CUTS: Final[tuple[Pair, ...]] = (
    (Kind.CUT, Target.LEADER),
    (Kind.CUT, Target.FOLLOWER),
    (Kind.CUT, Target.CONTROLLER),
    (Kind.CUT_PEERS, Target.LEADER),
    (Kind.MUTE, Target.LEADER),
)
_KEEPERS: Final[tuple[Pair, ...]] = ((Kind.KILL, Target.KEEPER), (Kind.PAUSE, Target.KEEPER))
_KEEPER_CUTS: Final[tuple[Pair, ...]] = (
    (Kind.CUT, Target.KEEPER),
    (Kind.CUT_KEEPERS, Target.LEADER),
    (Kind.CUT_KEEPERS, Target.CONTROLLER),
)
_ROUGH: Final[tuple[Pair, ...]] = ((Kind.KILL, Target.ALL), (Kind.PAUSE, Target.ALL))


@dataclass(frozen=True)
class Fault:
    number: int
    kind: Kind
    target: Target
    hold_s: float

    def __str__(self) -> str:
        return f"{self.target.value} {self.kind.value} for {self.hold_s:.1f} s"


def deck(*, can_cut: bool, has_keepers: bool, is_rough: bool) -> tuple[Pair, ...]:
    """What can be done to such a cluster."""
    return (
        *_SIGNALS,
        *(_CUTS if can_cut else ()),
        *(_KEEPERS if has_keepers else ()),
        *(_KEEPER_CUTS if has_keepers and can_cut else ()),
        *(_ROUGH if is_rough else ()),
    )


def schedule(seed: int, count: int, pairs: tuple[Pair, ...]) -> list[Fault]:
    chance = random.Random(seed)
    faults: list[Fault] = []
    while len(faults) < count:
        shuffled = list(pairs)
        chance.shuffle(shuffled)
        for kind, target in shuffled[: count - len(faults)]:
            hold_s = round(chance.uniform(_SHORTEST_S, _LONGEST_S), 1)
            faults.append(Fault(len(faults) + 1, kind, target, hold_s))
    return faults
