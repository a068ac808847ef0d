"""What happens in a tick: members, machines, planted actors, incidents and trends.

Each source yields columns of events for a tick, as a function of the tick's number. Lists are shown, and 0.8 to 3 s
later their clicks come, each with a view; a click depends on position and quality, a vote on quality. Requests are
spread over the servers, take a lognormal time, and fail 3 times in 1,000; an incident makes one server slow, failing
and busy.

Planted actors have absolute rates, whatever the site's rate. Machines are regular to a sixth, people are not. All of
them are active in the first minute, nine of ten in each later one. Incidents and trends come every ten minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.activity.events import (
    API_CALLS,
    API_CALLS_PER_MINUTE,
    FOLLOWS,
    IMPRESSIONS,
    POSTS,
    REQUESTS,
    SEARCHES,
    SERVERS,
    TIME,
    VIEWS,
    VOTES,
    Kind,
)
from penstock.activity.site import vocabulary
from penstock.activity.site.population import Population, Rhythm, Sessions, Visitors
from penstock.activity.site.randomness import Flags, Floats, Ints, Purpose, random_generator, shares
from penstock.activity.site.vocabulary import KEYWORDS, TEXTS, honest_text, spam_text

TICK_MS: Final = 100
IDS_IN_A_TICK: Final = 100_000
TURN_MS: Final = 600_000
INCIDENT_MS: Final = 45_000
SLOWER: Final = 8.0
FAILING: Final = 0.15
TREND_AFTER_MS: Final = 15_000
TREND_MS: Final = 240_000
RISE_MS: Final = 45_000
RISES_TO: Final = 20.0
VIEWS_SHARE: Final = 0.18
_FIRST_TICK: Final = 1_577_836_800_000 // TICK_MS  # 2020: ids stay below 2**53, the limit of many JSON readers
_LEAST_VIEWS: Final = 0.4
_MIDDLING: Final = (0.3, 0.6)
_LISTS: Final = 0.0575
_DIRECT_VIEWS: Final = 0.16
_VOTES: Final = 0.04
_SEARCHES: Final = 0.08
_POSTS: Final = 0.01
_FOLLOWS: Final = 0.0003
"""Few besides those of the opening: follows change by the week, not by the minute."""
_UNFOLLOWS: Final = 0.2
_BY_FOLLOWED_MEMBERS: Final = 0.6
_LINKED: Final = 0.06
_SHORTEST_LIST: Final = 4
_LONGEST_LIST: Final = 8
_POSITION_BIAS: Final = np.array([0.0, 0.30, 0.21, 0.15, 0.11, 0.08, 0.06, 0.05, 0.04])
_DELAYS: Final = (8, 15, 30)
_REFERRED: Final = np.array([vocabulary.FROM_SEARCH] * 45 + [vocabulary.DIRECT] * 30 + [vocabulary.EXTERNAL] * 25)
_OPENING_TICKS: Final = 50
"""The first ticks, over which the follows of the opening are spread."""
_API_CALLS: Final = 0.10
_REQUESTS: Final = 0.227
_FAILS: Final = 0.003
_TICKS_PER_S: Final = 1000 // TICK_MS
_STATUSES: Final = np.array([200, 404, 400, 500, 429])
_STATUS_BOUNDS: Final = np.array([0.96, 0.984, 0.995, 0.999])
_MACHINE_JITTER: Final = 0.15
_PEOPLE_JITTER: Final = 0.9
_ACTIVE_SHARE: Final = 0.9
_READ_AGAIN: Final = 0.7
_CRAWLER_CLICKS: Final = 0.01
_READER_CLICKS: Final = 0.5
_READER_VOTES: Final = 0.08
_TREND_SEARCHES: Final = 0.5
_TREND_VOTES: Final = 0.1
_CAMPAIGN_MEMBERS: Final = 2
_STEPS, _MINUTES = 20, 21

# ---------------------------------------------------------------------------------------------- events as columns


Column = NDArray[Any]
Piece = Mapping[str, Any]
"""Some events of a tick: arrays by column, without ids; `time` is in milliseconds from the start of the tick."""
EventPieces = Iterator[tuple[Kind, Piece]]


@dataclass(frozen=True)
class Columns:
    """Events of one kind, by column. Columns in `words` have indexes into a vocabulary."""

    kind: Kind
    arrays: Mapping[str, Column]
    words: Mapping[str, tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.arrays[TIME])

    def first(self, count: int) -> Columns:
        return Columns(self.kind, {name: array[:count] for name, array in self.arrays.items()}, self.words)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The events row by row, as readers of the topic see them."""
        lists = [
            [self.words[name][code] for code in array.tolist()] if name in self.words else array.tolist()
            for name, array in self.arrays.items()
        ]
        for row in zip(*lists, strict=True):
            yield dict(zip(self.arrays, row, strict=True))


def assembled(kind: Kind, tick: int, pieces: Sequence[Piece], words: Mapping[str, tuple[str, ...]]) -> Columns:
    """The events of a tick, in order, with ids and times."""
    names = kind.names[1:]
    arrays = {name: np.concatenate([np.asarray(piece[name]) for piece in pieces]) for name in names}
    order = np.argsort(arrays[TIME].astype(np.uint8), kind="stable")
    arrays = {name: array[order] for name, array in arrays.items()}
    arrays[TIME] = arrays[TIME].astype(np.int64) + tick * TICK_MS
    ids = np.arange(len(order)) + (tick - _FIRST_TICK) * IDS_IN_A_TICK
    return Columns(kind, {"id": ids, **arrays}, words)


def joined_columns(parts: Sequence[Columns]) -> Columns:
    """Joins events of one kind from several ticks."""
    first = parts[0]
    if len(parts) == 1:
        return first
    arrays = {name: np.concatenate([part.arrays[name] for part in parts]) for name in first.arrays}
    return Columns(first.kind, arrays, first.words)


# ---------------------------------------------------------------------------------------------- incidents and trends


@dataclass(frozen=True)
class Incident:
    """A server that is slow and failing."""

    server: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Trend:
    """An item with rising views, and the keyword by which it is searched."""

    item: int
    keyword: int
    start_ms: int
    end_ms: int
    views_before: float
    """Views per second before the trend."""

    def more_views(self, time_ms: int) -> float:
        """Views per second in addition to the item's own."""
        if not self.start_ms <= time_ms < self.end_ms:
            return 0.0
        risen = min((time_ms - self.start_ms) / RISE_MS, 1.0)
        return self.views_before * (math.pow(RISES_TO, risen) - 1.0)


class IncidentSchedule:
    """Incidents and trends; one of each per turn of ten minutes."""

    def __init__(self, population: Population, origin_ms: int, incident_after_ms: int, views_per_s: float) -> None:
        rng = random_generator(population.seed, Purpose.POPULATION, 3)
        self._origin_ms = origin_ms
        self._incident_after_ms = incident_after_ms
        self._views_per_s = views_per_s
        self._odds = population.items.odds
        self._servers = rng.permutation(population.sizes.servers)
        by_odds = np.argsort(-self._odds)
        low, high = (int(share * len(by_odds)) for share in _MIDDLING)
        self._items = rng.permutation(by_odds[low:high])

    def incident(self, turn: int) -> Incident:
        start_ms = self._origin_ms + turn * TURN_MS + self._incident_after_ms
        return Incident(int(self._servers[turn % len(self._servers)]), start_ms, start_ms + INCIDENT_MS)

    def trend(self, turn: int) -> Trend:
        start_ms = self._origin_ms + turn * TURN_MS + TREND_AFTER_MS
        item = int(self._items[turn % len(self._items)])
        views = max(float(self._odds[item]) * self._views_per_s, _LEAST_VIEWS)
        return Trend(item, item % len(KEYWORDS), start_ms, start_ms + TREND_MS, views)

    def incident_at(self, time_ms: int) -> Incident | None:
        turn = (time_ms - self._origin_ms - self._incident_after_ms) // TURN_MS
        found = self.incident(turn) if turn >= 0 else None
        return found if found is not None and time_ms < found.end_ms else None

    def trend_at(self, time_ms: int) -> Trend:
        """The trend of the current turn, started or not."""
        return self.trend(max((time_ms - self._origin_ms) // TURN_MS, 0))


# ---------------------------------------------------------------------------------------------- members


@dataclass(frozen=True)
class Lists:
    """The lists shown in a tick, an entry per item."""

    members: Ints
    sessions: Ints
    items: Ints
    positions: Ints
    times: Ints
    delays: Ints
    clicked: Flags


class Reading:
    """The activity of members, for a mean rate in events/s (of all kinds)."""

    def __init__(
        self, population: Population, sessions: Sessions, rate: float, rhythm: Rhythm, first_tick: int
    ) -> None:  # fmt: skip
        self._population = population
        self._sessions = sessions
        self._per_tick = rate * TICK_MS / 1000
        self._rhythm = rhythm
        self._first_tick = first_tick
        self._lists = lru_cache(maxsize=max(_DELAYS) + 2)(self._shown)

    def of(self, tick: int) -> EventPieces:
        """The events of a tick."""
        time_ms = tick * TICK_MS
        rng = random_generator(self._population.seed, Purpose.READING, tick)
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

    # --- lists and clicks

    def _shown(self, tick: int) -> Lists:
        population = self._population
        rng = random_generator(population.seed, Purpose.LISTS, tick)
        visitors = self._sessions.at(tick * TICK_MS)
        count = rng.poisson(self._per_tick * self._rhythm.factor(tick * TICK_MS) * _LISTS)
        members, sessions = visitors.drawn(rng, count)
        lengths = rng.integers(_SHORTEST_LIST, _LONGEST_LIST + 1, count)
        which = np.repeat(np.arange(count), lengths)
        positions = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
        items = population.items.draw(rng, len(which))
        clicked = rng.random(len(which)) < _POSITION_BIAS[positions] * population.quality[items]
        # Leaves a millisecond for the view after a click.
        times = rng.integers(0, TICK_MS - 1, count)
        delays = np.asarray(_DELAYS)[np.arange(count) % len(_DELAYS)]
        return Lists(members[which], sessions[which], items, positions, times[which], delays[which], clicked)

    def _listed(self, tick: int) -> EventPieces:
        shown = self._lists(tick)
        yield IMPRESSIONS, _impression(shown, slice(None), vocabulary.IMPRESSION)

    def _clicks(self, tick: int, rng: np.random.Generator) -> EventPieces:
        for delay in _DELAYS:
            if tick - delay < self._first_tick:
                continue
            shown = self._lists(tick - delay)
            chosen = np.flatnonzero(shown.clicked & (shown.delays == delay))
            yield IMPRESSIONS, _impression(shown, chosen, vocabulary.CLICK)
            yield VIEWS, {
                "time": shown.times[chosen] + 1, "member": shown.members[chosen], "session": shown.sessions[chosen],
                "item": shown.items[chosen] + 1, "referrer": np.full(len(chosen), vocabulary.FROM_LIST),
                "dwell_ms": _dwell(rng, len(chosen)),
            }  # fmt: skip

    # --- other activity

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
            # Each group has its own favourites, which rank lower in other groups.
            "keyword": self._population.keyword_order[(ranks + 17 * groups) % len(KEYWORDS)],
        }  # fmt: skip

    def _posts(self, rng: np.random.Generator, visitors: Visitors, count: int) -> Piece:
        population = self._population
        members, _ = visitors.drawn(rng, count)
        known = population.social_ids[population.followed.draw(rng, count)]
        members = np.where(rng.random(count) < _BY_FOLLOWED_MEMBERS, known, members)
        return {"time": _moments(rng, count), "member": members, **honest_posts(population, rng, count)}

    def _follows(self, rng: np.random.Generator, count: int) -> Piece:
        population = self._population
        graph_followers, graph_followed = population.follow_graph
        followers = population.social_ids[rng.integers(0, len(population.social_ids), count)]
        followed = population.social_ids[population.followed.draw(rng, count)]
        edges = rng.integers(0, len(graph_followers), count)
        # A member cannot follow itself; such a draw becomes an unfollow.
        ends = (rng.random(count) < _UNFOLLOWS) | (followers == followed)
        return {
            "time": _moments(rng, count),
            "member": np.where(ends, graph_followers[edges], followers),
            "followed": np.where(ends, graph_followed[edges], followed),
            "action": np.where(ends, vocabulary.UNFOLLOW, vocabulary.FOLLOW),
        }

    def _opening(self, rng: np.random.Generator, number: int) -> Piece:
        followers, followed = self._population.follow_graph
        part = slice(
            len(followers) * number // _OPENING_TICKS, len(followers) * (number + 1) // _OPENING_TICKS
        )  # fmt: skip
        count = part.stop - part.start
        return {
            "time": _moments(rng, count), "member": followers[part], "followed": followed[part],
            "action": np.full(count, vocabulary.FOLLOW),
        }  # fmt: skip


def honest_posts(population: Population, rng: np.random.Generator, count: int) -> Piece:
    """Posts of honest members: columns item, text, links."""
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


# ---------------------------------------------------------------------------------------------- machines


class MachineActivity:
    """API calls, requests and server measurements, for a mean rate in events/s (of all kinds)."""

    def __init__(self, population: Population, schedule: IncidentSchedule, rate: float, rhythm: Rhythm) -> None:
        self._population = population
        self._schedule = schedule
        self._per_tick = rate * TICK_MS / 1000
        self._rhythm = rhythm

    def of(self, tick: int) -> EventPieces:
        """The events of a tick."""
        time_ms = tick * TICK_MS
        rng = random_generator(self._population.seed, Purpose.MACHINES, tick)
        mean = self._per_tick * self._rhythm.factor(time_ms)
        incident = self._schedule.incident_at(time_ms)
        yield API_CALLS, self._calls(rng, rng.poisson(mean * _API_CALLS))
        yield REQUESTS, self._requests(rng, rng.poisson(mean * _REQUESTS), incident)
        # Each server measures in its own tenth of the second.
        due = np.flatnonzero((np.arange(self._population.sizes.servers) + tick) % _TICKS_PER_S == 0)
        if len(due):
            yield SERVERS, self._measured(rng, due, incident, self._rhythm.factor(time_ms))

    def _calls(self, rng: np.random.Generator, count: int) -> Piece:
        clients = self._population.clients.draw(rng, count)
        return {"time": rng.integers(0, TICK_MS, count), "client": clients, **answered(self._population, rng, count)}

    def _requests(self, rng: np.random.Generator, count: int, incident: Incident | None) -> Piece:
        population = self._population
        servers = rng.integers(0, population.sizes.servers, count)
        paths = population.paths.draw(rng, count)
        took_ms = population.path_ms[paths] * rng.lognormal(0.0, 0.5, count)
        chance = rng.random(count)
        failing = np.full(count, _FAILS)
        if incident is not None:
            hit = servers == incident.server
            took_ms[hit] *= SLOWER
            failing[hit] = FAILING
        failed = chance < failing
        status = np.where(failed, np.where(chance < failing / 2, 500, 503), np.where(chance > 0.985, 404, 200))
        return {
            "time": rng.integers(0, TICK_MS, count), "server": servers, "path": paths, "status": status,
            "duration_ms": np.round(took_ms, 1), **_logged(status, took_ms),
        }  # fmt: skip

    def _measured(self, rng: np.random.Generator, due: Ints, incident: Incident | None, busy: float) -> Piece:
        count = len(due)
        hit = due == incident.server if incident is not None else np.zeros(count, bool)
        cpu = np.where(hit, rng.normal(0.93, 0.02, count), rng.normal(0.22 + 0.12 * busy, 0.03, count))
        io_wait = np.where(hit, rng.normal(0.30, 0.04, count), np.abs(rng.normal(0.04, 0.015, count)))
        disk = rng.lognormal(3.0, 0.25, count) * np.where(hit, 3.0, 1.0)
        memory = rng.normal(0.55 + 0.02 * (due % 5), 0.01, count)
        return {
            "time": due * 7 % TICK_MS, "server": due, "cpu": _fraction(cpu), "io_wait": _fraction(io_wait),
            "disk_mb_s": np.round(disk, 1), "memory": _fraction(memory),
        }  # fmt: skip


def answered(population: Population, rng: np.random.Generator, count: int) -> Piece:
    """API calls and their responses: columns endpoint, status, duration_ms."""
    status = _STATUSES[np.searchsorted(_STATUS_BOUNDS, rng.random(count), side="right")]
    return {
        "endpoint": population.endpoints.draw(rng, count), "status": status,
        "duration_ms": np.round(rng.lognormal(3.2, 0.6, count), 1),
    }  # fmt: skip


def _logged(status: Ints, took_ms: Floats) -> Piece:
    slow = took_ms > 250.0
    level = np.where(status >= 500, vocabulary.ERROR, np.where(slow, vocabulary.WARN, vocabulary.INFO))
    message = np.where(
        slow, vocabulary.SLOW_QUERY, np.where(took_ms < 8.0, vocabulary.SERVED_CACHED, vocabulary.SERVED)
    )
    message = np.where(status == 404, vocabulary.NO_SUCH_PAGE, message)
    message = np.where(status == 500, vocabulary.NO_CONNECTION, np.where(status == 503, vocabulary.TIMED_OUT, message))
    return {"level": level, "message": message}


def _fraction(values: Floats) -> Floats:
    return np.asarray(np.round(np.clip(values, 0.0, 1.0), 3), np.float64)


# ---------------------------------------------------------------------------------------------- planted actors


class _Steps(NamedTuple):
    """The steps of a group in a tick: the actor, the number of the step, its time in the tick."""

    who: Ints
    numbers: Ints
    times: Ints


class PlantedActivity:
    """The activity of planted actors, from the origin of the time line on."""

    def __init__(
        self, population: Population, sessions: Sessions, schedule: IncidentSchedule, origin_ms: int
    ) -> None:  # fmt: skip
        self._population = population
        self._planted = population.planted
        self._sessions = sessions
        self._schedule = schedule
        self._origin_ms = origin_ms
        planted = self._planted
        regular, irregular = _MACHINE_JITTER, _PEOPLE_JITTER
        # All groups in one array: numpy calls cost more than entries.
        groups = (
            (planted.crawler_rates, regular), (planted.spammer_rates, irregular), (planted.poster_rates, irregular),
            (planted.abuser_rates, regular), (planted.busy_rates, regular),
        )  # fmt: skip
        self._rates: Floats = np.concatenate([rates for rates, _ in groups])
        self._jitters: Floats = np.concatenate([np.full(len(rates), jitter) for rates, jitter in groups])
        self._ends = np.cumsum([len(rates) for rates, _ in groups])
        self._active = lru_cache(maxsize=4)(self._active_actors)

    def of(self, tick: int) -> EventPieces:
        """The events of a tick."""
        rng = random_generator(self._population.seed, Purpose.PLANTED, tick)
        time_ms = tick * TICK_MS
        crawlers, spammers, posters, abusers, busy = self._steps(time_ms)
        yield from self._crawl(rng, crawlers, time_ms)
        yield from self._read(rng, time_ms)
        yield from self._trend(rng, time_ms)
        yield from self._post(rng, spammers, posters)
        yield from self._call(rng, abusers, busy)

    def _crawl(self, rng: np.random.Generator, crawlers: _Steps, time_ms: int) -> EventPieces:
        planted = self._planted
        who, steps, times = crawlers
        count = len(who)
        if not count:
            return
        items = (planted.crawler_starts[who] + steps) % self._population.sizes.items + 1
        page: dict[str, Any] = {"time": times, "member": planted.crawlers[who], "item": items}
        page["session"] = self._sessions.of_planted(page["member"], time_ms)
        dwell = 700.0 / planted.crawler_rates[who] * rng.uniform(0.9, 1.1, count)
        yield VIEWS, {**page, "referrer": np.full(count, vocabulary.DIRECT), "dwell_ms": dwell.astype(np.int64)}
        yield from _clicked(page, rng.random(count) < _CRAWLER_CLICKS)

    def _read(self, rng: np.random.Generator, time_ms: int) -> EventPieces:
        planted = self._planted
        turns = rng.random(len(planted.readers)) < planted.reader_rates * TICK_MS / 1000
        who = np.flatnonzero(turns & self._active(self._minute(time_ms))[self._ends[-1] :])
        count = len(who)
        if not count:
            return
        favourites = planted.reader_favourites[who, rng.integers(0, planted.reader_favourites.shape[1], count)]
        items = np.where(rng.random(count) < _READ_AGAIN, favourites, self._population.items.draw(rng, count)) + 1
        page: dict[str, Any] = {"time": rng.integers(0, TICK_MS, count), "member": planted.readers[who], "item": items}
        page["session"] = self._sessions.of_planted(page["member"], time_ms)
        clicks = rng.random(count) < _READER_CLICKS
        others = rng.choice([vocabulary.FROM_SEARCH, vocabulary.DIRECT], count)
        dwell = rng.lognormal(7.3, 0.6, count).astype(np.int64)
        yield VIEWS, {**page, "referrer": np.where(clicks, vocabulary.FROM_LIST, others), "dwell_ms": dwell}
        yield from _clicked(page, clicks)
        votes = np.flatnonzero(rng.random(count) < _READER_VOTES)
        if len(votes):
            chosen = {name: page[name][votes] for name in ("time", "member", "item")}
            yield VOTES, {**chosen, "vote": np.ones(len(votes), np.int64)}

    def _trend(self, rng: np.random.Generator, time_ms: int) -> EventPieces:
        trend = self._schedule.trend_at(time_ms)
        mean = trend.more_views(time_ms) * TICK_MS / 1000
        visitors = self._sessions.at(time_ms)
        for kind, share in ((VIEWS, 1.0), (SEARCHES, _TREND_SEARCHES), (VOTES, _TREND_VOTES)):
            count = int(rng.poisson(mean * share))
            if not count:
                continue
            members, sessions = visitors.drawn(rng, count)
            piece: dict[str, Any] = {"time": rng.integers(0, TICK_MS, count), "member": members}
            piece["item"] = np.full(count, trend.item + 1)
            if kind is VIEWS:
                piece |= {"session": sessions, "referrer": np.full(count, vocabulary.EXTERNAL)}
                piece["dwell_ms"] = rng.lognormal(9.0, 0.9, count).astype(np.int64)
            elif kind is VOTES:
                piece["vote"] = np.ones(count, np.int64)
            else:
                piece |= {"user": members, "keyword": np.full(count, trend.keyword)}
                piece["user_group"] = self._population.groups(members)
            yield kind, piece

    def _post(self, rng: np.random.Generator, spammers: _Steps, posters: _Steps) -> EventPieces:
        planted = self._planted
        count = len(spammers.who)
        if count:
            texts = np.empty(count, object)
            campaigns = (spammers.who // _CAMPAIGN_MEMBERS).tolist()
            texts[:] = [spam_text(*each) for each in zip(campaigns, spammers.numbers.tolist(), strict=True)]
            yield POSTS, {
                "time": spammers.times, "member": planted.spammers[spammers.who],
                "item": self._population.items.draw(rng, count) + 1, "text": texts, "links": np.ones(count, np.int64),
            }  # fmt: skip
        if len(posters.who):
            written = honest_posts(self._population, rng, len(posters.who))
            yield POSTS, {"time": posters.times, "member": planted.posters[posters.who], **written}

    def _call(self, rng: np.random.Generator, abusers: _Steps, busy: _Steps) -> EventPieces:
        planted = self._planted
        count = len(abusers.who)
        if count:
            calls = dict(answered(self._population, rng, count))
            within = API_CALLS_PER_MINUTE / 60 / planted.abuser_rates[abusers.who]
            calls["status"] = np.where(rng.random(count) < within, calls["status"], 429)
            yield API_CALLS, {"time": abusers.times, "client": planted.abusers[abusers.who], **calls}
        if len(busy.who):
            calls = dict(answered(self._population, rng, len(busy.who)))
            yield API_CALLS, {"time": busy.times, "client": planted.busy[busy.who], **calls}

    # --- steps

    def _steps(self, time_ms: int) -> list[_Steps]:
        """The steps of all groups in a tick.

        Step k of an actor of rate r comes at (k + jitter * chance) / r seconds from the origin.
        """
        since_ms = time_ms - self._origin_ms
        rates = self._rates[:, None]
        candidates = int(np.ceil(rates.max() * TICK_MS / 1000)) + 2
        numbers = np.floor(since_ms * rates / 1000).astype(np.int64) - 1 + np.arange(candidates)
        chance = shares(self._population.seed, _STEPS, np.arange(len(rates))[:, None], numbers)
        offsets_ms = np.floor((numbers + self._jitters[:, None] * chance) / rates * 1000) - since_ms
        is_due = (numbers >= 0) & (offsets_ms >= 0) & (offsets_ms < TICK_MS)
        is_due &= self._active(self._minute(time_ms))[: len(rates), None]
        who, column = np.nonzero(is_due)
        numbers, times = numbers[who, column], offsets_ms[who, column].astype(np.int64)
        bounds = [0, *np.searchsorted(who, self._ends).tolist()]
        begins = [0, *self._ends.tolist()]
        return [
            _Steps(who[first:last] - begin, numbers[first:last], times[first:last])
            for begin, first, last in zip(begins, bounds, bounds[1:], strict=False)
        ]

    def _minute(self, time_ms: int) -> int:
        return (time_ms - self._origin_ms) // 60_000

    def _active_actors(self, minute: int) -> Flags:
        """Which actors are active in a minute: all groups, then the heavy readers."""
        actors = np.arange(len(self._rates) + len(self._planted.readers))
        active: Flags = (shares(self._population.seed, _MINUTES, actors, minute) < _ACTIVE_SHARE) | (minute == 0)
        return active


def _clicked(page: Piece, chosen: Any) -> EventPieces:
    """The clicks in lists that led to these pages."""
    where = np.flatnonzero(chosen)
    if len(where):
        piece = {name: column[where] for name, column in page.items()}
        position = 1 + where % 5
        yield IMPRESSIONS, {**piece, "position": position, "action": np.full(len(where), vocabulary.CLICK)}
