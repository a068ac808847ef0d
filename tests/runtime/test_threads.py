"""Work off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.timeouts import PATIENCE_S

from penstock.runtime.files import PosixFiles
from penstock.runtime.threads import (
    InlineWorkers,
    ManualWorkers,
    Outcome,
    ThreadWorkers,
    Workers,
    WorkersBusy,
    WorkersClosed,
)


async def _outcome(workers: Workers, work: Callable[[], Any]) -> Outcome[Any]:
    answer: asyncio.Future[Outcome[Any]] = asyncio.get_running_loop().create_future()
    workers.run(work, answer.set_result)
    return await asyncio.wait_for(answer, PATIENCE_S)


def test_work_runs_on_another_thread_and_is_answered_on_the_loops_own() -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 2)
        threads: list[int] = []
        answered = asyncio.Event()

        def done(outcome: Outcome[int]) -> None:
            threads.append(threading.get_ident())
            threads.append(outcome.result())
            answered.set()

        workers.run(threading.get_ident, done)
        await asyncio.wait_for(answered.wait(), PATIENCE_S)
        assert threads[0] == threading.get_ident()
        assert threads[1] != threading.get_ident()
        workers.close()

    asyncio.run(story())


def test_an_exception_of_the_work_reaches_the_callback() -> None:
    def broken() -> None:
        raise OSError("disk on fire")

    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1)
        outcome = await _outcome(workers, broken)
        assert isinstance(outcome.error, OSError)
        with pytest.raises(OSError, match="on fire"):
            outcome.result()
        assert (await _outcome(workers, lambda: 7)).result() == 7
        workers.close()

    asyncio.run(story())


def test_even_an_exit_in_the_work_is_answered() -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1)
        outcome = await _outcome(workers, lambda: exec("raise SystemExit"))
        assert isinstance(outcome.error, SystemExit)
        assert (await _outcome(workers, lambda: 7)).result() == 7
        workers.close()

    asyncio.run(story())


def test_the_loop_continues_while_work_blocks() -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1)
        release = threading.Event()
        answers: list[bool] = []
        workers.run(lambda: release.wait(PATIENCE_S), lambda outcome: answers.append(outcome.result()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert answers == []
        release.set()
        assert (await _outcome(workers, lambda: True)).result()
        assert answers == [True]
        workers.close()

    asyncio.run(story())


def test_as_many_pieces_of_work_run_at_once_as_there_are_threads() -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 3)
        together = threading.Barrier(3)
        outcomes = await asyncio.gather(*(_outcome(workers, lambda: together.wait(PATIENCE_S)) for _ in range(3)))
        assert sorted(outcome.result() for outcome in outcomes) == [0, 1, 2]
        workers.close()

    asyncio.run(story())


def test_each_of_many_pieces_is_answered_once() -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 2)
        answers: list[int] = []
        for batch in range(20):
            for number in range(50):
                workers.run(
                    lambda value=batch * 50 + number: value,  # type: ignore[misc]
                    lambda outcome: answers.append(outcome.result()),
                )
            await asyncio.sleep(0)
        workers.close()
        await asyncio.sleep(0)
        assert sorted(answers) == list(range(1000))

    asyncio.run(story())


def test_closing_finishes_and_answers_what_was_given() -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1)
        answers: list[int] = []
        for number in range(5):
            workers.run(lambda value=number: value, lambda outcome: answers.append(outcome.result()))  # type: ignore[misc]
        workers.close()
        assert answers == [0, 1, 2, 3, 4]
        workers.close()
        with pytest.raises(WorkersClosed):
            workers.run(lambda: 1, lambda outcome: None)
        assert answers == [0, 1, 2, 3, 4]

    asyncio.run(story())


def test_closing_after_the_loop_answers_too() -> None:
    loop = asyncio.new_event_loop()
    workers = ThreadWorkers(loop, 1)
    release = threading.Event()
    answers: list[bool] = []
    workers.run(lambda: release.wait(PATIENCE_S), lambda outcome: answers.append(outcome.result()))
    loop.close()
    release.set()
    workers.close()
    assert answers == [True]


def test_close_with_a_timeout_does_not_wait_forever() -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1)
        release = threading.Event()
        answers: list[bool] = []
        workers.run(lambda: release.wait(PATIENCE_S), lambda outcome: answers.append(outcome.result()))
        with pytest.raises(WorkersBusy) as raised:
            workers.close(timeout_ms=1)
        assert raised.value.unfinished == 1
        release.set()
        workers.close()
        assert answers == [True]

    asyncio.run(story())


def test_too_much_waiting_work_is_rejected() -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1, waiting_max=2)
        release = threading.Event()
        for _ in range(2):
            workers.run(lambda: release.wait(PATIENCE_S), lambda outcome: None)
        with pytest.raises(WorkersBusy):
            workers.run(lambda: True, lambda outcome: None)
        release.set()
        workers.close()

    asyncio.run(story())


def test_a_callback_that_fails_does_not_silence_the_others() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        contexts: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda loop, context: contexts.append(context))
        workers = ThreadWorkers(loop, 1)
        answers: list[int] = []

        def bad(outcome: Outcome[int]) -> None:
            raise KeyError("bug")

        workers.run(lambda: 1, bad)
        workers.run(lambda: 2, lambda outcome: answers.append(outcome.result()))
        workers.close()
        assert answers == [2]
        assert [type(context["exception"]) for context in contexts] == [KeyError]

    asyncio.run(story())


def test_finished_work_is_forgotten_so_that_its_files_close(tmp_path: Path) -> None:
    async def story() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1)
        file = PosixFiles().open(str(tmp_path / "a"), create=True)
        file.write_at(0, b"x")
        closed = asyncio.Event()
        descriptor = file.fileno()
        workers.run(file.sync, lambda outcome: closed.set())
        del file
        await asyncio.wait_for(closed.wait(), PATIENCE_S)
        again = PosixFiles().open(str(tmp_path / "a"))
        assert again.fileno() == descriptor
        workers.close()

    asyncio.run(story())


@pytest.mark.parametrize(("threads", "waiting_max"), [(0, 1), (1, 0)])
def test_workers_need_a_thread_and_a_queue(threads: int, waiting_max: int) -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(ValueError, match="positive"):
        ThreadWorkers(loop, threads, waiting_max=waiting_max)
    loop.close()


def test_inline_workers_answer_at_once() -> None:
    workers: Workers = InlineWorkers()
    outcomes: list[Outcome[float]] = []
    workers.run(lambda: 1 / 2, outcomes.append)
    workers.run(lambda: 1 / 0, outcomes.append)
    assert outcomes[0].result() == 0.5
    assert isinstance(outcomes[1].error, ZeroDivisionError)
    workers.close()
    with pytest.raises(WorkersClosed):
        workers.run(lambda: 1.0, outcomes.append)


def test_manual_workers_run_on_request() -> None:
    workers = ManualWorkers()
    as_workers: Workers = workers
    events: list[str] = []

    def work() -> str:
        events.append("work")
        return "done"

    def done(outcome: Outcome[str]) -> None:
        events.append(outcome.result())
        if len(events) == 2:
            workers.run(work, done)

    as_workers.run(work, done)
    as_workers.run(work, done)
    assert (events, workers.waiting) == ([], 2)
    workers.run_next()
    assert (events, workers.waiting) == (["work", "done"], 2)
    workers.close()
    assert events == ["work", "done"] * 3
    with pytest.raises(WorkersClosed):
        workers.run(work, done)
    with pytest.raises(IndexError):
        workers.run_next()
