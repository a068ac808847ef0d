"""A controller under random events: invariants that are checked after every step.

A model goes with it: which records each broker has, and how many are committed. Brokers die, come back with what they
synced or with another disk, leave in good order; ISRs shrink and grow; partitions are moved, and moved back; settings
change. Everything that is decided is written to a tree of nodes with versions, and sent as bytes to a follower.
"""

from __future__ import annotations

import pytest
from tests.cluster.controller.decision_stories import (
    alter_isr,
    brokers_changed,
    cluster,
    min_isr,
    only,
    registered,
    state,
)

from penstock.cluster.controller.election import (
    ElectionKind,
    IsrRequest,
    PartitionsByBroker,
    elect_leaders,
    is_lost,
    partition_rules,
    with_elections,
)
from penstock.cluster.controller.failover import shut_down
from penstock.cluster.controller.reassignment import alter_reassignments, complete_reassignments
from penstock.cluster.controller.transaction import Decision
from penstock.cluster.errors import ApiException
from penstock.cluster.image import apply_delta, decode_delta, encode_delta, make_delta
from penstock.cluster.tree.layout import (
    NO_LEADER,
    decode_partition_state,
    decode_topic,
    partition_state_path,
    topic_path,
)
from penstock.cluster.tree.tree import Set
from penstock.runtime.randomness import SeededRandom
from penstock.wire.protocol import ErrorCode

BROKERS = (1, 2, 3, 4)
T = ("t", 0)
STATE = partition_state_path("t", 0)


class World:
    def __init__(self, least: int) -> None:
        self.image = min_isr(cluster(BROKERS, t=[state((1, 2, 3))]), least)
        self.follower = self.image
        self.partitions_by_broker = PartitionsByBroker(self.image)
        self.versions = {STATE: 7, topic_path("t"): 0}
        self.nodes: dict[str, bytes] = {}
        self.epochs = {broker: 100 + broker for broker in BROKERS}
        self.led = {5: 1}
        self.ends = dict.fromkeys(BROKERS, 0)
        self.committed = 0

    # What happens.

    def die(self, broker: int) -> None:
        if broker in self.image.brokers:
            gone = self.image.without_broker(broker)
            self.carry_out(
                brokers_changed(self.partitions_by_broker, gone, left=(broker,), uncleanly_stopped=(broker,))
            )

    def come(self, broker: int, emptied: bool) -> None:
        if broker in self.image.brokers:
            return
        self.epochs[broker] += 100
        there = self.image.with_broker(registered(broker, epoch=self.epochs[broker]))
        if emptied:
            self.ends[broker] = 0
        self.carry_out(
            brokers_changed(
                self.partitions_by_broker,
                there,
                joined=(broker,),
                uncleanly_stopped=(broker,),
                emptied=(broker,) if emptied else (),
            )
        )

    def ask_for_isr(self, broker: int, grow: bool) -> None:
        now = only(self.image)
        if now.leader not in self.image.brokers or broker == now.leader or broker not in now.replicas:
            return
        isr = {*now.isr, broker} if grow else {*now.isr} - {broker}
        if grow and broker in self.image.brokers:
            self.ends[broker] = self.ends[now.leader]  # it joins when it has caught up, not before
        members = tuple(isr)
        epochs = tuple(self.epochs[member] for member in members)
        request = IsrRequest(
            "t", 0, now.leader, self.epochs[now.leader], now.leader_epoch, now.state_version, members, epochs
        )
        decision = alter_isr(self.image, request)
        if not isinstance(decision, ErrorCode):
            self.carry_out(decision)

    def move(self, replicas: tuple[int, ...] | None) -> None:
        found = alter_reassignments(self.image, {T: replicas})
        assert not found.errors or found.decision == ((), self.image, ())
        for broker in set(BROKERS) - set(only(found.decision.image).replicas):
            self.ends[broker] = 0
        self.carry_out(found.decision)

    def stop(self, broker: int, force: bool) -> None:
        try:
            found = shut_down(self.partitions_by_broker, broker, self.epochs[broker], force=force)
        except ApiException:
            assert broker not in self.image.brokers
            return
        self.carry_out(found.decision)

    def change_least(self, least: int) -> None:
        self.carry_out(with_elections(Decision((), min_isr(self.image, least)), ["t"]))

    def write(self) -> None:
        now = only(self.image)
        if now.leader not in self.image.brokers:
            return
        self.ends[now.leader] += 1
        for member in now.isr:
            if member in self.image.brokers:
                self.ends[member] = self.ends[now.leader]
        if len(now.isr) >= partition_rules(self.image, "t").effective_min_isr(now) and set(now.isr) <= set(
            self.image.brokers
        ):
            self.committed = self.ends[now.leader]

    # What comes of it.

    def carry_out(self, decision: Decision) -> None:
        for operation in decision.operations:
            assert isinstance(operation, Set)
            assert operation.version in (-1, self.versions[operation.path]), "a state is written on condition, once"
            self.versions[operation.path] += 1
            self.nodes[operation.path] = operation.data
        before = self.image
        self.follower = apply_delta(self.follower, decode_delta(encode_delta(make_delta(before, decision.image))))
        assert self.follower == decision.image
        self.check_step(decision)
        self.image = decision.image
        self.partitions_by_broker.follow(self.image)
        now = only(self.image)
        for broker in set(BROKERS) - set(now.replicas):
            self.ends[broker] = 0
        if now.leader != NO_LEADER:
            assert self.ends[now.leader] >= self.committed, "the leader has everything that was committed"
            for broker in now.replicas:
                self.ends[broker] = min(self.ends[broker], self.ends[now.leader])

    def check_step(self, decision: Decision) -> None:
        was, now = only(self.image), only(decision.image)
        least = partition_rules(decision.image, "t").min_insync_replicas
        assert now.leader_epoch >= was.leader_epoch
        assert now.leader_epoch > was.leader_epoch or now.leader == was.leader
        assert self.led.setdefault(now.leader_epoch, now.leader) == now.leader, "two leaders in one epoch"
        assert now.isr, "the ISR is never empty"
        assert set(now.isr) <= set(now.replicas)
        assert not set(now.elr) & set(now.isr)
        assert set(now.elr) <= set(now.replicas)
        # Without a leader nothing is committed, whatever is enough.
        assert not now.elr or now.leader == NO_LEADER or len(now.isr) < least
        assert decision.unclean == ()
        if now.leader != NO_LEADER:
            assert now.leader in now.isr
            assert now.leader in decision.image.brokers
            assert now.leader == was.leader or now.leader in was.isr or now.leader in was.elr
        assert self.versions[STATE] == now.state_version
        if STATE in self.nodes:
            assert decode_partition_state(STATE, self.nodes[STATE]) == now.state
        if topic_path("t") in self.nodes:
            assert decode_topic("t", self.nodes[topic_path("t")]).partitions[0] == now.assignment


KINDS = (
    *("die", "die", "come", "come", "come", "empty", "shrink", "shrink", "grow", "grow", "grow", "move", "move"),
    *("back", "done", "done", "prefer", "stop", "force", "least"),
)
RUNS, STEPS_OF_A_RUN = 500, 40


def step(world: World, kind: str, broker: int, number: int) -> None:
    if kind == "die":
        world.die(broker)
    elif kind in ("come", "empty"):
        world.come(broker, emptied=kind == "empty")
    elif kind in ("shrink", "grow"):
        world.ask_for_isr(broker, grow=kind == "grow")
    elif kind == "move":
        world.move(tuple((broker + each) % 4 + 1 for each in range(number)))
    elif kind == "back":
        world.move(None)
    elif kind == "done":
        world.carry_out(complete_reassignments(world.image, world.partitions_by_broker.moving()))
    elif kind == "prefer":
        found = elect_leaders(world.image, [T], ElectionKind.PREFERRED)
        assert not found.errors or found.decision == ((), world.image, ())
        world.carry_out(found.decision)
    elif kind in ("stop", "force"):
        world.stop(broker, force=kind == "force")
    else:
        world.change_least(number)


@pytest.mark.long
def test_controller_loses_nothing_whatever_happens() -> None:
    """Many short runs, each from its seed: long ones end with all disks emptied and nothing to lose."""
    for seed in range(RUNS):
        random = SeededRandom(seed)
        world = World(1 + random.below(3))
        steps: list[tuple[str, int, int]] = []
        for _ in range(STEPS_OF_A_RUN):
            steps.append((KINDS[random.below(len(KINDS))], 1 + random.below(4), 1 + random.below(3)))
            try:
                step(world, *steps[-1])
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {steps}") from error
            if random.below(2):
                world.write()
                steps.append(("write", 0, 0))


def test_model_notices_a_leader_that_lacks_something() -> None:
    """The property can fail: an election of any replica is noticed."""
    world = World(1)
    world.ask_for_isr(2, grow=False)
    world.ask_for_isr(3, grow=False)
    world.write()
    assert world.committed > world.ends[2]
    world.die(1)
    assert only(world.image).leader == NO_LEADER
    assert not is_lost(only(world.image))
    forced = elect_leaders(world.image, [T], ElectionKind.UNCLEAN).decision
    assert world.ends[only(forced.image).leader] < world.committed
    assert forced.unclean == (T,)
