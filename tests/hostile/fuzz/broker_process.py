"""The broker of a fuzz run, in a process of its own, with a meter in its event loop.

    python -m tests.hostile.fuzz.broker_process < settings.json

Its first line on standard output has the ports. From then on each line on standard input is a command: `status` prints
a line of JSON, `restart-meter` forgets the longest turns so far, `stop` stops the broker cleanly.

A turn of the loop is measured three times: processor time of its thread, wall time, and wall time without the time in
which the thread was ready to run and the machine ran something else (from /proc/thread-self/schedstat). Only the first
says something about the broker on a busy machine. Everything that is logged with an exception, or at ERROR, is kept.
With `counts_objects` it also counts the objects that each full collection of garbage looks at, which costs time itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import selectors
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any, Final

from penstock.broker.broker import Broker
from penstock.broker.settings import settings_from
from penstock.cluster.controller.topics import NewTopic
from penstock.runtime import network
from penstock.runtime.garbage_collector import BoundedCollector

_SLOW_S: Final = 0.03
_WATCH_S: Final = 0.01
_KEPT: Final = 12


class MeteredSelector(selectors.DefaultSelector):
    """A turn begins when `select` returns, and ends when it is called again."""

    def __init__(self) -> None:
        super().__init__()
        self._delays: int | None = None
        self.begun = (0.0, 0.0, 0.0)
        self.turn = 0
        self.clear()

    def clear(self) -> None:
        self.cpu_s = self.wall_s = self.own_s = 0.0
        self.turns_over: Counter[int] = Counter()
        self.stacks: list[tuple[float, str]] = []

    def attach(self) -> None:
        """Called on the loop's thread."""
        try:
            self._delays = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._delays = None
        self.thread = threading.get_ident()
        self.cpu_clock = time.pthread_getcpuclockid(self.thread)

    def _now(self) -> tuple[float, float, float]:
        delay_s = int(os.pread(self._delays, 100, 0).split()[1]) / 1e9 if self._delays is not None else 0.0
        return time.thread_time(), time.perf_counter(), delay_s

    def select(self, timeout: float | None = None) -> Any:
        if self.turn:
            cpu_s, wall_s, delay_s = (now - begun for now, begun in zip(self._now(), self.begun, strict=True))
            self.cpu_s = max(self.cpu_s, cpu_s)
            self.wall_s = max(self.wall_s, wall_s)
            self.own_s = max(self.own_s, wall_s - delay_s)
            for limit_ms in (20, 50, 100):
                if cpu_s * 1000 > limit_ms:
                    self.turns_over[limit_ms] += 1
        self.turn += 1
        ready = super().select(timeout)
        self.begun = self._now()
        return ready

    def watch(self) -> None:
        """On a thread: keep what the loop does during its slow turns."""
        noted = -1
        while True:
            time.sleep(_WATCH_S)
            turn, begun_s = self.turn, self.begun[0]
            spent_s = time.clock_gettime(self.cpu_clock) - begun_s
            if turn == noted or spent_s < _SLOW_S or turn != self.turn:
                continue
            noted = turn
            frame = sys._current_frames().get(self.thread)
            text = "".join(traceback.format_stack(frame)[-12:])
            if self.turn == turn:
                self.stacks.append((spent_s, text))
                self.stacks = sorted(self.stacks, reverse=True)[:_KEPT]


class Surprises(logging.Handler):
    """What a broker must never log, whatever clients send: each kind once, with how often it came."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.counts: Counter[str] = Counter()
        self.texts: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR and not record.exc_info:
            return
        where, text = f"{record.name}:{record.msg}", record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            last = traceback.extract_tb(error.__traceback__)[-1:]
            where = f"{type(error).__name__} at {last[0].filename}:{last[0].lineno}" if last else repr(error)
            text += "\n" + "".join(traceback.format_exception(error))
        self.note(where, text)

    def note(self, where: str, text: str) -> None:
        self.counts[where] += 1
        self.texts.setdefault(where, text)


def resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Victim:
    def __init__(self, settings: dict[str, str], topics: dict[str, dict[str, str]], counts_objects: bool) -> None:
        self._settings = settings
        self._topics = topics
        self._counts_objects = counts_objects
        self._most_examined = 0
        self.selector = MeteredSelector()
        self.surprises = Surprises()
        self._stopping = asyncio.Event()

    def run(self) -> None:
        network._LOG_INTERVAL_MS = 0  # type: ignore[misc]  # no surprise is suppressed
        logging.basicConfig(level=logging.ERROR, handlers=[self.surprises])
        sys.unraisablehook = lambda found: self.surprises.note("unraisable", f"{found.exc_value!r} in {found.object!r}")
        threading.excepthook = lambda found: self.surprises.note(
            f"thread: {found.exc_type.__name__}", "".join(traceback.format_exception(found.exc_value))
        )
        with (
            BoundedCollector() as collector,
            asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(self.selector)) as runner,
        ):
            runner.run(self._serve(collector))

    async def _serve(self, collector: BoundedCollector) -> None:
        self.selector.attach()
        self._loop = asyncio.get_running_loop()
        self.broker = Broker(settings_from(self._settings))
        await self.broker.start()
        topics = [NewTopic(name, 2, 1, configs=configs) for name, configs in self._topics.items()]
        await self.broker.cluster.require_controller().create_topics(topics)
        collector.set_aside()
        if self._counts_objects:
            gc.callbacks.append(self._examine)
        self.selector.clear()
        for work in (self.selector.watch, self._listen):
            threading.Thread(target=work, daemon=True).start()
        self._say({**{each.name: each.port for each in self.broker.advertised}, "pid": os.getpid()})
        await self._stopping.wait()
        await self.broker.stop()
        self._say(self._status())

    def _examine(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            self._most_examined = max(self._most_examined, len(gc.get_objects()))

    def _listen(self) -> None:
        for line in sys.stdin:
            command = line.strip()
            if command == "status":
                self._say(self._status())
            elif command == "restart-meter":
                self.selector.clear()
                self._say({})
            else:
                break
        self._loop.call_soon_threadsafe(self._stopping.set)

    def _status(self) -> dict[str, Any]:
        meter, counters = self.selector, self.broker.services.server.counters
        return {
            "frames": counters.frames,
            "connections": counters.connections,
            "resident_bytes": resident_bytes(),
            "turns": meter.turn,
            "longest_cpu_ms": meter.cpu_s * 1000,
            "longest_wall_ms": meter.wall_s * 1000,
            "longest_own_ms": meter.own_s * 1000,
            "turns_over": dict(meter.turns_over),
            "slow_stacks": meter.stacks,
            "most_examined": self._most_examined,
            "surprises": [
                [where, count, self.surprises.texts[where]] for where, count in self.surprises.counts.items()
            ],
        }

    @staticmethod
    def _say(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def main() -> None:
    given = json.loads(sys.stdin.readline())
    Victim(given["settings"], given["topics"], given.get("counts_objects", False)).run()


if __name__ == "__main__":
    main()
