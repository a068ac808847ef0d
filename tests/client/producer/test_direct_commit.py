"""A thread that commits sends the end of its transaction itself: with fewer switches, and the same outcomes."""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.broker.wire_client import WireClient, fetch_request, make_topic
from tests.client.producer.test_direct_sender import _only_threads_send, direct_sender_of, send_until_direct
from tests.client.producer.test_producer_faults import behind_a_proxy, value
from tests.timeouts import PATIENCE_S, until

from penstock.client.errors import (
    AbortableTransactionError,
    DeliveryTimeout,
    NotConnected,
    ProducerFenced,
    TimedOut,
    TransactionOutcomeUnknown,
)
from penstock.client.producer import Delivery, Producer, direct_sender, producer
from penstock.client.producer.core import ProducerCore
from penstock.client.producer.direct_sender import DirectConnection, DirectSender
from penstock.client.producer.sender import Sender
from penstock.client.producer.transaction_manager import TransactionManager
from penstock.client.producer.transaction_state import State, TransactionState
from penstock.records import records_of, scan
from penstock.records.batch import decode_marker
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode

__all__ = ["_only_threads_send"]
_LONG_MS = 60_000


def history(port: int, topic: str) -> list[bytes | str | None]:
    """Values and markers of a partition, in order."""
    found: list[bytes | str | None] = []
    offset = 0
    with WireClient(port) as client:
        while True:
            answer = client.ask(ApiKey.FETCH, fetch_request({(topic, 0): offset}), 12)
            data = bytes(answer.responses[0].partitions[0].records or b"")
            headers = [header for header in scan(data).headers if header.next_offset > offset]
            if not headers:
                return found
            for header in headers:
                marker = decode_marker(data, header) if header.is_control else None
                if marker is None:
                    found += [record.value for record in records_of(data, header)]
                else:
                    found.append("commit" if marker.is_commit else "abort")
            offset = headers[-1].next_offset


def assert_history(port: int, topic: str, expected: list[bytes | str | None]) -> None:
    """The last marker follows the response to its commit."""
    until(lambda: len(history(port, topic)) >= len(expected), "the last marker is there")
    assert history(port, topic) == expected


def committed(count: int) -> list[bytes | str | None]:
    return [each for number in range(count) for each in (value(number), "commit")]


class Ends:
    """The EndTxn that threads send themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[Any] = []
        self.patience_s: list[float] = []
        self.fails: Callable[[], None] | None = None
        self.changes: dict[str, int] = {}  # of fields of the coordinator's responses
        real_answer = DirectConnection.answer
        real_ask = DirectSender.ask

        def answer(link: DirectConnection, patience_s: float) -> Any:
            if link._api_key is ApiKey.END_TXN:
                self.patience_s.append(patience_s)
            found = real_answer(link, patience_s)  # so the coordinator has carried it out
            if link._api_key is ApiKey.END_TXN and self.fails is not None:
                self.fails()
            if link._api_key is ApiKey.END_TXN and found is not None:
                for field, content in self.changes.items():
                    setattr(found, field, content)
            return found

        def ask(direct: DirectSender, *arguments: Any) -> Any:
            found = None
            try:
                found = real_ask(direct, *arguments)
            finally:
                self.answers.append(found)
            return found

        monkeypatch.setattr(DirectConnection, "answer", answer)
        monkeypatch.setattr(DirectSender, "ask", ask)


def transact(
    client: Producer, topic: str, number: int, *, flushes: bool = True, timeout_s: float | None = None
) -> None:
    client.begin_transaction()
    client.send(topic, value(number))
    if flushes:
        client.flush(PATIENCE_S)
    client.commit_transaction(timeout_s)


def transact_until_direct(client: Producer, topic: str, ends: Ends, first: int = 0) -> int:
    """Transactions of one record, until a thread has ended one itself; the number of the next one."""
    before = len(ends.answers)
    for number in range(first, first + 5_000):
        if len(ends.answers) > before:
            return number
        transact(client, topic, number)
    raise AssertionError("no thread ever committed itself")


@pytest.mark.usefixtures("_only_threads_send")
@pytest.mark.parametrize("flushes", [True, False])
def test_a_thread_that_commits_each_transaction_ends_it(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch, flushes: bool
) -> None:
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)
    with Producer(address, transactional_id=topic, linger_ms=5) as client:
        first = transact_until_direct(client, topic, ends)
        for number in range(first, first + 100):
            transact(client, topic, number, flushes=flushes)
        driven = direct_sender_of(client)._driven
    assert len(ends.answers) > 50
    assert driven > 100  # the records, too
    assert_history(broker.port, topic, committed(first + 100))


@pytest.mark.usefixtures("_only_threads_send")
def test_a_commit_whose_response_is_lost_is_repeated_by_the_loop(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)

    def lose() -> None:
        raise NotConnected("broker 0", "cut")

    with Producer(address, transactional_id=topic) as client:
        first = transact_until_direct(client, topic, ends)
        ends.fails = lose
        links = set(direct_sender_of(client)._links.values())
        transact(client, topic, first)
        assert ends.answers[-1] is None
        # A late response must not meet another request.
        until(lambda: links.isdisjoint(direct_sender_of(client)._links.values()), "the connection is given up")
        ends.fails = None
        for number in range(first + 1, first + 20):
            direct_sender_of(client)._not_before.clear()
            transact(client, topic, number)
    assert_history(broker.port, topic, committed(first + 20))


@pytest.mark.usefixtures("_only_threads_send")
@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS])
def test_a_coordinator_that_moves_or_is_busy_is_asked_again_by_the_loop(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)
    with Producer(address, transactional_id=topic) as client:
        first = transact_until_direct(client, topic, ends)
        ends.changes = {"error_code": code}
        transact(client, topic, first)
        assert ends.answers[-1].error_code == code
        ends.changes.clear()
        transact(client, topic, first + 1)
    assert_history(broker.port, topic, committed(first + 2))


@pytest.mark.usefixtures("_only_threads_send")
def test_a_response_without_the_next_epoch_is_left_to_the_loop(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)
    with Producer(address, transactional_id=topic) as client:
        first = transact_until_direct(client, topic, ends)
        ends.changes = {"producer_id": -1, "producer_epoch": -1}
        transact(client, topic, first)
        assert ends.answers[-1].producer_id == -1
        ends.changes.clear()
        transact(client, topic, first + 1)
    assert_history(broker.port, topic, committed(first + 2))


@pytest.mark.usefixtures("_only_threads_send")
def test_ctrl_c_in_a_commit_leaves_its_outcome_unknown_and_the_commit_can_be_repeated(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with Producer(address, transactional_id=topic) as client:
        first = transact_until_direct(client, topic, ends)
        ends.fails = interrupt
        with pytest.raises(KeyboardInterrupt):
            transact(client, topic, first)
        ends.fails = None
        with pytest.raises(TransactionOutcomeUnknown):
            client.abort_transaction()
        client.commit_transaction()
        transact(client, topic, first + 1)
    assert_history(broker.port, topic, committed(first + 2))


_INTERRUPTED = (
    *(TransactionManager.commit_here, TransactionManager._ask_here, TransactionManager._end_here),
    *(TransactionManager._may_commit_here, TransactionManager._answered_here),
    *(TransactionState.call, TransactionState.happened, ProducerCore.close_for_sending, ProducerCore.use),
    *(DirectSender.hold, DirectSender.ask, DirectSender.release),
    *(DirectConnection.hold, DirectConnection.send, DirectConnection.let_go),
)


class CtrlC:
    """Ctrl-C before the nth line of a commit in the calling thread.

    Not where a lock is taken or released: there, Python does not look for signals.
    """

    def __init__(self, nth: int) -> None:
        self._left = nth
        self._codes = {function.__code__ for function in _INTERRUPTED}
        self.came_before: str | None = None

    def __enter__(self) -> CtrlC:
        self._former = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._former)
        return kind is KeyboardInterrupt and self.came_before is not None

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._at if frame.f_code in self._codes else None

    def _at(self, frame: FrameType, event: str, argument: object) -> Any:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith("with "):
            self._left -= 1
            if not self._left:
                self.came_before = f"{frame.f_code.co_name}: {line}"
                raise KeyboardInterrupt
        return self._at


@pytest.mark.usefixtures("_only_threads_send")
def test_a_commit_can_be_repeated_wherever_ctrl_c_comes(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)
    places: list[str] = []
    with Producer(address, transactional_id=topic) as client:
        direct, state = direct_sender_of(client), client._core.transactional().state
        number = 0
        while True:
            direct._not_before.clear()
            number = transact_until_direct(client, topic, ends, number)
            client.begin_transaction()
            client.send(topic, value(number))
            client.flush(PATIENCE_S)
            asked = len(ends.answers)
            with CtrlC(len(places) + 1) as interruption:
                client.commit_transaction()
            number += 1
            if interruption.came_before is None:
                if len(ends.answers) > asked:
                    break
                continue  # the loop has committed
            places.append(interruption.came_before)
            assert state.state is not State.COMMITTING, places[-1]
            if state.state is not State.READY:
                client.commit_transaction()
            until(lambda: not any(link.is_busy for link in direct._links.values()), f"it is free after {places[-1]}")
    assert len(places) > len(_INTERRUPTED)
    assert_history(broker.port, topic, committed(number))


class Skewed:
    """The clock of the time-outs, which can be moved on."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


@pytest.mark.usefixtures("_only_threads_send")
@pytest.mark.parametrize("passed_s", [40, 100])
def test_the_loop_has_what_a_direct_commit_leaves_of_the_time_out(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch, passed_s: float
) -> None:
    topic, ends, clock = make_topic(broker.broker), Ends(monkeypatch), Skewed()
    monkeypatch.setattr(producer, "time", clock)
    left: list[float | None] = []
    real_commit = TransactionManager.commit

    async def commit(transactions: TransactionManager, timeout_s: float | None) -> None:
        left.append(timeout_s)
        await real_commit(transactions, timeout_s)

    def lose() -> None:
        clock.passed_s += passed_s
        raise NotConnected("broker 0", "cut")

    with Producer(address, transactional_id=topic) as client:
        first = transact_until_direct(client, topic, ends)
        monkeypatch.setattr(TransactionManager, "commit", commit)
        ends.fails = lose
        client.begin_transaction()
        client.send(topic, value(first))
        client.flush(PATIENCE_S)
        with contextlib.nullcontext() if passed_s < 100 else pytest.raises(TransactionOutcomeUnknown):
            client.commit_transaction(100)
        assert [each is not None and each <= 100 - passed_s for each in left] == [True]
        if passed_s == 100:
            client.commit_transaction()
    assert_history(broker.port, topic, committed(first + 1))


@pytest.mark.usefixtures("_only_threads_send")
def test_a_direct_commit_waits_no_longer_than_its_time_out(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)
    monkeypatch.setattr(direct_sender, "_ASK_PATIENCE_S", PATIENCE_S)
    with Producer(address, transactional_id=topic) as client:
        first = transact_until_direct(client, topic, ends)
        transact(client, topic, first, timeout_s=50)
        assert [each <= 50 for each in ends.patience_s[-1:]] == [True]
        asked = len(ends.patience_s)
        with pytest.raises((TimedOut, TransactionOutcomeUnknown)):
            transact(client, topic, first + 1, timeout_s=0)
        assert len(ends.patience_s) == asked  # without any time, the thread sends nothing
        client.commit_transaction()
    assert_history(broker.port, topic, committed(first + 2))


@pytest.mark.usefixtures("_only_threads_send")
def test_a_commit_waits_for_records_that_the_loop_sends(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)
    with Producer(address, transactional_id=topic, linger_ms=_LONG_MS) as client:
        first = transact_until_direct(client, topic, ends)
        monkeypatch.setattr(DirectSender, "is_driving", False)
        client.begin_transaction()
        client.send(topic, value(first))
        client.flush(PATIENCE_S)
        client.send(topic, b"the last record")
        client.commit_transaction()
    assert_history(broker.port, topic, [*committed(first), value(first), b"the last record", "commit"])


@pytest.mark.usefixtures("_only_threads_send")
def test_a_transaction_is_not_committed_without_a_record_that_has_just_expired(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread commits at the first moment after the expiry, before the loop has told the record's delivery."""
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)
    has_expired, was_tried = threading.Event(), threading.Event()
    real_end, real_commit = Sender._end, TransactionManager.commit_here

    def end(sender: Sender, ended: Any, *arguments: Any) -> None:
        if any(isinstance(outcome, DeliveryTimeout) for _, outcome in ended):
            has_expired.set()
            assert was_tried.wait(PATIENCE_S)
        real_end(sender, ended, *arguments)

    def commit_here(transactions: TransactionManager, *arguments: Any) -> bool:
        try:
            return real_commit(transactions, *arguments)
        finally:
            was_tried.set()

    with Producer(address, transactional_id=topic, linger_ms=_LONG_MS) as client:
        first = transact_until_direct(client, topic, ends)
        client.begin_transaction()
        client.send(topic, value(first))
        client.flush(PATIENCE_S)
        lost = client.send(topic, b"expires")
        monkeypatch.setattr(Sender, "_end", end)
        monkeypatch.setattr(TransactionManager, "commit_here", commit_here)
        with client._core.lock:
            client._core.accumulator.undone()[0].deadline_ms = 0
        client._core.wake()
        assert has_expired.wait(PATIENCE_S)
        with pytest.raises(AbortableTransactionError):
            client.commit_transaction()
        assert isinstance(lost.exception(PATIENCE_S), DeliveryTimeout)
        client.abort_transaction()
    assert_history(broker.port, topic, [*committed(first), value(first), "abort"])


@pytest.mark.usefixtures("_only_threads_send")
def test_a_fenced_producer_learns_it_from_a_direct_commit(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, ends = make_topic(broker.broker), Ends(monkeypatch)
    with Producer(address, transactional_id=topic) as client:
        first = transact_until_direct(client, topic, ends)
        client.begin_transaction()
        client.send(topic, value(first))
        client.flush(PATIENCE_S)
        with Producer(address, transactional_id=topic) as successor:
            successor.init_transactions()
            before = len(ends.answers)
            with pytest.raises(ProducerFenced):
                client.commit_transaction()
            assert [each.error_code for each in ends.answers[before:]] == [ErrorCode.PRODUCER_FENCED]
            transact(successor, topic, first + 1)
    expected = [*committed(first), value(first), "abort", value(first + 1), "commit"]
    assert_history(broker.port, topic, expected)


@pytest.mark.parametrize("direction", ["to_broker", "to_client"])
def test_connections_cut_in_the_middle_of_a_commit_lose_and_repeat_nothing(
    monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    ends = Ends(monkeypatch)
    with behind_a_proxy() as (broker, proxy, port):
        topic = make_topic(broker.broker)
        with Producer(proxy.address, transactional_id=topic, retry_backoff_ms=5) as client:
            sent = transact_until_direct(client, topic, ends)
            for extra in range(8):
                direct_sender_of(client)._not_before.clear()
                before = proxy.cuts
                most = 1_000 if direction == "to_broker" else 250
                proxy.cut_after(**{direction: most + extra * 31})
                while proxy.cuts == before:
                    transact(client, topic, sent)
                    sent += 1
        assert_history(port, topic, committed(sent))


# --- with linger_ms, a flush is what a thread waits for


@pytest.mark.usefixtures("_only_threads_send")
def test_a_flush_sends_a_lone_record_that_lingers_without_the_loop(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(broker.broker)
    wakeups: list[int] = []
    real_wake = Sender.wake

    def wake(sender: Sender) -> None:
        wakeups.append(1)
        real_wake(sender)

    monkeypatch.setattr(Sender, "wake", wake)
    with Producer(address, linger_ms=_LONG_MS) as client:
        deliveries = []
        for number in range(300):
            deliveries.append(client.send(topic, value(number)))
            client.flush(PATIENCE_S)
        assert direct_sender_of(client)._driven > 100
        assert [each.result(0).offset for each in deliveries] == list(range(300))
    assert len(wakeups) < 300  # two for each record that the loop sends


@pytest.mark.usefixtures("_only_threads_send")
def test_waiting_without_a_flush_does_not_cut_linger_ms_short(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address, linger_ms=_LONG_MS) as client:
        while not direct_sender_of(client)._driven:
            client.send(topic, b"x")
            client.flush(PATIENCE_S)
        driven = direct_sender_of(client)._driven
        delivery = client.send(topic, b"lingers")
        with pytest.raises(TimeoutError):
            delivery.result(0.05)
        assert direct_sender_of(client)._driven == driven
        client.flush(PATIENCE_S)
        assert delivery.result(0).offset >= 0


def test_a_flushed_record_whose_thread_was_interrupted_is_sent_by_the_loop(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the moment when it became due and the moment when the thread would have taken it."""
    topic = make_topic(broker.broker)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with Producer(address) as client:
        send_until_direct(client, topic)
        with monkeypatch.context() as patched:
            patched.setattr(producer, "wait_for_all", interrupted)
            done = threading.Event()

            def note(_: Delivery) -> None:
                done.set()

            client.send(topic, b"alone").add_done_callback(note)
            with pytest.raises(KeyboardInterrupt):
                client.flush(PATIENCE_S)
        assert done.wait(PATIENCE_S)
