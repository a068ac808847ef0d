"""Who reads what: shares as Kafka's own assignors give them, balance, and how little moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    GroupMember,
    RangeAssignor,
    RoundRobinAssignor,
    Shares,
    StickyAssignor,
    Subscription,
    assignors_from,
)

EVERY = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()]
TOPICS = ["a", "b", "c", "d"]


def member(
    name: str, *topics: str, owned: Iterable[TopicPartition] = (), generation: int = 1, instance: str | None = None
) -> GroupMember:
    return GroupMember(name, Subscription(topics, None, tuple(owned), generation), instance)


def holding(
    assignor: Assignor, name: str, topics: Iterable[str], owned: Iterable[TopicPartition], generation: int = 1
) -> GroupMember:
    """A member as the group sees it: sticky ones report their previous partitions in the user data."""
    held = tuple(owned)
    cooperative = assignor.protocol == "cooperative"
    subscription = Subscription(
        tuple(topics), assignor.user_data(held, generation), held if cooperative else (), generation
    )
    return GroupMember(name, subscription)


def numbers(shares: Shares) -> dict[str, list[tuple[str, int]]]:
    return {name: [(topic, index) for topic, index in share] for name, share in shares.items()}


groups = st.tuples(
    st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9)),
    st.dictionaries(st.text("mnop", min_size=1, max_size=3), st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=6),
)


@pytest.mark.parametrize("assignor", EVERY, ids=lambda a: a.name)
@given(groups)
def test_every_partition_that_is_wanted_is_read_by_one_member_that_wants_it(
    assignor: Assignor, group: tuple[dict[str, int], dict[str, set[str]]]
) -> None:
    counts, wishes = group
    members = [member(name, *sorted(topics)) for name, topics in wishes.items()]
    shares = assignor.assign(counts, members)
    assert set(shares) == set(wishes)
    for name, share in shares.items():
        assert {partition.topic for partition in share} <= wishes[name]
    given_out = Counter(partition for share in shares.values() for partition in share)
    wanted = {t for topics in wishes.values() for t in topics}
    expected = {TopicPartition(t, i) for t in wanted for i in range(counts.get(t, 0))}
    assert given_out == Counter(expected)


def test_range_splits_each_topic_into_runs_the_first_ones_longer() -> None:
    shares = RangeAssignor().assign({"t": 7, "u": 2}, [member("c", "t"), member("a", "t", "u"), member("b", "t", "u")])
    assert numbers(shares) == {
        "a": [("t", 0), ("t", 1), ("t", 2), ("u", 0)],
        "b": [("t", 3), ("t", 4), ("u", 1)],
        "c": [("t", 5), ("t", 6)],
    }


def test_round_robin_skips_members_that_do_not_subscribe() -> None:
    shares = RoundRobinAssignor().assign(
        {"t0": 1, "t1": 2, "t2": 3}, [member("c0", "t0"), member("c1", "t0", "t1"), member("c2", "t0", "t1", "t2")]
    )
    assert numbers(shares) == {
        "c0": [("t0", 0)],
        "c1": [("t1", 0)],
        "c2": [("t1", 1), ("t2", 0), ("t2", 1), ("t2", 2)],
    }


def test_static_members_come_first_in_the_order_of_their_instance_ids() -> None:
    members = [member("a", "t"), member("z", "t", instance="i1"), member("b", "t", instance="i2")]
    assert numbers(RangeAssignor().assign({"t": 3}, members)) == {"z": [("t", 0)], "b": [("t", 1)], "a": [("t", 2)]}


class _Cluster:
    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if self._counts.get(topic) else None


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@given(groups)
@settings(max_examples=60)
def test_aiokafkas_assignors_give_the_same_shares(name: str, group: tuple[dict[str, int], dict[str, set[str]]]) -> None:
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    peer = RangePartitionAssignor if name == "range" else RoundRobinPartitionAssignor
    counts, wishes = group
    ours = assignors_from([name])[0].assign(counts, [member(who, *topics) for who, topics in wishes.items()])
    theirs = peer.assign(_Cluster(counts), {who: peer.metadata(sorted(topics)) for who, topics in wishes.items()})
    flat = {who: [(t, i) for t, indexes in share.assignment for i in indexes] for who, share in theirs.items()}
    assert {who: sorted(share) for who, share in ours.items()} == {who: sorted(share) for who, share in flat.items()}


@pytest.mark.parametrize("assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda a: a.name)
@given(st.integers(1, 7), st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1))
def test_with_equal_wishes_sticky_shares_differ_by_at_most_one(
    assignor: Assignor, readers: int, counts: dict[str, int]
) -> None:
    shares = assignor.assign(counts, [member(f"m{n}", *counts, generation=-1) for n in range(readers)])
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 6), st.integers(-3, 3), st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1))
def test_when_members_come_or_go_only_what_must_move_moves(readers: int, change: int, counts: dict[str, int]) -> None:
    assignor = StickyAssignor()
    before = assignor.assign(counts, [member(f"m{n}", *counts, generation=-1) for n in range(readers)])
    after_readers = max(1, readers + change)
    members = [holding(assignor, f"m{n}", counts, before.get(f"m{n}", ())) for n in range(after_readers)]
    after = assignor.assign(counts, members)
    total = sum(counts.values())
    moved = sum(len(set(share) - set(before.get(name, ()))) for name, share in after.items())
    if after_readers <= readers:
        orphans = sum(len(before[f"m{n}"]) for n in range(after_readers, readers))
        assert moved == orphans
    else:
        needed = sum(len(after[f"m{n}"]) for n in range(readers, after_readers))
        assert moved == needed
    sizes = [len(share) for share in after.values()]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == total


@given(groups)
def test_no_chain_of_moves_could_even_sticky_shares_out_further(
    group: tuple[dict[str, int], dict[str, set[str]]],
) -> None:
    counts, wishes = group
    shares = StickyAssignor().assign(counts, [member(n, *t, generation=-1) for n, t in wishes.items()])
    for giver, share in shares.items():
        for partition in share:
            for taker, topics in wishes.items():
                if partition.topic in topics:
                    assert len(shares[taker]) >= len(shares[giver]) - 1


def test_a_chain_over_a_third_member_evens_out_what_one_move_cannot() -> None:
    # m1 has four of a, m2 two of b, m3 none and wants only b; m2 wants both.
    a, b = [TopicPartition("a", n) for n in range(4)], [TopicPartition("b", n) for n in range(2)]
    assignor = StickyAssignor()
    shares = assignor.assign(
        {"a": 4, "b": 2},
        [holding(assignor, "m1", ["a"], a), holding(assignor, "m2", ["a", "b"], b), holding(assignor, "m3", ["b"], [])],
    )
    assert sorted(len(share) for share in shares.values()) == [2, 2, 2]


@given(groups)
def test_sticky_shares_stay_as_they_are_when_nothing_changes(group: tuple[dict[str, int], dict[str, set[str]]]) -> None:
    counts, wishes = group
    assignor = StickyAssignor()
    before = assignor.assign(counts, [member(n, *t, generation=-1) for n, t in wishes.items()])
    again = assignor.assign(counts, [holding(assignor, n, t, before[n]) for n, t in wishes.items()])
    assert again == before


def test_of_two_claims_the_later_generation_counts_and_of_equal_ones_neither() -> None:
    p = [TopicPartition("t", n) for n in range(2)]
    assignor = CooperativeStickyAssignor()
    kept = assignor.kept(
        [holding(assignor, "old", ["t"], p, 3), holding(assignor, "new", ["t"], [p[0]], 4)], frozenset(p)
    )
    assert kept == {"old": [p[1]], "new": [p[0]]}
    kept = assignor.kept(
        [holding(assignor, "x", ["t"], [p[0]], 4), holding(assignor, "y", ["t"], [p[0]], 4)], frozenset(p)
    )
    assert kept == {"x": [], "y": []}


def test_a_partition_that_moves_has_no_owner_for_one_rebalance() -> None:
    assignor = CooperativeStickyAssignor()
    every = [TopicPartition("t", n) for n in range(4)]
    first = assignor.assign({"t": 4}, [holding(assignor, "a", ["t"], every, 1), holding(assignor, "b", ["t"], [], -1)])
    assert len(first["a"]) == 2
    assert first["b"] == []
    second = assignor.assign(
        {"t": 4}, [holding(assignor, "a", ["t"], first["a"], 2), holding(assignor, "b", ["t"], [], 2)]
    )
    assert second["a"] == first["a"]
    assert sorted(second["a"] + second["b"]) == every


def test_unknown_and_duplicate_names_are_rejected_with_the_choices() -> None:
    with pytest.raises(ValueError, match="cooperative-sticky"):
        assignors_from(["ranges"])
    with pytest.raises(ValueError, match="twice"):
        assignors_from(["range", "range"])
    with pytest.raises(ValueError, match="at least one"):
        assignors_from([])
