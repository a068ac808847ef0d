"""Drivers killed with SIGKILL, at chosen steps and at any moment: then the same command again, and the books add up."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import pytest
from tests.spark.tables.table_stories import VIEWS, World, dead, once, places, rows, view
from tests.timeouts import PATIENCE_S

from penstock.spark.tables import OpenTable

ROOT = Path(__file__).parents[3]
# How many drivers are killed, with Spark and again without; PENSTOCK_KILLS=20 for more of them.
KILLS = int(os.environ.get("PENSTOCK_KILLS", "8"))
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SEED = int(os.environ.get("PENSTOCK_SEED", "6"))


def assert_the_books_add_up(world: World, opened: OpenTable) -> None:
    """Every record of the log is in the table or among the dead letters, once; by partition and offset."""
    log = world.log()
    landed, buried = places(rows(opened)), places(dead(opened))
    assert landed + buried == once(log)
    assert all((b"bad" in (log[place] or b"")) == (place in buried) for place in log)
    for partition in (0, 1):
        offsets = [offset for where, offset in log if where == partition]
        covered = opened.coverage([partition]).covered.get(partition)
        assert covered == ((min(offsets), max(offsets) + 1) if offsets else None)


def poisoned(count: int, first: int = 0) -> list[bytes | None]:
    return [b"bad %d" % number if number % 10 == 3 else view(number) for number in range(first, first + count)]


# ---------------------------------------------------------------------------------------------- at chosen steps


def drive(world: World, step: int) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tests.spark.tables.crash_driver",
        world.address,
        world.warehouse.storage.uri,
        str(step),
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.long
def test_drivers_killed_at_one_step_after_another_are_gone_on_with(world: World) -> None:
    """One table all along: each driver finds what the last one left. The first steps in turn, then every seventh."""
    world.send(poisoned(120))
    opened = world.make(schema=VIEWS)
    step, kills = 1, 0
    while True:
        done = drive(world, step)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
        step += 1 if step < 8 else 7
        if kills % 6 == 0:
            world.send(poisoned(30, first=1000 * kills))
    assert kills >= 8
    sys.stdout.write(f"killed {kills}, last at step {step}\n")
    final = drive(world, 0)
    assert final.returncode == 0, final.stderr
    assert_the_books_add_up(world, opened)


# ---------------------------------------------------------------------------------------------- at any moment


class Load:
    """`penstock load` in a process of its own, with the lines that it prints about its commits."""

    def __init__(self, world: World, *options: str) -> None:
        command = [
            sys.executable, "-m", "penstock", "load", "views", "-b", world.address, "-w", world.warehouse.storage.uri,
            *options,
        ]  # fmt: skip
        environment = {**os.environ, "JDK_JAVA_OPTIONS": QUICK_START}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.committed = threading.Event()
        stream = self.process.stderr
        assert stream is not None
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line)
            if line.startswith("Version"):
                self.committed.set()

    def kill(self, after_s: float) -> bool:
        """SIGKILL for the driver, so long after its first commit; whether it came in time."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.committed.wait(0.02) and self.process.poll() is None:
            assert time.monotonic() < deadline, "".join(self.lines)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(after_s)
        was_alive = self.process.poll() is None
        self.process.kill()
        self.finish()
        return was_alive

    def finish(self) -> int:
        code = self.process.wait(PATIENCE_S)
        # What Spark left of its JVM and its workers ends by itself and is not awaited.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reader.join(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def kill_again_and_again(world: World, kills: int, longest_s: float, *options: str, seed: int = SEED) -> None:
    chance = random.Random(seed)
    opened = world.make(schema=VIEWS, event_time="at")
    number = killed = tries = 0
    # A driver that had ended before the signal came was not killed, and does not count.
    while killed < kills:
        tries += 1
        assert tries <= 3 * kills, f"only {killed} of {tries - 1} drivers were killed while they worked"
        world.send(poisoned(400, first=number))
        number += 400
        killed += Load(world, *options).kill(chance.uniform(0, longest_s))
    last = Load(world, *options)
    assert last.finish() == 0, "".join(last.lines)
    assert_the_books_add_up(world, opened)
    sys.stdout.write(f"killed {killed} of {tries}\n")


@pytest.mark.long
def test_drivers_killed_at_random_lose_and_double_nothing(world: World) -> None:
    kill_again_and_again(world, KILLS, 0.25, "--local", "--commit-records", "20")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("half", [0, 1])
def test_spark_drivers_killed_at_random_lose_and_double_nothing(world: World, half: int) -> None:
    kills = (KILLS + half) // 2
    kill_again_and_again(world, kills, 1.2, "--master", "local[2]", "--commit-records", "60", seed=SEED + half)
