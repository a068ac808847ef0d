"""Disks that are full, fail or are replaced: as files show it, and as a cluster lives through it."""

from __future__ import annotations

import asyncio
import errno
import itertools

import pytest
from tests.testing.simulation.simulation_stories import Stage

from penstock.testing.simulated_faults import ALL_KINDS, GROWING, READ, Trouble
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.cluster import SimulatedHost, drawn_folders
from penstock.testing.simulation.faults import parse_schedule
from penstock.testing.simulation.observer import RELOCATED
from penstock.testing.simulation.run import Plan, simulate


def two_folders() -> SimulatedFiles:
    files = SimulatedFiles()
    for folder in ("/a", "/b"):
        files.make_folder(folder)
        file = files.open(f"{folder}/0.log", create=True)
        file.write_at(0, b"durable")
        file.sync()
        files.sync_folder(folder)
    files.sync_folder("/")
    return files


def test_a_full_disk_takes_part_of_a_write_and_everything_again_when_there_is_room() -> None:
    files = two_folders()
    full = Trouble(errno.ENOSPC, "/a", GROWING)
    files.operations.troubles.append(full)
    file = files.open("/a/0.log")
    with pytest.raises(OSError, match="No space left"):
        file.write_at(7, b"more" * 1000)
    assert 7 <= file.size() < 4007
    with pytest.raises(OSError, match="No space left"):
        files.open("/a/1.log", create=True)
    file.truncate(7)
    file.sync()
    assert file.read_at(0, 100) == b"durable"
    files.open("/b/1.log", create=True).write_at(0, b"elsewhere there is room")
    files.operations.troubles.remove(full)
    file.write_at(7, b"more")
    assert file.size() == 11


def test_a_read_error_is_of_some_files_of_one_folder_and_of_reads_only() -> None:
    files = two_folders()
    files.operations.troubles.append(Trouble(errno.EIO, "/a", frozenset({READ}), ".log"))
    file = files.open("/a/0.log")
    with pytest.raises(OSError, match="Input/output error"):
        file.read_at(0, 1)
    file.write_at(7, b"!")
    assert files.open("/b/0.log").read_at(0, 7) == b"durable"
    with files.operations.without_trouble():
        assert file.read_at(0, 8) == b"durable!"


def test_a_disk_that_is_out_does_nothing_and_one_that_is_replaced_is_empty() -> None:
    files = two_folders()
    files.operations.troubles.append(Trouble(errno.EIO, "/a", ALL_KINDS))
    assert not files.exists("/a/0.log")
    for operation in (
        files.list_folder,
        files.open,
        files.size_of,
        files.space,
        files.sync_folder,
        files.remove_folder,
    ):
        with pytest.raises(OSError, match="Input/output error"):
            operation("/a")
    files.operations.troubles.clear()
    files.crash()
    assert files.open("/a/0.log").read_at(0, 7) == b"durable"
    files.crash()
    files.wipe("/a")
    assert not files.exists("/a")
    files.crash()
    assert files.exists("/b/0.log")
    assert not files.exists("/a")


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_partitions_that_a_full_disk_has_no_room_for_are_served_once_it_has(seed: int) -> None:
    schedule = tuple(parse_schedule("3 full-disk broker-0 for 2 | 7 full-disk broker-0 for 2"))
    report = simulate(seed, Plan(brokers=3, schedule=schedule))
    assert not report.problem, "\n".join([*report.last_lines, report.problem])


TWO_FOLDERS = list(itertools.islice((seed for seed in itertools.count() if drawn_folders(seed) > 1), 4))


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        (TWO_FOLDERS[0], "1 disk-out broker-0 for 2 | 4 disk-out broker-1 for 2"),
        pytest.param(TWO_FOLDERS[1], "1 dead-disk broker-2 for 3 | 5 power broker-0 for 1", marks=pytest.mark.long),
        pytest.param(TWO_FOLDERS[2], "1 full-disk broker-0 for 3 | 4 crash broker-1 for 1", marks=pytest.mark.long),
        pytest.param(TWO_FOLDERS[3], "1 blackout all for 1 | 3 blackout all for 1", marks=pytest.mark.long),
    ],
)
def test_replicas_move_between_data_folders_while_disks_and_brokers_fail(seed: int, faults: str) -> None:
    schedule = tuple(parse_schedule(f"{faults} | 9 reset broker-0"))  # the run takes longer than the faults before
    report = simulate(seed, Plan(brokers=3, schedule=schedule))
    assert not report.problem, "\n".join([*report.last_lines, report.problem])
    assert report.stories[RELOCATED]


def test_runs_with_one_data_folder_move_nothing() -> None:
    seed = next(seed for seed in itertools.count() if drawn_folders(seed) == 1)
    report = simulate(seed, Plan(brokers=3, schedule=(), faults_s=2.0))
    assert not report.problem
    assert not report.changes["move between folders"]


def test_a_machine_whose_clock_is_fast_waits_less_than_it_thinks() -> None:
    stage = Stage()
    fast = SimulatedHost(stage.scheduler, stage.network, "fast", "10.0.0.3", 5, drift=0.5)
    assert 0.5 <= fast.rate <= 1.5
    assert fast.rate != 1.0

    async def wait() -> tuple[float, float]:
        before_s, before_ms = asyncio.get_running_loop().time(), fast.clock.monotonic_ms()
        await asyncio.sleep(10)
        return asyncio.get_running_loop().time() - before_s, fast.clock.monotonic_ms() - before_ms

    waited_s, waited_ms = fast.loop.run_until_complete(wait())
    assert (round(waited_s, 6), round(waited_ms, 3)) == (10.0, 10_000.0)
    assert round(stage.scheduler.now_s, 6) == round(10 / fast.rate, 6)
