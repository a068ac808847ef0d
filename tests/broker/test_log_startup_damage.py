"""What a start makes of damaged logs: who counts as one that lost its disk, and who does not."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from tests.log.directory_stories import NOW, SMALL, TOPIC_ID, numbered, open_manager, put

from penstock.broker.log_startup import LogLoader
from penstock.cluster.image import ClusterImage, PartitionImage, TopicImage
from penstock.log.errors import DamagedLog, LogFailed
from penstock.log.log_dirs.log_manager import LogManager
from penstock.runtime.clock import SystemClock
from penstock.testing.simulated_files import SimulatedFiles

ME = 1
TOPICS = ("damaged", "sound")


def started(flip: bool = True, *, cut_off: bool = False) -> tuple[SimulatedFiles, LogManager]:
    """A broker with two partitions that was killed; a bit of the first has flipped since, or its end is gone."""
    files = SimulatedFiles()
    manager = open_manager(files, ["/data"])
    for topic in TOPICS:
        log = manager.create(topic, 0, TOPIC_ID, SMALL, NOW)
        put(log, *numbered(10))
        log.flush()
    manager.checkpoint_tick()
    for hosted in manager.logs():
        hosted.log.release()
    path = manager.directory_of("damaged", 0).get(("damaged", 0)).log.active.path
    files.kill()
    if cut_off:
        files.open(path).truncate(0)
    elif flip:
        files.corrupt(path, 8)
    return files, open_manager(files, ["/data"])


def image_of(partitions: Mapping[str, PartitionImage]) -> ClusterImage:
    image = ClusterImage()
    for name, partition in partitions.items():
        image = image.with_topic(TopicImage(name, TOPIC_ID, (partition,)))
    return image


SHARED = PartitionImage((1, 2, 3), leader=2, isr=(1, 2), state_version=4)
ALONE = PartitionImage((1,), leader=1, isr=(1,), state_version=4)


def settle(manager: LogManager, **partitions: PartitionImage) -> set[tuple[str, int]]:
    return LogLoader(manager, SystemClock()).settle_damage(image_of(partitions), ME)


def test_a_broker_with_sound_logs_keeps_its_epoch() -> None:
    _, manager = started(flip=False)
    assert not settle(manager, damaged=SHARED, sound=SHARED)


def test_damage_of_a_replicated_log_is_reported_and_may_be_repaired(caplog: pytest.LogCaptureFixture) -> None:
    _, manager = started()
    with caplog.at_level(logging.ERROR):
        assert settle(manager, damaged=SHARED, sound=SHARED) == {("damaged", 0)}
    assert "damaged-0" in caplog.text
    log = manager.get("damaged", 0)
    assert log is not None
    assert log.damage is not None
    assert log.damage.is_reported


def test_a_log_without_other_replicas_is_led_up_to_the_damage() -> None:
    _, manager = started()
    assert not settle(manager, damaged=ALONE, sound=SHARED)
    log = manager.get("damaged", 0)
    assert log is not None
    assert log.damage is not None
    assert not log.damage.is_reported
    with pytest.raises(DamagedLog):
        put(log, *numbered(1))


def test_damaged_log_that_only_this_broker_has_in_sync_is_offline() -> None:
    files, manager = started()
    before = manager.get("damaged", 0)
    assert before is not None
    size = files.size_of(before.active.path)
    assert not settle(manager, damaged=PartitionImage((1, 2), leader=1, isr=(1,), state_version=4), sound=SHARED)
    with pytest.raises(LogFailed, match="no other broker is known to have all records"):
        manager.get("damaged", 0)
    assert manager.get("sound", 0) is not None
    assert files.size_of(before.active.path) == size
    assert not manager.close(), "the next start must look again"


def test_damage_does_not_cost_a_log_that_only_this_broker_has_in_sync() -> None:
    for needed in (ALONE, PartitionImage((1, 2), leader=1, isr=(1,), state_version=4)):
        _, manager = started()
        assert settle(manager, damaged=SHARED, sound=needed) == {("damaged", 0)}


def test_eligible_leader_replicas_are_described() -> None:
    _, manager = started()
    assert settle(manager, damaged=PartitionImage((1, 2), leader=1, isr=(1,), elr=(2,), state_version=4), sound=SHARED)


def test_a_log_without_replicas_that_lost_its_end_continues_and_one_with_replicas_is_reported() -> None:
    _, manager = started(cut_off=True)
    assert not settle(manager, damaged=ALONE, sound=ALONE)
    log = manager.get("damaged", 0)
    assert log is not None
    assert log.damage is None
    put(log, *numbered(1))
    _, manager = started(cut_off=True)
    assert settle(manager, damaged=SHARED, sound=SHARED)


@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_damage_is_found_again_until_it_was_reported_to_the_cluster(cut_off: bool, is_stopped: bool) -> None:
    """The process may end before the controller has handled its registration."""
    files, manager = started(cut_off=cut_off)
    for _ in range(3):
        assert settle(manager, damaged=SHARED, sound=SHARED) == {("damaged", 0)}
        manager.checkpoint_tick()
        if is_stopped:
            manager.close()
        else:
            for hosted in manager.logs():
                hosted.log.release()
            files.kill()
        manager = open_manager(files, ["/data"])
