"""Where replicas go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.placement import Load, assign_replicas, load_of
from penstock.runtime.randomness import SeededRandom


def spread(counts: Counter[int], brokers: int) -> int:
    return max(counts[broker] for broker in range(brokers)) - min(counts[broker] for broker in range(brokers))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_leaders_and_replicas_are_spread_evenly(data: st.DataObject) -> None:
    brokers = data.draw(st.integers(1, 12))
    factor = data.draw(st.integers(1, brokers))
    partitions = data.draw(st.integers(1, 60))
    random = SeededRandom(data.draw(st.integers(0, 1000)))
    found = assign_replicas(dict.fromkeys(range(brokers)), partitions, factor, random)
    load = load_of(found)
    assert len(found) == partitions
    assert all(len(set(replicas)) == factor for replicas in found)
    assert spread(load.leaders, brokers) <= 1
    assert spread(load.replicas, brokers) <= 2


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_partition_is_in_as_many_racks_as_there_can_be(data: st.DataObject) -> None:
    racks = dict(enumerate(data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=10))))
    factor = data.draw(st.integers(1, len(racks)))
    found = assign_replicas(racks, data.draw(st.integers(1, 30)), factor, SeededRandom(1))
    sizes = Counter(racks.values())
    for replicas in found:
        used = Counter(racks[broker] for broker in replicas)
        assert len(used) == min(factor, len(sizes))
        fullest = max(used.values())
        # No rack has two more than another, unless the other has no more brokers.
        assert all(used[rack] >= fullest - 1 or used[rack] == sizes[rack] for rack in sizes)
    assert spread(load_of(found).leaders, len(racks)) <= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 50), st.data())
def test_with_equal_racks_replicas_are_even_too(racks: int, each: int, partitions: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, racks * each))
    placed = {broker: f"rack{broker % racks}" for broker in range(racks * each)}
    found = assign_replicas(placed, partitions, factor, SeededRandom(2))
    assert spread(load_of(found).replicas, racks * each) <= 2


def test_followers_of_a_leader_are_spread_so_that_its_failure_is() -> None:
    found = assign_replicas(dict.fromkeys(range(5)), 40, 2, SeededRandom(0))
    follows = load_of(found).follows
    pairs = [(leader, follower) for leader in range(5) for follower in range(5) if leader != follower]
    assert all(1 <= follows[pair] <= 3 for pair in pairs)


def test_new_partitions_go_where_the_topic_has_fewest() -> None:
    found = assign_replicas(dict.fromkeys(range(3)), 2, 1, SeededRandom(0), existing=[(0,), (0,), (1,), (1,)])
    assert found == [(2,), (2,)]


def test_many_small_topics_are_spread_over_the_cluster() -> None:
    load = Load()
    for number in range(30):
        assign_replicas(dict.fromkeys(range(3)), 1, 1, SeededRandom(number), elsewhere=load)
    assert set(load.leaders.values()) == {10}


def test_chance_decides_where_it_begins() -> None:
    firsts = {assign_replicas(dict.fromkeys(range(4)), 1, 1, SeededRandom(seed))[0] for seed in range(50)}
    assert len(firsts) == 4


@pytest.mark.parametrize(("brokers", "factor"), [(0, 1), (2, 3), (2, 0), (2, -1)])
def test_impossible_counts_are_rejected(brokers: int, factor: int) -> None:
    with pytest.raises(ValueError, match="replicas on"):
        assign_replicas(dict.fromkeys(range(brokers)), 1, factor, SeededRandom(0))
