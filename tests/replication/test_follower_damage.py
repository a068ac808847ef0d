"""A follower whose log is damaged: cut when its leader has answered, and copied again; never before."""

from __future__ import annotations

import pytest
from tests.log.log_stories import batch_of
from tests.replication.fetch_stories import Copy, Host, Room, content

from penstock.log.recovery import LogDamage
from penstock.wire.protocol import ErrorCode

BATCH = len(batch_of(0))


class Damaged:
    """Broker 2 has copied ten records from broker 1, and its third batch is damaged since."""

    def __init__(self, *, is_reported: bool, ends_log: bool = True) -> None:
        self.room = Room()
        one, two = self.room.host(1), self.room.host(2)
        self.leader: Copy = one.open()
        follower = two.open()
        self.leader.lead(1, {1, 2})
        self.leader.put(*range(5))
        two.follow(follower, 1, 1)
        self.room.until(lambda: follower.log.log_end_offset == 10)
        self.room.kill(2)
        self.files = two.files
        path = follower.log.active.path
        self.files.corrupt(path, 2 * BATCH + 70)
        self.host: Host = self.room.host(2, self.files, life=2)
        self.follower = self.host.open()
        self.follower.log.damage = LogDamage(0, 2 * BATCH, path, "flipped", ends_log=ends_log, is_reported=is_reported)

    def follow(self) -> None:
        self.host.follow(self.follower, 1, 1)

    @property
    def is_same(self) -> bool:
        return content(self.follower.log) == content(self.leader.log)


@pytest.mark.parametrize("ends_log", [True, False])
def test_damage_that_was_reported_is_truncated_and_copied_again(ends_log: bool) -> None:
    story = Damaged(is_reported=True, ends_log=ends_log)
    story.follow()
    story.room.until(lambda: story.follower.log.log_end_offset == 10 and story.follower.log.damage is None)
    assert story.is_same
    story.room.close()


def test_leader_that_does_not_know_this_broker_epoch_yet_proves_nothing() -> None:
    story = Damaged(is_reported=True)
    story.leader.rejections = [ErrorCode.STALE_BROKER_EPOCH] * 3
    size = story.files.size_of(story.follower.log.active.path)
    story.follow()
    story.room.until(lambda: len(story.leader.rejections) == 1)
    assert story.follower.log.damage is not None
    assert story.files.size_of(story.follower.log.active.path) == size
    story.room.until(lambda: story.follower.log.log_end_offset == 10 and story.follower.log.damage is None)
    assert story.is_same
    story.room.close()


def test_damage_that_was_not_reported_stays_and_nothing_is_copied_over_it() -> None:
    story = Damaged(is_reported=False)
    path = story.follower.log.active.path
    size = story.files.size_of(path)
    end = story.follower.log.log_end_offset
    story.leader.put(5)
    story.follow()
    story.room.pass_time(2000)
    assert story.follower.log.is_cut_short
    assert story.follower.log.log_end_offset == end
    assert story.files.size_of(path) == size
    story.room.close()


def test_what_a_leader_cannot_read_is_not_copied() -> None:
    story = Damaged(is_reported=True)
    story.leader.falsify = lambda wanted, data: setattr(data, "error_code", ErrorCode.CORRUPT_MESSAGE)
    story.follow()
    story.room.pass_time(500)
    assert story.follower.log.is_cut_short, "nothing is given up because a leader cannot help"
    story.leader.falsify = lambda wanted, data: None
    story.room.until(lambda: story.follower.log.damage is None and story.is_same)
    story.room.close()
