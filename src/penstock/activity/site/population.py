"""Who and what there is on the site: members, items, servers, programs, who follows whom, and who is planted.

Nouns: `Sizes`, how many of each; `Population`, all of them.

Rule: a function of a seed and sizes. Members are known by rank (how active they are) in here and by id outside; the two
are joined by arithmetic, so that millions of members cost nothing. The last ranks are the planted ones: nobody else is
drawn from there, and their ids lie among the others'.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any, Final

import numpy as np

from penstock.activity.events import API_CALLS_PER_MINUTE
from penstock.activity.site.chance import MOST_SEED, Floats, Ints, Purpose, Tickets, draws, heavy_tail, shares
from penstock.activity.site.words import ENDPOINTS, GROUP_SHARES, KEYWORDS, PATHS

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
_MOST_ITEMS: Final = 1_000_000
_MOST_SERVERS: Final = 1_000
_CALLS_OF_A_CLIENT: Final = API_CALLS_PER_MINUTE / 6
_API_SHARE: Final = 0.1
_SOCIAL: Final = 1_500
_FOLLOWED_EACH: Final = 6
_FAVOURITES: Final = 40


@dataclass(frozen=True)
class Sizes:
    """How many there are."""

    members: int
    items: int
    servers: int
    clients: int

    @classmethod
    def for_rate(
        cls, rate: float, members: int | None = None, items: int | None = None, servers: int | None = None
    ) -> Sizes:
        """Enough of all for a rate of events a second; raises ValueError for what makes no sense."""
        if not 1 <= rate <= MOST_RATE:
            raise ValueError(f"a rate of {rate:g} events a second: it is from 1 to {MOST_RATE}")
        sizes = cls(
            members=max(20_000, round(10 * rate)) if members is None else members,
            items=5_000 if items is None else items,
            servers=8 if servers is None else servers,
            clients=max(40, round(rate * _API_SHARE * 60 / _CALLS_OF_A_CLIENT)),
        )
        least_members = max(LEAST_MEMBERS, round(rate))
        if not least_members <= sizes.members <= MOST:
            raise ValueError(
                f"{sizes.members} members: for {rate:g} events a second there have to be {least_members} to {MOST}, "
                "or each would be as busy as a crawler"
            )
        if not LEAST_ITEMS <= sizes.items <= _MOST_ITEMS:
            raise ValueError(f"{sizes.items} items: there have to be {LEAST_ITEMS} to {_MOST_ITEMS}")
        if not LEAST_SERVERS <= sizes.servers <= _MOST_SERVERS:
            raise ValueError(f"{sizes.servers} servers: there have to be {LEAST_SERVERS} to {_MOST_SERVERS}")
        return sizes


class Population:
    """All there is. Items, servers, clients and keywords are known by their index; `item_id` and names are outside."""

    def __init__(self, seed: int, sizes: Sizes) -> None:
        if not 0 <= seed <= MOST_SEED:
            raise ValueError(f"the seed is {seed}: it is from 0 to {MOST_SEED}")
        self.seed = seed
        self.sizes = sizes
        self.ordinary_members = sizes.members - PLANTED_MEMBERS
        rng = draws(seed, Purpose.POPULATION, 0)
        self._step = _coprime(int(rng.integers(sizes.members // 3, sizes.members)), sizes.members)
        self._shift = int(rng.integers(0, sizes.members))
        self.quality: Floats = rng.beta(2, 3, sizes.items)
        # Good items are looked at more often, but chance has the larger part in it.
        popularity = rng.permutation(heavy_tail(sizes.items, 0.9, 4.0)) * (0.4 + self.quality)
        self.items = Tickets(popularity)
        self.keywords = Tickets(heavy_tail(len(KEYWORDS), 0.95, 2.0))
        self.keyword_order: Ints = rng.permutation(len(KEYWORDS))
        self.endpoints = Tickets(heavy_tail(len(ENDPOINTS), 1.1, 1.0))
        self.paths = Tickets(heavy_tail(len(PATHS), 1.0, 1.5))
        self.path_ms: Floats = np.round(rng.lognormal(3.0, 0.5, len(PATHS)), 1)
        self.clients = Tickets(_client_weights(sizes.clients))
        self.server_names = tuple(f"server-{number}" for number in range(1, sizes.servers + 1))
        total_clients = sizes.clients + ABUSERS + BUSY_CLIENTS
        self.client_names = tuple(f"client-{number:04}" for number in 1 + rng.permutation(total_clients))

    # --- members

    def member_id(self, ranks: Any) -> Any:
        """Ids from 1 on, by rank; ranks of 0 are the most active."""
        return (ranks * self._step + self._shift) % self.sizes.members + 1

    def groups(self, member_ids: Ints) -> Ints:
        """The user group of each, by its number."""
        bounds = np.cumsum(GROUP_SHARES[:-1])
        found: Ints = np.searchsorted(bounds, shares(self.seed, 11, member_ids), side="right")
        return found

    @cached_property
    def planted(self) -> Planted:
        first = self.ordinary_members
        rng = draws(self.seed, Purpose.POPULATION, 1)
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

    # --- who follows whom

    @cached_property
    def social_ids(self) -> Ints:
        """Those that follow and are followed, the most followed first."""
        count = min(_SOCIAL, self.ordinary_members // 10)
        ids: Ints = self.member_id(np.arange(count, dtype=np.int64))
        return ids

    @cached_property
    def followed(self) -> Tickets:
        """Of whom there is how much to follow, by place in `social_ids`."""
        return Tickets(heavy_tail(len(self.social_ids), 0.7, 5.0))

    @cached_property
    def follow_graph(self) -> tuple[Ints, Ints]:
        """Who follows whom when the site opens: followers and followed, each pair once."""
        rng = draws(self.seed, Purpose.POPULATION, 2)
        size = len(self.social_ids)
        count = size * _FOLLOWED_EACH
        followers, followed = rng.integers(0, size, count), self.followed.draw(rng, count)
        pairs = np.unique(followers * size + followed)
        pairs = rng.permutation(pairs[pairs // size != pairs % size])
        return self.social_ids[pairs // size], self.social_ids[pairs % size]


@dataclass(frozen=True)
class Planted:
    """Those whose behaviour is known, and those that look a little like them. Rates are events a second."""

    crawlers: Ints
    crawler_rates: Floats
    crawler_starts: Ints
    readers: Ints
    """Honest, and heavy readers."""
    reader_rates: Floats
    reader_favourites: Ints
    spammers: Ints
    spammer_rates: Floats
    posters: Ints
    """Honest, and write often."""
    poster_rates: Floats
    abusers: Ints
    abuser_rates: Floats
    busy: Ints
    """Honest programs, near the limit."""
    busy_rates: Floats


def _coprime(number: int, to: int) -> int:
    while gcd(number, to) != 1:
        number += 1
    return number


def _client_weights(count: int) -> Floats:
    """A heavy tail whose top is cut: no honest program comes near the limit by chance."""
    weights = heavy_tail(count, 0.8, 5.0)
    for _ in range(20):
        weights = np.minimum(weights, 2.5 * weights.mean())
    return weights
