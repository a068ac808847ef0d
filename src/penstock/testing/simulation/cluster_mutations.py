"""Safeguards of replication and of control that can be switched off by name: see `mutations`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final
from unittest import mock

from penstock.cluster import broker_changes, broker_news, controller_duties, elections, isr_changes
from penstock.cluster.broker_news import BrokerNews
from penstock.cluster.image import PartitionImage
from penstock.cluster.partition_rules import PartitionRules
from penstock.log import opening
from penstock.log.partition_log import PartitionLog
from penstock.log.producers.state import ProducerStates
from penstock.replication import partition as partitions
from penstock.replication.fetch_course import Course
from penstock.replication.following import Position
from penstock.replication.leadership import Leadership, Progress
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.testing.simulation.mutation import Mutation

BROKERS: Final = 3


def _follow_and_cut(self: Partition, image: PartitionImage) -> bool:
    is_new = _REAL_FOLLOW(self, image)
    if is_new and self.log.log_end_offset > self.log.high_watermark and self.log.failure is None:
        self.cut(self.log.high_watermark)
    return is_new


def _lead_with_all(self: Partition, image: PartitionImage, *given: Any) -> bool:
    if self.leadership is None:
        self.log.advance_high_watermark(self.log.log_end_offset)
    return _REAL_LEAD(self, image, *given)


def _known_already(
    self: Partition, broker: int, broker_epoch: int, position: Position, brokers: Mapping[int, int], now_ms: float
) -> Any:
    return _REAL_ASKED_BY(self, broker, broker_epoch, position, {**brokers, broker: broker_epoch}, now_ms)


def _forget_nothing(self: Progress, now_ms: float) -> None:
    """Whatever a broker said in a former life goes on to count."""


def _append_without_producers(self: PartitionLog, batches: Any, *, now_ms: int) -> Any:
    with mock.patch.object(ProducerStates, "apply", return_value=None):
        return _REAL_APPEND(self, batches, now_ms=now_ms)


def _when_durable_here(
    self: Replicas, partition: Partition, end_offset: int, timeout_ms: float, done: Callable[..., None]
) -> None:
    self.when_durable(partition, end_offset, done)


def _nobody_emptied(*given: Any, **named: Any) -> BrokerNews:
    return _REAL_NEWS(*given, **named)._replace(emptied=())


def _elect_in_the_same_epoch(
    partition: PartitionImage,
    live: Collection[int],
    restarted: Collection[int],
    controller_epoch: int,
    *given: Any,
    **named: Any,
) -> PartitionImage | None:
    return _REAL_ELECT(partition, live, (), controller_epoch, *given, **named)


def _eligible_for_ever(
    partition: PartitionImage, isr: tuple[int, ...], rules: PartitionRules, unsafe: Collection[int]
) -> tuple[int, ...]:
    return tuple(
        broker
        for broker in partition.replicas
        if broker not in isr and broker not in unsafe and (broker in partition.isr or broker in partition.elr)
    )


def _may_join_at_once(self: Leadership, broker: int, known: Mapping[int, int]) -> bool:
    return known.get(broker) == self._followers[broker].broker_epoch


def _may_join_as_before(self: Leadership, broker: int, known: Mapping[int, int]) -> bool:
    return broker in known and self._followers[broker].log_end >= max(self.high_watermark, self.epoch_start)


def _only_the_asked_for(self: Leadership) -> frozenset[int]:
    return frozenset(self.isr if self._pending is None else self._pending.isr)


_REAL_FOLLOW = Partition.follow
_REAL_LEAD = Partition.lead
_REAL_ASKED_BY = Partition.asked_by
_REAL_APPEND = PartitionLog.append_as_follower
_REAL_NEWS = broker_news.news_of_brokers
_REAL_ELECT = elections.elect

# One after the other is killed and back before its session is over: it went and came in one moment.
_LEADERS_DIE: Final = " | ".join(
    f"{at_s} crash broker-{number % 3} for 0.1" for number, at_s in enumerate((3, 4.2, 5.4, 6.6, 7.8, 9, 10.2))
)
_ALL_DIE: Final = "3 blackout all for 0.2 | 7 blackout all for 0.2 | 11 blackout all for 0.2"
# What a leader says does not reach the others, clients go on writing to it.
_UNHEARD: Final = " | ".join(
    f"{at_s} cut broker-{number} > broker-{other} for 4.5"
    for number, at_s in enumerate((2.5, 7.5, 12.5))
    for other in range(3)
    if other != number
)
# The same, and then it dies, for longer than its session: another leads in between.
_UNHEARD_AND_DEAD: Final = " | ".join(
    f"{at_s} cut broker-{number} > broker-{(number + 1) % 3} for 1.2 | "
    f"{at_s} cut broker-{number} > broker-{(number + 2) % 3} for 1.2 | {at_s + 0.6} crash broker-{number} for 3.8"
    for number, at_s in enumerate((2.5, 7.5, 12.5))
)
# The same, and then all lose power.
_UNHEARD_AND_DARK: Final = " | ".join(
    f"{at_s} cut broker-{number} > broker-{(number + 1) % 3} for 1.2 | "
    f"{at_s} cut broker-{number} > broker-{(number + 2) % 3} for 1.2 | {at_s + 0.6} blackout all for 0.2"
    for number, at_s in enumerate((2.5, 7.5, 12.5))
)
# One has much to catch up with, and the way is long.
_LATE: Final = "2.5 crash broker-2 for 3.6 | 5 slow-link broker-2 for 8 x 300 | 9.5 crash broker-2 for 3.6"
_EMPTIED_FAR_AWAY: Final = (
    "4.5 slow-link broker-2 > broker-0 for 9 x 300 | 4.5 slow-link broker-2 > broker-1 for 9 x 300 | "
    "5 empty broker-2 for 0.2"
)
# The third is long out of sync when the other two, who commit without it, are gone for a while.
_ONLY_ONE_IS_LEFT: Final = "2.5 crash broker-2 for 4.5 | 6.8 crash broker-0 for 5 | 6.9 crash broker-1 for 5"
_ONE_FORGETS: Final = "2.5 stop broker-2 for 7 | 6 power broker-1 for 0.3 | 6.3 stop broker-0 for 8"
_ONE_IS_EMPTIED: Final = "2.5 crash broker-2 for 6 | 6.5 empty broker-1 for 0.3 | 6.8 crash broker-0 for 6"
# Likewise, and a bit has flipped in what is durable on the second.
_ONE_IS_DAMAGED: Final = "2.5 crash broker-2 for 8 | 8.5 header-flip broker-1 for 0.3 | 8.8 crash broker-0 for 6"

CLUSTER_MUTATIONS: dict[str, Mutation] = {
    "truncate-by-watermark": Mutation(
        "a follower cuts its log at its own watermark, not where epochs part",
        ((Partition, "follow", _follow_and_cut),),
        BROKERS,
        _LEADERS_DIE,
    ),
    "divergence-ignored": Mutation(
        "a follower is not told where its log parts from the leader's",
        ((partitions, "divergence", lambda *given: None),),
        BROKERS,
        _UNHEARD_AND_DEAD,
    ),
    "follower-asks-before-sync": Mutation(
        "a follower asks for more before what it has is on its disk",
        ((Course, "must_sync", property(lambda self: False)),),
        BROKERS,
        _LEADERS_DIE,
    ),
    "watermark-restored-too-high": Mutation(
        "who begins to lead takes all that it has for committed",
        ((Partition, "lead", _lead_with_all),),
        BROKERS,
        _UNHEARD_AND_DARK,
    ),
    "acknowledge-without-watermark": Mutation(
        "acks=all is answered when the leader alone has the records",
        ((Replicas, "when_committed", _when_durable_here),),
        BROKERS,
        _LEADERS_DIE,
    ),
    "shrink-before-answer": Mutation(
        "who is to leave the ISR counts no more before the controller has agreed",
        ((Leadership, "widest_isr", property(_only_the_asked_for)),),
        BROKERS,
        _UNHEARD,
    ),
    "too-few-in-sync": Mutation(
        "the watermark moves however few are in sync",
        ((Leadership, "is_enough", property(lambda self: True)),),
        BROKERS,
        _UNHEARD,
    ),
    "join-too-early": Mutation(
        "a follower joins the ISR before it has what is committed",
        ((Leadership, "_may_join", _may_join_at_once),),
        BROKERS,
        _LATE,
    ),
    "broker-epochs-ignored": Mutation(
        "what a broker said in a former life counts in the next one",
        (
            (Partition, "asked_by", _known_already),
            (Progress, "forget", _forget_nothing),
            (Leadership, "_may_join", _may_join_as_before),
            (isr_changes, "_refusal", lambda *given: None),
        ),
        BROKERS,
        _EMPTIED_FAR_AWAY,
    ),
    "producers-not-followed": Mutation(
        "followers do not keep what they copy of idempotent producers",
        ((PartitionLog, "append_as_follower", _append_without_producers),),
        BROKERS,
        _LEADERS_DIE,
    ),
    "forgetful-brokers-trusted": Mutation(
        "who lost power is taken for one that has all that it told to have, where nothing is synced",
        ((broker_news, "is_forgetful", lambda *given: False),),
        BROKERS,
        _ONE_FORGETS,
    ),
    "emptied-brokers-trusted": Mutation(
        "who comes back with an empty disk is taken for one that is in sync",
        ((controller_duties, "news_of_brokers", _nobody_emptied),),
        BROKERS,
        _ONE_IS_EMPTIED,
    ),
    "damage-taken-for-a-torn-end": Mutation(
        "a log is cut where what was durable is damaged, and its broker is taken for one that is in sync",
        ((opening, "_ended", lambda damage: None), (opening, "_missing_end", lambda *given: None)),
        BROKERS,
        _ONE_IS_DAMAGED,
    ),
    "epoch-stays-after-restart": Mutation(
        "a leader that was started again leads on in its old epoch",
        ((elections, "elect", _elect_in_the_same_epoch), (broker_changes, "elect", _elect_in_the_same_epoch)),
        BROKERS,
        _ALL_DIE,
    ),
    "eligible-for-ever": Mutation(
        "who has left the ISR is eligible however much was committed since",
        ((elections, "_eligible", _eligible_for_ever),),
        BROKERS,
        _ONLY_ONE_IS_LEFT,
    ),
}
