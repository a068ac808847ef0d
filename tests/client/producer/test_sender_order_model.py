"""Whatever network and broker do, records are stored in order, acknowledged ones exactly once, others at most once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.producer.producer_stories import Bench, ModelBroker, encoded

from penstock.client.errors import NotConnected
from penstock.client.producer.accumulator import OutgoingRequest
from penstock.client.producer.delivery import Delivery
from penstock.client.producer.sender import PartitionResponse
from penstock.wire.protocol import ErrorCode

_LOST = NotConnected("b:1", "cut")
_EVENTS = st.lists(
    st.sampled_from(
        ["send", "send", "send", "plan", "plan", "store", "store", "store", "lose request", "lose answer", "busy",
         "reject", "expire", "too large", "move"]
    ),
    min_size=10,
    max_size=120,
)  # fmt: skip


class Story:
    """Requests on one connection reach the broker in order; when it breaks, all that are on it are unanswered."""

    def __init__(self) -> None:
        self.bench = Bench(batch_size=200, delivery_timeout_ms=5_000)
        self.broker = ModelBroker()
        self.wire: list[tuple[OutgoingRequest, bytes]] = []
        self.sent: list[tuple[bytes, Delivery]] = []

    def act(self, event: str) -> None:
        self.bench.now_ms += 100
        if event == "send":
            for _ in range(3):
                value = b"%06d" % len(self.sent)
                made = self.bench.put(value)
                assert isinstance(made, Delivery)
                self.sent.append((value, made))
        elif event == "plan":
            self._send()
        elif event == "expire":
            self.bench.now_ms += 2_000
            self.bench.expire()
        elif event == "too large":
            self.broker.max_batch_bytes = 120 if self.broker.max_batch_bytes > 120 else 2**31
        elif self.wire:
            self._on_the_wire(event)

    def _on_the_wire(self, event: str) -> None:
        if event == "lose request":
            self._break()
            return
        if event == "lose answer":
            self.broker.produce(self.wire[0][1])
            self._break()
            return
        request, data = self.wire.pop(0)
        if event == "busy":
            self.bench.answer(request, PartitionResponse(ErrorCode.NOT_ENOUGH_REPLICAS))
        elif event == "move":
            # The leader stores it and loses its role before the others have it. They may have it later.
            self.broker.produce(data)
            self.bench.answer(request, PartitionResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif event == "reject":
            self.bench.answer(request, PartitionResponse(ErrorCode.INVALID_RECORD))
        else:
            self.bench.answer(request, self.broker.produce(data))

    def _send(self) -> None:
        # What was sent is on its way in any case: a batch that is given up meanwhile may still be stored.
        self.wire += [(request, encoded(request.batches[0])) for request in self.bench.plan()]

    def _break(self) -> None:
        """The connection is gone, and with it all that was on it."""
        broken, self.wire = self.wire, []
        for request, _ in broken:
            self.bench.answer(request, _LOST)

    def finish(self) -> None:
        self.broker.max_batch_bytes = 2**31
        for _ in range(400):
            if all(delivery.done() for _, delivery in self.sent):
                return
            self.bench.now_ms += 1
            self._send()
            while self.wire:
                request, data = self.wire.pop(0)
                self.bench.answer(request, self.broker.produce(data))
        raise AssertionError("the producer does not get its records out")


@settings(max_examples=300, deadline=None)
@given(_EVENTS)
def test_whatever_happens_order_is_kept_and_nothing_is_stored_twice(events: list[str]) -> None:
    story = Story()
    for event in events:
        story.act(event)
    story.finish()
    stored = story.broker.values
    assert stored == sorted(set(stored), key=lambda value: value or b""), "reordered or stored twice"
    acknowledged = [value for value, delivery in story.sent if delivery.exception(0) is None]
    assert set(acknowledged) <= set(stored), "acknowledged, and lost"
    for value, delivery in story.sent:
        if delivery.exception(0) is None:
            assert stored[delivery.result(0).offset] == value


@settings(max_examples=60, deadline=None)
@given(_EVENTS)
def test_whatever_happens_all_memory_comes_back(events: list[str]) -> None:
    story = Story()
    for event in events:
        story.act(event)
    story.finish()
    assert story.bench.accumulator.memory.used == 0
    assert story.bench.accumulator.undone() == []


def test_a_batch_that_a_former_leader_stored_keeps_its_numbers_when_the_batch_before_it_expires() -> None:
    """Both are answered with NOT_LEADER_OR_FOLLOWER, and both are stored. Only the first has expired."""
    story = Story()
    for event in ("send", "plan", "store", "send", "plan"):
        story.act(event)
    story.bench.now_ms += 1_000
    for event in ("send", "plan", "move", "move"):
        story.act(event)
    while not story.sent[3][1].done():
        story.bench.now_ms += 100
        story.bench.expire()
    assert not story.sent[6][1].done()
    story.finish()
    assert story.broker.values == [value for value, _ in story.sent]
    assert [delivery.exception(0) is None for _, delivery in story.sent] == [True] * 3 + [False] * 3 + [True] * 3
