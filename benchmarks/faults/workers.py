"""The load on a cluster, seen from the program that runs it: a process a client, and the journals that they write."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.faults.clients import CLOSE_S, FLUSH_S
from benchmarks.faults.clusters import NotInTime
from benchmarks.faults.journal import Acked, Event, Read, Tail
from benchmarks.faults.load import END, FLUSH, READY
from benchmarks.faults.nodes import dies_with_parent
from benchmarks.peers.servers import ServerFailed

_READY_S: Final = 60.0
_FLUSH_S: Final = FLUSH_S + CLOSE_S + 20
_END_S: Final = 60.0
_AGAIN_S: Final = 0.1
_MEMBERS: Final = 2
_ROOT: Final = Path(__file__).resolve().parents[2]
_WORKER: Final = "import sys; from benchmarks.faults.load import main; main(sys.argv[1:])"


class Worker:
    """A client's process. Its progress is known from its journal."""

    def __init__(self, client: str, folder: Path, bootstrap: Sequence[str], topic: str, partitions: int,
                 rate: float) -> None:  # fmt: skip
        self.client = client
        self._partitions = partitions
        self._tail = Tail(folder / f"{client}.journal")
        self._errors = folder / f"{client}.errors"
        # When the newest record was sent of those that are acknowledged, and where the group has read to.
        self.acked_sent_s = [0.0] * partitions
        self.seen: list[set[int]] = [set() for _ in range(partitions)]
        arguments = [client, str(folder / f"{client}.journal"), topic, partitions, rate, _MEMBERS, *bootstrap]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, *map(str, arguments)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_ROOT,
                preexec_fn=dies_with_parent(),
            )  # fmt: skip

    @property
    def events(self) -> list[Event]:
        return self._tail.events

    def wait_until_ready(self) -> None:
        self._expect(READY, _READY_S)

    def look(self) -> None:
        """Take in what its journal has since."""
        if self._process.poll() is not None:
            raise ServerFailed(f"{self.client} ended: {self._errors.read_text()[-2000:]}")
        for event in self._tail.more():
            if isinstance(event, Acked):
                self.acked_sent_s[event.partition] = max(self.acked_sent_s[event.partition], event.sent_s)
            elif isinstance(event, Read):
                self.seen[event.partition].add(event.offset)

    def has_sent_since(self, moment_s: float) -> bool:
        """Whether in every partition a record is acknowledged that was sent later than that."""
        return min(self.acked_sent_s) > moment_s

    def stuck_since(self, moment_s: float) -> list[int]:
        return [partition for partition, sent_s in enumerate(self.acked_sent_s) if sent_s <= moment_s]

    def has_read_all(self, ends: Mapping[int, int]) -> bool:
        return all(len(self.seen[partition]) >= end for partition, end in ends.items())

    def flush(self) -> None:
        """End the sending. The client waits until each record is acknowledged or has failed, within a bound."""
        self._say(FLUSH)

    def wait_until_flushed(self) -> None:
        self._expect(FLUSH, _FLUSH_S)

    def end(self) -> None:
        self._say(END)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise NotInTime(f"{self.client} does not end: {self._errors.read_text()[-2000:]}") from None
        self._tail.more()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _say(self, word: str) -> None:
        if self._process.stdin is None:
            raise ServerFailed(f"{self.client} cannot be told")
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def _expect(self, word: str, timeout_s: float) -> None:
        """NotInTime, ServerFailed."""
        output = self._process.stdout
        if output is None:
            raise ServerFailed(f"{self.client} has no output")
        # It writes one line for each word, so nothing of an earlier one is left in the buffer.
        if not select.select([output], [], [], timeout_s)[0]:
            raise NotInTime(f"{self.client} did not say {word} within {timeout_s:.0f} s")
        if output.readline().strip() != word:
            raise ServerFailed(f"{self.client} did not say {word}: {self._errors.read_text()[-2000:]}")


class Load:
    """All clients."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers

    def wait_for_progress(self, timeout_s: float) -> None:
        """Until every client has had a record acknowledged in every partition that was sent from now on. NotInTime."""
        began_s = time.monotonic()
        while True:
            for worker in self.workers:
                worker.look()
            late = [worker for worker in self.workers if not worker.has_sent_since(began_s)]
            if not late:
                return
            if time.monotonic() > began_s + timeout_s:
                stuck = "; ".join(f"{worker.client}, partitions {worker.stuck_since(began_s)}" for worker in late)
                raise NotInTime(f"after {timeout_s:.0f} s nothing new is acknowledged to {stuck}")
            time.sleep(_AGAIN_S)

    def flush(self) -> None:
        for worker in self.workers:
            worker.flush()
        for worker in self.workers:
            worker.wait_until_flushed()

    def wait_until_read(self, ends: Mapping[int, int], timeout_s: float) -> list[str]:
        """Until every group has read everything; the clients of which that is not so in time."""
        deadline = time.monotonic() + timeout_s
        late: list[str] = []
        while True:
            for worker in self.workers:
                worker.look()
            late = [worker.client for worker in self.workers if not worker.has_read_all(ends)]
            if not late or time.monotonic() > deadline:
                return late
            time.sleep(_AGAIN_S)

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


@contextmanager
def loaded(
    clients: Sequence[str], folder: Path, bootstrap: Sequence[str], topic: str, partitions: int, rate: float
) -> Iterator[Load]:
    """The clients at work, each at this rate (records a second), for as long as the block lasts."""
    workers: list[Worker] = []
    try:
        for client in clients:
            workers.append(Worker(client, folder, bootstrap, topic, partitions, rate))  # noqa: PERF401 - ended if one fails
        for worker in workers:
            worker.wait_until_ready()
        yield Load(workers)
    finally:
        for worker in workers:
            worker.kill()
