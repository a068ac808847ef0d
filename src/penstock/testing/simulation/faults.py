"""Fault schedules: what happens to which host, when, and for how long.

    4.0 power broker-0 for 1.5 | 9.2 cut broker-0 > client-0 for 3 | 12 slow-disk broker-0 for 5 x 40

A schedule is drawn from a seed or given as text, and determines the run. Every fault has a duration, and all are over
when recovery begins. At most one disk is lost in a run, because acknowledged records are on two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.runtime.randomness import Random

CRASH: Final = "crash"  # the process is killed and restarted
POWER: Final = "power"  # the machine loses power; what was not synced is lost, torn or kept
BLACKOUT: Final = "blackout"  # all brokers' machines lose power at once
STOP: Final = "stop"  # a clean stop and a start
PAUSE: Final = "pause"  # the process is paused, as by SIGSTOP
CUT: Final = "cut"  # one direction, from the first host to the second; without a second, all paths of the host
SPLIT: Final = "split"  # both directions between two hosts
RESET: Final = "reset"  # every connection of the host breaks
TWICE: Final = "twice"  # connections to the host are accepted twice; the second has no client
SLOW_LINK: Final = "slow-link"  # delays in both directions are `amount` times as long
SLOW_DISK: Final = "slow-disk"  # syncs take `amount` times as long
SYNC_ERROR: Final = "sync-error"  # a sync fails (EIO); the machine is restarted afterwards
ROTTEN_CACHE: Final = "rotten-cache"  # the same, but only the process is restarted: it finds pages that are not on disk
FULL_DISK: Final = "full-disk"  # a data folder's disk is full
READ_ERROR: Final = "read-error"  # reads of a data folder's logs fail (EIO); the broker is restarted afterwards
DISK_OUT: Final = "disk-out"  # all operations on a data folder's disk fail; it is repaired, and the machine restarted
DEAD_DISK: Final = "dead-disk"  # the same, but the disk is replaced by an empty one
BIT_FLIP: Final = "bit-flip"  # the machine loses power, and a bit of its records is flipped when it is back
HEADER_FLIP: Final = "header-flip"  # the same in the header of a batch, which the checksum covers only in part
EMPTY: Final = "empty"  # the machine is replaced by one with the same name and an empty disk
CLOCK: Final = "clock"  # the wall clock jumps by `amount` seconds, and back
SESSION: Final = "session"  # the metadata tree expires the host's sessions
TREE_DOWN: Final = "tree-down"  # the metadata tree does not answer
STALE: Final = "stale"  # the server of the metadata tree that the host is connected to lags behind the others
ADD: Final = "add"  # a spare broker is started for the first time

SINGLE_BROKER: Final = (
    CRASH, POWER, STOP, PAUSE, CUT, RESET, TWICE, SLOW_LINK, SLOW_DISK, SYNC_ERROR, ROTTEN_CACHE, FULL_DISK, READ_ERROR,
    DISK_OUT, CLOCK,
)  # fmt: skip
KINDS: Final = (
    *SINGLE_BROKER,
    BLACKOUT,
    SPLIT,
    BIT_FLIP,
    HEADER_FLIP,
    EMPTY,
    DEAD_DISK,
    SESSION,
    TREE_DOWN,
    STALE,
    ADD,
)
WITH_PEER: Final = frozenset({CUT, SPLIT, SLOW_LINK})
CLUSTER_WIDE: Final = frozenset({BLACKOUT, TREE_DOWN})
DISK_LOST: Final = frozenset({EMPTY, DEAD_DISK, BIT_FLIP, HEADER_FLIP})
_CLIENT_KINDS: Final = frozenset({CRASH, PAUSE, CUT, RESET})
ALL_BROKERS: Final = "all"
_TEXT: Final = re.compile(
    r"(?P<at>[\d.]+) (?P<kind>[a-z-]+) (?P<host>[\w-]+)(?: > (?P<peer>[\w-]+))?(?: for (?P<for>[\d.]+))?"
    r"(?: x (?P<amount>-?[\d.]+))?"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `host` and `peer` are names: "broker-0", "client-1"; "all" for a cluster-wide kind."""

    at_s: float
    kind: str
    host: str
    peer: str = ""
    for_s: float = 0.0
    amount: float = 1.0

    def __str__(self) -> str:
        peer = f" > {self.peer}" if self.peer else ""
        duration = f" for {self.for_s:g}" if self.for_s else ""
        amount = f" x {self.amount:g}" if self.amount != 1.0 else ""
        return f"{self.at_s:g} {self.kind} {self.host}{peer}{duration}{amount}"


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


_DECK_SINGLE: Final = _deck(
    power=5, crash=4, stop=1, pause=2, cut=3, reset=2, twice=1, slow_link=1, slow_disk=2, sync_error=2, rotten_cache=2,
    full_disk=2, read_error=1, disk_out=1, clock=1,
)  # fmt: skip
_DECK_CLUSTER: Final = _deck(
    power=5, crash=5, stop=2, pause=4, cut=5, split=2, reset=2, twice=1, slow_link=2, slow_disk=2, sync_error=2,
    rotten_cache=1, clock=1, session=2, tree_down=1, stale=3, blackout=2, empty=1, bit_flip=1,
    header_flip=1, full_disk=2, read_error=1, disk_out=1, dead_disk=1, add=1,
)  # fmt: skip
_LONGEST_S: Final = {
    CRASH: 1.0, POWER: 2.0, BLACKOUT: 2.0, STOP: 1.0, RESET: 0.0, SESSION: 0.0, ADD: 0.0, SLOW_DISK: 5.0,
    SYNC_ERROR: 2.0, ROTTEN_CACHE: 2.0, EMPTY: 2.0, BIT_FLIP: 2.0, HEADER_FLIP: 2.0, TREE_DOWN: 4.0,
    STALE: 4.0, FULL_DISK: 4.0, READ_ERROR: 2.0, DISK_OUT: 2.0, DEAD_DISK: 2.0,
}  # fmt: skip


# Before a schedule is compressed in time, a session of the metadata tree lasts 3 s, and a replica that lags for 2 s
# leaves the ISR.
_SESSION_S: Final = 3.0
_LATE_S: Final = 2.0
_UNCLEAN: Final = frozenset(
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
    may_lose_unsynced: bool = True,
    folders: int = 1,
) -> list[Fault]:
    """Draw faults, sequential or overlapping, all over by `end_s`. `spares` are brokers that may be added. A broker has
    `folders` data folders: in a cluster, half of the schedules let one of several fail for longer.

    Unless `may_lose_unsynced`, at most one broker ends uncleanly. Every schedule draws its own kinds and density of
    faults, because under all faults at full density no state lasts. Half of the schedules contain one or two scenarios,
    which independent faults would rarely form.
    """
    drawing = _Drawing(random, brokers, clients, start_s, end_s, spares, may_lose_unsynced=may_lose_unsynced)
    scenarios = _SCENARIOS_SINGLE if len(brokers) == 1 else _SCENARIOS_CLUSTER if len(brokers) > 2 else ()
    sparseness = _SPARSENESS[random.below(len(_SPARSENESS))]
    if scenarios and random.below(2):
        for _ in range(1 + random.below(2)):
            scenarios[random.below(len(scenarios))](drawing)
        sparseness *= 2
    drawing.scatter(mean_gap_s * sparseness)
    if folders > 1 and len(brokers) > 2 and random.below(2):
        _failing_folder(drawing)
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
        may_lose_unsynced: bool,
    ) -> None:
        self.random = random
        self.brokers = brokers
        self.faults: list[Fault] = []
        self.clients = clients
        self._start_s = start_s
        self._end_s = end_s
        self._spares = list(spares)
        self._unclean_broker = None if may_lose_unsynced else brokers[random.below(len(brokers))]

    def add(self, at_s: float, kind: str, host: str, for_s: float, *, peer: str = "", amount: float = 1.0) -> None:
        """Add a fault, unless it is too late or a second disk would be lost."""
        if at_s >= self._end_s or (kind in DISK_LOST and any(fault.kind in DISK_LOST for fault in self.faults)):
            return
        if self._unclean_broker is not None and kind == BLACKOUT:
            return
        if kind in _UNCLEAN and self._unclean_broker not in (None, host) and host not in self.clients:
            kind = STOP
        for_s = round(min(for_s, self._end_s - at_s), 3)
        self.faults.append(
            Fault(round(at_s, 3), kind, ALL_BROKERS if kind in CLUSTER_WIDE else host, peer, for_s, amount)
        )

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
            for_s = _draw_duration_s(kind, random)
            if kind in WITH_PEER and (random.below(3) or kind == SPLIT):
                # Mostly between brokers: partitions that clients do not notice are the ones that split a cluster.
                peer = self.one_of([name for name in (*brokers, *brokers, *self.clients) if name != host])
                if random.below(2):
                    host, peer = peer, host
            elif kind in _CLIENT_KINDS and self.clients and not random.below(4):
                host = self.one_of(self.clients)
            if kind == ADD:
                if not self._spares:
                    continue
                host = self._spares.pop(0)
            self.add(at_s, kind, host, for_s, peer=peer, amount=_draw_amount(kind, random))

    def _deck(self) -> Sequence[str]:
        """All kinds, or half of them."""
        deck = _DECK_SINGLE if len(self.brokers) == 1 else _DECK_CLUSTER
        if not self.random.below(3):
            return deck
        kinds = sorted(set(deck))
        self.random.shuffle(kinds)
        chosen = set(kinds[: (len(kinds) + 1) // 2])
        return [kind for kind in deck if kind in chosen]

    # --- for scenarios

    def one_of(self, names: Sequence[str]) -> str:
        return names[self.random.below(len(names))]

    def shuffled_brokers(self) -> list[str]:
        """The brokers, in random order."""
        names = list(self.brokers)
        self.random.shuffle(names)
        return names

    def start_time(self, length_s: float) -> float:
        """A random start time at which a scenario of that length ends in time, if possible."""
        return self.random.uniform(self._start_s, max(self._start_s, self._end_s - length_s))

    def between(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)


def _isolated_broker(drawing: _Drawing) -> None:
    """One broker cannot reach the others while clients write to it; then it ends, or all brokers do."""
    duration_s = drawing.between(1.0, 2.5 * _SESSION_S)
    at_s = drawing.start_time(duration_s + 1.0)
    one, *others = drawing.shuffled_brokers()
    kind = drawing.one_of((CUT, CUT, SPLIT))
    for other in others:
        drawing.add(at_s, kind, one, duration_s, peer=other)
    end = drawing.one_of((CRASH, POWER, BLACKOUT, BLACKOUT, PAUSE, ""))
    if end:
        offline_s = drawing.between(0.1, 0.5) if end == BLACKOUT else drawing.between(0.1, 2.5 * _SESSION_S)
        drawing.add(at_s + drawing.between(0.3, duration_s), end, one, offline_s)


def _successive_failures(drawing: _Drawing) -> None:
    """One broker is offline long enough to leave the ISR. Meanwhile a second one fails. Then the third one, which has
    everything, goes offline, and the other two have to continue without it.
    """
    offline_s = drawing.between(_LATE_S, 3 * _SESSION_S)
    at_s = drawing.start_time(offline_s + 3.0)
    first, second, third = drawing.shuffled_brokers()[:3]
    drawing.add(at_s, drawing.one_of((CRASH, STOP, STOP, POWER, PAUSE)), first, offline_s)
    then_s = at_s + drawing.between(0.6 * offline_s, offline_s)
    second_kind = drawing.one_of((POWER, CRASH, STOP, EMPTY, BIT_FLIP, HEADER_FLIP, HEADER_FLIP))
    # The second returns before its session expires, or so late that the first is alone for a while.
    is_brief = drawing.random.below(2)
    second_s = drawing.between(0.1, 0.6) if is_brief else drawing.between(_SESSION_S, 2.5 * _SESSION_S)
    drawing.add(then_s, second_kind, second, second_s)
    last_s = then_s + drawing.between(0.0, 0.6)
    drawing.add(
        last_s, drawing.one_of((CRASH, STOP, STOP, PAUSE)), third, drawing.between(_SESSION_S, 2.5 * _SESSION_S)
    )


def _rolling_restarts(drawing: _Drawing) -> None:
    """Brokers restart one after the other, before or long after their sessions expire."""
    rounds, gap_s = 3 + drawing.random.below(5), drawing.between(0.5, 4.0)
    kind = drawing.one_of((CRASH, CRASH, POWER, STOP))
    is_brief = drawing.random.below(3)
    at_s = drawing.start_time(rounds * gap_s)
    names = drawing.shuffled_brokers()
    for number in range(rounds):
        offline_s = drawing.between(0.05, 0.5) if is_brief else drawing.between(_SESSION_S, 1.5 * _SESSION_S)
        drawing.add(at_s + number * gap_s, kind, names[number % len(names)], offline_s)


def _blackouts(drawing: _Drawing) -> None:
    """All brokers lose power, once or repeatedly."""
    rounds, gap_s = 1 + drawing.random.below(3), drawing.between(0.5, 4.0)
    at_s = drawing.start_time(rounds * gap_s)
    for number in range(rounds):
        drawing.add(at_s + number * gap_s, BLACKOUT, ALL_BROKERS, drawing.between(0.05, 1.0))


def _slow_return(drawing: _Drawing) -> None:
    """One broker returns over slow links and has much to copy, or everything."""
    offline_s = drawing.between(0.2, 2 * _SESSION_S)
    at_s = drawing.start_time(offline_s + 3.0)
    one, *others = drawing.shuffled_brokers()
    drawing.add(at_s, drawing.one_of((CRASH, POWER, STOP, EMPTY, EMPTY, EMPTY)), one, offline_s)
    slow_s, amount = drawing.between(3.0, 12.0), round(drawing.between(50.0, 300.0), 1)
    for other in others:
        drawing.add(at_s + offline_s * drawing.between(0.0, 0.9), SLOW_LINK, one, slow_s, peer=other, amount=amount)
    if drawing.random.below(2):
        drawing.add(at_s + offline_s + drawing.between(0.5, 3.0), drawing.one_of((CRASH, POWER, PAUSE)), one, 1.0)


def _failing_syncs(drawing: _Drawing) -> None:
    """Syncs of one disk fail, and soon after the machine loses power; once or repeatedly."""
    rounds, gap_s = 1 + drawing.random.below(3), drawing.between(1.5, 4.0)
    at_s = drawing.start_time(rounds * gap_s)
    one = drawing.one_of(drawing.brokers)
    for number in range(rounds):
        begins_s, duration_s = at_s + number * gap_s, drawing.between(0.2, 1.0)
        drawing.add(begins_s, drawing.one_of((ROTTEN_CACHE, ROTTEN_CACHE, SYNC_ERROR)), one, duration_s)
        drawing.add(begins_s + duration_s + drawing.between(0.0, 0.8), POWER, one, drawing.between(0.1, 0.5))


def _failing_clients(drawing: _Drawing) -> None:
    """Clients are killed, paused or cut off, for less than a session timeout or longer."""
    rounds, gap_s = 2 + drawing.random.below(3), drawing.between(1.0, 4.0)
    at_s = drawing.start_time(rounds * gap_s)
    affected = [drawing.one_of(drawing.clients)] if drawing.random.below(2) else drawing.clients
    for number in range(rounds):
        kind = drawing.one_of((CRASH, CRASH, PAUSE, CUT))
        drawing.add(at_s + number * gap_s, kind, drawing.one_of(affected), drawing.between(0.1, 2 * _SESSION_S))


def _failing_folder(drawing: _Drawing) -> None:
    """A data folder of one broker fails for a long time.

    The broker continues with its other folders, or is restarted without the failed one; or another broker fails, which
    may have had the only other replica in sync.
    """
    failed_s = drawing.between(_LATE_S, 3 * _SESSION_S)
    at_s = drawing.start_time(failed_s + 2.0)
    one, another, _ = drawing.shuffled_brokers()[:3]
    drawing.add(at_s, drawing.one_of((DISK_OUT, DISK_OUT, DEAD_DISK)), one, failed_s)
    if drawing.random.below(2):
        kind = drawing.one_of((CRASH, POWER, STOP, SESSION))
        drawing.add(at_s + drawing.between(0.2, 0.7) * failed_s, kind, one, drawing.between(0.1, 1.0))
    if drawing.random.below(2):
        kind = drawing.one_of((CRASH, POWER, STOP, PAUSE))
        drawing.add(at_s + drawing.between(0.2, 1.0) * failed_s, kind, another, drawing.between(0.1, 2 * _SESSION_S))


_SCENARIOS_SINGLE: Final = (_failing_syncs, _failing_syncs, _failing_clients)
_SCENARIOS_CLUSTER: Final = (
    _isolated_broker, _isolated_broker, _successive_failures, _successive_failures, _successive_failures,
    _rolling_restarts, _blackouts, _slow_return, _slow_return, _failing_syncs, _failing_clients, _failing_clients,
)  # fmt: skip


def _draw_duration_s(kind: str, random: Random) -> float:
    # Mostly short, rarely of maximum length: long faults hide what a fast return would show.
    return _LONGEST_S.get(kind, 6.0) * random.uniform(0.0, 1.0) ** 2


def _draw_amount(kind: str, random: Random) -> float:
    if kind == SLOW_DISK:
        return round(random.uniform(5.0, 200.0), 1)
    if kind == SLOW_LINK:
        return round(random.uniform(5.0, 100.0), 1)
    if kind == CLOCK:
        return round(random.uniform(-60.0, 60.0), 1)
    return 1.0
