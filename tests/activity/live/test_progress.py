"""The steps of a start, the bar and the expected time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from penstock.activity.live.progress import (
    BROKER,
    DONE,
    QUERIES,
    RESULTS,
    RUNNING,
    SITE,
    SPARK,
    TITLES,
    USUAL_MS,
    WAITING,
    StartProgress,
)

STEPS = tuple(TITLES)
EXPECTED = {BROKER: 1_000, SITE: 3_000, SPARK: 6_000, QUERIES: 8_000, RESULTS: 10_000}


def states(start: StartProgress, at_ms: int = 0) -> Mapping[str, str]:
    return {step.name: step.state for step in start.view(at_ms).steps}


def test_steps_that_need_nothing_run_from_the_first_moment_and_others_wait_for_theirs() -> None:
    start = StartProgress(STEPS, EXPECTED)
    assert states(start) == {BROKER: RUNNING, SITE: WAITING, SPARK: RUNNING, QUERIES: WAITING, RESULTS: WAITING}
    start.observe(900, {BROKER: True})
    assert states(start)[SITE] == RUNNING, "it runs beside Spark"
    start.observe(5_000, {SPARK: True, SITE: False})
    assert states(start) == {BROKER: DONE, SITE: RUNNING, SPARK: DONE, QUERIES: RUNNING, RESULTS: RUNNING}


def test_what_was_observed_once_stays_done_with_the_time_of_then() -> None:
    start = StartProgress(STEPS, EXPECTED)
    start.observe(2_500, {SITE: True})
    start.observe(4_000, {SITE: False})
    start.observe(5_000, {SITE: True})
    (site,) = (step for step in start.view(6_000).steps if step.name == SITE)
    assert (site.state, site.ended_ms) == (DONE, 2_500)


def test_the_bar_follows_the_clock_and_waits_where_a_step_is_late() -> None:
    start = StartProgress(STEPS, EXPECTED)
    assert start.view(500).share == 0.05
    assert start.view(4_000).share == 0.1, "the broker was expected after a tenth of the time, and is not there"
    start.observe(4_000, {BROKER: True, SITE: True})
    assert start.view(4_000).share == 0.4
    assert start.view(60_000).share == 0.6, "Spark is not there"


def test_the_bar_jumps_ahead_where_a_step_is_early() -> None:
    start = StartProgress(STEPS, EXPECTED)
    start.observe(1_500, {BROKER: True, SITE: True, SPARK: True})
    assert start.view(1_500).share == 0.6
    start.observe(2_000, {QUERIES: True})
    assert start.view(2_000).share == 0.8


def test_the_bar_never_moves_back_and_is_full_only_at_the_end() -> None:
    for order in itertools.permutations(STEPS):
        start, shares = StartProgress(STEPS, EXPECTED), [0.0]
        for number, name in enumerate(order):
            shares.append(start.view(number * 2_500).share)
            start.observe(number * 2_500, {name: True})
            shares.append(start.view(number * 2_500).share)
        assert shares == sorted(shares), order
        assert shares[-1] == 1.0
        assert all(share < 1 for share in shares[:-1])


def test_a_start_that_takes_longer_than_expected_says_so() -> None:
    start = StartProgress(STEPS, EXPECTED)
    assert start.view(7_000).time_text() == "7 s of about 10 s"
    late = start.view(12_000)
    assert late.is_late
    assert late.time_text() == "12 s, longer than the expected 10 s"


def test_it_names_what_it_waits_for_with_how_far_that_is() -> None:
    start = StartProgress(STEPS, EXPECTED)
    start.observe(1_000, {BROKER: True, SITE: True, SPARK: True}, {QUERIES: "2 of 6"})
    assert start.view(1_000).waits_for() == "the queries start (2 of 6), the first results"
    start.observe(2_000, {RESULTS: True})
    assert start.view(2_000).waits_for() == "the queries start (2 of 6)"


def test_the_times_of_one_start_are_expected_of_the_next() -> None:
    start = StartProgress(STEPS)
    assert start.view(0).expected_ms == max(USUAL_MS.values())
    for at_ms, name in enumerate(STEPS, 1):
        start.observe(at_ms * 100, {name: True})
    assert start.is_done
    assert start.view(9_000).elapsed_ms == 500, "it does not go on"
    again = StartProgress(STEPS, start.ended_ms)
    assert again.view(0).expected_ms == 500


@pytest.mark.parametrize("nonsense", [{RESULTS: -5}, {RESULTS: 10**12}, {"other": 3}, {RESULTS: 0}])
def test_implausible_times_are_not_expected(nonsense: Mapping[str, int]) -> None:
    assert StartProgress(STEPS, nonsense).view(0).expected_ms == max(USUAL_MS.values())


def test_no_step_is_expected_before_the_one_that_it_waits_for() -> None:
    steps = StartProgress(STEPS, {SPARK: 20_000, QUERIES: 12_000}).view(0).steps
    assert [step.expected_ms for step in steps[2:]] == [20_000, 20_000, 20_000], "known or not"


def test_on_an_existing_cluster_there_is_no_broker_to_start() -> None:
    start = StartProgress([name for name in STEPS if name != BROKER], EXPECTED)
    assert states(start) == {SITE: RUNNING, SPARK: RUNNING, QUERIES: WAITING, RESULTS: WAITING}
    start.observe(0, {BROKER: True})
    assert BROKER not in start.ended_ms
