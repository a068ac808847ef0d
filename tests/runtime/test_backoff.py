"""Waiting between tries."""

from __future__ import annotations

import pytest

from penstock.runtime.backoff import Backoff, backoff_ms
from penstock.runtime.randomness import SeededRandom


def test_the_wait_doubles_up_to_its_maximum_and_differs() -> None:
    random = SeededRandom(1)
    waits = [backoff_ms(failures, 100, 1000, random) for failures in range(8)]
    assert waits[0] == 0
    for wait, middle in zip(waits[1:], [100, 200, 400, 800, 1000, 1000, 1000], strict=True):
        assert 0.8 * middle <= wait <= 1.2 * middle
    assert len(set(waits)) == len(waits)


def test_a_thousand_failures_do_not_overflow() -> None:
    assert backoff_ms(10_000, 100, 1000, SeededRandom(1)) <= 1200


def test_success_forgets_failures() -> None:
    backoff = Backoff(100, 1000, SeededRandom(1))
    wait_ms = backoff.failed(5_000)
    assert backoff.remaining_ms(5_000) == pytest.approx(wait_ms)
    assert backoff.remaining_ms(6_000) == 0
    backoff.succeeded()
    assert backoff.remaining_ms(5_000) == 0
