"""Clients in the simulator: the clocks and the chance that they take from the machine are the simulated ones.

Noun: a detour, a name in a module of the client that means something else during a run.

Rule: the broker is given its world; the clients' faces make their own clock and chance, by the names listed here.
During a run these give those of the process whose turn it is. A name that is not there any more is an error, not a
silence.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest import mock

from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random
from penstock.testing.simulation.loop import SimulatedLoop


class _Time:
    """What clients use of the module `time`."""

    @staticmethod
    def monotonic() -> float:
        return _clock().monotonic_ms() / 1000

    @staticmethod
    def time_ns() -> int:
        return _clock().now_ms() * 1_000_000


def _clock() -> Clock:
    return cast(Clock, _process().clock)


def _random() -> Random:
    return cast(Random, _process().random)


def _process() -> SimulatedLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimulatedLoop) or loop.clock is None or loop.random is None:
        raise RuntimeError(f"a client in the simulator runs outside of a simulated process, on {loop!r}")
    return loop


DETOURS: tuple[tuple[str, str, Any], ...] = (
    # Often enough that disks have something to forget, and to be damaged, that was known to be durable.
    ("penstock.broker.broker", "_CHECKPOINT_MS", 2_000),
    ("penstock.client.cluster", "SystemClock", _clock),
    ("penstock.client.cluster", "SystemRandom", _random),
    ("penstock.client.consumer.engine", "SystemClock", _clock),
    ("penstock.client.offset_stores.broker", "SystemClock", _clock),
    ("penstock.client.producer.async_producer", "time", _Time),
    ("penstock.client.producer.async_producer", "_time_ns", _Time.time_ns),
)


@contextmanager
def simulated_outside() -> Iterator[None]:
    """For the time of a run."""
    with ExitStack() as stack:
        for module, name, replacement in DETOURS:
            stack.enter_context(mock.patch.object(importlib.import_module(module), name, replacement))
        yield
