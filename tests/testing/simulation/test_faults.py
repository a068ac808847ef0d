"""Schedules that are drawn: what each may have, and what all of them have together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulation import faults as kinds
from penstock.testing.simulation.faults import (
    CLUSTER_WIDE,
    DISK_LOST,
    KINDS,
    SINGLE_BROKER,
    Fault,
    InvalidSchedule,
    format_schedule,
    parse_schedule,
    random_schedule,
)
from penstock.testing.simulation.run import compressed_in_time

BROKERS = ["broker-0", "broker-1", "broker-2"]
CLIENTS = ["client-0", "client-1"]
END_S = 12.0


def drawn(seed: int, brokers: int = 3, *, may_lose_unsynced: bool = True) -> list[Fault]:
    return random_schedule(
        SeededRandom(f"{seed}/schedule"),
        BROKERS[:brokers],
        CLIENTS,
        start_s=0.0,
        end_s=END_S,
        mean_gap_s=1.2,
        spares=["broker-3"],
        may_lose_unsynced=may_lose_unsynced,
    )


@pytest.mark.parametrize("brokers", [1, 3])
def test_drawn_faults_come_in_order_are_over_in_time_and_lose_one_disk_at_most(brokers: int) -> None:
    for seed in range(300):
        faults = drawn(seed, brokers)
        assert faults == drawn(seed, brokers)
        assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
        assert all(fault.at_s + fault.for_s <= END_S + 0.001 for fault in faults), seed
        assert sum(fault.kind in DISK_LOST for fault in faults) <= 1, seed
        assert all(fault.host == "all" for fault in faults if fault.kind in CLUSTER_WIDE), seed


def test_every_kind_of_fault_is_drawn_and_most_schedules_have_some_of_them_only() -> None:
    schedules = [drawn(seed) for seed in range(300)]
    assert {fault.kind for faults in schedules for fault in faults} == set(KINDS)
    assert {fault.kind for seed in range(300) for fault in drawn(seed, 1)} == set(SINGLE_BROKER)
    sizes = Counter(len(faults) for faults in schedules)
    assert min(sizes) < 6
    assert max(sizes) > 15


def test_where_one_broker_may_forget_the_others_end_in_good_order() -> None:
    uncleanly_stopped = Counter[str]()
    for seed in range(300):
        faults = drawn(seed, may_lose_unsynced=False)
        hosts = {fault.host for fault in faults if fault.kind in kinds._UNCLEAN and fault.host not in CLIENTS}
        assert len(hosts) <= 1, seed
        uncleanly_stopped.update(hosts)
    assert set(uncleanly_stopped) == set(BROKERS)


def test_clients_are_killed_paused_and_cut_off_too() -> None:
    found = {fault.kind for seed in range(300) for fault in drawn(seed) if fault.host in CLIENTS}
    assert {"crash", "pause", "cut", "reset"} <= found


@pytest.mark.parametrize("story", dict.fromkeys(kinds._SCENARIOS_CLUSTER))
def test_stories_use_any_host_at_any_time(story: Callable[[object], None]) -> None:
    begins: list[float] = []
    first: set[str] = set()
    for seed in range(100):
        drawing = kinds._Drawing(SeededRandom(seed), BROKERS, CLIENTS, 0.0, END_S, [], may_lose_unsynced=True)
        story(drawing)
        assert drawing.faults
        begins.append(min(fault.at_s for fault in drawing.faults))
        first.add(drawing.faults[0].host)
    assert min(begins) < 2
    assert max(begins) > 4
    assert first in (set(BROKERS), set(CLIENTS), {"all"})


def test_a_schedule_reads_as_it_was_written() -> None:
    random = SeededRandom(3)
    faults = random_schedule(random, ["broker-0", "broker-1"], ["client-0"], start_s=1, end_s=60, mean_gap_s=0.5)
    assert len(faults) > 50
    assert all(fault.at_s + fault.for_s <= 60.001 for fault in faults)
    assert parse_schedule(format_schedule(faults)) == faults
    assert parse_schedule("2 reset broker-0 | 1.5 cut broker-0 > client-0 for 3") == [
        Fault(1.5, "cut", "broker-0", "client-0", 3.0),
        Fault(2.0, "reset", "broker-0"),
    ]


@pytest.mark.parametrize("text", ["soon crash broker-0", "1 explode broker-0", "1 crash"])
def test_a_value_that_is_not_a_schedule_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSchedule, match="is not a fault"):
        parse_schedule(text)


def test_drawn_faults_are_as_many_as_they_were_drawn_only_sooner_and_shorter() -> None:
    fault = Fault(4.0, "cut", "broker-0", "broker-1", 3.0, 2.0)
    assert compressed_in_time(fault) == Fault(2.0, "cut", "broker-0", "broker-1", 1.5, 2.0)
