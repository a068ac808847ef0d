"""A stream from topic to topic whose drivers, executors and brokers are killed, and the count of its rows.

Victims come in turns, each at a moment that is drawn from a seed: after a number of further committed rows, and some
milliseconds later. A driver that is dead, by our hand or because it lost its broker for too long, is started again with
the same checkpoint. In the end every row that was sent must be visible once to a reader of committed records.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Protocol

from tests.spark.cluster.standalone import Standalone

from penstock import Admin, Consumer, PenstockError, Producer, TopicSpec

PROGRAM = Path(__file__).with_name("stream_program.py")
REPOSITORY = Path(__file__).parents[3]
PARTITIONS = 3
ROWS_PER_KILL = 1_500
PATIENCE_S = 240.0
SOURCE, TARGET = "kills-in", "kills-out"


class Server(Protocol):
    """A broker as a process that comes again under the same address."""

    @property
    def address(self) -> str: ...

    def kill(self) -> None: ...

    def launch(self) -> None: ...

    def wait_until_listening(self) -> None: ...


class Kills:
    """The story. `run` raises AssertionError if a row is missing or twice."""

    def __init__(self, server: Server, standalone: Standalone, folder: Path, seed: int) -> None:
        self._server = server
        self._standalone = standalone
        self._folder = folder
        self._seed = seed
        self._random = random.Random(seed)
        self._began_s = time.monotonic()
        self._driver: subprocess.Popen[str] | None = None
        self._application = ""
        self._seen: Counter[bytes] = Counter()
        self._sent = 0
        self._is_over = threading.Event()
        self.killed: Counter[str] = Counter()
        self.drivers_started = 0

    @property
    def summary(self) -> str:
        killed = ", ".join(f"{count} x {victim}" for victim, count in sorted(self.killed.items()))
        return (
            f"seed {self._seed}: killed {killed}; {self.drivers_started} drivers started; {self._sent:,} rows sent, "
            f"{len(self._seen):,} visible, each once; {time.monotonic() - self._began_s:.0f} s"
        )

    def run(self, kills: int) -> None:
        with Admin(self._server.address) as admin:
            for name in (SOURCE, TARGET):
                admin.create_topic(TopicSpec(name, PARTITIONS))
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        try:
            for number in range(kills):
                self._send(ROWS_PER_KILL)
                target = len(self._seen) + self._random.randrange(200, ROWS_PER_KILL)
                self._until(target, f"progress before kill {number}")
                time.sleep(self._random.random() * 0.4)
                self._kill(("driver", "executor", "broker")[number % 3])
            self._send(ROWS_PER_KILL)
            self._until(self._sent, "all rows")
            self._check()
            sys.stdout.write(f"{self.summary}\n")  # pytest -rP shows it
        finally:
            self._is_over.set()
            self._end_driver()
            reader.join(30)

    def _send(self, count: int) -> None:
        with Producer(self._server.address) as producer:
            for number in range(self._sent, self._sent + count):
                producer.send(SOURCE, b"%08d" % number, partition=number % PARTITIONS)
        self._sent += count

    def _until(self, rows: int, what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self._seen) < min(rows, self._sent):
            if self._driver is None or self._driver.poll() is not None:
                self._start_driver()
            if time.monotonic() > deadline_s:
                raise AssertionError(
                    f"{what}: {len(self._seen)} of {self._sent} rows after {PATIENCE_S} s; killed {dict(self.killed)}; "
                    f"the driver said: {self._output().read_text(errors='replace')[-3000:]}"
                )
            time.sleep(0.05)

    def _check(self) -> None:
        with Admin(self._server.address) as admin:
            left = admin.list_transactions(["Ongoing"])
        doubled = [row for row, count in self._seen.items() if count > 1]
        missing = {b"%08d" % number for number in range(self._sent)} - set(self._seen)
        assert not doubled, f"{len(doubled)} rows are visible twice: {doubled[:10]}"
        assert not missing, f"{len(missing)} rows are missing: {sorted(missing)[:10]}"
        assert len(self._seen) == self._sent, left

    # ------------------------------------------------------------------------------------------ processes

    def _output(self) -> Path:
        return self._folder / f"driver-{self.drivers_started}.txt"

    def _start_driver(self) -> None:
        self.drivers_started += 1
        arguments = [self._standalone.url, self._server.address, SOURCE, TARGET, str(self._folder)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with self._output().open("w") as errors:
            self._driver = subprocess.Popen(
                [sys.executable, str(PROGRAM), *arguments], env=environment, stdout=subprocess.PIPE, stderr=errors,
                text=True, start_new_session=True,
            )  # fmt: skip
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if line.startswith("application"):
                self._application = line.split()[1]
            if line.startswith("started"):
                return

    def _end_driver(self) -> None:
        """With everything that it started: the JVM, and the Python workers of the driver."""
        if self._driver is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait(30)
            if self._driver.stdout is not None:
                self._driver.stdout.close()
            self._driver = None

    def _kill(self, victim: str) -> None:
        if victim == "driver":
            self._end_driver()
        elif victim == "executor":
            executors = self._standalone.executors(self._application)
            if executors:
                os.kill(self._random.choice(executors), signal.SIGKILL)
        else:
            self._server.kill()
            self._server.launch()
            self._server.wait_until_listening()
        self.killed[victim] += 1

    # ------------------------------------------------------------------------------------------ the reader

    def _read(self) -> None:
        """Counts committed rows, over kills of brokers."""
        offsets: dict[int, int] = {}
        while not self._is_over.is_set():
            with contextlib.suppress(PenstockError):
                self._read_from(offsets)

    def _read_from(self, offsets: dict[int, int]) -> None:
        with Consumer(
            bootstrap_servers=self._server.address, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([(TARGET, number) for number in range(PARTITIONS)])
            for partition, offset in offsets.items():
                consumer.seek((TARGET, partition), offset)
            while not self._is_over.is_set():
                for records in consumer.poll(timeout_ms=200).values():
                    for record in records:
                        self._seen[record.value] += 1
                        offsets[record.partition] = record.offset + 1


def kills_wanted() -> int:
    """How many kills a run has: PENSTOCK_KILLS, six by default."""
    return int(os.environ.get("PENSTOCK_KILLS", "6"))


def seed() -> int:
    return int(os.environ.get("PENSTOCK_KILLS_SEED", "1"))
