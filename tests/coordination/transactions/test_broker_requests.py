"""What brokers ask each other for transactions: markers from leaders, partitions from coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.cluster.broker_links import LinkLost
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import BrokerRegistration
from penstock.coordination.transactions.broker_requests import Codes, MarkerSender, TransactionClient
from penstock.coordination.transactions.transaction_shard import Add, Added, Markers
from penstock.wire.protocol import TRANSACTION_STATE_TOPIC, ApiKey, ErrorCode
from penstock.wire.schemas.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from penstock.wire.schemas.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.types import Message

ME, OTHER = 1, 2


def image(leaders: dict[str, int], *, live: tuple[int, ...] = (ME, OTHER)) -> ClusterImage:
    brokers = {broker: BrokerRegistration(broker, (), epoch=1) for broker in live}
    found = ClusterImage(cluster_id="c", brokers=brokers)
    for number, (topic, leader) in enumerate(leaders.items()):
        state = PartitionImage((ME, OTHER), leader, 0, (ME, OTHER), state_version=0)
        found = found.with_topic(TopicImage(topic, bytes([number] * 16), (state,)))
    return found


class Machine:
    def __init__(self) -> None:
        self.marked_partitions: list[tuple[str, int]] = []

    def marked(self, transactional_id: str, epoch: int, partitions: Any, now_ms: int) -> str:
        self.marked_partitions += partitions
        return "outcome"


class Shard:
    """What a sender needs of a shard."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.is_closed = False
        self.leader_epoch = 9
        self.outcomes: list[Any] = []

    def carry_out(self, outcome: Any) -> None:
        self.outcomes.append(outcome)


class FakeLinks:
    """Links whose answers the test gives."""

    def __init__(self, answer: Callable[[int, int, Any], Message | Exception]) -> None:
        self._answer = answer
        self.asked: list[tuple[int, int, Any]] = []
        self.gate: asyncio.Event | None = None
        self.opened = self.closed = 0

    def to(self, broker_id: int) -> Any:
        links = self
        self.opened += 1

        class Link:
            async def ask(self, api_key: int, version: int, message: Any, timeout_ms: float) -> Message:
                links.asked.append((broker_id, api_key, message))
                if links.gate is not None:
                    await links.gate.wait()
                answer = links._answer(broker_id, api_key, message)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            def close(self) -> None:
                links.closed += 1

        return Link()


class Timers:
    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, delay_s: float, work: Callable[[], None]) -> Any:
        self.waiting.append(work)

    def fire(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            work()


def written(request: WriteTxnMarkersRequest, code: ErrorCode = ErrorCode.NONE) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


class Rig:
    def __init__(self, now: ClusterImage, answer: Callable[[int, int, Any], Any] | None = None) -> None:
        self.image = now
        self.local: list[tuple[Markers, int]] = []
        self.local_code = ErrorCode.NONE
        self.timers = Timers()
        self.links = FakeLinks(answer or (lambda broker, api, message: written(message)))
        self.shard = Shard()
        self.sender = MarkerSender(ME, lambda: self.image, self._append, self.links, self.timers, lambda: 5)

    def _append(self, markers: Markers, epoch: int, done: Callable[[Codes], None]) -> None:
        self.local.append((markers, epoch))
        done(dict.fromkeys(markers.partitions, self.local_code))

    def send(self, *topics: str) -> None:
        partitions = frozenset((topic, 0) for topic in topics)
        shard: Any = self.shard
        self.sender.send(shard, Markers("t", 7, 3, True, 2, partitions))

    @property
    def marked(self) -> list[str]:
        return sorted(topic for topic, _ in self.shard.machine.marked_partitions)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_each_leader_gets_the_markers_of_its_partitions() -> None:
    async def story() -> None:
        rig = Rig(image({"mine": ME, "theirs": OTHER}))
        rig.send("mine", "theirs")
        await settle()
        assert [(markers.partitions, epoch) for markers, epoch in rig.local] == [(frozenset({("mine", 0)}), 9)]
        [(broker, api, request)] = rig.links.asked
        assert (broker, api) == (OTHER, ApiKey.WRITE_TXN_MARKERS)
        [marker] = request.markers
        assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, True)
        assert (marker.coordinator_epoch, marker.transaction_version) == (9, 2)
        assert rig.marked == ["mine", "theirs"]
        rig.send("theirs")
        await settle()
        assert (rig.links.opened, rig.links.closed) == (1, 0)
        rig.sender.close()
        assert rig.links.closed == 1

    run(story())


def test_decisions_that_pile_up_go_together() -> None:
    async def story() -> None:
        rig = Rig(image({"theirs": OTHER}))
        rig.links.gate = asyncio.Event()
        rig.send("theirs")
        await settle()
        for _ in range(3):
            rig.send("theirs")
        rig.links.gate.set()
        await settle()
        assert [len(request.markers) for _, _, request in rig.links.asked] == [1, 3]
        assert rig.marked == ["theirs"] * 4

    run(story())


def test_a_lost_link_and_a_leader_that_moved_are_tried_again() -> None:
    async def story() -> None:
        answers: list[Any] = [
            LinkLost("gone"),
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ]

        def answer(broker: int, api: int, message: Any) -> Any:
            said = answers.pop(0)
            return written(message, said) if isinstance(said, ErrorCode) else said

        rig = Rig(image({"theirs": OTHER}), answer)
        rig.send("theirs")
        for _ in range(3):
            await settle()
            assert rig.marked == []
            if not answers:
                rig.image = image({"theirs": ME})
            rig.timers.fire()
        assert (rig.marked, len(rig.local)) == (["theirs"], 1)

    run(story())


def test_a_partition_without_a_leader_waits_for_one() -> None:
    async def story() -> None:
        rig = Rig(image({"theirs": OTHER}, live=(ME,)))
        rig.send("theirs")
        assert (rig.marked, rig.links.asked) == ([], [])
        rig.image = image({"theirs": OTHER})
        rig.timers.fire()
        await settle()
        assert rig.marked == ["theirs"]

    run(story())


def test_a_deleted_partition_needs_no_marker() -> None:
    rig = Rig(image({"mine": ME}))
    rig.send("mine", "deleted")
    assert rig.marked == ["deleted", "mine"]


def test_a_coordinator_that_was_replaced_stops() -> None:
    rig = Rig(image({"mine": ME}))
    rig.local_code = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    rig.send("mine")
    assert (rig.marked, rig.timers.waiting) == ([], [])


def test_a_partition_with_a_later_epoch_is_done() -> None:
    """Otherwise the marker would be sent forever."""
    rig = Rig(image({"mine": ME}))
    rig.local_code = ErrorCode.INVALID_PRODUCER_EPOCH
    rig.send("mine")
    assert rig.marked == ["mine"]


def test_very_many_partitions_of_this_broker_get_their_markers_in_several_turns() -> None:
    async def story() -> None:
        topics = [f"topic-{number}" for number in range(120)]
        rig = Rig(image(dict.fromkeys(topics, ME)))
        rig.send(*topics)
        assert [len(markers.partitions) for markers, _ in rig.local] == [50]
        rig.timers.fire()
        rig.timers.fire()
        assert [len(markers.partitions) for markers, _ in rig.local] == [50, 50, 20]
        assert (rig.marked, rig.timers.waiting) == (sorted(topics), [])

    asyncio.run(story())


def test_a_response_that_leaves_a_marker_out_is_not_a_confirmation() -> None:
    async def story() -> None:
        answers: list[Message] = [WriteTxnMarkersResponse()]
        rig = Rig(image({"remote": OTHER}), lambda broker, api, message: answers.pop() if answers else written(message))
        rig.send("remote")
        for _ in range(10):
            await asyncio.sleep(0)
        assert rig.marked == []
        rig.timers.fire()
        for _ in range(10):
            await asyncio.sleep(0)
        assert rig.marked == ["remote"]

    asyncio.run(story())


def test_a_closed_shard_sends_nothing_more() -> None:
    rig = Rig(image({"theirs": OTHER}, live=(ME,)))
    rig.send("theirs")
    rig.shard.is_closed = True
    rig.image = image({"theirs": ME})
    rig.timers.fire()
    assert (rig.marked, rig.local) == ([], [])


# --- coordinators


class Local:
    def __init__(self) -> None:
        self.asked: list[Add] = []

    def add(self, request: Add, answer: Callable[[Added], None]) -> None:
        self.asked.append(request)
        answer(Added(ErrorCode.NONE))


def add_answer(**codes: ErrorCode) -> AddPartitionsToTxnResponse:
    topics = [
        AddPartitionsToTxnTopicResult(
            name=topic,
            results_by_partition=[AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code)],
        )
        for topic, code in codes.items()
    ]
    return AddPartitionsToTxnResponse(
        results_by_transaction=[AddPartitionsToTxnResult(transactional_id="t", topic_results=topics)]
    )


def ask(now: ClusterImage, answer: Any = None, *topics: str) -> tuple[Added, Local, FakeLinks]:
    links, local = FakeLinks(lambda broker, api, message: answer), Local()
    answers: list[Added] = []

    async def story() -> None:
        client = TransactionClient(ME, lambda: now, local, links)
        client.add(Add("t", 7, 3, frozenset((topic, 0) for topic in topics or ("a",)), 2), answers.append)
        await settle()
        client.close()

    run(story())
    [added] = answers
    return added, local, links


def test_the_coordinator_on_this_broker_is_called() -> None:
    added, local, links = ask(image({TRANSACTION_STATE_TOPIC: ME}))
    assert (added, len(local.asked), links.asked) == (Added(ErrorCode.NONE), 1, [])


def test_the_coordinator_on_another_broker_is_asked() -> None:
    there = image({TRANSACTION_STATE_TOPIC: OTHER})
    added, local, links = ask(there, add_answer(a=ErrorCode.NONE))
    assert (added, local.asked) == (Added(ErrorCode.NONE), [])
    [(broker, api, message)] = links.asked
    assert (broker, api) == (OTHER, ApiKey.ADD_PARTITIONS_TO_TXN)
    [transaction] = message.transactions
    assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == ("t", 7, 3)
    assert links.closed == 1


def test_partitions_that_are_missing_are_named() -> None:
    there = image({TRANSACTION_STATE_TOPIC: OTHER})
    answer = add_answer(a=ErrorCode.NONE, b=ErrorCode.TRANSACTION_ABORTABLE)
    assert ask(there, answer, "a", "b")[0] == Added(ErrorCode.TRANSACTION_ABORTABLE, frozenset({("b", 0)}))
    answer = add_answer(a=ErrorCode.PRODUCER_FENCED, b=ErrorCode.PRODUCER_FENCED)
    assert ask(there, answer, "a", "b")[0] == Added(ErrorCode.PRODUCER_FENCED)


def test_an_answer_that_leaves_a_partition_out_is_not_a_yes() -> None:
    there = image({TRANSACTION_STATE_TOPIC: OTHER})
    assert ask(there, add_answer(a=ErrorCode.NONE), "a", "b")[0].code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_coordinator_that_cannot_be_reached_is_not_available() -> None:
    there = image({TRANSACTION_STATE_TOPIC: OTHER})
    assert ask(there, LinkLost("gone"))[0] == Added(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    nowhere = image({TRANSACTION_STATE_TOPIC: OTHER}, live=(ME,))
    assert ask(nowhere)[0] == Added(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_without_the_topic_no_transactional_id_is_known() -> None:
    assert ask(image({}))[0] == Added(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
