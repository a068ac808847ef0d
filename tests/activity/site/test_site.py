"""The site as a pure function: the same whenever it is asked, at the rate that was asked for, of a plausible shape."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

from penstock.activity.events import API_CALLS_PER_MINUTE, BY_TOPIC, FOLLOWS, KINDS
from penstock.activity.site import Rhythm, Site, Sizes, rows_between
from penstock.activity.site.behaviour import TICK_MS
from penstock.activity.site.encoding import Batches
from penstock.activity.site.randomness import Purpose, random_generator
from penstock.activity.site.vocabulary import KEYWORDS

ORIGIN_MS = 1_790_000_000_000
Rows = dict[str, list[dict[str, Any]]]


def site(**options: Any) -> Site:
    return Site(**{"seed": 1, "rate": 2000, "origin_ms": ORIGIN_MS, "rhythm": "flat", **options})


def rows_of(made: Site, since_s: float, until_s: float) -> Rows:
    rows: Rows = defaultdict(list)
    for kind, row in rows_between(made, ORIGIN_MS + round(since_s * 1000), ORIGIN_MS + round(until_s * 1000)):
        rows[kind.topic].append(row)
    return rows


@pytest.fixture(scope="module")
def minute() -> Rows:
    """The second minute of the site."""
    return rows_of(site(), 60, 120)


def values(made: Site, ticks: range) -> dict[str, list[bytes]]:
    return {each.topic: each.records.column("value").to_pylist() for each in Batches(made).of(ticks)}


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    first = site().first_tick
    ticks = range(first, first + 40)
    assert values(site(), ticks) == values(site(), ticks)
    assert values(site(), ticks)["views"] != values(site(seed=2), ticks)["views"]


@pytest.mark.parametrize("after", [0, 7, 35, 1234, 7_000])
def test_a_tick_made_alone_is_the_tick_made_in_a_row(after: int) -> None:
    in_a_row, number = site(), site().first_tick + after
    for before in range(max(number - 35, in_a_row.first_tick), number):
        in_a_row.tick(before)
    alone = site()
    alone.tick(number + 500)
    assert values(in_a_row, range(number, number + 1)) == values(alone, range(number, number + 1))


def test_neighbouring_moments_share_no_draws() -> None:
    tick, next_tick = (random_generator(1, Purpose.READING, number).integers(0, 2**62, 4000) for number in (10, 11))
    assert not set(tick.tolist()) & set(next_tick.tolist())


def test_there_is_nothing_before_the_origin() -> None:
    made = site()
    with pytest.raises(ValueError, match="before the site's first"):
        made.tick(made.first_tick - 1)


def test_an_origin_between_ticks_is_the_next_tick() -> None:
    assert site(origin_ms=ORIGIN_MS + 1).origin_ms == ORIGIN_MS + TICK_MS


def test_events_have_their_kind_s_columns_ids_of_their_own_and_come_in_order(minute: Rows) -> None:
    assert set(minute) == {kind.topic for kind in KINDS}
    for topic, rows in minute.items():
        kind = BY_TOPIC[topic]
        assert all(tuple(row) == kind.names for row in rows)
        assert len({row["id"] for row in rows}) == len(rows)
        times = [row["time"] for row in rows]
        assert times == sorted(times)
        assert times[0] >= ORIGIN_MS + 60_000
        assert times[-1] < ORIGIN_MS + 120_000
        assert max(row["id"] for row in rows) < 2**53


def test_the_rate_and_the_shares_of_kinds_are_kept(minute: Rows) -> None:
    planted = planted_actors(site())
    ordinary = {
        topic: [row for row in rows if row.get("member", row.get("client")) not in planted]
        for topic, rows in minute.items()
    }
    total = sum(len(rows) for topic, rows in ordinary.items() if topic != "servers")
    # What a trend adds is not the rate's: at most 8 views/s and what goes with them.
    assert total / 60 == pytest.approx(2000, rel=0.03)
    shares = {topic: len(rows) / total for topic, rows in ordinary.items()}
    expected = {
        "impressions": 0.365, "requests": 0.227, "views": 0.18, "api_calls": 0.10, "searches": 0.08, "votes": 0.04,
        "posts": 0.01,
    }  # fmt: skip
    for topic, share in expected.items():
        assert shares[topic] == pytest.approx(share, rel=0.2), topic
    assert shares["follows"] == pytest.approx(0.0003, rel=0.5)  # three dozen, by chance
    assert len(minute["servers"]) == 8 * 60


def planted_actors(made: Site) -> set[Any]:
    planted = made.population.planted
    members = np.concatenate([planted.crawlers, planted.readers, planted.spammers, planted.posters]).tolist()
    clients = np.concatenate([planted.abusers, planted.busy]).tolist()
    return {*members, *(made.population.client_names[client] for client in clients)}


def test_planted_actors_do_as_much_whatever_the_rate() -> None:
    def crawled(rate: float) -> int:
        made = site(rate=rate)
        crawlers = set(made.population.planted.crawlers.tolist())
        return sum(row["member"] in crawlers for row in rows_of(made, 10, 20)["views"])

    assert crawled(500) == pytest.approx(crawled(5000), abs=6)


def test_popularity_has_a_heavy_tail(minute: Rows) -> None:
    planted = planted_actors(site())
    ordinary = [row for row in minute["views"] if row["member"] not in planted]
    views = Counter(row["item"] for row in ordinary)
    top = sum(count for _, count in views.most_common(50))
    assert 0.08 < top / len(ordinary) < 0.35
    assert len(views) > 2_500
    keywords = Counter(row["keyword"] for row in minute["searches"])
    assert 0.2 < sum(count for _, count in keywords.most_common(40)) / len(minute["searches"]) < 0.6
    assert len(keywords) > 800


def test_honest_members_are_slower_than_crawlers_and_stay_for_a_while(minute: Rows) -> None:
    planted = planted_actors(site())
    views = Counter(row["member"] for row in minute["views"] if row["member"] not in planted)
    assert 2 < sum(views.values()) / len(views) < 8
    assert max(views.values()) < 25
    sessions = defaultdict(set)
    for row in minute["views"]:
        sessions[row["session"]].add(row["member"])
    assert {len(members) for members in sessions.values()} == {1}
    assert len(sessions) > len(views)


def test_honest_programs_keep_to_the_limit_even_the_busy_ones(minute: Rows) -> None:
    made = site()
    abusers = {made.population.client_names[client] for client in made.population.planted.abusers.tolist()}
    calls = Counter(row["client"] for row in minute["api_calls"])
    honest = {client: count for client, count in calls.items() if client not in abusers}
    assert max(honest.values()) <= API_CALLS_PER_MINUTE
    assert sorted(honest.values())[-5] > 0.75 * API_CALLS_PER_MINUTE


def test_clicks_follow_their_impressions_and_prefer_the_top_and_the_good() -> None:
    made = site()
    planted = planted_actors(made)
    rows = rows_of(made, 0, 40)
    shown: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    by_position, clicked_quality, all_quality = Counter[int](), [], []
    for row in rows["impressions"]:
        place = (row["session"], row["item"], row["position"])
        quality = made.population.quality[row["item"] - 1]
        if row["action"] == "impression":
            shown[place].append(row["time"])
            all_quality.append(quality)
        elif row["member"] not in planted:
            assert any(800 <= row["time"] - time <= 3000 for time in shown[place])
            by_position[row["position"]] += 1
            clicked_quality.append(quality)
    assert by_position[1] > 1.5 * by_position[3] > 2 * by_position[8]
    assert np.mean(clicked_quality) > 1.15 * np.mean(all_quality)
    arrived = {(row["session"], row["item"]) for row in rows["views"] if row["referrer"] == "list"}
    assert (
        sum((row["session"], row["item"]) in arrived for row in rows["impressions"] if row["action"] == "click") > 500
    )


def test_good_items_are_voted_for(minute: Rows) -> None:
    quality = site().population.quality
    votes = [(quality[row["item"] - 1], row["vote"]) for row in minute["votes"]]
    assert {vote for _, vote in votes} == {1, -1}
    assert np.mean([q for q, vote in votes if vote > 0]) > np.mean([q for q, vote in votes if vote < 0]) + 0.05


def test_the_site_opens_with_those_who_follow_within_five_seconds() -> None:
    made = site()
    followers, followed = made.population.follow_graph
    edges = set(zip(followers.tolist(), followed.tolist(), strict=True))
    assert len(edges) == len(followers)
    assert not any(follower == other for follower, other in edges)
    opening = [row for row in rows_of(made, 0, 5)["follows"] if row["action"] == "follow"]
    assert edges <= {(row["member"], row["followed"]) for row in opening}
    assert len(opening) < 12_000
    later = rows_of(made, 5, 65)[FOLLOWS.topic]
    assert {row["action"] for row in later} == {"follow", "unfollow"}
    assert len(later) < 600
    assert not any(row["member"] == row["followed"] for row in later)


def test_groups_search_for_different_things(minute: Rows) -> None:
    by_group: dict[str, Counter[str]] = defaultdict(Counter)
    for row in minute["searches"]:
        by_group[row["user_group"]][row["keyword"]] += 1
    assert set(by_group) == {"new", "regular", "professional"}
    tops = {group: counts.most_common(1)[0][0] for group, counts in by_group.items()}
    assert len(set(tops.values())) == 3
    assert by_group["regular"].total() > by_group["new"].total() > by_group["professional"].total()


def test_no_text_needs_an_escape(minute: Rows) -> None:
    for rows in minute.values():
        for row in rows:
            for value in row.values():
                assert not isinstance(value, str) or json.dumps(value, ensure_ascii=False) == f'"{value}"'
    assert len(set(KEYWORDS)) == len(KEYWORDS)


def test_evenings_are_busier_than_mornings_and_a_week_has_the_mean_of_one() -> None:
    hours = [Rhythm.DAILY.factor(hour * 3_600_000) for hour in range(7 * 24)]
    assert sum(hours) / len(hours) == pytest.approx(1.0, abs=0.01)
    monday = 4 * 86_400_000
    evening, morning = (Rhythm.DAILY.factor(monday + hour * 3_600_000) for hour in (19, 5))
    assert evening > 1.3
    assert morning < 0.75
    assert Rhythm.FLAT.factor(12345) == 1.0
    midnight = 20_000 * 86_400_000

    def made_at(hour: int) -> int:
        open_site = Site(seed=1, rate=3000, origin_ms=midnight)
        tick = (midnight + hour * 3_600_000) // TICK_MS
        return sum(len(open_site.tick(tick + n)["views"]) for n in range(20))

    assert made_at(19) > 1.5 * made_at(5)


def test_many_members_cost_nothing_and_all_have_ids_of_their_own() -> None:
    population = site(rate=100_000).population
    ids = population.member_id(np.arange(population.sizes.members))
    assert len(np.unique(ids)) == population.sizes.members == 1_000_000
    assert (ids.min(), ids.max()) == (1, 1_000_000)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rate": 0}, "the rate is 0 events/s"),
        ({"rate": 10**7}, "the rate is 1e"),
        ({"rate": 2000, "members": 1500}, "looks like a crawler"),
        ({"rate": 2000, "items": 10}, "10 items"),
        ({"rate": 2000, "servers": 1}, "1 servers"),
    ],
)
def test_invalid_sizes_are_rejected(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Sizes.for_rate(**options)


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": 2**63}, {"incident_after_ms": 10**6}, {"rhythm": "odd"}])
def test_invalid_site_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"seed|incident|odd"):
        site(**options)
