"""Group coordinators with real logs on a simulated disk, and timers that the test fires."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.cluster.tree.layout import BrokerRegistration
from penstock.coordination.group_coordinator import GroupCoordinator
from penstock.coordination.groups.group import GroupSettings
from penstock.coordination.responses import RequestContext
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.log.group_commit import GroupCommit
from penstock.log.log_dirs.log_manager import LogManager
from penstock.log.settings import LogSettings
from penstock.replication.fetch_state import Position
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import LeadershipChanges, ReplicaManager
from penstock.runtime.clock import ManualClock
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import InlineWorkers
from penstock.testing.simulated_files import SimulatedFiles
from penstock.wire.protocol import OFFSETS_TOPIC, ErrorCode
from penstock.wire.schemas.heartbeat import HeartbeatRequest
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from penstock.wire.schemas.sync_group import SyncGroupRequest
from penstock.wire.schemas.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

NOW_MS = 1_700_000_000_000
COMPACTED = LogSettings(cleanup_policy=frozenset({"compact"}))


class Rules:
    """The settings of the topic."""

    log = COMPACTED
    min_insync_replicas = 1


class Timers:
    """Timers that wait for the test."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, delay_s: float, work: Callable[[], None]) -> Timers._Timer:
        timer = self._Timer(self, work)
        self.waiting.append(timer.fire)
        return timer

    def fire(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            work()

    class _Timer:
        def __init__(self, timers: Timers, work: Callable[[], None]) -> None:
            self._work = work
            self._cancelled = False

        def fire(self) -> None:
            if not self._cancelled:
                self._work()

        def cancel(self) -> None:
            self._cancelled = True


def commit_request(offset: int, metadata: str = "") -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    return OffsetCommitRequest(group_id="g", topics=[topic])


class Coordinator:
    """A broker's worth of groups over one data folder."""

    def __init__(self, files: SimulatedFiles, *, is_new: bool = True) -> None:
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
        self.service = GroupCoordinator(
            GroupSettings(initial_rebalance_delay_ms=0), SeededRandom(2), self.clock, self.timers
        )
        self.image = ClusterImage(cluster_id="c" if is_new else "")
        self.replicas.on_leadership_change = self.service.on_leadership_change
        self.take(self.led(isr=(1,), replicas=(1,)))

    def led(self, *, isr: tuple[int, ...], replicas: tuple[int, ...], version: int = 0) -> ClusterImage:
        state = PartitionImage(replicas, 1, 0, isr, state_version=version)
        brokers = {broker: BrokerRegistration(broker, (), epoch=100 + broker) for broker in replicas}
        image = ClusterImage(cluster_id="c", brokers=brokers)
        return image.with_topic(TopicImage(OFFSETS_TOPIC, bytes(range(16)), (state,)))

    def take(self, image: ClusterImage) -> None:
        before, self.image = self.image, image
        self.replicas.apply(before, image)

    @property
    def partition(self) -> Partition:
        partition = self.replicas.get(OFFSETS_TOPIC, 0)
        assert partition is not None
        return partition

    def ask(self, method: Any, request: Any, version: int) -> Any:
        answers: list[Any] = []
        context = RequestContext(answers.append, version, "client", "/host")
        code = self.service.handle("g", context, lambda shard, ctx, now: method(shard, request, ctx, now))
        assert code == ErrorCode.NONE
        return answers[0] if answers else None

    def begin_commit(self, offset: int, answers: list[Any]) -> None:
        request = commit_request(offset)
        context = RequestContext(answers.append, 7, "client", "/host")
        self.service.handle("g", context, lambda shard, ctx, now: shard.handle_offset_commit(request, ctx, now))

    def commit(self, offset: int, metadata: str = "") -> int:
        answer = self.ask(GroupCoordinatorShard.handle_offset_commit, commit_request(offset, metadata), 7)
        code: int = answer.topics[0].partitions[0].error_code
        return code

    def committed(self) -> int:
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        request = OffsetFetchRequest(group_id="g", topics=[topic])
        answer = self.ask(GroupCoordinatorShard.handle_offset_fetch, request, 5)
        offset: int = answer.topics[0].partitions[0].committed_offset
        return offset

    def join(self) -> str:
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        first = self.ask(GroupCoordinatorShard.handle_join_group, request, 3)
        if first is None:
            self.timers.fire()
        answer = first
        member: str = answer.member_id
        sync = SyncGroupRequest(group_id="g", generation_id=answer.generation_id, member_id=member)
        self.ask(GroupCoordinatorShard.handle_sync_group, sync, 3)
        return member

    def heartbeat(self, member: str) -> int:
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
        code: int = self.ask(GroupCoordinatorShard.handle_heartbeat, request, 3).error_code
        return code


def test_committed_offset_is_durable_when_it_is_answered() -> None:
    files = SimulatedFiles()
    coordinator = Coordinator(files)
    assert coordinator.commit(42) == ErrorCode.NONE
    coordinator.logs.checkpoint_tick()
    files.crash()
    assert Coordinator(files, is_new=False).committed() == 42


def test_offsets_are_read_back_after_a_clean_stop() -> None:
    files = SimulatedFiles()
    coordinator = Coordinator(files)
    for offset in range(5):
        coordinator.commit(offset)
    coordinator.service.close()
    coordinator.logs.close()
    assert Coordinator(files, is_new=False).committed() == 4


def test_member_that_goes_silent_is_dropped_when_its_timer_comes() -> None:
    coordinator = Coordinator(SimulatedFiles())
    member = coordinator.join()
    assert coordinator.heartbeat(member) == ErrorCode.NONE
    coordinator.clock.advance(9_000)
    coordinator.timers.fire()
    assert coordinator.heartbeat(member) == ErrorCode.NONE
    coordinator.clock.advance(60_000)
    coordinator.timers.fire()
    assert coordinator.heartbeat(member) == ErrorCode.UNKNOWN_MEMBER_ID


def test_clock_that_is_set_back_ends_no_session() -> None:
    coordinator = Coordinator(SimulatedFiles())
    member = coordinator.join()
    coordinator.clock.advance(-3_600_000)
    coordinator.timers.fire()
    assert coordinator.heartbeat(member) == ErrorCode.NONE


def test_clock_that_is_set_back_keeps_no_dead_member() -> None:
    """Its session takes twice as long at most, not until the clock is where it was before."""
    coordinator = Coordinator(SimulatedFiles())
    member = coordinator.join()
    coordinator.clock._now_ms -= 3_600_000
    coordinator.clock.advance(19_000)
    coordinator.timers.fire()
    assert coordinator.heartbeat(member) == ErrorCode.NONE
    coordinator.clock.advance(21_000)
    coordinator.timers.fire()
    assert coordinator.heartbeat(member) == ErrorCode.UNKNOWN_MEMBER_ID


def test_disk_that_fails_a_sync_leaves_the_groups_without_a_coordinator() -> None:
    files = SimulatedFiles()
    coordinator = Coordinator(files)
    assert coordinator.commit(1) == ErrorCode.NONE
    files.operations.fail("sync", errno.EIO, path_ending=".log")
    assert coordinator.commit(2) == ErrorCode.NOT_COORDINATOR
    context = RequestContext(lambda message: None, 7)
    error = coordinator.service.handle("g", context, lambda shard, ctx, now: shard.tick(now))
    assert error == ErrorCode.NOT_COORDINATOR


def test_groups_are_counted_by_their_state() -> None:
    coordinator = Coordinator(SimulatedFiles())
    assert coordinator.service.count_by_state() == {}
    coordinator.join()
    assert coordinator.service.count_by_state() == {"Stable": 1}


# --- leadership that moves


def why_not(coordinator: Coordinator) -> ErrorCode:
    """The error code of a request to the coordinator."""
    context = RequestContext(lambda message: None, 7)
    return coordinator.service.handle("g", context, lambda shard, ctx, now: shard.tick(now))


def write_much(coordinator: Coordinator) -> None:
    for offset in range(40):
        assert coordinator.commit(offset, "x" * 4000) == ErrorCode.NONE
    coordinator.logs.close()


def test_resigned_coordinator_answers_waiting_requests_and_serves_no_others() -> None:
    coordinator = Coordinator(SimulatedFiles())
    coordinator.take(coordinator.led(isr=(1, 2), replicas=(1, 2), version=1))
    answers: list[Any] = []
    coordinator.begin_commit(1, answers)
    assert answers == [], "the other replica has not got it"
    coordinator.service.resign(0)
    assert answers[0].topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert why_not(coordinator) == ErrorCode.NOT_COORDINATOR
    coordinator.service.resign(0)


def test_commit_is_answered_when_every_replica_in_sync_has_it() -> None:
    coordinator = Coordinator(SimulatedFiles())
    coordinator.take(coordinator.led(isr=(1, 2), replicas=(1, 2), version=1))
    answers: list[Any] = []
    coordinator.begin_commit(7, answers)
    assert coordinator.committed() == -1
    end = coordinator.partition.log.log_end_offset
    coordinator.partition.fetched_by(2, 102, Position(end, 0), coordinator.replicas.brokers, 0)
    assert answers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
    assert coordinator.committed() == 7


def test_commit_that_the_replicas_do_not_get_in_time_is_read_again_from_the_log() -> None:
    """It is in the log and may be committed later: the coordinator must not continue as if it were not."""
    coordinator = Coordinator(SimulatedFiles())
    coordinator.take(coordinator.led(isr=(1, 2), replicas=(1, 2), version=1))
    answers: list[Any] = []
    coordinator.begin_commit(7, answers)
    coordinator.clock.advance(5_001)
    coordinator.timers.fire()
    assert answers[0].topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert coordinator.committed() == 7


def test_coordinator_that_leads_again_loads_the_current_log() -> None:
    coordinator = Coordinator(SimulatedFiles())
    assert coordinator.commit(1) == ErrorCode.NONE
    old = next(iter(coordinator.service.shards))
    coordinator.service.lead(coordinator.partition, 1)
    assert next(iter(coordinator.service.shards)) is not old
    assert coordinator.committed() == 1


def test_marker_ends_only_what_was_there_when_it_was_appended() -> None:
    """A shard that is loaded before the marker is committed has replayed it, and offsets of the next transaction."""
    coordinator = Coordinator(SimulatedFiles())
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = TxnOffsetCommitRequestTopic(name="t", partitions=[partition])
    request = TxnOffsetCommitRequest(
        transactional_id="id", group_id="g", producer_id=77, producer_epoch=1, topics=[topic]
    )
    early = coordinator.service.end_of_transaction(0, 77, committed=True)
    coordinator.service.lead(coordinator.partition, 1)
    coordinator.ask(GroupCoordinatorShard.handle_txn_offset_commit, request, 3)
    early()
    assert coordinator.committed() == -1
    coordinator.service.end_of_transaction(0, 77, committed=True)()
    assert coordinator.committed() == 7


def test_long_log_is_loaded_in_steps_and_requests_get_load_in_progress() -> None:
    files = SimulatedFiles()
    coordinator = Coordinator(files)
    write_much(coordinator)
    assert coordinator.partition.log.size > 128 * 1024
    again = Coordinator(files, is_new=False)
    assert why_not(again) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    again.service.on_leadership_change(LeadershipChanges(again.image, deleted_topics=["other"]))
    for _ in range(5):
        again.timers.fire()
    assert again.committed() == 39


def test_topic_deleted_while_the_log_is_loaded_is_forgotten_after_it() -> None:
    files = SimulatedFiles()
    coordinator = Coordinator(files)
    write_much(coordinator)
    again = Coordinator(files, is_new=False)
    again.service.on_leadership_change(LeadershipChanges(again.image, deleted_topics=["t"]))
    for _ in range(5):
        again.timers.fire()
    assert again.committed() == -1


def test_load_that_is_overtaken_by_a_resignation_ends() -> None:
    files = SimulatedFiles()
    coordinator = Coordinator(files)
    write_much(coordinator)
    again = Coordinator(files, is_new=False)
    again.service.resign(0)
    for _ in range(5):
        again.timers.fire()
    assert why_not(again) == ErrorCode.NOT_COORDINATOR
