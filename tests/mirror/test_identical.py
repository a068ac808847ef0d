"""Topics with the same offsets: gaps, logs that do not start at 0, and everything that must stop a partition."""

from __future__ import annotations

import asyncio

from tests.mirror.mirrors import RunningMirror, create_topic, produce, same, settings_of, stored, wait_for
from tests.timeouts import until

from penstock.client.admin import Admin, AsyncAdmin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.producer import Producer
from penstock.mirror.errors import FOREIGN, GAP, LOST, SHIFTED, TRUNCATED
from penstock.mirror.source import Throttle
from penstock.mirror.target import ShardTransactions, TargetWriter
from penstock.runtime.clock import SystemClock
from penstock.testing.embedded_broker import EmbeddedBroker


def mirror_of(live: EmbeddedBroker, offline: EmbeddedBroker, name: str, **more: object) -> RunningMirror:
    return RunningMirror(settings_of({"live": live.address}, offline.address, topics=name, name=name, **more))


def transactions(address: str, topic: str, outcomes: list[bool], records: int = 3) -> None:
    with Producer(address, transactional_id=f"of-{topic}") as producer:
        for commits in outcomes:
            producer.begin_transaction()
            for index in range(records):
                producer.send(topic, f"in a transaction {index}".encode(), partition=0)
            producer.flush()
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()


def test_batches_of_every_codec_are_the_same_bytes(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name, 3)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        produce(live.address, name, 200, start=number * 200, compression_type=codec)
    with mirror_of(live, offline, name) as mirror:
        mirror.caught_up(3)
        same(live.address, offline.address, name, 3)
        produce(live.address, name, 100, start=5000)
        mirror.caught_up(3)
    same(live.address, offline.address, name, 3)
    with mirror_of(live, offline, name) as mirror:  # another process continues
        produce(live.address, name, 100, start=6000)
        mirror.caught_up(3)
    same(live.address, offline.address, name, 3)


def test_transactions_leave_gaps_of_the_same_size(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 10)
    transactions(live.address, name, [True, False, True])
    produce(live.address, name, 10, start=10)
    with mirror_of(live, offline, name) as mirror:
        mirror.caught_up(1)
        same(live.address, offline.address, name, 1)
        transactions(live.address, name, [False, True])
        mirror.caught_up(1)
    same(live.address, offline.address, name, 1)
    found = stored(offline.address, name)
    assert len(found.records) == 10 + 6 + 10 + 3
    assert found.end == len(found.records) + 5 + 6  # five markers, and six records of two aborted transactions


def test_a_log_that_does_not_start_at_0(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 30)
    with Admin(live.address) as admin:
        admin.delete_records({(name, 0): 25})
    with mirror_of(live, offline, name) as mirror:
        mirror.caught_up(1)
        until(lambda: stored(offline.address, name).start == 25, "filler records are deleted")
    same(live.address, offline.address, name, 1)


def test_append_time_is_kept_as_the_time_of_records(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name, message_timestamp_type="LogAppendTime")
    produce(live.address, name, 20)
    with mirror_of(live, offline, name) as mirror:
        mirror.caught_up(1)
    assert stored(offline.address, name).records == stored(live.address, name).records


def test_a_gap_that_is_too_large_stops_the_partition(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 5)
    transactions(live.address, name, [False], records=6)
    produce(live.address, name, 5)
    with mirror_of(live, offline, name, max_gap_offsets=6) as mirror:
        [found] = mirror.stopped().stopped
    assert (found.reason, found.position) == (GAP, 5)
    assert "max.gap.offsets=6" in found.detail
    assert len(stored(offline.address, name).records) == 5
    with mirror_of(live, offline, name, max_gap_offsets=7) as mirror:  # the operator has raised it
        mirror.caught_up(1)
        wait_for(mirror.settings, lambda status: not status.stopped)
    same(live.address, offline.address, name, 1)


def test_too_much_padding_stops_the_partition(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 30)
    with Admin(live.address) as admin:
        admin.delete_records({(name, 0): 25})
    with mirror_of(live, offline, name, max_padding_offsets=24) as mirror:
        [found] = mirror.stopped().stopped
    assert (found.reason, found.position) == (GAP, 0)


def test_records_that_were_deleted_before_they_were_mirrored(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 10)
    with mirror_of(live, offline, name) as mirror:
        mirror.caught_up(1)
    produce(live.address, name, 20, start=10)
    with Admin(live.address) as admin:
        admin.delete_records({(name, 0): 15})
    with mirror_of(live, offline, name) as mirror:
        [found] = mirror.stopped().stopped
    assert (found.reason, found.position, found.lag_records) == (LOST, 10, 20)
    assert "begins at 15" in found.detail
    assert stored(offline.address, name).end == 10


def test_another_client_writes_to_the_target(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 10)
    with mirror_of(live, offline, name) as mirror:
        mirror.caught_up(1)
        with Producer(offline.address) as producer:
            producer.send(name, b"foreign").result()
        produce(live.address, name, 10, start=10)
        [found] = mirror.stopped().stopped
    assert found.reason == FOREIGN
    with mirror_of(live, offline, name) as mirror:  # it is noticed after a restart, too
        assert mirror.stopped().stopped[0].reason == FOREIGN


def test_foreign_records_at_the_end_are_not_mistaken_for_a_position(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 10)
    with mirror_of(live, offline, name) as mirror:
        mirror.caught_up(1)
    with Producer(offline.address) as producer:
        producer.send(name, b"foreign").result()
    produce(live.address, name, 10, start=10)
    with mirror_of(live, offline, name) as mirror:
        assert mirror.stopped().stopped[0].reason == FOREIGN


def test_a_source_that_ends_below_the_position_was_truncated(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    """The source's log ends before the target's: as after an unclean election there."""
    create_topic(live.address, name)
    produce(live.address, name, 10)
    with mirror_of(live, offline, name) as mirror:
        mirror.caught_up(1)
    with Producer(offline.address) as producer:  # as if the source had had more
        for _ in range(5):
            producer.send(name, b"lost at the source").result()
    with mirror_of(live, offline, name) as mirror:
        [found] = mirror.stopped().stopped
    assert (found.reason, found.position, found.end) == (TRUNCATED, 15, 10)


def test_a_throttled_mirror_waits_for_what_it_has_read() -> None:
    async def story() -> None:
        clock = SystemClock()
        throttle = Throttle(1_000_000, clock)
        began_ms = clock.monotonic_ms()
        for _ in range(6):
            await throttle.take(100_000)
        assert clock.monotonic_ms() - began_ms >= 330  # 600 KB, less the burst of a quarter of a second
        await Throttle(0, clock).take(10**12)

    asyncio.run(story())


def test_a_throttled_mirror_copies_everything(live: EmbeddedBroker, offline: EmbeddedBroker, name: str) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 1000)
    with mirror_of(live, offline, name, max_bytes_per_second=200_000, fetch_max_bytes=10_000) as mirror:
        mirror.caught_up(1)
    same(live.address, offline.address, name, 1)


def test_a_repeated_marker_stops_the_partition_and_nothing_is_misplaced(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    """A coordinator that dies may write the marker of a gap twice: as here another transaction writes one."""
    create_topic(live.address, name)
    produce(live.address, name, 10)

    async def write_marker() -> None:
        async with AsyncAdmin(offline.address) as admin:
            await admin.cluster.refresh([name])
            writer = TargetWriter(admin.cluster)
            other = ShardTransactions(writer, f"{name}-other")
            await other.begin_epoch()
            await other.commit([], also=[TopicPartition(name, 0)])
            await writer.close()

    with mirror_of(live, offline, name) as mirror:
        mirror.caught_up(1)
    asyncio.run(write_marker())
    until(lambda: stored(offline.address, name).end == 11, "the marker is there")
    produce(live.address, name, 10, start=10)
    with mirror_of(live, offline, name) as mirror:
        [found] = mirror.stopped().stopped
    assert (found.reason, found.position) == (SHIFTED, 11)
    assert stored(offline.address, name).records == stored(live.address, name).records[:10]
