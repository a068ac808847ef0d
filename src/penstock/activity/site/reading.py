"""What members do: lists and clicks, views, votes, searches, posts, follows.

Rule: a tick's events follow from the tick's number and the few ticks before it whose lists are still being looked at. A
list is shown; 0.8 to 3 s later, by a delay that goes by the list's place in its tick, its clicks come, each with a
view. A click depends on where the item stood and on how good it is, a vote on how good it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from penstock.activity.events import FOLLOWS, IMPRESSIONS, POSTS, SEARCHES, VIEWS, VOTES, Kind
from penstock.activity.site import words
from penstock.activity.site.chance import Flags, Ints, Purpose, draws
from penstock.activity.site.columns import TICK_MS, Piece
from penstock.activity.site.population import Population
from penstock.activity.site.rhythm import Rhythm
from penstock.activity.site.sessions import Sessions, Visitors
from penstock.activity.site.words import KEYWORDS, TEXTS, honest_text

VIEWS_SHARE: Final = 0.18
_LISTS: Final = 0.0575
_DIRECT_VIEWS: Final = 0.16
_VOTES: Final = 0.04
_SEARCHES: Final = 0.08
_POSTS: Final = 0.01
_FOLLOWS: Final = 0.0003
"""Few, beside those of the opening: whom a member follows changes by the week, not by the minute."""
_UNFOLLOWS: Final = 0.2
_FROM_THE_FOLLOWED: Final = 0.6
_LINKED: Final = 0.06
_SHORTEST_LIST: Final = 4
_LONGEST_LIST: Final = 8
_POSITION_BIAS: Final = np.array([0.0, 0.30, 0.21, 0.15, 0.11, 0.08, 0.06, 0.05, 0.04])
_DELAYS: Final = (8, 15, 30)
_REFERRED: Final = np.array([words.FROM_SEARCH] * 45 + [words.DIRECT] * 30 + [words.EXTERNAL] * 25)
_OPENING_TICKS: Final = 50
"""In these first ticks those follow that do when the site opens."""
Made = Iterator[tuple[Kind, Piece]]


@dataclass(frozen=True)
class Lists:
    """The lists shown in a tick, an entry for each item in one."""

    members: Ints
    sessions: Ints
    items: Ints
    positions: Ints
    times: Ints
    delays: Ints
    clicked: Flags


class Reading:
    """What members do at a mean rate of events a second (of all kinds)."""

    def __init__(
        self, population: Population, sessions: Sessions, rate: float, rhythm: Rhythm, first_tick: int
    ) -> None:  # fmt: skip
        self._population = population
        self._sessions = sessions
        self._per_tick = rate * TICK_MS / 1000
        self._rhythm = rhythm
        self._first_tick = first_tick
        self._lists = lru_cache(maxsize=max(_DELAYS) + 2)(self._shown)

    def of(self, tick: int) -> Made:
        """All that members do in a tick."""
        time_ms = tick * TICK_MS
        rng = draws(self._population.seed, Purpose.READING, tick)
        visitors = self._sessions.at(time_ms)
        mean = self._per_tick * self._rhythm.factor(time_ms)
        yield from self._listed(tick)
        yield from self._clicks(tick, rng)
        yield VIEWS, self._views(rng, visitors, rng.poisson(mean * _DIRECT_VIEWS))
        yield VOTES, self._votes(rng, visitors, rng.poisson(mean * _VOTES))
        yield SEARCHES, self._searches(rng, visitors, rng.poisson(mean * _SEARCHES))
        yield POSTS, self._posts(rng, visitors, rng.poisson(mean * _POSTS))
        yield FOLLOWS, self._follows(rng, rng.poisson(mean * _FOLLOWS))
        if 0 <= tick - self._first_tick < _OPENING_TICKS:
            yield FOLLOWS, self._opening(rng, tick - self._first_tick)

    # --- lists and what comes of them

    def _shown(self, tick: int) -> Lists:
        population = self._population
        rng = draws(population.seed, Purpose.LISTS, tick)
        visitors = self._sessions.at(tick * TICK_MS)
        count = rng.poisson(self._per_tick * self._rhythm.factor(tick * TICK_MS) * _LISTS)
        members, sessions = visitors.drawn(rng, count)
        lengths = rng.integers(_SHORTEST_LIST, _LONGEST_LIST + 1, count)
        which = np.repeat(np.arange(count), lengths)
        positions = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
        items = population.items.draw(rng, len(which))
        clicked = rng.random(len(which)) < _POSITION_BIAS[positions] * population.quality[items]
        # One millisecond is left for the view that follows a click.
        times = rng.integers(0, TICK_MS - 1, count)
        delays = np.asarray(_DELAYS)[np.arange(count) % len(_DELAYS)]
        return Lists(members[which], sessions[which], items, positions, times[which], delays[which], clicked)

    def _listed(self, tick: int) -> Made:
        shown = self._lists(tick)
        yield IMPRESSIONS, _impression(shown, slice(None), words.IMPRESSION)

    def _clicks(self, tick: int, rng: np.random.Generator) -> Made:
        for delay in _DELAYS:
            if tick - delay < self._first_tick:
                continue
            shown = self._lists(tick - delay)
            chosen = np.flatnonzero(shown.clicked & (shown.delays == delay))
            yield IMPRESSIONS, _impression(shown, chosen, words.CLICK)
            yield VIEWS, {
                "time": shown.times[chosen] + 1, "member": shown.members[chosen], "session": shown.sessions[chosen],
                "item": shown.items[chosen] + 1, "referrer": np.full(len(chosen), words.FROM_LIST),
                "dwell_ms": _dwell(rng, len(chosen)),
            }  # fmt: skip

    # --- what comes by itself

    def _views(self, rng: np.random.Generator, visitors: Visitors, count: int) -> Piece:
        members, sessions = visitors.drawn(rng, count)
        return {
            "time": _moments(rng, count), "member": members, "session": sessions,
            "item": self._population.items.draw(rng, count) + 1,
            "referrer": _REFERRED[rng.integers(0, len(_REFERRED), count)], "dwell_ms": _dwell(rng, count),
        }  # fmt: skip

    def _votes(self, rng: np.random.Generator, visitors: Visitors, count: int) -> Piece:
        members, _ = visitors.drawn(rng, count)
        items = self._population.items.draw(rng, count)
        for_it = rng.random(count) < 0.15 + 0.8 * self._population.quality[items]
        return {
            "time": _moments(rng, count), "member": members, "item": items + 1, "vote": np.where(for_it, 1, -1)
        }  # fmt: skip

    def _searches(self, rng: np.random.Generator, visitors: Visitors, count: int) -> Piece:
        users, _ = visitors.drawn(rng, count)
        groups = self._population.groups(users)
        ranks = self._population.keywords.draw(rng, count)
        return {
            "time": _moments(rng, count), "user": users, "user_group": groups,
            # Each group has favourites of its own, further down in the others' order.
            "keyword": self._population.keyword_order[(ranks + 17 * groups) % len(KEYWORDS)],
        }  # fmt: skip

    def _posts(self, rng: np.random.Generator, visitors: Visitors, count: int) -> Piece:
        population = self._population
        members, _ = visitors.drawn(rng, count)
        known = population.social_ids[population.followed.draw(rng, count)]
        members = np.where(rng.random(count) < _FROM_THE_FOLLOWED, known, members)
        return {"time": _moments(rng, count), "member": members, **honest_posts(population, rng, count)}

    def _follows(self, rng: np.random.Generator, count: int) -> Piece:
        population = self._population
        graph_followers, graph_followed = population.follow_graph
        followers = population.social_ids[rng.integers(0, len(population.social_ids), count)]
        followed = population.social_ids[population.followed.draw(rng, count)]
        edges = rng.integers(0, len(graph_followers), count)
        # Nobody follows himself; who would begin to ends something else instead.
        ends = (rng.random(count) < _UNFOLLOWS) | (followers == followed)
        return {
            "time": _moments(rng, count),
            "member": np.where(ends, graph_followers[edges], followers),
            "followed": np.where(ends, graph_followed[edges], followed),
            "action": np.where(ends, words.UNFOLLOW, words.FOLLOW),
        }

    def _opening(self, rng: np.random.Generator, number: int) -> Piece:
        followers, followed = self._population.follow_graph
        part = slice(
            len(followers) * number // _OPENING_TICKS, len(followers) * (number + 1) // _OPENING_TICKS
        )  # fmt: skip
        count = part.stop - part.start
        return {
            "time": _moments(rng, count), "member": followers[part], "followed": followed[part],
            "action": np.full(count, words.FOLLOW),
        }  # fmt: skip


def honest_posts(population: Population, rng: np.random.Generator, count: int) -> Piece:
    """What honest members write: columns item, text, links."""
    items = population.items.draw(rng, count)
    numbers = rng.integers(0, TEXTS, count).tolist()
    linked = rng.random(count) < _LINKED
    about = (items % len(KEYWORDS)).tolist()
    texts = np.empty(count, object)
    texts[:] = [honest_text(*each) for each in zip(about, numbers, linked.tolist(), strict=True)]
    return {"item": items + 1, "text": texts, "links": linked.astype(np.int64)}


def _impression(shown: Lists, chosen: slice | Ints, action: int) -> Piece:
    items = shown.items[chosen]
    return {
        "time": shown.times[chosen], "member": shown.members[chosen], "session": shown.sessions[chosen],
        "item": items + 1, "position": shown.positions[chosen], "action": np.full(len(items), action),
    }  # fmt: skip


def _moments(rng: np.random.Generator, count: int) -> Ints:
    return rng.integers(0, TICK_MS, count)


def _dwell(rng: np.random.Generator, count: int) -> Ints:
    dwell: Ints = np.minimum(rng.lognormal(9.0, 0.9, count), 1_800_000).astype(np.int64)
    return dwell
