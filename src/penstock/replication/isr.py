"""A partition as its leader sees it in one leader epoch: followers, ISR, high watermark. Pure.

The high watermark is the smallest log end of all replicas that are in sync or may be: a requested ISR change counts as
made where it adds and as not made where it removes, until it is answered. It never moves back, and moves only while as
many replicas are in sync as the topic demands. A follower's log ends where it fetches from, because it fetches from
there only once everything below is as durable as the topic demands. A follower counts only under the broker epoch that
the cluster knows: a restarted broker may have lost what it reported before.

    replicas 1 2 3, led by 1, log end 10; 2 fetches from 8, 3 from 10      high watermark 8
    3 falls behind, ISR 1 2 is requested and not answered yet              3 still counts
    the answer arrives: ISR 1 2                                            3 no longer counts

`nearest_replica` chooses the replica for a consumer that names its rack (KIP-392): the leader if it is there, else the
in-sync follower in the rack that has the offset and is furthest, else the leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.cluster.tree.layout import BrokerRegistration

UNKNOWN_END: Final = -1
UNKNOWN_START: Final = -1
NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR that the leader asks the controller for; `broker_epochs` are those under which its members fetch."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    state_version: int
    isr_before: tuple[int, ...] = ()


class Progress:
    """What is known of a follower."""

    __slots__ = ("broker_epoch", "caught_up_ms", "log_end", "log_start", "seen_end", "seen_ms")

    def __init__(self, now_ms: float) -> None:
        self.broker_epoch = NO_EPOCH
        self.log_end = UNKNOWN_END
        self.log_start = UNKNOWN_START
        self.caught_up_ms = now_ms
        self.seen_end = UNKNOWN_END  # the leader's log end when it asked last, and when that was
        self.seen_ms = now_ms

    def asked(self, broker_epoch: int, offset: int, leader_end: int, now_ms: float) -> None:
        self.broker_epoch = broker_epoch
        self.log_end = offset
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif offset >= self.seen_end >= 0:
            # It has now all that there was when it asked before: then it was one round trip behind.
            self.caught_up_ms = max(self.caught_up_ms, self.seen_ms)
        self.seen_end = leader_end
        self.seen_ms = now_ms

    def forget(self, now_ms: float) -> None:
        """It came back as another: nothing that it said before counts."""
        self.broker_epoch = NO_EPOCH
        self.log_end = UNKNOWN_END
        self.log_start = UNKNOWN_START
        self.seen_end = UNKNOWN_END
        self.caught_up_ms = now_ms


class Leadership:
    """One epoch of one partition. `now_ms` is a monotonic time throughout."""

    def __init__(
        self,
        leader: int,
        *,
        epoch: int,
        epoch_start: int,
        replicas: Sequence[int],
        isr: Sequence[int],
        state_version: int,
        high_watermark: int,
        min_insync_replicas: int,
        now_ms: float,
    ) -> None:
        self.leader = leader
        self.epoch = epoch
        self.epoch_start = epoch_start
        self.isr = tuple(isr)
        self.state_version = state_version
        self.high_watermark = high_watermark
        self.min_insync_replicas = min_insync_replicas
        self._pending: Proposal | None = None
        self._is_lost = False  # the pending one will not be answered: the next state of the partition settles it
        self._followers = {broker: Progress(now_ms) for broker in replicas if broker != leader}

    # --- what is known

    @property
    def replicas(self) -> tuple[int, ...]:
        return (self.leader, *self._followers)

    @property
    def pending(self) -> Proposal | None:
        return self._pending

    @property
    def widest_isr(self) -> frozenset[int]:
        """All who are in sync, or may be without our knowing."""
        return frozenset(self.isr) if self._pending is None else frozenset((*self.isr, *self._pending.isr))

    @property
    def insync_replicas(self) -> int:
        """How many are in sync for certain."""
        if self._pending is None:
            return len(self.isr)
        return len(frozenset(self.isr) & frozenset(self._pending.isr))

    @property
    def is_alone(self) -> bool:
        """Whether there is no other replica."""
        return not self._followers

    @property
    def is_enough(self) -> bool:
        """Whether as many are in sync as the topic demands, or all there are if it demands more than that."""
        return len(self.isr) >= min(self.min_insync_replicas, 1 + len(self._followers))

    @property
    def is_complete(self) -> bool:
        """Whether everybody is in sync, and nothing else is asked for."""
        return self._pending is None and len(self.isr) == 1 + len(self._followers)

    def has_follower(self, broker: int) -> bool:
        return broker in self._followers

    def log_end_of(self, broker: int) -> int:
        """How far a follower's log reaches, UNKNOWN_END if it did not say in this epoch."""
        progress = self._followers.get(broker)
        return UNKNOWN_END if progress is None else progress.log_end

    def lowest_start(self, leader_start: int, known: Mapping[int, int]) -> int:
        """Where the logs of all live replicas have begun: below it, nothing is left on any of them.

        One that is alive and has not said in this life where its log begins is taken to have everything. `known` are
        the live brokers' epochs.
        """
        lowest = leader_start
        for broker, progress in self._followers.items():
            if broker in known:
                is_heard = progress.broker_epoch == known[broker]
                lowest = min(lowest, progress.log_start if is_heard else UNKNOWN_START)
        return lowest

    # --- what happens

    def fetched(
        self,
        broker: int,
        broker_epoch: int,
        offset: int,
        leader_end: int,
        known: Mapping[int, int],
        now_ms: float,
        log_start: int = UNKNOWN_START,
    ) -> bool:
        """A follower asks from `offset`: whether it may. `known` are the live brokers' epochs.

        A broker that is no replica, or asks under another broker epoch than the cluster knows, is not heard.
        """
        progress = self._followers.get(broker)
        if progress is None or known.get(broker) != broker_epoch:
            return False
        if progress.broker_epoch not in (NO_EPOCH, broker_epoch):
            progress.forget(now_ms)
        progress.asked(broker_epoch, offset, leader_end, now_ms)
        progress.log_start = log_start
        return True

    def brokers_known(self, known: Mapping[int, int], now_ms: float) -> bool:
        """The cluster's brokers changed: who came back under a new epoch must speak again; whether anybody must."""
        forgotten = False
        for broker, progress in self._followers.items():
            if progress.broker_epoch != NO_EPOCH and known.get(broker) != progress.broker_epoch:
                progress.forget(now_ms)
                forgotten = True
        return forgotten

    def advance(self, leader_end: int) -> int:
        """The high watermark, moved as far as it may be."""
        if self.is_enough:
            lowest = leader_end
            for broker in self.widest_isr:
                if broker != self.leader:
                    progress = self._followers.get(broker)
                    lowest = min(lowest, UNKNOWN_END if progress is None else progress.log_end)
            self.high_watermark = max(self.high_watermark, lowest)
        return self.high_watermark

    # --- the ISR

    def propose(self, leader_end: int, known: Mapping[int, int], lag_max_ms: float, now_ms: float) -> Proposal | None:
        """The change of the ISR that is due, which is pending from now on; None if none is, or one is pending.

        A replica leaves that was not at the log's end within `lag_max_ms`; one joins whose log reaches the watermark
        and the start of this epoch: below that it may hold what was never committed. What was asked for and not
        answered is asked for again, as it was: if it was made the first time, nothing comes of the second.
        """
        if self._pending is not None:
            if not self._is_lost:
                return None
            self._is_lost = False
            return self._pending
        self._note_caught_up(leader_end, now_ms)
        isr = [
            broker
            for broker in self.isr
            if broker == self.leader or self._is_in_time(broker, leader_end, lag_max_ms, now_ms)
        ]
        isr += [broker for broker in self._followers if broker not in self.isr and self._may_join(broker, known)]
        if set(isr) == set(self.isr):
            return None
        epochs = tuple(
            known.get(broker, NO_EPOCH) if broker == self.leader else self._followers[broker].broker_epoch
            for broker in isr
        )
        self._pending = Proposal(tuple(isr), epochs, self.epoch, self.state_version, self.isr)
        self._is_lost = False
        return self._pending

    def _note_caught_up(self, leader_end: int, now_ms: float) -> None:
        """Who has everything now falls behind no earlier than now, though he does not ask before there is more."""
        for progress in self._followers.values():
            if progress.log_end >= leader_end:
                progress.caught_up_ms = max(progress.caught_up_ms, now_ms)

    def _is_in_time(self, broker: int, leader_end: int, lag_max_ms: float, now_ms: float) -> bool:
        progress = self._followers.get(broker)
        if progress is None:
            return False
        return progress.log_end >= leader_end or now_ms - progress.caught_up_ms <= lag_max_ms

    def _may_join(self, broker: int, known: Mapping[int, int]) -> bool:
        progress = self._followers[broker]
        return (
            progress.broker_epoch != NO_EPOCH
            and known.get(broker) == progress.broker_epoch
            and progress.log_end >= max(self.high_watermark, self.epoch_start)
        )

    def settled(self, replicas: Sequence[int], isr: Sequence[int], state_version: int, now_ms: float) -> bool:
        """The partition's state as the controller has stored it in this epoch; whether it is news."""
        if state_version < self.state_version:
            return False
        self._followers = {
            broker: self._followers.get(broker) or Progress(now_ms) for broker in replicas if broker != self.leader
        }
        if state_version > self.state_version:
            # What was asked about the state before cannot be made any more. The same state again proves nothing: a
            # question that was lost may still be on its way.
            self._pending = None
            self._is_lost = False
        self.isr = tuple(isr)
        self.state_version = state_version
        return True

    def refused(self, *, for_certain: bool) -> None:
        """The pending change will not be answered better; `for_certain`: it was not made.

        If nobody knows whether it was made, it goes on to count until the partition's state comes.
        """
        if for_certain:
            self._pending = None
        else:
            self._is_lost = True


THE_LEADER: Final = -1


def nearest_replica(
    leadership: Leadership, rack: str, offset: int, log_start: int, brokers: Mapping[int, BrokerRegistration]
) -> int:
    """The follower to read from, or THE_LEADER. `brokers` are the live ones."""
    leader = brokers.get(leadership.leader)
    if leader is None or leader.rack == rack or not log_start <= offset:
        return THE_LEADER
    found, furthest = THE_LEADER, offset - 1
    for broker in leadership.isr:
        registration = brokers.get(broker)
        if broker == leadership.leader or registration is None or registration.rack != rack:
            continue
        log_end = leadership.log_end_of(broker)
        if log_end > furthest:
            found, furthest = broker, log_end
    return found
