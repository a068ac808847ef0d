"""Runs in which logs are compacted, let go by retention and deleted by request; and what of that would be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.log.compaction.record_filter import BatchCleaner
from penstock.log.retention import SizeRetention, StartOffsetRetention
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.testing.simulation import cleanup
from penstock.testing.simulation.cleanup import COMPACTIONS, DELETIONS, RETENTIONS, is_drawn
from penstock.testing.simulation.run import Plan, simulate

QUIET = Plan(brokers=3, schedule=())
SEEDS = [seed for seed in range(40) if is_drawn(seed)]


def test_a_third_of_the_seeds_has_topics_of_which_old_records_go() -> None:
    assert 200 < sum(map(is_drawn, range(900))) < 400


@pytest.mark.parametrize(
    "plan", [QUIET, Plan(brokers=1, schedule=()), Plan(brokers=3)], ids=["quiet", "alone", "faults"]
)
def test_only_what_may_be_deleted_is_deleted(plan: Plan) -> None:
    report = simulate(SEEDS[0], plan)
    assert not report.problem, "\n".join([*report.last_lines, report.schedule, report.problem])
    assert report.changes[COMPACTIONS] > 10
    assert report.changes[RETENTIONS] > 3
    assert report.changes[DELETIONS] > 0


def _newest_is_none(real: Callable[..., None]) -> Callable[..., None]:
    """Every record seems to be followed by a newer one of its key."""

    def begin(cleaner: BatchCleaner, newest: dict[bytes, int], *given: Any, **named: Any) -> None:
        real(cleaner, {key: offset + 1 for key, offset in newest.items()}, *given, **named)

    return begin


def _one_more(real: Callable[..., int]) -> Callable[..., int]:
    def expired(policy: SizeRetention, segments: Any, log: Any, now_ms: int) -> int:
        return min(real(policy, segments, log, now_ms) + 1, len(segments) - 1)

    return expired


def _half_a_batch(real: Callable[..., int]) -> Callable[..., int]:
    """Segments go that only begin below the start."""

    def expired(policy: StartOffsetRetention, segments: Any, log: Any, now_ms: int) -> int:
        return sum(segment.base_offset < log.start_offset for segment in list(segments)[:-1])

    return expired


@pytest.mark.long
@pytest.mark.parametrize(
    ("owner", "name", "harm", "reported"),
    [
        (BatchCleaner, "__init__", _newest_is_none, "the newest of"),
        (SizeRetention, "expired", _one_more, "no limit is exceeded"),
        (StartOffsetRetention, "expired", _half_a_batch, "no limit is exceeded"),
    ],
)
def test_a_wrong_deletion_is_found(
    owner: type, name: str, harm: Callable[[Any], Any], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, harm(getattr(owner, name)))
    problems = []
    for seed in SEEDS[:3]:
        problems.append(simulate(seed, QUIET).problem)
        if reported in problems[-1]:
            return
    pytest.fail(f"not found: {problems}")


@pytest.mark.long
def test_records_deleted_by_request_that_a_replica_keeps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader answers at once, and followers do not hear of the new start; nor does retention do it for them."""
    monkeypatch.setattr(cleanup, "_WINDOW_BYTES", -1)
    monkeypatch.setattr(cleanup, "_WINDOW_MS", -1)
    followed = Partition.followed
    monkeypatch.setattr(Partition, "followed", lambda partition, high, start: followed(partition, high, 0))
    monkeypatch.setattr(ReplicaManager, "when_deleted", lambda self, partition, offset, timeout_ms, done: done(None))
    assert "deleted records are gone everywhere" in simulate(SEEDS[0], QUIET).problem
