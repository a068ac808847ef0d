"""The coordinators carried out: real logs on a simulated disk, timers that fire when told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from penstock.coordination.events import RequestContext
from penstock.coordination.service import OFFSETS_TOPIC, GroupService
from penstock.coordination.settings import GroupSettings
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.log.flush import GroupCommit
from penstock.log.folders.manager import LogManager
from penstock.log.settings import LogSettings
from penstock.replication.replicas import Replicas
from penstock.runtime.clock import ManualClock
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.workers import InlineWorkers
from penstock.testing.simulated_files import SimulatedFiles
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.heartbeat import HeartbeatRequest
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from penstock.wire.schemas.sync_group import SyncGroupRequest

NOW_MS = 1_700_000_000_000
COMPACTED = LogSettings(cleanup_policy=frozenset({"compact"}))


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
        replicas = Replicas(self.logs, commits)
        self.service = GroupService(
            replicas, GroupSettings(initial_rebalance_delay_ms=0), SeededRandom(2), self.clock, self.timers
        )
        partition = replicas.lead(
            OFFSETS_TOPIC, 0, bytes(range(16)), COMPACTED, leader_epoch=0, min_insync_replicas=1, now_ms=NOW_MS,
            is_new=is_new,
        )  # fmt: skip
        self.service.lead(partition, 1)

    def ask(self, method: Any, request: Any, version: int) -> Any:
        answers: list[Any] = []
        context = RequestContext(answers.append, version, "client", "/host")
        here = self.service.handle("g", context, lambda shard, ctx, now: method(shard, request, ctx, now))
        assert here
        return answers[0] if answers else None

    def commit(self, offset: int) -> int:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
        request = OffsetCommitRequest(group_id="g", topics=[topic])
        answer = self.ask(GroupCoordinatorShard.handle_offset_commit, request, 7)
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


def test_a_committed_offset_is_durable_when_it_is_answered() -> None:
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


def test_a_member_that_goes_silent_is_dropped_when_its_timer_comes() -> None:
    coordinator = Coordinator(SimulatedFiles())
    member = coordinator.join()
    assert coordinator.heartbeat(member) == ErrorCode.NONE
    coordinator.clock.advance(9_000)
    coordinator.timers.fire()
    assert coordinator.heartbeat(member) == ErrorCode.NONE
    coordinator.clock.advance(60_000)
    coordinator.timers.fire()
    assert coordinator.heartbeat(member) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_clock_that_is_set_back_ends_no_session() -> None:
    coordinator = Coordinator(SimulatedFiles())
    member = coordinator.join()
    coordinator.clock.advance(-3_600_000)
    coordinator.timers.fire()
    assert coordinator.heartbeat(member) == ErrorCode.NONE


def test_a_disk_that_fails_a_sync_leaves_the_groups_without_a_coordinator() -> None:
    files = SimulatedFiles()
    coordinator = Coordinator(files)
    assert coordinator.commit(1) == ErrorCode.NONE
    files.operations.fail("sync", errno.EIO, path_ending=".log")
    assert coordinator.commit(2) == ErrorCode.NOT_COORDINATOR
    context = RequestContext(lambda message: None, 7)
    assert not coordinator.service.handle("g", context, lambda shard, ctx, now: shard.tick(now))


def test_groups_are_counted_by_their_state() -> None:
    coordinator = Coordinator(SimulatedFiles())
    assert coordinator.service.count_by_state() == {}
    coordinator.join()
    assert coordinator.service.count_by_state() == {"Stable": 1}
