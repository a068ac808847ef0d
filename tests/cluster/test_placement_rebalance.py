"""Plans that spread partitions evenly and move little."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.controller.transaction import TopicPartition
from penstock.cluster.placement import Plan, assign_replicas, load_of, plan_rebalance
from penstock.runtime.randomness import SeededRandom

Assignment = dict[TopicPartition, tuple[int, ...]]


def spread_over(racks: dict[int, str | None], partitions: int, factor: int) -> Assignment:
    placed = assign_replicas(racks, partitions, factor, SeededRandom(1))
    return {(f"t{index % 3}", index // 3): replicas for index, replicas in enumerate(placed)}


def after(assignment: Assignment, plan: Plan) -> Assignment:
    return {**assignment, **plan.assignments}


def differences(assignment: Assignment, brokers: list[int]) -> tuple[int, int]:
    """Between who has most and least: of replicas, and of leaders."""
    load = load_of(assignment.values())
    replicas, leaders = ([counts[broker] for broker in brokers] for counts in (load.replicas, load.leaders))
    return max(replicas) - min(replicas), max(leaders) - min(leaders)


def test_new_broker_gets_its_share_and_nothing_else_is_moved() -> None:
    racks: dict[int, str | None] = dict.fromkeys(range(4))
    before = spread_over(racks, 40, 3)
    racks[4] = None
    plan = plan_rebalance(before, racks)
    assert plan.copies == 24  # 120 replicas on 5 brokers
    assert differences(after(before, plan), list(racks)) == (0, 0)
    assert {broker for key in plan.assignments for broker in plan.assignments[key]} >= {4}
    assert plan_rebalance(after(before, plan), racks) == ({}, 0)


def test_broker_is_drained_and_only_its_replicas_are_copied() -> None:
    racks: dict[int, str | None] = dict.fromkeys(range(5))
    before = spread_over(racks, 30, 3)
    held = sum(4 in replicas for replicas in before.values())
    del racks[4]
    plan = plan_rebalance(before, racks)
    assert plan.copies == held
    assert not any(4 in replicas for replicas in after(before, plan).values())
    assert max(differences(after(before, plan), list(racks))) <= 1


def test_broker_is_drained_while_there_are_to_be_fewer_replicas() -> None:
    before: Assignment = {("t", index): (0, 1, 2) for index in range(4)}
    plan = plan_rebalance(before, {0: None, 1: None}, 2)
    assert {key: set(replicas) for key, replicas in after(before, plan).items()} == {key: {0, 1} for key in before}
    assert plan.copies == 0


def test_leaders_are_evened_by_the_order_alone_even_over_a_third_broker() -> None:
    pairs = [(1, 2), (1, 2), (1, 4), (2, 3), (2, 3), (4, 3), (4, 1), (3, 4)]
    before: Assignment = {("t", index): pair for index, pair in enumerate(pairs)}
    plan = plan_rebalance(before, dict.fromkeys((1, 2, 3, 4)))
    assert differences(before, [1, 2, 3, 4]) == (0, 2)
    assert differences(after(before, plan), [1, 2, 3, 4]) == (0, 0)
    assert plan.copies == 0
    assert len(plan.assignments) == 2


def test_partition_in_too_few_racks_is_mended() -> None:
    plan = plan_rebalance({("t", 0): (1, 2), ("t", 1): (3, 1)}, {1: "a", 2: "a", 3: "b", 4: "b"})
    first = plan.assignments["t", 0]
    assert len({1, 2} & set(first)) == 1
    assert len({3, 4} & set(first)) == 1


def test_more_and_fewer_replicas() -> None:
    racks = {1: "a", 2: "b", 3: "c"}
    before: Assignment = {("t", 0): (1,), ("t", 1): (2, 3, 1)}
    plan = after(before, plan_rebalance(before, racks, 2))
    assert {len(set(replicas)) for replicas in plan.values()} == {2}
    assert 1 in plan["t", 0]


@pytest.mark.parametrize("factor", [0, 3])
def test_more_replicas_than_brokers_are_rejected(factor: int) -> None:
    with pytest.raises(ValueError, match="brokers"):
        plan_rebalance({("t", 0): (1,)}, {1: None, 2: None}, factor)
    with pytest.raises(ValueError, match="brokers"):
        plan_rebalance({("t", 0): (1, 2)}, {1: None})
    assert plan_rebalance({}, {1: None}) == ({}, 0)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_cluster_is_evened_without_losing_a_replica_or_a_rack(data: st.DataObject) -> None:
    brokers = data.draw(st.integers(2, 7))
    with_racks = data.draw(st.booleans())
    racks = {broker: data.draw(st.sampled_from("abc")) if with_racks else None for broker in range(brokers)}
    factor = data.draw(st.integers(1, brokers))
    keys = [("t" + str(index % 2), index // 2) for index in range(data.draw(st.integers(1, 14)))]
    everyone = st.permutations(range(brokers + 1))  # one more than may be used
    before = {key: tuple(data.draw(everyone)[:factor]) for key in keys}
    plan = plan_rebalance(before, racks)
    found = after(before, plan)
    rack = {broker: broker if name is None else name for broker, name in racks.items()}
    for replicas in found.values():
        assert len(set(replicas)) == factor
        assert set(replicas) <= set(racks)
        assert len({rack[broker] for broker in replicas}) == min(factor, len(set(rack.values())))
    if not with_racks:
        assert differences(found, list(racks))[0] <= 1
    assert plan == plan_rebalance(before, racks)
