"""Transaction coordinators with real logs on a simulated disk, and timers that the test fires."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

from tests.coordination.test_group_coordinator import COMPACTED, NOW_MS, Rules, Timers

from penstock.cluster.errors import ClusterError
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import BrokerRegistration
from penstock.coordination.transactions.broker_requests import Codes, MarkerSender
from penstock.coordination.transactions.transaction import Transaction, TransactionState
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
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.runtime.clock import ManualClock
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import InlineWorkers
from penstock.testing.simulated_files import SimulatedFiles
from penstock.wire.protocol import TRANSACTION_STATE_TOPIC, ErrorCode

T0 = ("t", 0)
TIMEOUT_MS = 10_000


class Ids:
    """Producer ids of a cluster, which may be unable to allocate them."""

    def __init__(self) -> None:
        self.next = 100
        self.allocated = 0
        self.is_down = False

    async def __call__(self) -> int:
        await asyncio.sleep(0)
        if self.is_down:
            raise ClusterError("no controller")
        self.next += 1
        self.allocated += 1
        return self.next


class Coordinator:
    """A broker's worth of transactions over one data folder."""

    def __init__(self, files: SimulatedFiles, *, is_new: bool = True, ids: Ids | None = None) -> None:
        self.clock = ManualClock(NOW_MS)
        self.timers = Timers()
        workers = InlineWorkers()
        commits = GroupCommit(workers)
        self.logs = LogManager.open(
            files, ["/data"], node_id=1, cluster_id="c", random=SeededRandom(1), workers=workers, commits=commits
        )
        self.logs.load(lambda topic: COMPACTED, NOW_MS)
        self.replicas = ReplicaManager(
            self.logs, commits, lambda _, __: Rules(), broker_id=1, clock=self.clock, call_later=self.timers
        )
        self.ids = ids or Ids()
        self.image = ClusterImage(cluster_id="c" if is_new else "")
        self.service = TransactionCoordinator(
            TransactionSettings(), self.clock, self.timers, lambda: self.image, self.ids
        )
        self.markers: list[Markers] = []
        self.answers: list[Callable[[Codes], None]] = []
        self.is_marking = True
        self.service.sender = MarkerSender(1, lambda: self.image, self._append, None, self.timers, self.service.now_ms)
        self.replicas.on_leadership_change = self.service.on_leadership_change
        self.take(self.led())

    def _append(self, markers: Markers, coordinator_epoch: int, done: Callable[[Codes], None]) -> None:
        self.markers.append(markers)
        if self.is_marking:
            done(dict.fromkeys(markers.partitions, ErrorCode.NONE))

    def led(
        self, *, leader: int = 1, epoch: int = 0, replicas: tuple[int, ...] = (1,), version: int = 0, topics: str = "t"
    ) -> ClusterImage:
        brokers = {broker: BrokerRegistration(broker, (), epoch=100 + broker) for broker in (1, 2, *replicas)}
        image = ClusterImage(cluster_id="c", brokers=brokers)
        state = PartitionImage(replicas, leader, epoch, replicas, state_version=version)
        image = image.with_topic(TopicImage(TRANSACTION_STATE_TOPIC, bytes(range(16)), (state,)))
        for number, name in enumerate(topics):
            image = image.with_topic(TopicImage(name, bytes([number + 1]) * 16, (PartitionImage((1,), 1, 0, (1,)),)))
        return image

    def take(self, image: ClusterImage) -> None:
        before, self.image = self.image, image
        self.replicas.apply(before, image)

    @property
    def partition(self) -> Partition:
        partition = self.replicas.get(TRANSACTION_STATE_TOPIC, 0)
        assert partition is not None
        return partition

    async def init(self, name: str = "id", **more: Any) -> Initialized:
        answers: list[Initialized] = []
        self.service.init(Init(name, TIMEOUT_MS, **more), answers.append)
        await settle()
        return answers[0]

    def add(self, producer: Initialized, *partitions: tuple[str, int], name: str = "id", **more: Any) -> Added:
        answers: list[Added] = []
        request = Add(name, producer.producer_id, producer.epoch, frozenset(partitions or {T0}), 2, **more)
        self.service.add(request, answers.append)
        return answers[0]

    def end(self, producer: Initialized, *, commit: bool = True, name: str = "id") -> list[Ended]:
        """The answers so far: none while the decision is not committed."""
        answers: list[Ended] = []
        self.service.end(End(name, producer.producer_id, producer.epoch, commit, 2), answers.append)
        return answers

    def state(self, name: str = "id") -> TransactionState | ErrorCode:
        found = self.service.describe(name)
        return found.state if isinstance(found, Transaction) else found


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def disk() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder("/data")
    files.sync_folder("/")
    return files


def test_a_transaction_begins_and_ends() -> None:
    async def story() -> None:
        on = Coordinator(disk())
        producer = await on.init()
        assert (producer.code, producer.epoch) == (ErrorCode.NONE, 0)
        assert on.add(producer) == Added(ErrorCode.NONE)
        assert on.state() is TransactionState.ONGOING
        on.clock.advance(30)
        assert on.service.open_transactions() == (1, 0.03)
        assert on.end(producer) == [Ended(ErrorCode.NONE, producer.producer_id, 1)]
        assert [(each.partitions, each.is_commit, each.epoch) for each in on.markers] == [(frozenset({T0}), True, 1)]
        assert on.state() is TransactionState.COMPLETE_COMMIT
        assert on.service.open_transactions() == (0, 0.0)

    run(story())


def test_a_transaction_over_its_timeout_is_aborted_by_the_timer() -> None:
    async def story() -> None:
        on = Coordinator(disk())
        producer = await on.init()
        on.add(producer)
        on.clock.advance(TIMEOUT_MS - 1)
        on.timers.fire()
        assert on.state() is TransactionState.ONGOING
        on.clock.advance(1)
        on.timers.fire()
        assert on.state() is TransactionState.COMPLETE_ABORT
        assert [(each.is_commit, each.epoch) for each in on.markers] == [(False, 1)]

    run(story())


# --- load and takeover


def test_a_decision_without_its_markers_is_carried_out_after_a_restart() -> None:
    async def story() -> None:
        files = disk()
        on = Coordinator(files)
        on.is_marking = False
        producer = await on.init()
        on.add(producer)
        assert on.end(producer)[0].code is ErrorCode.NONE, "the decision counts"
        assert on.state() is TransactionState.PREPARE_COMMIT
        files.crash()
        again = Coordinator(files, is_new=False)
        assert [(each.partitions, each.is_commit, each.epoch) for each in again.markers] == [(frozenset({T0}), True, 1)]
        assert again.state() is TransactionState.COMPLETE_COMMIT

    run(story())


def test_a_decision_goes_to_the_next_coordinator_and_the_former_one_completes_nothing() -> None:
    async def story() -> None:
        on = Coordinator(disk())
        on.is_marking = False
        producer = await on.init()
        on.add(producer)
        on.end(producer)
        end_offset = on.partition.log.log_end_offset
        on.take(on.led(leader=2, epoch=1, replicas=(1, 2), version=1))
        on.timers.fire()
        assert on.partition.log.log_end_offset == end_offset
        on.is_marking = True
        on.take(on.led(leader=1, epoch=2, replicas=(1,), version=2))
        assert [each.is_commit for each in on.markers] == [True, True]
        assert on.state() is TransactionState.COMPLETE_COMMIT

    run(story())


def test_requests_that_wait_for_a_commit_hear_of_the_next_coordinator() -> None:
    async def story() -> None:
        on = Coordinator(disk())
        producer = await on.init()
        on.take(on.led(replicas=(1, 2), version=1))
        answers: list[Added] = []
        on.service.add(Add("id", producer.producer_id, producer.epoch, frozenset({T0}), 2), answers.append)
        assert answers == [], "the follower does not have the record yet"
        on.take(on.led(leader=2, epoch=1, replicas=(1, 2), version=2))
        assert [each.code for each in answers] == [ErrorCode.NOT_COORDINATOR]

    run(story())


def test_a_record_is_answered_when_the_follower_has_it() -> None:
    async def story() -> None:
        on = Coordinator(disk())
        producer = await on.init()
        on.take(on.led(replicas=(1, 2), version=1))
        answers: list[Added] = []
        on.service.add(Add("id", producer.producer_id, producer.epoch, frozenset({T0}), 2), answers.append)
        assert on.state() is TransactionState.EMPTY, "it counts when it is committed"
        end = on.partition.log.log_end_offset
        epochs = {1: 101, 2: 102}
        on.partition.fetched_by(2, 102, Position(end, 0), epochs, on.clock.monotonic_ms())
        assert [each.code for each in answers] == [ErrorCode.NONE]
        assert on.state() is TransactionState.ONGOING

    run(story())


def test_a_disk_that_fails_ends_the_coordinator_and_no_request_hangs() -> None:
    async def story() -> None:
        files = disk()
        on = Coordinator(files)
        producer = await on.init()
        files.operations.fail("sync", errno.EIO, path_ending=".log")
        assert on.add(producer).code is ErrorCode.NOT_COORDINATOR
        assert on.state() is ErrorCode.NOT_COORDINATOR

    run(story())


def test_a_topic_that_is_deleted_while_its_marker_is_missing_ends_the_wait() -> None:
    async def story() -> None:
        on = Coordinator(disk())
        on.is_marking = False
        producer = await on.init()
        on.add(producer)
        on.end(producer)
        assert on.state() is TransactionState.PREPARE_COMMIT
        on.take(on.led(topics=""))
        assert on.state() is TransactionState.COMPLETE_COMMIT

    run(story())


# --- producer ids


def test_an_id_is_allocated_ahead_and_not_for_every_start() -> None:
    async def story() -> None:
        on = Coordinator(disk())
        first = await on.init("a")
        second = await on.init("b")
        again = await on.init("a")
        assert first.producer_id != second.producer_id
        assert (again.producer_id, again.epoch) == (first.producer_id, 1)
        assert on.ids.allocated <= 3, "one for each id, and one ahead"

    run(story())


def test_many_producers_that_start_at_once_have_different_ids() -> None:
    async def story() -> None:
        on = Coordinator(disk())
        answers: list[Initialized] = []
        for number in range(50):
            on.service.init(Init(f"id-{number}", TIMEOUT_MS), answers.append)
        for _ in range(10):
            await settle()
        assert {each.code for each in answers} == {ErrorCode.NONE}
        assert len({each.producer_id for each in answers}) == 50

    run(story())


def test_closing_ends_what_is_under_way() -> None:
    async def story() -> None:
        on = Coordinator(disk())
        producer = await on.init()
        on.is_marking = False
        on.add(producer)
        on.end(producer)
        answers: list[Initialized] = []
        on.service.init(Init("id", TIMEOUT_MS), answers.append)
        await settle()
        assert answers == [], "it waits for the end of the decision"
        on.service.close()
        assert [each.code for each in answers] == [ErrorCode.NOT_COORDINATOR]
        assert on.state() is ErrorCode.NOT_COORDINATOR
        on.timers.fire()

    run(story())
