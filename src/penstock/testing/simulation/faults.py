"""What is done to a cluster, and when.

Nouns: a `Fault`, one thing that happens to named hosts at a moment and is over after a while; a schedule, a list of
them, drawn from a seed or written down:

    4.0 power broker-0 for 1.5 | 9.2 cut broker-0 > client-0 for 3 | 12 slow-disk broker-0 for 5 x 40

Rule: a schedule says all that is done: the same one brings about the same run. Every fault ends by itself, and all are
over when the run's healing begins. Of all disks in a run one at most is lost: what is acknowledged is on two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.runtime.randomness import Random

CRASH: Final = "crash"  # the process is killed, and started again
POWER: Final = "power"  # the machine loses power; what was not synced is lost, torn or kept
BLACKOUT: Final = "blackout"  # all brokers' machines lose power at once
STOP: Final = "stop"  # a clean stop, and a start
PAUSE: Final = "pause"  # as by SIGSTOP
CUT: Final = "cut"  # one way, from the first host to the second; from all to it and back without a second
SPLIT: Final = "split"  # both ways between two hosts
RESET: Final = "reset"  # every connection of the host breaks
TWICE: Final = "twice"  # whoever connects to the host is accepted twice, once by mistake
SLOW_LINK: Final = "slow-link"  # delays both ways are `amount` times as long
SLOW_DISK: Final = "slow-disk"  # syncs take `amount` times as long
SYNC_ERROR: Final = "sync-error"  # a sync fails (EIO); after a while the machine is started again
ROTTEN_CACHE: Final = "rotten-cache"  # the same, but only the process is: it finds pages that are on no disk
BIT_FLIP: Final = "bit-flip"  # the machine loses power, and a bit of its records is another one when it is back
HEADER_FLIP: Final = "header-flip"  # the same in the header of a batch, of which no checksum covers all
EMPTY: Final = "empty"  # the machine is replaced by one of the same name with an empty disk
CLOCK: Final = "clock"  # the wall clock jumps by `amount` seconds, and back
SESSION: Final = "session"  # the metadata tree ends the host's sessions
TREE_DOWN: Final = "tree-down"  # the metadata tree answers nobody
ADD: Final = "add"  # a broker that was not there before is started

ALONE: Final = (CRASH, POWER, STOP, PAUSE, CUT, RESET, TWICE, SLOW_LINK, SLOW_DISK, SYNC_ERROR, ROTTEN_CACHE, CLOCK)
KINDS: Final = (*ALONE, BLACKOUT, SPLIT, BIT_FLIP, HEADER_FLIP, EMPTY, SESSION, TREE_DOWN, ADD)
WITH_PEER: Final = frozenset({CUT, SPLIT, SLOW_LINK})
OF_ALL: Final = frozenset({BLACKOUT, TREE_DOWN})
DISK_LOST: Final = frozenset({EMPTY, BIT_FLIP, HEADER_FLIP})
EVERYBODY: Final = "all"
_TEXT: Final = re.compile(
    r"(?P<at>[\d.]+) (?P<kind>[a-z-]+) (?P<host>[\w-]+)(?: > (?P<peer>[\w-]+))?(?: for (?P<for>[\d.]+))?"
    r"(?: x (?P<amount>-?[\d.]+))?"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """`host` and `peer` are names: "broker-0", "client-1"; "all" where the kind is of all."""

    at_s: float
    kind: str
    host: str
    peer: str = ""
    for_s: float = 0.0
    amount: float = 1.0

    def __str__(self) -> str:
        peer = f" > {self.peer}" if self.peer else ""
        lasting = f" for {self.for_s:g}" if self.for_s else ""
        amount = f" x {self.amount:g}" if self.amount != 1.0 else ""
        return f"{self.at_s:g} {self.kind} {self.host}{peer}{lasting}{amount}"


class InvalidSchedule(ValueError):
    """Text that is no schedule."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is no fault: write '4.0 power broker-0 for 1.5', with a kind of "
            f"{', '.join(KINDS)}; several are separated by |"
        )


def parse_schedule(text: str) -> list[Fault]:
    """From text; InvalidSchedule."""
    faults = []
    for part in filter(None, (part.strip() for part in text.split("|"))):
        match = _TEXT.fullmatch(part)
        if match is None or match["kind"] not in KINDS:
            raise InvalidSchedule(part)
        fault = Fault(
            float(match["at"]),
            match["kind"],
            match["host"],
            match["peer"] or "",
            float(match["for"] or 0),
            float(match["amount"] or 1),
        )
        faults.append(fault)
    return sorted(faults, key=lambda fault: fault.at_s)


def format_schedule(faults: Sequence[Fault]) -> str:
    return " | ".join(map(str, faults))


def _deck(**weights: int) -> tuple[str, ...]:
    return tuple(kind.replace("_", "-") for kind, weight in weights.items() for _ in range(weight))


_DECK_ALONE: Final = _deck(
    power=5, crash=4, stop=1, pause=2, cut=3, reset=2, twice=1, slow_link=1, slow_disk=2, sync_error=2, rotten_cache=2,
    clock=1,
)  # fmt: skip
_DECK_TOGETHER: Final = _deck(
    power=5, crash=5, stop=2, pause=4, cut=5, split=2, reset=2, twice=1, slow_link=2, slow_disk=2, sync_error=2,
    rotten_cache=1, clock=1, session=2, tree_down=1, blackout=2, empty=1, bit_flip=1,
    header_flip=1, add=1,
)  # fmt: skip
_LONGEST_S: Final = {
    CRASH: 1.0, POWER: 2.0, BLACKOUT: 2.0, STOP: 1.0, RESET: 0.0, SESSION: 0.0, ADD: 0.0, SLOW_DISK: 5.0,
    SYNC_ERROR: 2.0, ROTTEN_CACHE: 2.0, EMPTY: 2.0, BIT_FLIP: 2.0, HEADER_FLIP: 2.0, TREE_DOWN: 4.0,
}  # fmt: skip


def random_schedule(
    random: Random,
    brokers: Sequence[str],
    clients: Sequence[str],
    *,
    start_s: float,
    end_s: float,
    mean_gap_s: float,
    spares: Sequence[str] = (),
) -> list[Fault]:
    """Faults one after the other or at once, all over by `end_s`. `spares` are brokers that may be added."""
    deck = _DECK_ALONE if len(brokers) == 1 else _DECK_TOGETHER
    faults: list[Fault] = []
    left = list(spares)
    at_s = start_s
    while True:
        at_s = round(at_s + random.uniform(0.0, 2 * mean_gap_s), 3)
        if at_s >= end_s:
            return faults
        kind = deck[random.below(len(deck))]
        host, peer = brokers[random.below(len(brokers))], ""
        for_s = round(min(_lasting_s(kind, random), end_s - at_s), 3)
        if kind in WITH_PEER and (random.below(3) or kind == SPLIT):
            # Brokers among themselves more often than not: what clients do not see is what tears a cluster apart.
            others = [name for name in (*brokers, *brokers, *clients) if name != host]
            peer = others[random.below(len(others))]
            if random.below(2):
                host, peer = peer, host
        if kind in OF_ALL:
            host = EVERYBODY
        if kind == ADD:
            if not left:
                continue
            host = left.pop(0)
        if kind in DISK_LOST and any(fault.kind in DISK_LOST for fault in faults):
            continue
        faults.append(Fault(at_s, kind, host, peer, for_s, _amount(kind, random)))


def _lasting_s(kind: str, random: Random) -> float:
    # Mostly short, rarely as long as it may be: long ones hide what a fast return would show.
    return _LONGEST_S.get(kind, 6.0) * random.uniform(0.0, 1.0) ** 2


def _amount(kind: str, random: Random) -> float:
    if kind == SLOW_DISK:
        return round(random.uniform(5.0, 200.0), 1)
    if kind == SLOW_LINK:
        return round(random.uniform(5.0, 100.0), 1)
    if kind == CLOCK:
        return round(random.uniform(-60.0, 60.0), 1)
    return 1.0
