"""Whoever waits for a record sends it himself.

A program that sends one record and waits for it, again and again, needs no other thread: each way to the event loop
and back would cost it more than the broker does. So when threads were seen to wait like this, the loop is not woken for
the next record; the thread that comes to wait for it sends its batch by a link of its own (`side_link`) and receives
the answer. All decisions stay where they are: the accumulator gives the batch away as it does to the sender, and
whatever is not a plain acknowledgement is left to the sender on the loop.

Rule: nothing depends on the thread. A batch is driven only if its partition has nothing else to send, and nothing else
of the partition is sent until it is answered. A thread that has to stop waiting (time-out, Ctrl-C) leaves the link to
the loop. A record for which nobody comes to wait is sent by the loop, at the next of its ticks, and the loop is woken
for every record again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from penstock.client.connection import OVERDUE_MS
from penstock.client.errors import NotConnected, PenstockError
from penstock.client.producer.accumulator import Accumulator
from penstock.client.producer.batches import ProducerBatch
from penstock.client.producer.completion import Callback
from penstock.client.producer.plans import OutgoingRequest
from penstock.client.producer.requests import produce_request
from penstock.client.producer.sender import Sender
from penstock.client.producer.side_link import SideLink, open_side_link
from penstock.wire.schemas.produce import ProduceResponse

_log = logging.getLogger("penstock.producer")
# How long a record may lie for which nobody waits after all. Shorter ticks cost every record: at 2 ms the loop's thread
# is in the broker's way so often that an exchange takes half as long again.
_TICK_MS: Final = 10.0
_LYING_MS: Final = 1.0
_MOST_IDLE_TICKS: Final = 5
_CONVINCING_WAITS: Final = 3
_MOST_BYTES: Final = 16 * 1024  # what a socket takes at once
_PATIENCE_S: Final = 0.05
_OPEN_TIMEOUT_MS: Final = 1_000.0
_REOPEN_S: Final = 1.0
_KEEP_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.5


class Driving:
    """Made, ticked and ended on the producer's event loop; `drive` is called by threads that wait."""

    def __init__(self, sender: Sender, accumulator: Accumulator, lock: AbstractContextManager[Any]) -> None:
        self._sender = sender
        self._accumulator = accumulator
        self._settings = accumulator.settings
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._process_id = os.getpid()
        self._links: dict[int, SideLink] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._not_before: dict[int, float] = {}
        self._left_over: dict[SideLink, OutgoingRequest] = {}  # whose answers the loop waits for
        self._stop_listening = sender.on_news(self._abandon_moved)
        self._is_on = False
        self._is_ended = False
        self._waits = 0  # in a row, each for the only batch that there was
        self._driven = 0
        self._driven_before = 0
        self._idle_ticks = 0

    # --- the threads

    def is_expected(self, batch: ProducerBatch) -> bool:
        """Whether somebody is likely to come and send this batch, so that the loop need not be told of it."""
        return self._is_on and self._accumulator.is_all(batch)

    def drive(self, batch: ProducerBatch, timeout_s: float | None) -> float | None:
        """Sends a batch for whose end the calling thread is about to wait, and receives the answer, if that can be.

        How much of the time is left to wait for.
        """
        if threading.get_ident() == self._loop_thread or self._process_id != os.getpid():
            return timeout_s
        if not self._is_on:
            self._look_at(batch)
            return timeout_s
        taken = self._take(batch)
        if taken is None:
            self._sender.wake()
            return timeout_s
        began_s = time.monotonic()
        self._exchange(*taken, _PATIENCE_S if timeout_s is None else min(timeout_s, _PATIENCE_S))
        return None if timeout_s is None else timeout_s - (time.monotonic() - began_s)

    def call_on_loop(self, call: Callback) -> bool:
        if threading.get_ident() == self._loop_thread:
            return False
        self._post(call)
        return True

    def _look_at(self, batch: ProducerBatch) -> None:
        """Takes note of a wait; after some of a kind the next are prepared for."""
        self._waits = self._waits + 1 if self._accumulator.is_all(batch) else 0
        if self._waits == _CONVINCING_WAITS:
            self._waits = 0
            self._post(self._begin, self._sender.leader_of(batch.topic, batch.partition))

    def _take(self, batch: ProducerBatch) -> tuple[SideLink, OutgoingRequest] | None:
        with self._lock:
            builder = batch.builder
            if not self._is_on or batch.is_done or builder is None or builder.size > _MOST_BYTES:
                return None
            node = self._sender.leader_of(batch.topic, batch.partition)
            link = self._links.get(node)
            if link is None:
                self._post(self._begin, node)
                return None
            if link.is_busy or self._sender.slots_of(node) <= 0:
                return None
            if not self._accumulator.take_alone(batch, self._sender.now_ms(), node, self._sender.producer):
                return None
            link.hold()
            self._driven += 1
            request = OutgoingRequest(node)
            request.add(batch)
            return link, request

    def _exchange(self, link: SideLink, request: OutgoingRequest, patience_s: float) -> None:
        response: ProduceResponse | None = None
        # Until it is sent for certain, there is no use in waiting for an answer.
        error: Exception | None = NotConnected(link.node, "the sending was interrupted")
        is_acknowledged = False
        try:
            link.send(produce_request(request.batches, link.version, self._settings))
            error = None
            response = link.answer(patience_s)
            is_acknowledged = response is not None and self._sender.acknowledged_alone(request, response)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the batch's delivery says it
            error = failure
        finally:  # Ctrl-C too: the loop goes on
            link.let_go()
            if is_acknowledged:
                link.is_busy = False
            else:
                self._post(self._go_on, link, request, error or response)

    def _post(self, fn: Callable[..., object], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(fn, *arguments)
        except RuntimeError:  # the loop is closed: whoever waits is told by the sender's end
            _log.debug("the event loop had ended while a thread was sending")

    # --- the loop: what threads leave to it

    def _go_on(self, link: SideLink, request: OutgoingRequest, outcome: ProduceResponse | Exception | None) -> None:
        if outcome is not None or self._is_ended:
            self._ended(link, request, outcome)
        else:
            self._sender.wake_here()  # for the batch's deadline
            self._left_over[link] = request
            self._loop.call_later(OVERDUE_MS / 1000, self._look_at_left_over, link, request)
            link.watch(self._loop, self._settings.request_timeout_ms, partial(self._ended, link, request))

    def _look_at_left_over(self, link: SideLink, request: OutgoingRequest) -> None:
        if self._left_over.get(link) is request and not self._is_ended:
            self._loop.call_later(_LOOK_AGAIN_S, self._look_at_left_over, link, request)
            self._sender.overdue(request.node)

    def _abandon_moved(self) -> None:
        """Gives up links that are silent while others lead what was sent there."""
        for link, request in list(self._left_over.items()):
            if any(map(self._sender.has_moved, request.batches)):
                link.unwatch(self._loop)
                reason = "the broker does not answer, and others lead in its place"
                self._ended(link, request, NotConnected(link.node, reason))

    def _ended(self, link: SideLink, request: OutgoingRequest, outcome: ProduceResponse | Exception | None) -> None:
        self._left_over.pop(link, None)
        link.is_busy = False
        if not isinstance(outcome, ProduceResponse) or self._is_ended:
            self._drop(request.node, link)
        if outcome is not None:
            self._sender.settle_alone(request, outcome)

    def _drop(self, node: int, link: SideLink) -> None:
        link.close(self._loop)
        if self._links.get(node) is link:
            with self._lock:
                del self._links[node]
            self._not_before[node] = self._loop.time() + _REOPEN_S

    # --- the loop: when it is worth while

    def _begin(self, node: int) -> None:
        if self._is_ended or node < 0:
            return
        if node not in self._links:
            if node not in self._opening and self._loop.time() >= self._not_before.get(node, 0.0):
                self._opening[node] = self._loop.create_task(self._open(node))
            return
        if not self._is_on:
            for link in self._links.values():
                if not link.is_busy:
                    link.unwatch(self._loop)
            self._idle_ticks = 0
            self._is_on = True
            self._loop.call_later(_TICK_MS / 1000, self._tick)

    async def _open(self, node: int) -> None:
        try:
            way = self._sender.way_to(node)
            link = None if way is None else await open_side_link(*way, _OPEN_TIMEOUT_MS)
        except PenstockError as error:
            _log.debug("%s", error)
            link = None
        finally:
            del self._opening[node]
        if link is None:
            self._not_before[node] = self._loop.time() + _REOPEN_S
        elif self._is_ended:
            link.close(self._loop)
        else:
            with self._lock:
                self._links[node] = link
            self._begin(node)

    def _tick(self) -> None:
        """Goes on for as long as threads come to send."""
        if self._is_ended:
            return
        with self._lock:
            is_lying = self._accumulator.next_linger_ms() <= self._sender.now_ms() - _LYING_MS
            is_used = self._driven != self._driven_before or any(link.is_busy for link in self._links.values())
            self._driven_before = self._driven
            self._idle_ticks = 0 if is_used else self._idle_ticks + 1
            self._is_on = not is_lying and self._idle_ticks < _MOST_IDLE_TICKS
        if self._is_on:
            self._loop.call_later(_TICK_MS / 1000, self._tick)
        else:
            self._sender.wake_here()
            self._rest()

    def _rest(self) -> None:
        """Nobody takes a link now: the loop notices if a broker closes one, and lets go of all after a while."""
        for node, link in self._links.items():
            if not link.is_busy:
                link.watch(self._loop, _KEEP_S * 1000, partial(self._unused, node, link))

    def _unused(self, node: int, link: SideLink, why: object) -> None:
        self._drop(node, link)
        self._not_before.pop(node, None)

    async def end(self) -> None:
        """Threads that wait for an answer are told that there will be none."""
        self._is_ended = True
        self._stop_listening()
        with self._lock:
            self._is_on = False
            links, self._links = self._links, {}
        for task in list(self._opening.values()):
            task.cancel()
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        for link in links.values():
            link.close(self._loop)
