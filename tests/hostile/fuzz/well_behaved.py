"""A well-behaved client beside a fuzz run, in a process of its own: it asks, produces and fetches, and takes the time.

    python -m tests.hostile.fuzz.well_behaved PORT TOPIC PID

Each line on standard input is answered with a line of JSON about the time since the one before; `stop` ends it. The
time in which this client or the event loop of the broker (the main thread of PID) was ready to run and the machine ran
something else is subtracted. `broker_ms` is the processor time that the loop used while this client waited: what it
would have waited on an idle machine; not for what is produced, which waits for the disk while the loop serves others.

Attackers who may change quotas may throttle everybody. A request after a response with a throttle time is not measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from tests.broker.wire_client import ALL, WireClient, batch_of, fetch_request, produce_request

from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.types import Message

_PAUSE_S: Final = 0.005


class Thread:
    """What the scheduler of Linux knows about a thread; nothing elsewhere."""

    def __init__(self, path: str) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY)

    def times_s(self) -> tuple[float, float]:
        """For how long it ran, and for how long it was ready to run and did not."""
        if self._file is None:
            return 0.0, 0.0
        ran, waited, _ = os.pread(self._file, 100, 0).split()
        return int(ran) / 1e9, int(waited) / 1e9


class WellBehaved:
    def __init__(self, port: int, topic: str, pid: int) -> None:
        self._client = WireClient(port, timeout_s=600)
        self._topic = topic
        self._own = Thread("/proc/thread-self/schedstat")
        self._broker = Thread(f"/proc/{pid}/task/{pid}/schedstat")
        self._times: list[tuple[float, float, str, float]] = []
        self._begun_s = time.monotonic()
        self._errors: set[int] = set()
        self._failure = ""
        self._is_stopping = threading.Event()
        self._offset = 0
        self._throttle_ms = 0
        self._throttled = 0

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        try:
            while not self._is_stopping.wait(_PAUSE_S):
                for ask in (self._metadata, self._produce, self._fetch):
                    self._measure(ask)
        except (OSError, ValueError) as error:
            self._failure = repr(error)
            self._is_stopping.wait()

    def _measure(self, ask: Callable[[], int]) -> None:
        if self._throttle_ms:
            self._throttled += 1
            ask()
            return
        own_s, (used_s, waited_s), begun_s = self._own.times_s()[1], self._broker.times_s(), time.perf_counter()
        self._errors.add(ask())
        spent_s = time.perf_counter() - begun_s
        now_used_s, now_waited_s = self._broker.times_s()
        elsewhere_s = (self._own.times_s()[1] - own_s) + (now_waited_s - waited_s)
        entry = (
            max(0.0, spent_s - elsewhere_s),
            now_used_s - used_s,
            ask.__name__.strip("_"),
            time.monotonic() - self._begun_s,
        )
        self._times.append(entry)

    def _metadata(self) -> int:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=self._topic)])
        answer = self._ask(ApiKey.METADATA, request, 9)
        return int(answer.topics[0].error_code)

    def _produce(self) -> int:
        request = produce_request({(self._topic, 0): batch_of(os.urandom(100))}, acks=ALL)
        outcome = self._ask(ApiKey.PRODUCE, request, 9).responses[0].partition_responses[0]
        self._offset = outcome.base_offset
        return int(outcome.error_code)

    def _fetch(self) -> int:
        request = fetch_request({(self._topic, 0): self._offset})
        return int(self._ask(ApiKey.FETCH, request, 12).responses[0].partitions[0].error_code)

    def _ask(self, api: ApiKey, request: Message, version: int) -> Any:
        answer = self._client.ask(api, request, version)
        self._throttle_ms = answer.throttle_time_ms
        return answer

    def _listen(self) -> None:
        for line in sys.stdin:
            times, self._times = sorted(self._times), []
            self._begun_s = time.monotonic()
            sys.stdout.write(json.dumps(self._report(times)) + "\n")
            sys.stdout.flush()
            if line.strip() == "stop":
                break
        self._is_stopping.set()

    def _report(self, times: list[tuple[float, float, str, float]]) -> dict[str, Any]:
        def at(share: float) -> float:
            return round(times[min(len(times) - 1, int(len(times) * share))][0] * 1000, 2) if times else 0.0

        def shown(each: tuple[float, float, str, float]) -> tuple[float, float, str, float]:
            return round(each[0] * 1000, 1), round(each[1] * 1000, 1), each[2], round(each[3], 1)

        by_work = sorted((each for each in times if each[2] != "produce"), key=lambda each: -each[1])
        return {
            "requests": len(times) + self._throttled,
            "throttled": self._throttled,
            "median_ms": at(0.5),
            "p99_ms": at(0.99),
            "worst_ms": at(1.0),
            "worst_broker_ms": round(by_work[0][1] * 1000, 2) if by_work else 0.0,
            "slowest": [shown(each) for each in by_work[:6]],
            "error_codes": sorted(self._errors - {0}),
            "failure": self._failure,
        }


if __name__ == "__main__":
    WellBehaved(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])).run()
