"""Fault schedules: what happens to which host, when, and for how long.

    4.0 power broker-0 for 1.5 | 9.2 cut broker-0 > client-0 for 3 | 12 slow-disk broker-0 for 5 x 40

A schedule is drawn from a seed or written down, and determines the run. Every fault ends by itself, and all are over
when recovery begins. At most one disk of a run is lost, since what is acknowledged is on two.
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
FULL_DISK: Final = "full-disk"  # a data folder's disk has no room for anything more
READ_ERROR: Final = "read-error"  # reads of a data folder's logs fail (EIO); after a while the broker is started again
DISK_OUT: Final = "disk-out"  # everything on a data folder's disk fails; it is repaired, and the machine started again
DEAD_DISK: Final = "dead-disk"  # the same, but the disk is replaced by an empty one
BIT_FLIP: Final = "bit-flip"  # the machine loses power, and a bit of its records is another one when it is back
HEADER_FLIP: Final = "header-flip"  # the same in the header of a batch, of which no checksum covers all
EMPTY: Final = "empty"  # the machine is replaced by one of the same name with an empty disk
CLOCK: Final = "clock"  # the wall clock jumps by `amount` seconds, and back
SESSION: Final = "session"  # the metadata tree ends the host's sessions
TREE_DOWN: Final = "tree-down"  # the metadata tree answers nobody
STALE: Final = "stale"  # the server of the metadata tree that the host is connected to lags behind the others
ADD: Final = "add"  # a broker that was not there before is started

ALONE: Final = (
    CRASH, POWER, STOP, PAUSE, CUT, RESET, TWICE, SLOW_LINK, SLOW_DISK, SYNC_ERROR, ROTTEN_CACHE, FULL_DISK, READ_ERROR,
    DISK_OUT, CLOCK,
)  # fmt: skip
KINDS: Final = (*ALONE, BLACKOUT, SPLIT, BIT_FLIP, HEADER_FLIP, EMPTY, DEAD_DISK, SESSION, TREE_DOWN, STALE, ADD)
WITH_PEER: Final = frozenset({CUT, SPLIT, SLOW_LINK})
OF_ALL: Final = frozenset({BLACKOUT, TREE_DOWN})
DISK_LOST: Final = frozenset({EMPTY, DEAD_DISK, BIT_FLIP, HEADER_FLIP})
_OF_CLIENTS: Final = frozenset({CRASH, PAUSE, CUT, RESET})
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
    """Text that is not a schedule."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is not a fault. Example: '4.0 power broker-0 for 1.5'. Kinds: "
            f"{', '.join(KINDS)}; several are separated by |"
        )


def parse_schedule(text: str) -> list[Fault]:
    """Parse a schedule. Raises InvalidSchedule."""
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
    full_disk=2, read_error=1, disk_out=1, clock=1,
)  # fmt: skip
_DECK_TOGETHER: Final = _deck(
    power=5, crash=5, stop=2, pause=4, cut=5, split=2, reset=2, twice=1, slow_link=2, slow_disk=2, sync_error=2,
    rotten_cache=1, clock=1, session=2, tree_down=1, stale=3, blackout=2, empty=1, bit_flip=1,
    header_flip=1, full_disk=2, read_error=1, disk_out=1, dead_disk=1, add=1,
)  # fmt: skip
_LONGEST_S: Final = {
    CRASH: 1.0, POWER: 2.0, BLACKOUT: 2.0, STOP: 1.0, RESET: 0.0, SESSION: 0.0, ADD: 0.0, SLOW_DISK: 5.0,
    SYNC_ERROR: 2.0, ROTTEN_CACHE: 2.0, EMPTY: 2.0, BIT_FLIP: 2.0, HEADER_FLIP: 2.0, TREE_DOWN: 4.0,
    STALE: 4.0, FULL_DISK: 4.0, READ_ERROR: 2.0, DISK_OUT: 2.0, DEAD_DISK: 2.0,
}  # fmt: skip


# Before a schedule is hastened, a session of the metadata tree lasts 3 s, and who is 2 s late leaves the ISR.
_SESSION_S: Final = 3.0
_LATE_S: Final = 2.0
_ENDS_BADLY: Final = frozenset(
    {CRASH, POWER, BLACKOUT, SYNC_ERROR, ROTTEN_CACHE, FULL_DISK, READ_ERROR, DISK_OUT, *DISK_LOST}
)
"""A broker with one of these faults may have lost unsynced data."""


def random_schedule(
    random: Random,
    brokers: Sequence[str],
    clients: Sequence[str],
    *,
    start_s: float,
    end_s: float,
    mean_gap_s: float,
    spares: Sequence[str] = (),
    may_forget: bool = True,
) -> list[Fault]:
    """Draw faults, sequential or overlapping, all over by `end_s`. `spares` are brokers that may be added.

    Unless `may_forget`, at most one broker ends uncleanly.

    Every schedule draws its own kinds of faults and how dense they are: where everything happens all the time, nothing
    happens for long. Half of them have one or two stories among the rest, which single faults would rarely tell.
    """
    drawing = _Drawing(random, brokers, clients, start_s, end_s, spares, may_forget=may_forget)
    stories = _STORIES_ALONE if len(brokers) == 1 else _STORIES_TOGETHER if len(brokers) > 2 else ()
    sparseness = _SPARSENESS[random.below(len(_SPARSENESS))]
    if stories and random.below(2):
        for _ in range(1 + random.below(2)):
            stories[random.below(len(stories))](drawing)
        sparseness *= 2
    drawing.scatter(mean_gap_s * sparseness)
    return sorted(drawing.faults, key=lambda fault: fault.at_s)


_SPARSENESS: Final = (0.6, 1.0, 1.0, 1.5)


class _Drawing:
    """A schedule being drawn."""

    def __init__(
        self,
        random: Random,
        brokers: Sequence[str],
        clients: Sequence[str],
        start_s: float,
        end_s: float,
        spares: Sequence[str],
        *,
        may_forget: bool,
    ) -> None:
        self.random = random
        self.brokers = brokers
        self.faults: list[Fault] = []
        self.clients = clients
        self._start_s = start_s
        self._end_s = end_s
        self._spares = list(spares)
        self._forgetful = None if may_forget else brokers[random.below(len(brokers))]

    def add(self, at_s: float, kind: str, host: str, for_s: float, *, peer: str = "", amount: float = 1.0) -> None:
        """Add a fault, unless it is too late or a second disk would be lost."""
        if at_s >= self._end_s or (kind in DISK_LOST and any(fault.kind in DISK_LOST for fault in self.faults)):
            return
        if self._forgetful is not None and kind == BLACKOUT:
            return
        if kind in _ENDS_BADLY and self._forgetful not in (None, host) and host not in self.clients:
            kind = STOP
        for_s = round(min(for_s, self._end_s - at_s), 3)
        self.faults.append(Fault(round(at_s, 3), kind, EVERYBODY if kind in OF_ALL else host, peer, for_s, amount))

    def scatter(self, mean_gap_s: float) -> None:
        """Independent faults."""
        random, brokers = self.random, self.brokers
        deck = self._deck()
        at_s = self._start_s
        while True:
            at_s += random.uniform(0.0, 2 * mean_gap_s)
            if at_s >= self._end_s:
                return
            kind = deck[random.below(len(deck))]
            host, peer = self.one_of(brokers), ""
            for_s = _lasting_s(kind, random)
            if kind in WITH_PEER and (random.below(3) or kind == SPLIT):
                # Brokers among themselves more often than not: what clients do not see is what tears a cluster apart.
                peer = self.one_of([name for name in (*brokers, *brokers, *self.clients) if name != host])
                if random.below(2):
                    host, peer = peer, host
            elif kind in _OF_CLIENTS and self.clients and not random.below(4):
                host = self.one_of(self.clients)
            if kind == ADD:
                if not self._spares:
                    continue
                host = self._spares.pop(0)
            self.add(at_s, kind, host, for_s, peer=peer, amount=_amount(kind, random))

    def _deck(self) -> Sequence[str]:
        """All kinds, or half of them."""
        deck = _DECK_ALONE if len(self.brokers) == 1 else _DECK_TOGETHER
        if not self.random.below(3):
            return deck
        kinds = sorted(set(deck))
        self.random.shuffle(kinds)
        chosen = set(kinds[: (len(kinds) + 1) // 2])
        return [kind for kind in deck if kind in chosen]

    # --- for stories

    def one_of(self, names: Sequence[str]) -> str:
        return names[self.random.below(len(names))]

    def cast(self) -> list[str]:
        """The brokers, in random order."""
        names = list(self.brokers)
        self.random.shuffle(names)
        return names

    def begin(self, length_s: float) -> float:
        """A start time that lets a story of that length end in time, if possible."""
        return self.random.uniform(self._start_s, max(self._start_s, self._end_s - length_s))

    def between(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)


def _cut_off(drawing: _Drawing) -> None:
    """One broker cannot reach the others while clients write to it; then it ends, or all do."""
    lasting_s = drawing.between(1.0, 2.5 * _SESSION_S)
    at_s = drawing.begin(lasting_s + 1.0)
    one, *others = drawing.cast()
    kind = drawing.one_of((CUT, CUT, SPLIT))
    for other in others:
        drawing.add(at_s, kind, one, lasting_s, peer=other)
    end = drawing.one_of((CRASH, POWER, BLACKOUT, BLACKOUT, PAUSE, ""))
    if end:
        away_s = drawing.between(0.1, 0.5) if end == BLACKOUT else drawing.between(0.1, 2.5 * _SESSION_S)
        drawing.add(at_s + drawing.between(0.3, lasting_s), end, one, away_s)


def _one_after_the_other(drawing: _Drawing) -> None:
    """One broker is away, long enough to leave the ISR. Meanwhile something happens to the second; then the third goes,
    which has everything, and the two others have to do without it.
    """
    away_s = drawing.between(_LATE_S, 3 * _SESSION_S)
    at_s = drawing.begin(away_s + 3.0)
    first, second, third = drawing.cast()[:3]
    drawing.add(at_s, drawing.one_of((CRASH, STOP, STOP, POWER, PAUSE)), first, away_s)
    then_s = at_s + drawing.between(0.6 * away_s, away_s)
    harm = drawing.one_of((POWER, CRASH, STOP, EMPTY, BIT_FLIP, HEADER_FLIP, HEADER_FLIP))
    # Back before its session is over, or so late that the first is on its own for a while.
    is_brief = drawing.random.below(2)
    harm_s = drawing.between(0.1, 0.6) if is_brief else drawing.between(_SESSION_S, 2.5 * _SESSION_S)
    drawing.add(then_s, harm, second, harm_s)
    last_s = then_s + drawing.between(0.0, 0.6)
    drawing.add(
        last_s, drawing.one_of((CRASH, STOP, STOP, PAUSE)), third, drawing.between(_SESSION_S, 2.5 * _SESSION_S)
    )


def _rolling(drawing: _Drawing) -> None:
    """Brokers restart one after the other, before or long after their sessions expire."""
    rounds, gap_s = 3 + drawing.random.below(5), drawing.between(0.5, 4.0)
    kind = drawing.one_of((CRASH, CRASH, POWER, STOP))
    is_brief = drawing.random.below(3)
    at_s = drawing.begin(rounds * gap_s)
    names = drawing.cast()
    for number in range(rounds):
        away_s = drawing.between(0.05, 0.5) if is_brief else drawing.between(_SESSION_S, 1.5 * _SESSION_S)
        drawing.add(at_s + number * gap_s, kind, names[number % len(names)], away_s)


def _dark(drawing: _Drawing) -> None:
    """All lose power, repeatedly."""
    rounds, gap_s = 1 + drawing.random.below(3), drawing.between(0.5, 4.0)
    at_s = drawing.begin(rounds * gap_s)
    for number in range(rounds):
        drawing.add(at_s + number * gap_s, BLACKOUT, EVERYBODY, drawing.between(0.05, 1.0))


def _far_away(drawing: _Drawing) -> None:
    """One broker returns over slow links and has much to copy, or everything."""
    away_s = drawing.between(0.2, 2 * _SESSION_S)
    at_s = drawing.begin(away_s + 3.0)
    one, *others = drawing.cast()
    drawing.add(at_s, drawing.one_of((CRASH, POWER, STOP, EMPTY, EMPTY, EMPTY)), one, away_s)
    slow_s, amount = drawing.between(3.0, 12.0), round(drawing.between(50.0, 300.0), 1)
    for other in others:
        drawing.add(at_s + away_s * drawing.between(0.0, 0.9), SLOW_LINK, one, slow_s, peer=other, amount=amount)
    if drawing.random.below(2):
        drawing.add(at_s + away_s + drawing.between(0.5, 3.0), drawing.one_of((CRASH, POWER, PAUSE)), one, 1.0)


def _bad_disk(drawing: _Drawing) -> None:
    """Syncs of one disk fail, and soon after the machine loses power, once or several times."""
    rounds, gap_s = 1 + drawing.random.below(3), drawing.between(1.5, 4.0)
    at_s = drawing.begin(rounds * gap_s)
    one = drawing.one_of(drawing.brokers)
    for number in range(rounds):
        begins_s, lasting_s = at_s + number * gap_s, drawing.between(0.2, 1.0)
        drawing.add(begins_s, drawing.one_of((ROTTEN_CACHE, ROTTEN_CACHE, SYNC_ERROR)), one, lasting_s)
        drawing.add(begins_s + lasting_s + drawing.between(0.0, 0.8), POWER, one, drawing.between(0.1, 0.5))


def _clients_come_and_go(drawing: _Drawing) -> None:
    """One or several clients are killed, paused or cut off, for less than a session or longer."""
    rounds, gap_s = 2 + drawing.random.below(3), drawing.between(1.0, 4.0)
    at_s = drawing.begin(rounds * gap_s)
    victims = [drawing.one_of(drawing.clients)] if drawing.random.below(2) else drawing.clients
    for number in range(rounds):
        kind = drawing.one_of((CRASH, CRASH, PAUSE, CUT))
        drawing.add(at_s + number * gap_s, kind, drawing.one_of(victims), drawing.between(0.1, 2 * _SESSION_S))


_STORIES_ALONE: Final = (_bad_disk, _bad_disk, _clients_come_and_go)
_STORIES_TOGETHER: Final = (
    _cut_off, _cut_off, _one_after_the_other, _one_after_the_other, _one_after_the_other, _rolling, _dark, _far_away,
    _far_away, _bad_disk, _clients_come_and_go, _clients_come_and_go,
)  # fmt: skip


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
