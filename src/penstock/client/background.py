"""The event loop behind the blocking clients: one daemon thread, shared by all of them in a process.

The first `acquire` starts the thread; the last `release`, or the interpreter's exit, stops it. A blocking call runs a
coroutine on the loop; Ctrl-C and time-outs cancel it. A forked child inherits neither thread nor loop: clients
created before the fork raise ClosedError there, new ones start a new loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.client.errors import ClosedError, TimedOut

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

_log = logging.getLogger(__name__)
_END_TIMEOUT_S = 5.0
_CANCEL_TIMEOUT_S = 1.0


class Background:
    """Call `acquire` and `release` once each."""

    _lock = threading.Lock()
    _current: Background | None = None

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        self._users = 0
        self._process_id = os.getpid()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="penstock-client", daemon=True)
        self._thread.start()

    @staticmethod
    def acquire() -> Background:
        """The loop of this process; call `release` when you no longer need it."""
        with Background._lock:
            current = Background._current
            if current is None or not current._thread.is_alive():
                current = Background._current = Background()
            current._users += 1
            return current

    def release(self) -> None:
        """The last release ends thread and loop."""
        if self._process_id != os.getpid():
            return
        with Background._lock:
            self._users -= 1
            if self._users > 0 or self._ended:
                return
            self._ended = True
            if Background._current is self:
                Background._current = None
        self._end()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of a coroutine, for a thread other than the loop's own.

        Raises TimedOut after `timeout_s`, and KeyboardInterrupt on Ctrl-C; both cancel the coroutine.
        """
        try:
            self._check_usable()
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done() and not future.cancelled():
                raise  # the coroutine itself raised it
            self._cancel(future)
            raise TimedOut(f"the call did not finish within {timeout_s} s") from None
        except concurrent.futures.CancelledError:
            raise ClosedError("the client was closed meanwhile") from None
        except BaseException:
            if not future.done():
                self._cancel(future)
            raise

    def _cancel(self, future: concurrent.futures.Future[Any]) -> None:
        """Cancel, and give the coroutine a moment to clean up."""
        future.cancel()
        done = threading.Event()
        # The loop runs the task's cancellation before this.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.call_soon, done.set)
            done.wait(_CANCEL_TIMEOUT_S)

    def call(self, fn: Callable[..., object], *args: Any) -> None:
        """Run a function on the loop's thread without waiting; ignored once the loop has ended."""
        if self._process_id == os.getpid():
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(fn, *args)

    @property
    def on_loop(self) -> bool:
        """Whether the caller is the loop's own thread, which must not block."""
        return threading.current_thread() is self._thread

    def _check_usable(self) -> None:
        if self._process_id != os.getpid():
            raise ClosedError(
                "this client was created before the process forked", hint="Create the client in the child process"
            )
        if self.on_loop:
            raise ClosedError(
                "a blocking call on the client's own event loop would wait for itself",
                hint="Callbacks must not block: use another thread, or the asyncio client",
            )
        if self._ended or not self._thread.is_alive():
            raise ClosedError("the client's event loop has ended")

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            try:
                self.loop.run_until_complete(_finish(self.loop))
            finally:
                self.loop.close()

    def _end(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.on_loop:
            self._thread.join(_END_TIMEOUT_S)
            if self._thread.is_alive():
                _log.warning("the client's event loop did not end in time: timeout_s=%s", _END_TIMEOUT_S)

    @classmethod
    def _at_exit(cls) -> None:
        with cls._lock:
            current, cls._current = cls._current, None
            if current is None or current._ended:
                return
            current._ended = True
        current._end()

    @classmethod
    def _after_fork(cls) -> None:
        cls._lock = threading.Lock()
        cls._current = None


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """A method that calls a coroutine method of `self._async` and waits for it by `self._run`."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._run(method(self._async, *args, **kwargs))
        return result

    return call


def run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine whose primitives block, so that it never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call was suspended")


async def _finish(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT_S)
    await loop.shutdown_asyncgens()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


# Registered at import, so that clients' own handlers, registered later, run first and still find the loop.
atexit.register(Background._at_exit)
os.register_at_fork(after_in_child=Background._after_fork)
