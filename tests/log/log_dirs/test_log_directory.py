"""A log directory: locked, loaded, partitions created and deleted, closed, reopened."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.log.directory_stories import (
    CLUSTER,
    NOW,
    SMALL,
    TOPIC_ID,
    numbered,
    open_directory,
    put,
    read_file,
    values_in,
    write_file,
)
from tests.timeouts import PATIENCE_S

from penstock.log.errors import (
    DirectoryOffline,
    FolderInUse,
    InconsistentTopicId,
    LogFailed,
    PartitionExists,
    TooManyOpenFiles,
    UnknownPartition,
)
from penstock.log.log_dirs.identity import InvalidPartitionName, MetadataFileError, WrongOwner
from penstock.log.log_dirs.log_directory import LogDirectory, Progress, remove_all
from penstock.runtime.files import PosixFiles
from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_files import SimulatedFiles

MARKER = "/data/.kafka_cleanshutdown"
T0, T1 = ("t", 0), ("t", 1)


def with_records(files: SimulatedFiles, count: int = 40) -> LogDirectory:
    directory = open_directory(files)
    put(directory.create(T0, TOPIC_ID, SMALL, NOW), *numbered(count))
    return directory


# --- claim


def test_a_folder_is_made_and_remembers_its_owner(tmp_path: Path) -> None:
    path = str(tmp_path / "disks" / "one")
    first = open_directory(PosixFiles(), path + "/")
    assert first.path == path
    assert not first.was_clean
    assert first.close()
    again = open_directory(PosixFiles(), path, seed=1)
    assert again.directory_id == first.directory_id
    assert len(again.directory_id) == 16
    again.close()


def test_new_folders_are_durable_one_level_at_a_time() -> None:
    files = SimulatedFiles()
    open_directory(files, "/mnt/disks/one").close()
    files.crash()
    assert open_directory(files, "/mnt/disks/one").was_clean


def test_a_folder_in_use_by_this_process_is_rejected(tmp_path: Path) -> None:
    path = str(tmp_path)
    directory = open_directory(PosixFiles(), path)
    with pytest.raises(FolderInUse, match=f"in use .*this process .{os.getpid()}.*stop that process"):
        open_directory(PosixFiles(), path)
    directory.close()
    open_directory(PosixFiles(), path).close()


def test_a_folder_in_use_by_another_process_is_rejected(tmp_path: Path) -> None:
    holder = (
        "import sys\n"
        "from penstock.log.log_dirs.log_directory import LogDirectory\n"
        "from penstock.runtime.files import PosixFiles\n"
        "from penstock.runtime.randomness import SeededRandom\n"
        "d = LogDirectory.open(PosixFiles(), sys.argv[1], node_id=1, cluster_id='c', random=SeededRandom(0))\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", holder, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse, match=f"process {process.pid}"):
            open_directory(PosixFiles(), str(tmp_path), cluster_id="c")
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
    open_directory(PosixFiles(), str(tmp_path), cluster_id="c").close()


def test_another_brokers_folder_is_rejected_and_left_as_it_was() -> None:
    files = SimulatedFiles()
    open_directory(files).close()
    before = files.operations.count
    with pytest.raises(WrongOwner, match=r"node\.id"):
        open_directory(files, node_id=2)
    with pytest.raises(WrongOwner, match=r"cluster\.id"):
        open_directory(files, cluster_id="another")
    assert files.operations.count == before
    assert open_directory(files).was_clean


def test_a_damaged_owner_file_keeps_the_folder_closed_and_unlocked() -> None:
    files = SimulatedFiles()
    open_directory(files).close()
    sound = read_file(files, "/data/meta.properties")
    write_file(files, "/data/meta.properties", b"version=1\nnode.id=x\ncluster.id=c\n")
    with pytest.raises(MetadataFileError, match="restore the file"):
        open_directory(files)
    write_file(files, "/data/meta.properties", sound)
    assert open_directory(files).was_clean


def test_a_folder_made_by_an_old_kafka_gets_an_id_and_keeps_the_rest() -> None:
    files = SimulatedFiles()
    files.make_folder("/data")
    write_file(files, "/data/meta.properties", b"#\nversion=0\nbroker.id=1\n")
    directory = open_directory(files, cluster_id="c")
    directory.close()
    text = read_file(files, "/data/meta.properties").decode()
    assert text.startswith("version=0\nbroker.id=1\ncluster.id=c\ndirectory.id=")
    assert open_directory(files, cluster_id="c", seed=5).directory_id == directory.directory_id


def test_a_folder_that_cannot_be_made_is_offline(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryOffline, match="file"):
        open_directory(PosixFiles(), str(tmp_path / "file" / "data"))


# --- the clean marker


def test_a_clean_stop_is_remembered_once() -> None:
    files = SimulatedFiles()
    with_records(files).close()
    assert files.exists(MARKER)
    directory = open_directory(files)
    assert directory.was_clean
    assert not files.exists(MARKER)
    files.kill()
    assert not open_directory(files).was_clean


def test_the_marker_is_gone_durably_before_anything_is_written() -> None:
    files = SimulatedFiles()
    with_records(files).close()
    open_directory(files, load=False)
    files.crash()
    assert not open_directory(files).was_clean


def test_after_a_clean_stop_no_byte_is_walked() -> None:
    files = SimulatedFiles()
    with_records(files).close()
    steps: list[Progress] = []
    directory = open_directory(files, load=False)
    directory.load(lambda topic: SMALL, NOW, steps.append)
    assert [(step.topic, step.partition, step.done, step.total) for step in steps] == [("t", 0, 1, 1)]
    assert steps[0].opened is not None
    assert steps[0].opened.was_clean
    assert steps[0].opened.walked_bytes == 0
    assert values_in(directory.get(T0).log) == numbered(40)


def test_a_folder_that_was_claimed_and_given_back_is_as_clean_as_before() -> None:
    files = SimulatedFiles()
    with_records(files).close()
    assert open_directory(files, load=False).close()
    assert open_directory(files).was_clean


def test_a_start_that_was_given_up_half_way_is_not_clean() -> None:
    files = SimulatedFiles()
    directory = open_directory(files)
    for key in (T0, T1):
        directory.create(key, TOPIC_ID, SMALL, NOW)
    directory.close()
    directory = open_directory(files, load=False)
    next(directory.loading(lambda topic: SMALL, NOW))
    assert not directory.close()
    assert not files.exists(MARKER)
    assert len(open_directory(files).hosted) == 2


def test_after_an_unclean_stop_everything_flushed_is_there() -> None:
    files = SimulatedFiles()
    directory = with_records(files)
    directory.get(T0).log.flush()
    put(directory.get(T0).log, b"not flushed")
    files.crash()
    reopened = open_directory(files)
    assert not reopened.was_clean
    assert values_in(reopened.get(T0).log) == numbered(40)


def test_closing_twice_is_harmless() -> None:
    files = SimulatedFiles()
    directory = with_records(files)
    assert directory.close()
    assert not directory.close()
    assert open_directory(files).was_clean


# --- partitions


@pytest.mark.parametrize("topic", ["a", "page-views", "-", "1-2-3", "x.y_z", "t" * 249])
def test_partitions_of_any_topic_are_found_again(tmp_path: Path, topic: str) -> None:
    path = str(tmp_path / "data")
    directory = open_directory(PosixFiles(), path)
    put(directory.create((topic, 12), TOPIC_ID, SMALL, NOW), b"kept")
    directory.close()
    directory = open_directory(PosixFiles(), path)
    assert directory.get((topic, 12)).topic_id == TOPIC_ID
    assert values_in(directory.get((topic, 12)).log) == [b"kept"]
    directory.delete((topic, 12), NOW)
    assert directory.hosted == {}
    directory.close()
    assert {name for name in os.listdir(path) if os.path.isdir(f"{path}/{name}")} == set()


@pytest.mark.parametrize(("topic", "partition"), [("..", 0), ("a/../b", 0), ("", 0), ("t", -1)])
def test_a_name_that_leads_out_of_the_folder_is_rejected(topic: str, partition: int) -> None:
    files = SimulatedFiles()
    directory = open_directory(files)
    with pytest.raises(InvalidPartitionName):
        directory.create((topic, partition), TOPIC_ID, SMALL, NOW)
    assert directory.failure is None


def test_a_partition_is_made_once() -> None:
    directory = open_directory(SimulatedFiles())
    directory.create(T0, TOPIC_ID, SMALL, NOW)
    with pytest.raises(PartitionExists, match="/data/t-0 exists"):
        directory.create(T0, TOPIC_ID, SMALL, NOW)


def test_an_unknown_partition_says_so() -> None:
    directory = open_directory(SimulatedFiles())
    for call in (lambda: directory.get(T0), lambda: directory.delete(T0, NOW), lambda: directory.advance_start(T0, 1)):
        with pytest.raises(UnknownPartition, match="t-0"):
            call()


def test_a_deleted_partition_is_out_of_use_at_once_and_its_bytes_go_later() -> None:
    files = SimulatedFiles()
    directory = with_records(files)
    log = directory.get(T0).log
    region = log.read(0, 1 << 20)
    assert region is not None
    directory.delete(T0, NOW)
    with pytest.raises(LogFailed, match="deleted"):
        put(log, b"too late")
    assert region.read()
    names = [name for name in files.list_folder("/data") if name.endswith("-delete")]
    assert len(names) == 1
    assert directory.removals.take_due(NOW + 999) == []
    due = directory.removals.take_due(NOW + 1000)
    assert [removal.path for removal in due] == [f"/data/{names[0]}"]
    assert remove_all(files, due) == 1
    assert remove_all(files, due) == 0
    assert not files.exists(f"/data/{names[0]}")


def test_a_recreated_topic_has_nothing_of_the_old_one() -> None:
    files = SimulatedFiles()
    directory = with_records(files)
    log = directory.get(T0).log
    log.flush()
    log.advance_high_watermark(40)
    directory.advance_start(T0, 30)
    directory.set_cleaner_offset(T0, 20)
    directory.checkpoint()
    directory.delete(T0, NOW)
    new = directory.create(T0, b"another-topic-id", SMALL, NOW)
    put(new, *numbered(3))
    new.flush()
    files.crash()
    reopened = open_directory(files)
    found = reopened.get(T0)
    assert found.topic_id == b"another-topic-id"
    assert (found.log.log_start_offset, found.log.log_end_offset, found.log.high_watermark) == (0, 3, 0)
    assert values_in(found.log) == numbered(3)
    assert reopened.cleaner_offset(T0) is None
    assert reopened.listing.foreign == []


def test_the_old_log_cannot_touch_the_files_of_a_recreated_topic() -> None:
    directory = with_records(SimulatedFiles())
    old = directory.get(T0).log
    directory.delete(T0, NOW)
    new = directory.create(T0, TOPIC_ID, SMALL, NOW)
    attempts: list[Callable[[], object]] = [lambda: put(old, b"x"), old.flush, lambda: old.read(0, 100)]
    for attempt in attempts:
        with pytest.raises(LogFailed):
            attempt()
    assert new.log_end_offset == 0
    assert directory.check_logs()


def test_what_was_deleted_before_a_stop_is_removed_at_the_start() -> None:
    files = SimulatedFiles()
    directory = with_records(files)
    directory.delete(T0, NOW)
    files.kill()
    reopened = open_directory(files)
    assert reopened.hosted == {}
    due = reopened.removals.take_due(NOW)
    assert len(due) == 1
    remove_all(files, due)
    assert not [name for name in files.list_folder("/data") if "delete" in name]


def test_a_topic_id_is_learnt_once() -> None:
    files = SimulatedFiles()
    directory = open_directory(files)
    directory.create(T0, None, SMALL, NOW)
    directory.assign_topic_id(T0, TOPIC_ID)
    directory.assign_topic_id(T0, TOPIC_ID)
    with pytest.raises(InconsistentTopicId, match=TOPIC_ID.hex()):
        directory.assign_topic_id(T0, bytes(16))
    directory.close()
    assert open_directory(files).get(T0).topic_id == TOPIC_ID


def test_a_damaged_topic_id_is_learnt_again(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    with_records(files).close()
    write_file(files, "/data/t-0/partition.metadata", b"version: 0\ntopic_id: ???\n")
    directory = open_directory(files)
    assert directory.get(T0).topic_id is None
    assert "to be assigned again" in caplog.text
    directory.assign_topic_id(T0, TOPIC_ID)
    assert values_in(directory.get(T0).log) == numbered(40)


# --- others' files


def test_files_of_others_are_left_alone_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    with_records(files).close()
    for folder in ("lost+found", "notes-delete", "t-00", "t-1-future", "backup-2024"):
        files.make_folder(f"/data/{folder}")
    write_file(files, "/data/backup-2024/photo.jpg", b"photo")
    write_file(files, "/data/README-1", b"a file with a partition's name")
    write_file(files, "/data/t-9.0123456789abcdef0123456789abcdef-delete", b"a file too")
    with caplog.at_level(logging.WARNING):
        directory = open_directory(files)
    assert list(directory.hosted) == [T0]
    assert len([record for record in caplog.records if "left alone" in record.message]) == 1
    assert len(directory.listing.foreign) == 7
    with pytest.raises(PartitionExists):
        directory.create(("backup", 2024), TOPIC_ID, SMALL, NOW)
    directory.close()
    assert files.list_folder("/data/backup-2024") == ["photo.jpg"]
    assert files.exists("/data/t-9.0123456789abcdef0123456789abcdef-delete")
    assert files.is_folder("/data/lost+found")


def test_a_half_made_partition_is_taken_over() -> None:
    files = SimulatedFiles()
    open_directory(files).close()
    files.make_folder("/data/empty-0")
    files.make_folder("/data/begun-0")
    write_file(files, "/data/begun-0/partition.metadata.tmp", b"vers")
    directory = open_directory(files)
    assert list(directory.hosted) == [("begun", 0), ("empty", 0)]
    put(directory.get(("empty", 0)).log, b"works")


# --- one partition's damage


def damage(files: SimulatedFiles) -> None:
    """A segment in the middle is gone, which no recovery can take for a torn end."""
    name = min(name for name in files.list_folder("/data/t-0") if name.endswith(".log"))
    files.remove(f"/data/t-0/{name}")
    files.make_folder(f"/data/t-0/{name}")


def test_damage_of_one_partition_leaves_the_others_online(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    directory = with_records(files)
    put(directory.create(T1, TOPIC_ID, SMALL, NOW), *numbered(5))
    directory.checkpoint()
    files.kill()
    damage(files)
    directory = open_directory(files)
    assert directory.failure is None
    assert list(directory.hosted) == [T1]
    assert "partition=t-0 " in caplog.text
    with pytest.raises(LogFailed, match="/data/t-0 is offline"):
        directory.get(T0)
    with pytest.raises(PartitionExists):
        directory.create(T0, TOPIC_ID, SMALL, NOW)
    assert values_in(directory.get(T1).log) == numbered(5)
    assert not directory.close()
    assert not files.exists(MARKER)


def test_a_damaged_partition_may_be_deleted_and_recreated() -> None:
    files = SimulatedFiles()
    with_records(files)
    files.kill()
    damage(files)
    directory = open_directory(files)
    directory.delete(T0, NOW)
    put(directory.create(T0, TOPIC_ID, SMALL, NOW), b"again")
    assert directory.close()
    assert values_in(open_directory(files).get(T0).log) == [b"again"]


def test_what_is_remembered_of_a_damaged_partition_is_kept() -> None:
    files = SimulatedFiles()
    directory = with_records(files)
    log = directory.get(T0).log
    log.flush()
    log.advance_high_watermark(40)
    directory.advance_start(T0, 7)
    directory.set_cleaner_offset(T0, 3)
    directory.checkpoint()
    files.kill()
    damage(files)
    directory = open_directory(files)
    put(directory.create(T1, TOPIC_ID, SMALL, NOW), b"x")
    directory.close()
    directory = open_directory(files, load=False)
    rows = [dict(file.rows).get(T0) for file in directory.checkpoints.all]
    assert rows == [40, 7, 40, 3]


def test_running_out_of_open_files_is_not_reported_as_damage() -> None:
    files = SimulatedFiles()
    with_records(files)
    files.kill()
    directory = open_directory(files, load=False)

    def hook(operation: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    files.operations.hook = hook
    with pytest.raises(TooManyOpenFiles, match="ulimit -n"):
        directory.load(lambda topic: SMALL, NOW)
    assert directory.failure is None
    assert directory.damaged == {}
    files.operations.hook = None
    directory.close()
    assert values_in(open_directory(files).get(T0).log) == numbered(40)


def test_an_owner_is_claimed_with_the_ids_given() -> None:
    files = SimulatedFiles()
    directory = LogDirectory.open(files, "/data", node_id=9, cluster_id=CLUSTER, random=SeededRandom(3))
    assert b"node.id=9\n" in read_file(files, "/data/meta.properties")
    directory.close()
