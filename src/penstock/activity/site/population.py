"""Who is on the site, and when: members, items, servers, programs, follows, sessions, planted actors.

Everything is a function of a seed and sizes. Members are ranked by activity and have ids that follow from the rank by
arithmetic, so that millions of members cost nothing. The last ranks are the planted actors; their ids lie among the
others. Time is cut into slots, of another length and phase for each cohort; a member's stay in a slot is a session.
The rate follows the time of day and the weekday (`Rhythm`), with a mean of 1 over a week, in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from math import cos, gcd, tau
from typing import Any, Final

import numpy as np

from penstock.activity.events import API_CALLS_PER_MINUTE
from penstock.activity.site.randomness import (
    MOST_SEED,
    Floats,
    Ints,
    Purpose,
    WeightedChoice,
    heavy_tail,
    random_generator,
    shares,
)
from penstock.activity.site.vocabulary import ENDPOINTS, GROUP_SHARES, KEYWORDS, PATHS

CRAWLERS: Final = 12
SLOW_CRAWLERS: Final = 3
HEAVY_READERS: Final = 10
SPAMMERS: Final = 10
FREQUENT_POSTERS: Final = 8
ABUSERS: Final = 10
BUSY_CLIENTS: Final = 6
PLANTED_MEMBERS: Final = CRAWLERS + HEAVY_READERS + SPAMMERS + FREQUENT_POSTERS
LEAST_ITEMS: Final = 1_000
LEAST_SERVERS: Final = 2
LEAST_MEMBERS: Final = 1_000
MOST: Final = 50_000_000
MOST_RATE: Final = 500_000
"""Ids have room for 100,000 events of a topic in a tick."""
SECONDS_PER_VIEW: Final = 12.0
"""Seconds between two views of a present member."""
_MOST_ITEMS: Final = 1_000_000
_MOST_SERVERS: Final = 1_000
_CALLS_OF_A_CLIENT: Final = API_CALLS_PER_MINUTE / 6
_API_SHARE: Final = 0.1
_SOCIAL: Final = 1_500
_FOLLOWED_EACH: Final = 6
_FAVOURITES: Final = 40
_SLOTS_S: Final = (60, 60, 90, 90, 120, 120, 120, 180, 180, 180, 240, 240, 300, 300, 420, 600)
_COHORTS: Final = len(_SLOTS_S)
_PLANTED_SLOT_MS: Final = 600_000
_ACTIVE_TAIL: Final = 1.6
_MOST_PRESENT: Final = 0.5
_DAY_MS: Final = 86_400_000
_THURSDAY: Final = 3  # 1 January 1970
_PEAK_HOUR: Final = 18.5
_DAILY: Final = 0.35
_SECOND: Final = 0.08
_BY_WEEKDAY: Final = (1.02, 1.04, 1.04, 1.03, 0.99, 0.92, 0.96)

# ---------------------------------------------------------------------------------------------- population


@dataclass(frozen=True)
class Sizes:
    """How many members, items, servers and programs there are."""

    members: int
    items: int
    servers: int
    clients: int

    @classmethod
    def for_rate(
        cls, rate: float, members: int | None = None, items: int | None = None, servers: int | None = None
    ) -> Sizes:
        """Sizes for a rate in events/s. Raises ValueError."""
        if not 1 <= rate <= MOST_RATE:
            raise ValueError(f"the rate is {rate:g} events/s; it must be between 1 and {MOST_RATE}")
        sizes = cls(
            members=max(20_000, round(10 * rate)) if members is None else members,
            items=5_000 if items is None else items,
            servers=8 if servers is None else servers,
            clients=max(40, round(rate * _API_SHARE * 60 / _CALLS_OF_A_CLIENT)),
        )
        least_members = max(LEAST_MEMBERS, round(rate))
        if not least_members <= sizes.members <= MOST:
            raise ValueError(
                f"{sizes.members} members are not allowed at {rate:g} events/s: use {least_members} to {MOST}, so that "
                "no member looks like a crawler"
            )
        if not LEAST_ITEMS <= sizes.items <= _MOST_ITEMS:
            raise ValueError(f"{sizes.items} items: must be between {LEAST_ITEMS} and {_MOST_ITEMS}")
        if not LEAST_SERVERS <= sizes.servers <= _MOST_SERVERS:
            raise ValueError(f"{sizes.servers} servers: must be between {LEAST_SERVERS} and {_MOST_SERVERS}")
        return sizes


class Population:
    """The population of a site. Items, servers, clients and keywords are indexes inside the site."""

    def __init__(self, seed: int, sizes: Sizes) -> None:
        if not 0 <= seed <= MOST_SEED:
            raise ValueError(f"the seed is {seed}; it must be between 0 and {MOST_SEED}")
        self.seed = seed
        self.sizes = sizes
        self.ordinary_members = sizes.members - PLANTED_MEMBERS
        rng = random_generator(seed, Purpose.POPULATION, 0)
        self._step = _coprime(int(rng.integers(sizes.members // 3, sizes.members)), sizes.members)
        self._shift = int(rng.integers(0, sizes.members))
        self.quality: Floats = rng.beta(2, 3, sizes.items)
        # Good items are viewed more often, but chance matters more.
        popularity = rng.permutation(heavy_tail(sizes.items, 0.9, 4.0)) * (0.4 + self.quality)
        self.items = WeightedChoice(popularity)
        self.keywords = WeightedChoice(heavy_tail(len(KEYWORDS), 0.95, 2.0))
        self.keyword_order: Ints = rng.permutation(len(KEYWORDS))
        self.endpoints = WeightedChoice(heavy_tail(len(ENDPOINTS), 1.1, 1.0))
        self.paths = WeightedChoice(heavy_tail(len(PATHS), 1.0, 1.5))
        self.path_ms: Floats = np.round(rng.lognormal(3.0, 0.5, len(PATHS)), 1)
        self.clients = WeightedChoice(_client_weights(sizes.clients))
        self.server_names = tuple(f"server-{number}" for number in range(1, sizes.servers + 1))
        total_clients = sizes.clients + ABUSERS + BUSY_CLIENTS
        self.client_names = tuple(f"client-{number:04}" for number in 1 + rng.permutation(total_clients))

    # --- members

    def member_id(self, ranks: Any) -> Any:
        """Ids from 1 on, by rank; rank 0 is the most active."""
        return (ranks * self._step + self._shift) % self.sizes.members + 1

    def groups(self, member_ids: Ints) -> Ints:
        """The user group of each member, as an index."""
        bounds = np.cumsum(GROUP_SHARES[:-1])
        found: Ints = np.searchsorted(bounds, shares(self.seed, 11, member_ids), side="right")
        return found

    @cached_property
    def planted(self) -> Planted:
        first = self.ordinary_members
        rng = random_generator(self.seed, Purpose.POPULATION, 1)
        ids: Ints = self.member_id(np.arange(first, self.sizes.members, dtype=np.int64))
        crawlers, readers, spammers, posters = np.split(
            ids, np.cumsum([CRAWLERS, HEAVY_READERS, SPAMMERS])
        )  # fmt: skip
        crawler_rates = np.concatenate(
            [np.full(SLOW_CRAWLERS, 0.7), np.linspace(1.0, 4.0, CRAWLERS - SLOW_CRAWLERS)]
        )  # fmt: skip
        clients = np.arange(self.sizes.clients, self.sizes.clients + ABUSERS + BUSY_CLIENTS)
        return Planted(
            crawlers=crawlers,
            crawler_rates=crawler_rates,
            crawler_starts=rng.integers(0, self.sizes.items, CRAWLERS),
            readers=readers,
            reader_rates=rng.uniform(0.34, 0.5, HEAVY_READERS),
            reader_favourites=self.items.draw(rng, HEAVY_READERS * _FAVOURITES).reshape(HEAVY_READERS, _FAVOURITES),
            spammers=spammers,
            spammer_rates=rng.uniform(5, 12, SPAMMERS) / 60,
            posters=posters,
            poster_rates=rng.uniform(4, 8, FREQUENT_POSTERS) / 60,
            abusers=clients[:ABUSERS],
            abuser_rates=rng.uniform(1.4, 3.0, ABUSERS) * API_CALLS_PER_MINUTE / 60,
            busy=clients[ABUSERS:],
            busy_rates=rng.uniform(0.79, 0.93, BUSY_CLIENTS) * API_CALLS_PER_MINUTE / 60,
        )

    # --- follows

    @cached_property
    def social_ids(self) -> Ints:
        """The members that follow and are followed, the most followed first."""
        count = min(_SOCIAL, self.ordinary_members // 10)
        ids: Ints = self.member_id(np.arange(count, dtype=np.int64))
        return ids

    @cached_property
    def followed(self) -> WeightedChoice:
        """How often each member is followed, by index in `social_ids`."""
        return WeightedChoice(heavy_tail(len(self.social_ids), 0.7, 5.0))

    @cached_property
    def follow_graph(self) -> tuple[Ints, Ints]:
        """The follows when the site opens: followers and followed, each pair once."""
        rng = random_generator(self.seed, Purpose.POPULATION, 2)
        size = len(self.social_ids)
        count = size * _FOLLOWED_EACH
        followers, followed = rng.integers(0, size, count), self.followed.draw(rng, count)
        pairs = np.unique(followers * size + followed)
        pairs = rng.permutation(pairs[pairs // size != pairs % size])
        return self.social_ids[pairs // size], self.social_ids[pairs % size]


@dataclass(frozen=True)
class Planted:
    """Planted actors, and honest lookalikes. Rates are events/s."""

    crawlers: Ints
    crawler_rates: Floats
    crawler_starts: Ints
    readers: Ints
    """Honest: heavy readers."""
    reader_rates: Floats
    reader_favourites: Ints
    spammers: Ints
    spammer_rates: Floats
    posters: Ints
    """Honest: frequent posters."""
    poster_rates: Floats
    abusers: Ints
    abuser_rates: Floats
    busy: Ints
    """Honest: programs near the rate limit."""
    busy_rates: Floats


def _coprime(number: int, to: int) -> int:
    while gcd(number, to) != 1:
        number += 1
    return number


def _client_weights(count: int) -> Floats:
    """A heavy tail with its top cut, so that no honest program comes near the limit by chance."""
    weights = heavy_tail(count, 0.8, 5.0)
    for _ in range(20):
        weights = np.minimum(weights, 2.5 * weights.mean())
    return weights


# ---------------------------------------------------------------------------------------------- time of day


class Rhythm(Enum):
    """How the rate follows the time of day."""

    DAILY = "daily"
    FLAT = "flat"

    def factor(self, time_ms: int) -> float:
        """The factor at a time: the mean is 1.0, early morning about 0.7, evening 1.4."""
        if self is Rhythm.FLAT:
            return 1.0
        day, within_ms = divmod(time_ms, _DAY_MS)
        turn = tau * (within_ms / _DAY_MS - _PEAK_HOUR / 24)
        return _BY_WEEKDAY[(day + _THURSDAY) % 7] * (1 + _DAILY * cos(turn) + _SECOND * cos(2 * turn))


# ---------------------------------------------------------------------------------------------- sessions


@dataclass(frozen=True)
class Visitors:
    """Present members and their sessions, as parallel arrays."""

    members: Ints
    sessions: Ints

    def drawn(self, rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
        """Randomly drawn members with their sessions."""
        chosen = rng.integers(0, len(self.members), count)
        return self.members[chosen], self.sessions[chosen]


class Sessions:
    """Which members are present when, for a mean number of views per second."""

    def __init__(self, population: Population, views_per_s: float, rhythm: Rhythm) -> None:
        self._population = population
        self._rhythm = rhythm
        present = min(views_per_s * SECONDS_PER_VIEW, population.ordinary_members * _MOST_PRESENT)
        self._in_a_cohort = max(present / _COHORTS, 2.0)
        phases = shares(population.seed, 12, np.arange(_COHORTS))
        self._lengths_ms = [seconds * 1000 for seconds in _SLOTS_S]
        self._phases_ms = [int(phase * length) for phase, length in zip(phases, self._lengths_ms, strict=True)]
        self._present = lru_cache(maxsize=4)(self._gathered)
        self._cohort = lru_cache(maxsize=4 * _COHORTS)(self._drawn)

    def at(self, time_ms: int) -> Visitors:
        """The present members."""
        slots = [
            (time_ms + phase) // length for phase, length in zip(self._phases_ms, self._lengths_ms, strict=True)
        ]  # fmt: skip
        return self._present(tuple(slots))

    def of_planted(self, members: Ints, time_ms: int) -> Ints:
        """The sessions of planted members, which are always present."""
        return self._session(members, time_ms // _PLANTED_SLOT_MS)

    def _gathered(self, slots: tuple[int, ...]) -> Visitors:
        cohorts = [self._cohort(cohort, slot) for cohort, slot in enumerate(slots)]
        return Visitors(
            np.concatenate([each.members for each in cohorts]), np.concatenate([each.sessions for each in cohorts])
        )

    def _drawn(self, cohort: int, slot: int) -> Visitors:
        population = self._population
        rng = random_generator(population.seed, Purpose.SESSIONS, slot, cohort)
        begin_ms = slot * self._lengths_ms[cohort] - self._phases_ms[cohort]
        count = max(1, round(self._in_a_cohort * self._rhythm.factor(begin_ms)))
        ranks_in_cohort = population.ordinary_members // _COHORTS
        within = np.unique((ranks_in_cohort * rng.random(count) ** _ACTIVE_TAIL).astype(np.int64))
        members = population.member_id(within * _COHORTS + cohort)
        return Visitors(members, self._session(members, slot))

    def _session(self, members: Ints, slot: int) -> Ints:
        sessions: Ints = slot * (self._population.sizes.members + 1) + members
        return sessions
