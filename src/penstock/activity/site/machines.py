"""What machines do: programs that call, servers that measure themselves and log requests.

Rule: requests go to servers alike, take as long as their path takes times a lognormal, and fail 3 times in 1,000. An
incident makes one server slow, failing and busy, and no other.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.activity.events import API_CALLS, REQUESTS, SERVERS
from penstock.activity.site import words
from penstock.activity.site.chance import Floats, Ints, Purpose, draws
from penstock.activity.site.columns import TICK_MS, Piece
from penstock.activity.site.incidents import FAILING, SLOWER, Happenings, Incident
from penstock.activity.site.population import Population
from penstock.activity.site.reading import Made
from penstock.activity.site.rhythm import Rhythm

_API_CALLS: Final = 0.10
_REQUESTS: Final = 0.227
_FAILS: Final = 0.003
_TICKS_A_SECOND: Final = 1000 // TICK_MS
_STATUSES: Final = np.array([200, 404, 400, 500, 429])
_STATUS_BOUNDS: Final = np.array([0.96, 0.984, 0.995, 0.999])


class Machines:
    """What machines do at a mean rate of events a second (of all kinds)."""

    def __init__(self, population: Population, happenings: Happenings, rate: float, rhythm: Rhythm) -> None:
        self._population = population
        self._happenings = happenings
        self._per_tick = rate * TICK_MS / 1000
        self._rhythm = rhythm

    def of(self, tick: int) -> Made:
        """All that they do in a tick."""
        time_ms = tick * TICK_MS
        rng = draws(self._population.seed, Purpose.MACHINES, tick)
        mean = self._per_tick * self._rhythm.factor(time_ms)
        incident = self._happenings.incident_at(time_ms)
        yield API_CALLS, self._calls(rng, rng.poisson(mean * _API_CALLS))
        yield REQUESTS, self._requests(rng, rng.poisson(mean * _REQUESTS), incident)
        # Each server has its tenth of the second.
        due = np.flatnonzero((np.arange(self._population.sizes.servers) + tick) % _TICKS_A_SECOND == 0)
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
    """What programs call and what they are told: columns endpoint, status, duration_ms."""
    status = _STATUSES[np.searchsorted(_STATUS_BOUNDS, rng.random(count), side="right")]
    return {
        "endpoint": population.endpoints.draw(rng, count), "status": status,
        "duration_ms": np.round(rng.lognormal(3.2, 0.6, count), 1),
    }  # fmt: skip


def _logged(status: Ints, took_ms: Floats) -> Piece:
    slow = took_ms > 250.0
    level = np.where(status >= 500, words.ERROR, np.where(slow, words.WARN, words.INFO))
    message = np.where(slow, words.SLOW_QUERY, np.where(took_ms < 8.0, words.SERVED_CACHED, words.SERVED))
    message = np.where(status == 404, words.NO_SUCH_PAGE, message)
    message = np.where(status == 500, words.NO_CONNECTION, np.where(status == 503, words.TIMED_OUT, message))
    return {"level": level, "message": message}


def _fraction(values: Floats) -> Floats:
    return np.asarray(np.round(np.clip(values, 0.0, 1.0), 3), np.float64)
