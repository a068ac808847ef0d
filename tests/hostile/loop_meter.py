"""What the event loop of a broker does while a hostile request is served.

`LoopMeter` counts the turns of the loop and the processor time of the longest; it prints both, since a number of
milliseconds says much to a reader and little to a test on a busy machine, which accepts `GENEROUS_S`. `Gate` stops all
long requests at the end of a slice: what is served then is served between two slices, however fast the machine is.
"""

from __future__ import annotations

import gc
import sys
import time
from types import TracebackType
from typing import Any, Final

from tests.broker.wire_client import WireClient, call
from tests.timeouts import until

from penstock.broker.broker import Broker
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.api_versions import ApiVersionsRequest

LIMIT_S: Final = 0.05
"""Processor time for which a request may hold the loop."""
GENEROUS_S: Final = 20 * LIMIT_S
"""What tests accept: caches are cold and clocks are slow on a busy machine. Work that is not sliced takes 3 s."""


class LoopMeter:
    """Of the loop of an embedded broker, which is asyncio's own. What earlier tests left in memory is not collected."""

    def __init__(self, broker: Broker, what: str) -> None:
        self._broker = broker
        self._loop: Any = broker.services.loop
        self._what = what
        self.turns = 0
        self.longest_s = 0.0

    def __enter__(self) -> LoopMeter:
        run_once = self._loop._run_once

        def measured() -> None:
            begun_s = time.thread_time()
            run_once()
            self.turns += 1
            self.longest_s = max(self.longest_s, time.thread_time() - begun_s)

        gc.collect()
        gc.freeze()
        call(self._broker, lambda: setattr(self._loop, "_run_once", measured))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call(self._broker, lambda: delattr(self._loop, "_run_once"))
        gc.unfreeze()
        sys.stdout.write(f"{self._what}: longest turn {self.longest_s * 1000:.1f} ms of {self.turns} turns\n")


class Gate:
    """Closed from the start; `open` lets all long requests continue.

    The first request of an API in a version is prepared in slices, too. ApiVersions, with which stories ask whether
    others are served meanwhile, is known before the gate is closed.
    """

    def __init__(self, broker: Broker) -> None:
        with WireClient(broker.advertised[0].port) as client:
            client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0)
        self._broker = broker
        self._long_work: Any = broker.services.long_requests
        self._is_closed = True
        self._pass = self._long_work._next
        self._reached = 0
        call(broker, lambda: setattr(self._long_work, "_next", self._stop))

    def _stop(self) -> None:
        if self._is_closed:
            self._reached += 1
        else:
            self._pass()

    def reached(self) -> None:
        """Wait until a long request has come to the end of a slice."""
        until(lambda: self._reached, "a long request has been begun, and has paused")

    def open(self) -> None:
        def go_on() -> None:
            self._is_closed = False
            del self._long_work._next
            if self._long_work._paused:
                self._pass()

        call(self._broker, go_on)
