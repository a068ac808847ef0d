"""What must hold of a partition's replicas at every moment, as a table of what contradicts it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.testing.simulation.partition_model import Batch, PartitionModel, ReplicaModel

ISR = ("broker-0", "broker-1", "broker-2")


def batch(base: int, epoch: int = 0, crc: int = 0, producer: tuple[int, int, int] | None = None) -> Batch:
    """Ten records."""
    return Batch(base, base + 10, epoch, crc or base + 1, producer)


class Story:
    """A partition with replicas on three brokers."""

    def __init__(self, *, syncs: bool = True) -> None:
        self.model = PartitionModel("t-0", syncs=syncs)
        self.replicas = [ReplicaModel(name, 1) for name in ISR]
        self.meet()

    def write(self, *brokers: int, base: int, epoch: int = 0, crc: int = 0, synced: bool = True) -> str | None:
        problem = None
        for broker in brokers:
            problem = problem or self.model.appended(self.replicas[broker], batch(base, epoch, crc))
            if synced:
                self.sync(self.replicas[broker])
        return problem

    def sync(self, replica: ReplicaModel) -> None:
        """Its disk has what its log has."""
        replica.held = dict(replica.batches)

    def meet(self) -> None:
        for replica in self.replicas:
            self.model.opened(replica)

    def commit(self, leader: int, watermark: int, demanded: int = 2, isr: Sequence[str] = ISR) -> str | None:
        return self.model.advanced(self.replicas[leader], watermark, demanded, isr)


def committed() -> Story:
    """Ten records on brokers 0 and 1, led by 0 in epoch 0, and committed."""
    story = Story()
    assert story.model.led(story.replicas[0], 0) is None
    assert story.write(0, 1, base=0) is None
    assert story.commit(0, 10) is None
    return story


def test_what_is_on_two_disks_may_be_committed_shown_and_led_on_with() -> None:
    story = committed()
    assert story.model.served(9, "a producer gets") is None
    assert story.model.led(story.replicas[1], 1) is None


def test_what_only_one_disk_has_is_not_committed() -> None:
    story = Story()
    story.model.led(story.replicas[0], 0)
    story.write(0, base=0)
    story.write(1, base=0, synced=False)
    assert "durable on broker-0, where 2 of broker-0, broker-1, broker-2 are required" in (story.commit(0, 10) or "")


def test_what_brokers_outside_of_the_isr_have_does_not_count() -> None:
    story = Story()
    story.model.led(story.replicas[0], 0)
    story.write(0, 1, base=0)
    assert "durable on broker-0, where 2" in (story.commit(0, 10, isr=["broker-0", "broker-2"]) or "")


def test_a_disk_that_has_other_bytes_at_that_offset_does_not_count() -> None:
    story = Story()
    story.model.led(story.replicas[0], 1)
    story.write(0, base=0, epoch=1)
    story.write(1, 2, base=0, epoch=0)
    assert "durable on broker-0, where 2" in (story.commit(0, 10) or "")


def test_records_reported_as_durable_are_on_disk() -> None:
    story = Story()
    story.write(0, base=0)
    story.write(0, base=10, synced=False)
    replica = story.replicas[0]
    assert story.model.flushed(replica, 10) is None
    reported = story.model.flushed(replica, 20) or ""
    assert reported == "t-0: broker-0 reports 10..19 of epoch 0 (0000000b) as durable, but its disk has None"
    story.sync(replica)
    replica.flushed = 0
    assert story.model.flushed(replica, 20) is None
    # After a cut the same offsets are other batches, and the disk may have the old ones still.
    story.model.truncated(replica, 10, is_in_sync=False)
    assert story.write(0, base=10, epoch=1, synced=False) is None
    assert "its disk has 10..19 of epoch 0" in (story.model.flushed(replica, 20) or "")


def test_a_bit_that_flips_later_does_not_make_an_earlier_flush_false() -> None:
    story = Story()
    story.write(0, base=0)
    assert story.model.flushed(story.replicas[0], 10) is None
    story.write(0, base=10)
    del story.replicas[0].held[0]
    assert story.model.flushed(story.replicas[0], 20) is None


def test_a_copy_on_a_disk_lost_since_counts_if_the_leader_knew_it() -> None:
    for lost_epoch, is_excused in ((0, True), (1, False)):
        story = Story()
        story.model.led(story.replicas[0], 0)
        story.write(0, base=0)
        story.write(1, base=0, epoch=lost_epoch)
        story.model.opened(ReplicaModel("broker-1", 2))
        assert ("are required" not in (story.commit(0, 10) or "")) is is_excused


def test_a_leader_is_not_excused_by_a_disk_of_its_own_nor_a_broker_counted_twice() -> None:
    story = Story()
    story.write(0, 1, base=0)
    again = ReplicaModel("broker-0", 2, story.replicas[0].batches.values())
    story.model.opened(again)
    story.model.led(again, 1)
    assert "are required" in (story.model.advanced(again, 10, 2, ISR) or "")
    story = Story()
    story.model.led(story.replicas[0], 0)
    for life in range(3):
        lost = ReplicaModel("broker-1", life)
        story.model.opened(lost)
        story.model.appended(lost, batch(0))
        story.sync(lost)
    story.model.opened(ReplicaModel("broker-1", 3))
    story.write(0, base=0)
    assert "where 3 of" in (story.commit(0, 10, demanded=3) or "")


def test_what_the_leader_itself_has_not_synced_is_not_committed() -> None:
    story = Story()
    story.model.led(story.replicas[0], 0)
    story.write(0, base=0, synced=False)
    story.write(1, 2, base=0)
    assert "are required" in (story.commit(0, 10) or "")


def test_a_topic_that_does_not_sync_need_not_be_durable_but_it_is_in_as_many_logs() -> None:
    story = Story(syncs=False)
    story.write(0, 1, base=0, synced=False)
    assert story.commit(0, 10) is None
    story.write(0, base=10, synced=False)
    assert "in the logs of broker-0, where 2 of" in (story.commit(0, 20) or "")


def test_an_epoch_has_one_leader_and_one_process_of_it() -> None:
    story = committed()
    assert "epoch 0 is led by broker-0 and by broker-1" in (story.model.led(story.replicas[1], 0) or "")
    again = ReplicaModel("broker-0", 2, story.replicas[0].batches.values())
    assert "epoch 0 is led by" in (story.model.led(again, 0) or "")


def test_a_later_leader_has_everything_committed() -> None:
    story = committed()
    reported = story.model.led(story.replicas[2], 1) or ""
    assert "broker-2 leads in epoch 1 and has None where 0..9" in reported


def test_a_leader_that_learns_of_it_late_need_not_have_later_commits() -> None:
    story = committed()
    assert story.write(1, 2, base=10) is None
    assert story.model.led(story.replicas[1], 2) is None
    assert story.commit(1, 20) is None
    assert story.model.led(story.replicas[0], 1) is None
    story.replicas[0].truncate(0)
    assert "broker-0 leads in epoch 3 and has None" in (story.model.led(story.replicas[0], 3) or "")


def test_an_in_sync_replica_has_the_same_bytes_even_after_a_truncation() -> None:
    story = committed()
    follower = story.replicas[1]
    assert story.model.missing(follower, 10, "is in sync") is None
    follower.truncate(5)
    assert "broker-1 is in sync and has None" in (story.model.missing(follower, 10, "is in sync") or "")


def test_an_in_sync_replica_truncates_nothing_that_is_committed() -> None:
    story = committed()
    model, follower = story.model, story.replicas[1]
    model.appended(follower, batch(10))
    assert model.truncated(follower, 10, is_in_sync=True) is None
    assert "is in sync and truncates 0..9 of epoch 0" in (model.truncated(follower, 0, is_in_sync=True) or "")
    assert committed().model.truncated(story.replicas[0], 0, is_in_sync=False) is None


def test_an_offset_of_an_epoch_has_the_same_bytes_everywhere() -> None:
    story = committed()
    assert "which others have as" in (story.write(2, base=0, crc=77) or "")
    assert story.write(2, base=10, epoch=1, crc=77) is None


def test_nothing_else_is_committed_in_the_place_of_what_is() -> None:
    story = committed()
    other = story.replicas[2]
    other.led_epoch = 1
    story.model.appended(other, batch(0, epoch=1, crc=5))
    story.sync(other)
    assert "commits 0..9 of epoch 1" in (story.commit(2, 10) or "")


def test_a_watermark_never_falls_within_an_epoch_and_nothing_above_it_is_shown() -> None:
    story = committed()
    assert "falls from 10 to 5" in (story.commit(0, 5) or "")
    assert "offset 10, but only 10 is committed" in (story.model.served(10, "a consumer gets") or "")


def unsynced() -> Story:
    """Ten records in the logs of brokers 0 and 1, of a topic that does not sync, and committed."""
    story = Story(syncs=False)
    story.model.led(story.replicas[0], 0)
    story.write(0, 1, base=0, synced=False)
    assert story.commit(0, 10) is None
    return story


def test_unsynced_records_are_lost_only_when_all_in_sync_replicas_end_uncleanly() -> None:
    model = unsynced().model
    assert not model.crashed("broker-2", {"broker-0", "broker-1"})
    assert not model.crashed("broker-0", {"broker-0", "broker-1"})
    model.unclean.discard("broker-0")  # it has joined the ISR again
    assert not model.crashed("broker-1", {"broker-0", "broker-1"})
    assert model.crashed("broker-0", {"broker-0", "broker-1"})
    assert not any(committed().model.crashed(name, {name}) for name in ISR)


def test_a_topic_that_does_not_sync_loses_nothing_while_one_replica_is_complete() -> None:
    story = unsynced()
    assert "leads in epoch 1 and has None" in (story.model.led(story.replicas[2], 1) or "")
    story = unsynced()
    assert "truncates 0..9" in (story.model.truncated(story.replicas[1], 0, is_in_sync=True) or "")


def test_after_a_loss_others_may_lead_with_less_and_what_they_commit_is_judged_again() -> None:
    story = unsynced()
    model, second, third = story.model, story.replicas[1], story.replicas[2]
    model.lose()
    assert model.led(third, 1) is None
    assert model.truncated(second, 0, is_in_sync=True) is None
    story.write(2, base=0, epoch=1, crc=5, synced=False)
    assert "in the logs of broker-2, where 2 of" in (story.commit(2, 10) or "")
    third.watermark = -1
    story.write(1, base=0, epoch=1, crc=5, synced=False)
    assert story.commit(2, 10) is None
    assert "leads in epoch 2 and has 0..9 of epoch 0" in (model.led(story.replicas[0], 2) or "")


def test_a_leader_that_still_has_what_was_lost_may_show_it_without_the_others() -> None:
    story = unsynced()
    story.model.lose()
    again = ReplicaModel("broker-0", 2, story.replicas[0].batches.values())
    story.model.opened(again)
    story.model.led(again, 1)
    assert story.model.advanced(again, 10, 2, ["broker-0"]) is None
    assert story.model.served(9, "a consumer gets") is None


def test_an_answer_of_before_a_loss_may_come_after_it() -> None:
    model = unsynced().model
    model.lose()
    assert model.served(9, "a producer gets") is None
    assert "only 0 is committed" in (model.served(10, "a producer gets") or "")


def test_a_producers_sequence_stands_in_a_log_once() -> None:
    model, replica = PartitionModel("t-0", syncs=True), ReplicaModel("broker-0", 1)
    for number, sequence in enumerate((0, 10, 20)):
        replica.append(batch(number * 10, producer=(7, 0, sequence)))
    assert model.sequences(replica) is None
    replica.append(batch(30, producer=(7, 0, 20)))
    assert "sequence 20 of producer 7 again" in (model.sequences(replica) or "")


def test_a_log_that_moves_to_another_disk_takes_along_what_the_old_one_held() -> None:
    story = committed()
    model, replica = story.model, story.replicas[0]
    before = dict(replica.held)
    assert model.relocated(replica, before) is None
    replica.held = {0: batch(0, crc=9)}
    assert "broker-0 moved 0..9 of epoch 0 (00000001) to another disk, which has 0..9 of epoch 0 (00000009)" in (
        model.relocated(replica, before) or ""
    )
    replica.held = {}
    assert "which has None" in (model.relocated(replica, before) or "")
    assert model.relocated(replica, {}) is None  # it was not durable before
    replica.truncate(0)
    assert model.relocated(replica, before) is None  # and what was truncated need not be there
