"""Transaction coordinators with real logs on a simulated disk: taking over, markers, producer ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.coordination.test_group_coordinator import NOW_MS, Rules, Timers

from penstock.cluster.errors import ConnectionLost
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import BrokerRegistration
from penstock.coordination.transactions.broker_requests import Codes, MarkerSender
from penstock.coordination.transactions.transaction import Transaction
from penstock.coordination.transactions.transaction_coordinator import TransactionCoordinator
from penstock.coordination.transactions.transaction_shard import (
    Add,
    Added,
    End,
    Ended,
    Init,
    Initialized,
    Markers,
    TransactionSettings,
)
from penstock.log.group_commit import GroupCommit
from penstock.log.log_dirs.log_manager import LogManager
from penstock.replication.fetch_state import Position
from penstock.replication.replica_manager import ReplicaManager
from penstock.runtime.clock import ManualClock
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import InlineWorkers
from penstock.testing.simulated_files import SimulatedFiles
from penstock.wire.protocol import TRANSACTION_STATE_TOPIC, ErrorCode

NONE = ErrorCode.NONE


class Coordinator:
    """A broker's worth of transactions over one data folder."""

    def __init__(self, files: SimulatedFiles, *, first_id: int = 1, is_new: bool = True) -> None:
        self.clock, self.timers = ManualClock(NOW_MS), Timers()
        workers = InlineWorkers()
        commits = GroupCommit(workers)
        self.logs = LogManager.open(
            files, ["/data"], node_id=1, cluster_id="c", random=SeededRandom(1), workers=workers, commits=commits
        )
        self.logs.load(lambda topic: Rules.log, NOW_MS)
        self.replicas = ReplicaManager(
            self.logs, commits, lambda _, __: Rules(), broker_id=1, clock=self.clock, call_later=self.timers
        )
        self.image = ClusterImage(cluster_id="c" if is_new else "")
        self.next_id = first_id
        self.tree_fails = False
        self.sent: list[Markers] = []
        self.holds_markers = False
        self.service = TransactionCoordinator(
            TransactionSettings(), self.clock, self.timers, lambda: self.image, self._allocate
        )
        self.service.sender = MarkerSender(1, lambda: self.image, self._append, None, self.timers, self.service.now_ms)
        self.replicas.on_leadership_change = self.service.on_leadership_change
        self.take(self.led())

    async def _allocate(self) -> int:
        if self.tree_fails:
            raise ConnectionLost("the tree is away")
        self.next_id += 1
        return self.next_id - 1

    def _append(self, markers: Markers, epoch: int, done: Callable[[Codes], None]) -> None:
        self.sent.append(markers)
        if not self.holds_markers:
            done(dict.fromkeys(markers.partitions, NONE))

    def led(self, leader: int = 1, epoch: int = 0) -> ClusterImage:
        image = ClusterImage(
            cluster_id="c", brokers={each: BrokerRegistration(each, (), epoch=each) for each in (1, 2)}
        )
        replicas = (1,) if leader == 1 else (2,)
        for number, topic in enumerate((TRANSACTION_STATE_TOPIC, "views")):
            state = PartitionImage((1,) if leader == 1 else (1, 2), leader, epoch, replicas, state_version=epoch)
            image = image.with_topic(TopicImage(topic, bytes([number + 1] * 16), (state,)))
        return image

    def take(self, image: ClusterImage) -> None:
        before, self.image = self.image, image
        self.replicas.apply(before, image)

    async def init(self, name: str = "t") -> Initialized:
        answers: list[Initialized] = []
        self.service.init(Init(name, 60_000), answers.append)
        for _ in range(5):
            await asyncio.sleep(0)
        return answers[0]

    def add(self, producer: Initialized, topic: str = "views") -> Added:
        answers: list[Added] = []
        add = Add("t", producer.producer_id, producer.epoch, frozenset({(topic, 0)}), 2)
        self.service.add(add, answers.append)
        return answers[0]

    def end(self, producer: Initialized) -> Ended:
        answers: list[Ended] = []
        self.service.end(End("t", producer.producer_id, producer.epoch, True, 2), answers.append)
        return answers[0]

    @property
    def state(self) -> str:
        found = self.service.describe("t")
        return found.state.label if isinstance(found, Transaction) else found.name

    def close(self) -> None:
        self.service.close()
        self.replicas.close()
        self.logs.close()


def run(story: Callable[[SimulatedFiles], Coroutine[Any, Any, None]]) -> None:
    files = SimulatedFiles()
    files.make_folder("/data")
    asyncio.run(story(files))


def test_a_transaction_survives_a_restart_in_every_state() -> None:
    async def story(files: SimulatedFiles) -> None:
        first = Coordinator(files)
        producer = await first.init()
        assert first.add(producer) == Added(NONE)
        assert first.service.open_transactions()[0] == 1
        first.close()

        second = Coordinator(files, first_id=100, is_new=False)
        assert (second.state, second.sent) == ("Ongoing", [])
        second.holds_markers = True
        assert second.end(producer) == Ended(NONE, producer.producer_id, producer.epoch + 1)
        assert (second.state, len(second.sent)) == ("PrepareCommit", 1)
        second.close()

        third = Coordinator(files, first_id=200, is_new=False)
        assert third.sent == second.sent
        assert third.state == "CompleteCommit"
        third.close()

    run(story)


class Replicated(Coordinator):
    """With a second replica in sync, which fetches when the test calls it."""

    def led(self, leader: int = 1, epoch: int = 0) -> ClusterImage:
        image = super().led(leader, epoch)
        for topic in tuple(image.topics.values()):
            state = PartitionImage((1, 2), leader, epoch, (1, 2), state_version=epoch)
            image = image.with_topic(TopicImage(topic.name, topic.topic_id, (state,)))
        return image

    def replicate(self) -> None:
        partition = self.replicas.get(TRANSACTION_STATE_TOPIC, 0)
        assert partition is not None
        log = partition.log
        position = Position(log.log_end_offset, log.epochs.latest_epoch)
        partition.fetched_by(2, 2, position, self.replicas.brokers, 0)


def test_a_decision_that_is_not_committed_is_not_carried_out_by_the_next_coordinator() -> None:
    """It may be lost with that one, and the next would abort the transaction."""

    async def story(files: SimulatedFiles) -> None:
        first = Coordinator(files)
        producer = await first.init()
        first.add(producer)
        first.close()

        second = Replicated(files, is_new=False)
        second.replicate()
        answers: list[Ended] = []
        second.service.end(End("t", producer.producer_id, producer.epoch, True, 2), answers.append)
        assert (second.state, answers, second.sent) == ("Ongoing", [], [])
        second.close()

        third = Replicated(files, is_new=False)
        assert (third.state, third.sent) == ("COORDINATOR_LOAD_IN_PROGRESS", [])
        third.replicate()
        assert (third.state, len(third.sent)) == ("CompleteCommit", 1)
        third.close()

    run(story)


def test_another_leader_is_the_coordinator() -> None:
    async def story(files: SimulatedFiles) -> None:
        coordinator = Coordinator(files)
        producer = await coordinator.init()
        coordinator.take(coordinator.led(leader=2, epoch=1))
        assert coordinator.add(producer).code is ErrorCode.NOT_COORDINATOR
        assert (await coordinator.init()).code is ErrorCode.NOT_COORDINATOR
        assert coordinator.end(producer).code is ErrorCode.NOT_COORDINATOR
        assert coordinator.state == "NOT_COORDINATOR"
        coordinator.close()

    run(story)


def test_a_partition_that_the_image_does_not_have_cannot_join() -> None:
    """So one that is unknown when the transaction ends was deleted."""

    async def story(files: SimulatedFiles) -> None:
        coordinator = Coordinator(files)
        producer = await coordinator.init()
        missing = frozenset({("unheard-of", 0)})
        assert coordinator.add(producer, "unheard-of") == Added(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing)
        assert coordinator.state == "Empty"
        coordinator.close()

    run(story)


def test_every_new_id_has_a_producer_id_of_its_own() -> None:
    async def story(files: SimulatedFiles) -> None:
        coordinator = Coordinator(files)
        found = await asyncio.gather(*(coordinator.init(f"id-{number}") for number in range(20)))
        assert {each.code for each in found} == {NONE}
        assert len({each.producer_id for each in found}) == 20
        coordinator.close()

    run(story)


def test_while_no_producer_id_can_be_allocated_clients_try_again() -> None:
    async def story(files: SimulatedFiles) -> None:
        coordinator = Coordinator(files)
        coordinator.tree_fails = True
        assert (await coordinator.init()).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        coordinator.tree_fails = False
        assert (await coordinator.init()).code is NONE
        coordinator.close()

    run(story)
