"""Rows of a snapshot: sums, history, pages."""

from __future__ import annotations

from penstock.client.admin import ClusterDescription, GroupListing, PartitionDescription, TopicDescription
from penstock.client.cluster_metadata import Node, TopicPartition
from penstock.console.cluster.state import (
    GroupRow,
    LeaderChange,
    broker_rows,
    group_rows,
    leader_changes,
    leaders_of,
    newest_leaders,
    page_of,
    state_findings,
    topic_rows,
)

ONE, TWO = Node(1, "a", 1), Node(2, "b", 1)


def topic(name: str, *parts: tuple[Node | None, tuple[int, ...], tuple[int, ...]]) -> TopicDescription:
    described = (PartitionDescription(index, *part[:1], 0, *part[1:]) for index, part in enumerate(parts))
    return TopicDescription(name, None, False, tuple(described))


def test_a_topic_is_summed_up_and_keeps_its_history() -> None:
    views = topic("views", (ONE, (1, 2), (1, 2)), (ONE, (1, 2), (1,)), (None, (2,), ()))
    rows = topic_rows([views], {})
    row = rows["views"]
    assert (row.partitions, row.replication, row.leaderless, row.under_replicated) == (3, 2, 1, 1)
    row.end, row.rate = 10, 1.5
    row.history.append(1.5)
    again = topic_rows([views], rows)["views"]
    assert (again.end, again.rate, list(again.history)) == (10, 1.5, [1.5])


def test_a_broker_that_is_away_is_a_finding() -> None:
    cluster = ClusterDescription("c", ONE, (ONE,))
    rows = broker_rows(cluster, [topic("views", (ONE, (1, 2), (1,)))], {}, {1: "Penstock 1"})
    assert [(row.id, row.is_away, row.leaders, row.replicas) for row in rows] == [(1, False, 1, 1), (2, True, 0, 1)]
    (finding,) = state_findings(rows, [])
    assert (finding.subject, finding.level) == ("broker 2", "problem")


def test_lag_that_grows_at_each_sample_is_a_finding() -> None:
    def group(*lags: float) -> GroupRow:
        row = GroupRow("feed", "Stable", "classic", "consumer", 1, lag_records=int(lags[-1]))
        row.history.extend(lags)
        return row

    growing = group(*range(0, 8000, 1000))
    assert growing.is_growing
    assert [each.check for each in state_findings([], [growing])] == ["lag"]
    assert not group(*range(0, 80, 10)).is_growing  # within what a pause explains
    assert not group(*range(8000, 0, -1000)).is_growing
    assert not group(0, 9000).is_growing  # too few samples


def test_spark_streams_are_told_from_other_groups() -> None:
    listings = [
        GroupListing("feed-3f0e1c9a-1111-4222-8333-444455556666", "consumer", "Stable", "classic", ONE),
        GroupListing("billing", "consumer", "Empty", "", ONE),
        GroupListing("connect", "connect", "Stable", "classic", ONE),
    ]
    assert [row.kind for row in group_rows(listings, {}).values()] == ["Spark", "classic", "connect"]


def test_pages_of_a_list() -> None:
    rows = [f"topic-{number:03}" for number in range(120)]
    sizes: dict[str, int | None] = dict.fromkeys(rows)
    sizes["topic-050"], sizes["topic-051"] = 7, 9
    page = page_of(rows, name=str, key=sizes.get, descending=True, size=50)
    assert page.rows[:3] == ["topic-051", "topic-050", "topic-000"]  # unknown ones come last
    assert (page.total, page.pages) == (120, 3)
    assert page_of(rows, name=str, number=99, size=50).rows == rows[100:]
    assert page_of(rows, search="PIC -07", name=str).total == 10
    assert page_of([], name=str, search="x").rows == []


def led(*parts: tuple[Node | None, int], topic_id: bytes = b"a") -> TopicDescription:
    described = (
        PartitionDescription(index, leader, epoch, (1, 2), (1,)) for index, (leader, epoch) in enumerate(parts)
    )
    return TopicDescription("views", topic_id, False, tuple(described))


def test_elections_are_what_changed_between_two_looks() -> None:
    first = leaders_of([led((ONE, 3), (ONE, 3), (ONE, 3))])
    assert leader_changes({}, first, 5) == []
    assert leader_changes(first, first, 5) == []
    then = leaders_of([led((TWO, 4), (ONE, 3), (None, 4), (TWO, 0))])
    assert leader_changes(first, then, 5) == [
        LeaderChange(5, TopicPartition("views", 0), 1, 2, 3, 4),
        LeaderChange(5, TopicPartition("views", 2), 1, None, 3, 4),
    ]
    again = leaders_of([led((TWO, 6), (ONE, 3), (None, 4), (TWO, 0))])
    assert leader_changes(then, again, 6) == [LeaderChange(6, TopicPartition("views", 0), 2, 2, 4, 6)]


def test_a_topic_that_was_created_again_has_no_elections() -> None:
    first, other = leaders_of([led((ONE, 3))]), leaders_of([led((TWO, 0), topic_id=b"b")])
    assert leader_changes(first, other, 5) == []
    assert newest_leaders(first, other) == other


def test_a_broker_that_is_behind_makes_no_election() -> None:
    first, behind = leaders_of([led((TWO, 4), (ONE, 1))]), leaders_of([led((ONE, 3), (ONE, 2))])
    assert leader_changes(first, behind, 5) == [LeaderChange(5, TopicPartition("views", 1), 1, 1, 1, 2)]
    known = newest_leaders(first, behind)
    assert known == leaders_of([led((TWO, 4), (ONE, 2))])
    assert leader_changes(known, leaders_of([led((TWO, 4), (ONE, 2))]), 6) == []
