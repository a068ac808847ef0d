"""What the planted do: crawlers, spammers, abusers, a trend; and honest members and programs that look like some.

Rule: their rates are absolute, whatever the site's rate is. Their steps have numbers, and the time of a step follows
from its number: steps of machines are regular to a sixth, those of people are not. In the first minute of the time line
all of them are there, in each later one nine of ten.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.activity.events import API_CALLS, API_CALLS_PER_MINUTE, IMPRESSIONS, POSTS, SEARCHES, VIEWS, VOTES
from penstock.activity.site import words
from penstock.activity.site.chance import Flags, Floats, Ints, Purpose, draws, shares
from penstock.activity.site.columns import TICK_MS, Piece
from penstock.activity.site.incidents import Happenings
from penstock.activity.site.machines import answered
from penstock.activity.site.population import Population
from penstock.activity.site.reading import Made, honest_posts
from penstock.activity.site.sessions import Sessions
from penstock.activity.site.words import spam_text

_MACHINE_JITTER: Final = 0.15
_PEOPLE_JITTER: Final = 0.9
_THERE: Final = 0.9
_READ_AGAIN: Final = 0.7
_CRAWLER_CLICKS: Final = 0.01
_READER_CLICKS: Final = 0.5
_READER_VOTES: Final = 0.08
_TREND_SEARCHES: Final = 0.5
_TREND_VOTES: Final = 0.1
_CAMPAIGN_MEMBERS: Final = 2
_STEPS, _MINUTES = 20, 21


class _Steps(NamedTuple):
    """Who of a group has a step in a tick, the step's number, its time in the tick."""

    who: Ints
    numbers: Ints
    times: Ints


class PlantedActivity:
    """What the planted do, from the origin of the time line on."""

    def __init__(
        self, population: Population, sessions: Sessions, happenings: Happenings, origin_ms: int
    ) -> None:  # fmt: skip
        self._population = population
        self._planted = population.planted
        self._sessions = sessions
        self._happenings = happenings
        self._origin_ms = origin_ms
        planted = self._planted
        regular, irregular = _MACHINE_JITTER, _PEOPLE_JITTER
        # All in one row, since an array costs by the call more than by the entry.
        groups = (
            (planted.crawler_rates, regular), (planted.spammer_rates, irregular), (planted.poster_rates, irregular),
            (planted.abuser_rates, regular), (planted.busy_rates, regular),
        )  # fmt: skip
        self._rates: Floats = np.concatenate([rates for rates, _ in groups])
        self._jitters: Floats = np.concatenate([np.full(len(rates), jitter) for rates, jitter in groups])
        self._ends = np.cumsum([len(rates) for rates, _ in groups])
        self._there = lru_cache(maxsize=4)(self._who_is_there)

    def of(self, tick: int) -> Made:
        """All that they do in a tick."""
        rng = draws(self._population.seed, Purpose.PLANTED, tick)
        time_ms = tick * TICK_MS
        crawlers, spammers, posters, abusers, busy = self._steps(time_ms)
        yield from self._crawl(rng, crawlers, time_ms)
        yield from self._read(rng, time_ms)
        yield from self._trend(rng, time_ms)
        yield from self._post(rng, spammers, posters)
        yield from self._call(rng, abusers, busy)

    def _crawl(self, rng: np.random.Generator, crawlers: _Steps, time_ms: int) -> Made:
        planted = self._planted
        who, steps, times = crawlers
        count = len(who)
        if not count:
            return
        items = (planted.crawler_starts[who] + steps) % self._population.sizes.items + 1
        page: dict[str, Any] = {"time": times, "member": planted.crawlers[who], "item": items}
        page["session"] = self._sessions.of_planted(page["member"], time_ms)
        dwell = 700.0 / planted.crawler_rates[who] * rng.uniform(0.9, 1.1, count)
        yield VIEWS, {**page, "referrer": np.full(count, words.DIRECT), "dwell_ms": dwell.astype(np.int64)}
        yield from _clicked(page, rng.random(count) < _CRAWLER_CLICKS)

    def _read(self, rng: np.random.Generator, time_ms: int) -> Made:
        planted = self._planted
        turns = rng.random(len(planted.readers)) < planted.reader_rates * TICK_MS / 1000
        who = np.flatnonzero(turns & self._there(self._minute(time_ms))[self._ends[-1] :])
        count = len(who)
        if not count:
            return
        favourites = planted.reader_favourites[who, rng.integers(0, planted.reader_favourites.shape[1], count)]
        items = np.where(rng.random(count) < _READ_AGAIN, favourites, self._population.items.draw(rng, count)) + 1
        page: dict[str, Any] = {"time": rng.integers(0, TICK_MS, count), "member": planted.readers[who], "item": items}
        page["session"] = self._sessions.of_planted(page["member"], time_ms)
        clicks = rng.random(count) < _READER_CLICKS
        others = rng.choice([words.FROM_SEARCH, words.DIRECT], count)
        dwell = rng.lognormal(7.3, 0.6, count).astype(np.int64)
        yield VIEWS, {**page, "referrer": np.where(clicks, words.FROM_LIST, others), "dwell_ms": dwell}
        yield from _clicked(page, clicks)
        votes = np.flatnonzero(rng.random(count) < _READER_VOTES)
        if len(votes):
            chosen = {name: page[name][votes] for name in ("time", "member", "item")}
            yield VOTES, {**chosen, "vote": np.ones(len(votes), np.int64)}

    def _trend(self, rng: np.random.Generator, time_ms: int) -> Made:
        trend = self._happenings.trend_at(time_ms)
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
                piece |= {"session": sessions, "referrer": np.full(count, words.EXTERNAL)}
                piece["dwell_ms"] = rng.lognormal(9.0, 0.9, count).astype(np.int64)
            elif kind is VOTES:
                piece["vote"] = np.ones(count, np.int64)
            else:
                piece |= {"user": members, "keyword": np.full(count, trend.keyword)}
                piece["user_group"] = self._population.groups(members)
            yield kind, piece

    def _post(self, rng: np.random.Generator, spammers: _Steps, posters: _Steps) -> Made:
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

    def _call(self, rng: np.random.Generator, abusers: _Steps, busy: _Steps) -> Made:
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

    # --- when

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
        is_due &= self._there(self._minute(time_ms))[: len(rates), None]
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

    def _who_is_there(self, minute: int) -> Flags:
        """Of all groups, and after them of the heavy readers."""
        everybody = np.arange(len(self._rates) + len(self._planted.readers))
        there: Flags = (shares(self._population.seed, _MINUTES, everybody, minute) < _THERE) | (minute == 0)
        return there


def _clicked(page: Piece, chosen: Any) -> Made:
    """The clicks in lists by which these pages were reached."""
    where = np.flatnonzero(chosen)
    if len(where):
        piece = {name: column[where] for name, column in page.items()}
        position = 1 + where % 5
        yield IMPRESSIONS, {**piece, "position": position, "action": np.full(len(where), words.CLICK)}
