"""The loop behind the blocking clients: shared, interruptible, ended with the last client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
from tests.timeouts import PATIENCE_S

from penstock.client.background import Background
from penstock.client.errors import ClosedError, TimedOut


@pytest.fixture
def background() -> Iterator[Background]:
    held = Background.acquire()
    yield held
    held.release()


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-client"]


def script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_users_share_one_thread_and_the_last_one_ends_it() -> None:
    first, second = Background.acquire(), Background.acquire()
    assert first is second
    assert len(loop_threads()) == 1
    first.release()
    assert second.run(double(2)) == 4
    second.release()
    assert loop_threads() == []
    with pytest.raises(ClosedError):
        second.run(double(2))
    third = Background.acquire()
    assert third is not first
    third.release()


def test_many_threads_may_call_at_once(background: Background) -> None:
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(background.run(double(n)))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [2 * n for n in range(20)]


def test_what_the_coroutine_raises_is_raised(background: Background) -> None:
    async def failing() -> None:
        raise LookupError("mine")

    async def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(LookupError, match="mine"):
        background.run(failing())
    with pytest.raises(TimeoutError, match="its own"):
        background.run(late(), PATIENCE_S)


def test_a_time_out_ends_the_call_and_the_coroutine(background: Background) -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    with pytest.raises(TimedOut):
        background.run(endless(), 0.05)
    assert ended.wait(PATIENCE_S)


def test_a_coroutine_that_ignores_its_cancellation_does_not_hold_the_call(background: Background) -> None:
    goes_on = threading.Event()

    async def stubborn() -> None:
        while not goes_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    with pytest.raises(TimedOut):
        background.run(stubborn(), 0.05)
    goes_on.set()


def test_a_blocking_call_on_the_loop_raises_instead_of_deadlocking(background: Background) -> None:
    async def blocking() -> int:
        return background.run(double(1))

    with pytest.raises(ClosedError, match="event loop"):
        background.run(blocking(), PATIENCE_S)


def test_call_runs_on_the_loop(background: Background) -> None:
    seen: list[bool] = []
    done = threading.Event()

    def look() -> None:
        seen.append(background.on_loop)
        done.set()

    background.call(look)
    assert done.wait(PATIENCE_S)
    assert seen == [True]
    assert not background.on_loop


def test_releasing_ends_pending_calls() -> None:
    held = Background.acquire()
    outcome: list[BaseException] = []

    waits = threading.Event()

    async def endless() -> None:
        waits.set()
        await asyncio.sleep(3600)

    def wait() -> None:
        try:
            held.run(endless())
        except BaseException as error:  # noqa: BLE001 - looked at below
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(PATIENCE_S)
    held.release()
    thread.join(PATIENCE_S)
    assert isinstance(outcome[0], ClosedError)
    assert loop_threads() == []


def test_ctrl_c_ends_a_blocking_call_at_once() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import asyncio, signal
                from penstock.client.background import Background
                signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
                async def endless():
                    print("waiting", flush=True)
                    try:
                        await asyncio.sleep(3600)
                    finally:
                        print("tidied up", flush=True)
                background = Background.acquire()
                try:
                    background.run(endless())
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
                background.release()
                """
            ),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert output.splitlines() == ["tidied up", "interrupted"]
    assert process.returncode == 0


def test_an_interpreter_that_ends_without_release_ends() -> None:
    done = script(
        """
        import asyncio, atexit
        from penstock.client.background import Background
        background = Background.acquire()
        background.call(lambda: asyncio.ensure_future(asyncio.sleep(3600)))
        async def two():
            return 2
        atexit.register(lambda: print("at exit", background.run(two(), 60)))
        """
    )
    assert done.stdout == "at exit 2\n"
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    done = script(
        """
        import asyncio, os
        from penstock.client.background import Background
        from penstock.client.errors import ClosedError
        async def pid():
            return os.getpid()
        parents = Background.acquire()
        child = os.fork()
        if child == 0:
            try:
                parents.run(pid(), 60)
            except ClosedError as error:
                print(error, flush=True)
            parents.release()
            own = Background.acquire()
            print("own" if own.run(pid(), 60) == os.getpid() else "not own", flush=True)
            own.release()
            os._exit(0)
        os.waitpid(child, 0)
        print("parent", parents.run(pid(), 60) == os.getpid())
        parents.release()
        """
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "this client was created before the process forked. Create the client in the child process",
        "own",
        "parent True",
    ]
