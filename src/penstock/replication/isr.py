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
THE_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR that the leader requests; `broker_epochs` are those under which its members fetch."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    state_version: int
    isr_before: tuple[int, ...] = ()


class Progress:
    """What the leader knows about a follower."""

    __slots__ = ("broker_epoch", "caught_up_ms", "log_end", "log_start", "seen_end", "seen_ms")

    def __init__(self, now_ms: float) -> None:
        self.broker_epoch = NO_EPOCH
        self.log_end = UNKNOWN_END
        self.log_start = UNKNOWN_START
        self.caught_up_ms = now_ms
        self.seen_end = UNKNOWN_END  # the leader's log end at the last fetch, and the time of that fetch
        self.seen_ms = now_ms

    def fetched(self, broker_epoch: int, offset: int, leader_end: int, now_ms: float) -> None:
        self.broker_epoch = broker_epoch
        self.log_end = offset
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif offset >= self.seen_end >= 0:
            # It has everything that existed at its previous fetch, so it was caught up then.
            self.caught_up_ms = max(self.caught_up_ms, self.seen_ms)
        self.seen_end = leader_end
        self.seen_ms = now_ms

    def forget(self, now_ms: float) -> None:
        """It was restarted: nothing that it reported before counts."""
        self.broker_epoch = NO_EPOCH
        self.log_end = UNKNOWN_END
        self.log_start = UNKNOWN_START
        self.seen_end = UNKNOWN_END
        self.caught_up_ms = now_ms


class Leadership:
    """One leader epoch of one partition. `now_ms` is monotonic throughout."""

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
        self._is_unanswered = False  # the outcome of the pending request is unknown
        self._followers = {broker: Progress(now_ms) for broker in replicas if broker != leader}

    # --- state

    @property
    def replicas(self) -> tuple[int, ...]:
        return (self.leader, *self._followers)

    @property
    def pending(self) -> Proposal | None:
        return self._pending

    @property
    def widest_isr(self) -> frozenset[int]:
        """All replicas that are in sync, or may be: the ISR and the requested one."""
        return frozenset(self.isr) if self._pending is None else frozenset((*self.isr, *self._pending.isr))

    @property
    def insync_replicas(self) -> int:
        """How many replicas are certainly in sync."""
        if self._pending is None:
            return len(self.isr)
        return len(frozenset(self.isr) & frozenset(self._pending.isr))

    @property
    def is_alone(self) -> bool:
        """Whether there is no other replica."""
        return not self._followers

    @property
    def is_enough(self) -> bool:
        """Whether as many replicas are in sync as the topic demands, or all if it demands more than there are."""
        return len(self.isr) >= min(self.min_insync_replicas, 1 + len(self._followers))

    @property
    def is_complete(self) -> bool:
        """Whether all replicas are in sync and no change is pending."""
        return self._pending is None and len(self.isr) == 1 + len(self._followers)

    def has_follower(self, broker: int) -> bool:
        return broker in self._followers

    def log_end_of(self, broker: int) -> int:
        """The end of a follower's log, UNKNOWN_END if it has not fetched in this epoch."""
        progress = self._followers.get(broker)
        return UNKNOWN_END if progress is None else progress.log_end

    def lowest_start(self, leader_start: int, known: Mapping[int, int]) -> int:
        """The smallest log start of all live replicas: none of them has records below it.

        A live replica that has not reported its log start in its broker epoch may have everything. `known` are the live
        brokers' epochs.
        """
        lowest = leader_start
        for broker, progress in self._followers.items():
            if broker in known:
                has_reported = progress.broker_epoch == known[broker]
                lowest = min(lowest, progress.log_start if has_reported else UNKNOWN_START)
        return lowest

    # --- events

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
        """A follower fetches from `offset`; returns whether it counts. `known` are the live brokers' epochs.

        It does not count if it is not a replica, or fetches under another broker epoch than the cluster knows.
        """
        progress = self._followers.get(broker)
        if progress is None or known.get(broker) != broker_epoch:
            return False
        if progress.broker_epoch not in (NO_EPOCH, broker_epoch):
            progress.forget(now_ms)
        progress.fetched(broker_epoch, offset, leader_end, now_ms)
        progress.log_start = log_start
        return True

    def brokers_known(self, known: Mapping[int, int], now_ms: float) -> bool:
        """The cluster's brokers changed; returns whether a follower was restarted and must fetch again to count."""
        forgotten = False
        for broker, progress in self._followers.items():
            if progress.broker_epoch != NO_EPOCH and known.get(broker) != progress.broker_epoch:
                progress.forget(now_ms)
                forgotten = True
        return forgotten

    def advance(self, leader_end: int) -> int:
        """Move the high watermark as far as possible, and return it."""
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
        """The ISR change that is due, which is pending from now on; None if none is due, or one is pending.

        A replica leaves that was not at the log end within `lag_max_ms`. One joins whose log reaches the high watermark
        and the start of this epoch: below that it may hold records that were never committed. A request without an
        answer is repeated unchanged: if it was made the first time, the second changes nothing.
        """
        if self._pending is not None:
            if not self._is_unanswered:
                return None
            self._is_unanswered = False
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
        self._is_unanswered = False
        return self._pending

    def _note_caught_up(self, leader_end: int, now_ms: float) -> None:
        """A follower that has everything is caught up now, although it does not fetch before there is more."""
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
        """The partition's state as the controller has stored it in this epoch; returns whether it is not older."""
        if state_version < self.state_version:
            return False
        self._followers = {
            broker: self._followers.get(broker) or Progress(now_ms) for broker in replicas if broker != self.leader
        }
        if state_version > self.state_version:
            # A request for the previous state cannot be made any more. The same state again proves nothing: a request
            # without an answer may still be on its way.
            self._pending = None
            self._is_unanswered = False
        self.isr = tuple(isr)
        self.state_version = state_version
        return True

    def rejected(self, *, is_definite: bool) -> None:
        """The pending change was not made, or, unless `is_definite`, its outcome is unknown.

        An unknown outcome counts as pending until the partition's next state arrives.
        """
        if is_definite:
            self._pending = None
        else:
            self._is_unanswered = True


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
