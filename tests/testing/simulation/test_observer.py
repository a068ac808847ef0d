"""What the observer knows of logs: those that it meets for the first time, and what their disks hold."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.log.log_stories import FOLDER, NOW_MS, TINY, batch_of, open_new

from penstock.client.cluster_metadata import TopicPartition
from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import NO_LEADER, PartitionState, encode_partition_state
from penstock.cluster.tree.tree import Set
from penstock.log.group_commit import Flush
from penstock.log.partition_log import PartitionLog
from penstock.log.truncation import truncate_to
from penstock.records import scan
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.observer import DiskView, Observer
from penstock.testing.simulation.partition_model import PartitionModel, ReplicaModel
from penstock.testing.simulation.scheduler import Trace


def _observer(files: SimulatedFiles, failures: list[str] | None = None) -> Observer:
    node: Any = SimpleNamespace(files=files, name="broker-0", incarnation=1)

    def fail(error: Exception) -> None:
        if failures is not None:
            failures.append(str(error))

    scheduler = SimpleNamespace(fail=fail)
    return Observer(cast("Any", SimpleNamespace(nodes=[node], trace=Trace(), scheduler=scheduler)))


def _append(log: PartitionLog, *numbers: int) -> None:
    for number in numbers:
        log.append(batch_of(number), leader_epoch=0, now_ms=NOW_MS)


class Disk:
    """A log of two records a batch, and what a power loss would leave of it."""

    def __init__(self) -> None:
        self.files = SimulatedFiles()
        self.log = open_new(self.files, TINY)
        self.files.sync_folder("/data")
        self.files.sync_folder("/")
        self.replica = ReplicaModel("broker-0", 1)
        self._view = DiskView(self.files, self.replica)

    def held(self) -> list[int]:
        self._view.update(self.log)
        return sorted(self.replica.held)


def test_a_log_that_is_deleted_during_its_first_flush_is_not_observed() -> None:
    files = SimulatedFiles()
    log, kept = open_new(files, folder="/data/t-0"), open_new(files, folder="/data/t-1")
    observer = _observer(files)
    flush = log.prepare_flush()
    assert flush is not None
    flush.run()
    files.rename("/data/t-0", "/data/t-0-delete")
    log.complete_flush(flush)
    observer.flushed(log)
    assert not observer.models
    observer.flushed(kept)
    assert [key[:2] for key in observer.models] == [("t", 1)]


def test_nothing_is_held_against_a_log_that_is_deleted_while_a_flush_of_it_runs() -> None:
    files = SimulatedFiles()
    log, found = open_new(files, folder=FOLDER), list[str]()
    observer = _observer(files, found)
    _append(log, 0)
    observer.written(log, [_last_header(log)])
    flush = log.prepare_flush()
    assert flush is not None
    flush.run()
    files.rename(FOLDER, f"{FOLDER}-delete")
    log.complete_flush(flush)
    observer.flushed(log)
    assert found == []


def test_a_batch_is_held_once_it_is_synced_and_not_before() -> None:
    disk = Disk()
    _append(disk.log, 0)
    assert disk.held() == []
    disk.log.flush()
    _append(disk.log, 1)
    assert disk.held() == [0]
    disk.log.flush()
    assert disk.held() == [0, 2]


def test_a_segment_without_a_durable_name_holds_nothing() -> None:
    disk = Disk()
    _append(disk.log, 0, 1)
    disk.log.flush()
    _append(disk.log, 2)
    flush = disk.log.prepare_flush()
    assert flush is not None
    flush.folder = None
    flush.run()
    assert disk.held() == [0, 2]
    disk.files.sync_folder(FOLDER)
    assert disk.held() == [0, 2, 4]


def test_a_batch_in_which_a_bit_has_flipped_is_not_held_and_those_behind_it_are() -> None:
    disk = Disk()
    _append(disk.log, 0, 1)
    disk.log.flush()
    assert disk.held() == [0, 2]
    disk.files.corrupt(disk.log.active.path, 80)
    assert disk.held() == [2]


def test_what_was_written_where_a_log_was_cut_is_held_once_it_is_synced() -> None:
    disk = Disk()
    _append(disk.log, 0, 1)
    disk.log.flush()
    assert disk.held() == [0, 2]
    before = dict(disk.replica.held)
    truncate_to(disk.log, 2, NOW_MS)
    _append(disk.log, 7)
    assert disk.held() == [0]  # a cut is durable when it is made
    disk.log.flush()
    assert disk.held() == [0, 2]
    assert disk.replica.held[0] == before[0]
    assert disk.replica.held[2] != before[2]


def test_what_a_power_loss_took_is_not_held() -> None:
    disk = Disk()
    _append(disk.log, 0)
    disk.log.flush()
    _append(disk.log, 1)
    disk.files.operations.fail("sync", errno.EIO, path_ending=".log")
    with pytest.raises(Exception, match="Input/output error"):
        disk.log.flush()
    assert disk.held() == [0]
    disk.files.crash(LOSE_UNSYNCED)
    assert disk.held() == [0]


def test_a_flush_that_synced_nothing_is_found_when_the_broker_believes_it() -> None:
    files = SimulatedFiles()
    log, found = open_new(files, TINY), list[str]()
    observer = _observer(files, found)
    files.sync_folder("/data")
    files.sync_folder("/")
    _append(log, 0)
    flush = log.prepare_flush()
    assert flush is not None
    flush.run()
    log.complete_flush(flush)
    observer.flushed(log)
    assert found == []
    _append(log, 1)
    observer.written(log, [_last_header(log)])
    lie = log.prepare_flush()
    assert isinstance(lie, Flush)
    log.complete_flush(lie)
    observer.flushed(log)
    assert len(found) == 1
    assert "broker-0 reports 2..3 of epoch 0" in found[0]
    assert found[0].endswith("as durable, but its disk has None")


class Quick:
    """A partition that does not sync, with ten committed records, and what the metadata has of its ISR."""

    def __init__(self, isr: Sequence[int], elr: Sequence[int] = ()) -> None:
        self._path = layout.partition_state_path("quick", 0)
        self._stored: dict[str, Any] = {}
        self.nodes: list[Any] = [
            SimpleNamespace(
                name=f"broker-{number}", broker_id=number, is_ready=True, is_alive=True, files=SimulatedFiles()
            )
            for number in range(3)
        ]
        tree = SimpleNamespace(state=SimpleNamespace(node=self._stored.get))
        self.observer = Observer(cast("Any", SimpleNamespace(nodes=self.nodes, tree=tree, trace=Trace())))
        self.partition = TopicPartition("quick", 0)
        model = self.observer.latest[self.partition] = PartitionModel("quick-0", syncs=False)
        model.committed_end = 10
        self.change(isr, elr, leader=isr[0])

    def change(self, isr: Sequence[int], elr: Sequence[int] = (), leader: int = NO_LEADER, epoch: int = 0) -> None:
        state = PartitionState(leader, epoch, tuple(isr), 0, elr=tuple(elr))
        operation = Set(self._path, encode_partition_state(state), 0)
        self.observer.tree_changes([operation])
        self._stored[self._path] = SimpleNamespace(data=operation.data)

    def end(self, broker: int) -> None:
        self.observer.crashed(self.nodes[broker])

    def is_lost(self) -> bool:
        return self.partition in self.observer.history.losses


def test_a_partition_is_lost_when_its_last_complete_replica_ends_uncleanly() -> None:
    story = Quick([0, 1])
    story.end(2)  # which was not in sync
    story.end(0)
    assert not story.is_lost()
    story.end(1)
    assert story.is_lost()
    assert story.observer.history.losses[story.partition].end == 10


def test_a_replica_that_rejoins_the_isr_is_complete_again() -> None:
    story = Quick([0, 1])
    story.end(0)
    story.change([1], leader=1)
    story.change([1, 0], leader=1)
    story.end(1)
    assert not story.is_lost()
    story.end(0)
    assert story.is_lost()


def test_a_dead_broker_that_joins_the_isr_has_nothing() -> None:
    story = Quick([0, 1])
    story.end(0)
    story.nodes[0].is_ready = story.nodes[0].is_alive = False
    story.change([1], leader=1)
    story.change([1, 0], leader=1)
    story.end(1)
    assert story.is_lost()


def test_an_eligible_replica_is_known_to_be_complete() -> None:
    story = Quick([0], elr=[2])
    story.end(0)
    assert not story.is_lost()
    story.change([0], leader=0)  # and no replica is eligible any more
    assert story.is_lost()


def test_where_nothing_was_committed_nothing_is_lost_and_nothing_excused() -> None:
    story = Quick([0])
    model = story.observer.latest[story.partition]
    model.committed_end = 0
    story.end(0)
    assert not story.is_lost()
    model.committed_end = 10
    story.end(0)
    assert story.observer.history.losses[story.partition].end == 10
    model.committed_end = 0
    story.observer.history.losses.clear()
    story.change([0], leader=0, epoch=1)
    assert not story.is_lost()


def test_a_leader_after_a_loss_is_known_to_have_what_it_commits() -> None:
    story = Quick([0])
    story.end(0)
    model = story.observer.latest[story.partition]
    story.change([0], leader=0, epoch=1)
    model.committed_end = 5
    story.change([0], leader=0, epoch=1)
    assert model.committed_end == 5
    story.end(0)
    assert model.committed_end == 0


def test_a_disk_that_is_harmed_holds_nothing_for_sure() -> None:
    story = Quick([0])
    story.observer.disk_damaged(story.nodes[0].files)
    assert story.is_lost()


def _last_header(log: PartitionLog) -> Any:
    return scan(log.active.file.read_at(0, log.active.size)).headers[-1]
