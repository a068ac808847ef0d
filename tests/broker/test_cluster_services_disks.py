"""A data folder of a broker in a cluster fails: its replicas are offline, the broker stays (KIP-112)."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.broker.cluster_stories import BrokerCluster
from tests.broker.test_cluster_services_edges import Sender, http, make, read_all
from tests.timeouts import until

from penstock import Admin, TopicSpec
from penstock.cli.main import cli
from penstock.client.admin.results import LogDirectory
from penstock.client.errors import PenstockError
from penstock.cluster.image import PartitionImage
from penstock.runtime.files import PosixFile
from penstock.testing.zookeeper import ZooKeeperServer
from penstock.wire.protocol import ErrorCode


class TwoFolders(BrokerCluster):
    """Three brokers with two data folders each, of which one can fail while the broker runs."""

    failing = ""

    def folders(self, number: int) -> tuple[str, str]:
        return f"{self._folder}/{number}/one", f"{self._folder}/{number}/two"

    def start_all(self) -> None:
        for number in range(3):
            self.start(number, log_dirs=",".join(self.folders(number)))

    def held_in(self, number: int, folder: str, topic: str) -> set[int]:
        """The partitions of a topic that a broker has in a data folder."""
        logs = self.brokers[number].broker.replicas.logs
        return {each.partition for each in logs.logs() if each.topic == topic and each.log.folder.startswith(folder)}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoFolders]:
    sync = PosixFile.sync

    def synced(file: PosixFile) -> None:
        if TwoFolders.failing and file.path.startswith(TwoFolders.failing):
            raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)
        sync(file)

    monkeypatch.setattr(PosixFile, "sync", synced)
    with ExitStack() as stack:
        found = TwoFolders(stack.enter_context(ZooKeeperServer()), str(tmp_path))
        stack.callback(found.close)
        stack.callback(setattr, TwoFolders, "failing", "")
        found.start_all()
        yield found


def partitions(cluster: TwoFolders, topic: str) -> tuple[PartitionImage, ...]:
    return cluster.image().topics[topic].partitions


def described(cluster: TwoFolders, number: int) -> dict[str, LogDirectory]:
    with Admin(cluster.bootstrap) as admin:
        found = admin.describe_log_dirs([number])[number]
    assert not isinstance(found, PenstockError)
    return {each.path: each for each in found}


def without_offline(cluster: TwoFolders, broker: int, kept: set[int]) -> bool:
    """Whether a broker is in the ISR of the partitions that it has kept, and of no other."""
    return all((broker in each.isr) == (index in kept) for index, each in enumerate(partitions(cluster, "views")))


def test_failed_folder_takes_its_partitions_offline_and_they_come_back_on_a_new_disk(cluster: TwoFolders) -> None:
    make(cluster, "views", 6)
    failing = next(number for number in cluster.brokers if number != cluster.controller)
    broken, sound = cluster.folders(failing)
    lost, kept = cluster.held_in(failing, broken, "views"), cluster.held_in(failing, sound, "views")
    assert len(lost) == len(kept) == 3
    epoch = cluster.epoch(failing)
    with Sender(cluster.bootstrap, "views").sending() as sender:
        sender.until_more()
        TwoFolders.failing = broken
        until(
            lambda: without_offline(cluster, failing, kept),
            "the replicas in the failed folder have left their ISRs, and no others",
        )
        assert all(partitions(cluster, "views")[index].leader not in (failing, -1) for index in lost)
        sender.until_more(50)
        assert cluster.epoch(failing) == epoch, "the broker has stayed"
        _check_what_is_reported(cluster, failing, lost, kept)
        make_in_sound_folder(cluster, failing, sound)
        TwoFolders.failing = ""
        cluster.stop(failing)
        shutil.rmtree(broken)
        cluster.start(failing, log_dirs=f"{broken},{sound}")
        registered = cluster.image().brokers[failing]
        assert registered.is_emptied
        assert registered.kept["views"].partitions == kept
        assert not registered.offline
        cluster.until_in_sync("views")
        moved = min(kept)
        with Admin(cluster.bootstrap) as admin:
            assert list(admin.alter_replica_log_dirs(failing, {("views", moved): broken}).values()) == [None]
        until(lambda: moved in cluster.held_in(failing, broken, "views"), "the replica has moved to the new disk")
        sender.until_more()
        cluster.until_in_sync("views")
    assert cluster.held_in(failing, broken, "views") | cluster.held_in(failing, sound, "views") == lost | kept
    assert sorted(read_all(cluster, "views", len(sender.sent))) == sorted(sender.sent)


def _check_what_is_reported(cluster: TwoFolders, failing: int, lost: set[int], kept: set[int]) -> None:
    broken, sound = cluster.folders(failing)
    with Admin(cluster.bootstrap) as admin:
        topic = admin.describe_topic("views")
        assert {each.index for each in topic.partitions if failing in each.offline} == lost
        moves = {("views", min(lost)): sound, ("views", min(kept)): broken}
        for error in admin.alter_replica_log_dirs(failing, moves).values():
            assert isinstance(error, PenstockError)
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    folders = described(cluster, failing)
    assert folders[broken].error is not None
    assert folders[sound].error is None
    doctor = CliRunner().invoke(cli, ["doctor", "--bootstrap-server", cluster.bootstrap]).output
    assert f"{broken} is offline" in " ".join(doctor.split())
    health = http(cluster, failing, "health")
    assert '"degraded"' in health
    assert broken in health


def make_in_sound_folder(cluster: TwoFolders, failing: int, sound: str) -> None:
    """A topic that is created now is in the other folder, and in sync."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TopicSpec("new", 2, replication_factor=3))
    cluster.until_in_sync("new")
    assert cluster.held_in(failing, sound, "new") == {0, 1}
