"""The metadata of a cluster of one broker, from start to restart."""

from __future__ import annotations

import asyncio
import errno
import json
from dataclasses import replace

import pytest
from tests.cluster.cluster_stories import broker, metadata_of, open_tree, run, with_metadata, with_tree

from penstock.cluster.controller.configs import ConfigEdit, EditKind, ResourceKind
from penstock.cluster.controller.controller import ConfigChange, NewPartitions
from penstock.cluster.controller.store import load_image
from penstock.cluster.controller.topics import NewTopic
from penstock.cluster.errors import (
    BrokerIdInUse,
    ClusterIdMismatch,
    LayoutError,
    NotStarted,
    ProducerIdsExhausted,
    TreeError,
)
from penstock.cluster.image import ClusterImage, diff
from penstock.cluster.membership.registration import ProducerIds
from penstock.cluster.membership.standalone import StandaloneMetadata
from penstock.cluster.tree import layout
from penstock.cluster.tree.embedded import EmbeddedTree
from penstock.cluster.tree.layout import ProducerIdBlock, encode_producer_ids
from penstock.cluster.tree.tree import MAX_DATA_BYTES, Tree
from penstock.runtime.threads import ManualWorkers
from penstock.testing.crash_points import crash_everywhere
from penstock.testing.simulated_files import SimulatedFiles
from penstock.wire.protocol import ErrorCode


def test_first_start_makes_a_cluster_and_later_ones_find_it() -> None:
    files = SimulatedFiles()

    async def story(metadata: StandaloneMetadata) -> ClusterImage:
        return metadata.image

    first = run(with_metadata(files, story))
    assert len(first.cluster_id) == 22
    assert (first.controller_id, first.controller_epoch) == (0, 1)
    assert first.brokers == {0: replace(broker(0), epoch=first.brokers[0].epoch)}
    assert first.brokers[0].epoch > 0
    second = run(with_metadata(files, story, seed=99))
    assert second.cluster_id == first.cluster_id
    assert second.controller_epoch == 2


def test_preparations_are_awaited_before_a_change_is_visible() -> None:
    async def story(metadata: StandaloneMetadata) -> None:
        prepared = asyncio.Event()
        seen: list[tuple[bool, bool, bool]] = []

        async def prepare(old: ClusterImage, new: ClusterImage) -> None:
            seen.append(("t" in old.topics, "t" in new.topics, "t" in metadata.image.topics))
            await prepared.wait()

        cancel = metadata.prepare(prepare)
        creating = asyncio.create_task(metadata.require_controller().create_topics([NewTopic("t")]))
        while not seen:
            await asyncio.sleep(0)
        assert seen == [(False, True, False)]
        assert "t" not in metadata.image.topics
        assert not creating.done()
        prepared.set()
        assert (await creating)[0].error is None
        assert "t" in metadata.image.topics
        cancel()
        cancel()
        await metadata.require_controller().create_topics([NewTopic("u")])
        assert len(seen) == 1

    run(with_metadata(SimulatedFiles(), story))


def test_failing_preparation_does_not_prevent_a_change() -> None:
    async def story(metadata: StandaloneMetadata) -> None:
        async def prepare(_: ClusterImage, __: ClusterImage) -> None:
            raise ValueError("no")

        metadata.prepare(prepare)
        assert (await metadata.require_controller().create_topics([NewTopic("t")]))[0].error is None
        assert "t" in metadata.image.topics

    run(with_metadata(SimulatedFiles(), story))


def test_classic_paths_exist() -> None:
    async def story(tree: EmbeddedTree) -> None:
        await metadata_of(tree, broker_id=3).start(broker(3))
        assert await tree.children("/brokers/ids") == ["3"]
        assert json.loads((await tree.get("/brokers/ids/3")).data)["version"] == 5
        assert json.loads((await tree.get("/controller")).data)["brokerid"] == 3
        assert (await tree.get("/controller_epoch")).data == b"1"
        assert len(json.loads((await tree.get("/cluster/id")).data)["id"]) == 22
        for path in layout.PERSISTENT_PATHS:
            assert await tree.exists(path)

    run(with_tree(SimulatedFiles(), story))


def test_cluster_takes_over_the_id_that_its_data_folders_have() -> None:
    files = SimulatedFiles()

    async def first(tree: EmbeddedTree) -> None:
        image = await metadata_of(tree).start(broker(), cluster_id="AAECAwQFBgcICQoLDA0ODw")
        assert image.cluster_id == "AAECAwQFBgcICQoLDA0ODw"

    async def second(tree: EmbeddedTree) -> None:
        with pytest.raises(ClusterIdMismatch):
            await metadata_of(tree).start(broker(), cluster_id="another")

    run(with_tree(files, first))
    run(with_tree(files, second))


def test_second_broker_with_the_same_id_is_rejected() -> None:
    async def story(tree: EmbeddedTree) -> None:
        await metadata_of(tree).start(broker())
        with pytest.raises(BrokerIdInUse):
            await metadata_of(tree).start(broker())

    run(with_tree(SimulatedFiles(), story))


def test_nothing_is_changed_before_the_start_and_after_the_end() -> None:
    async def story(tree: EmbeddedTree) -> None:
        metadata = metadata_of(tree)
        with pytest.raises(NotStarted):
            await metadata.require_controller().create_topics([NewTopic("t")])
        await metadata.start(broker())
        await metadata.close()
        with pytest.raises(NotStarted):
            await metadata.require_controller().create_topics([NewTopic("t")])

    run(with_tree(SimulatedFiles(), story))


async def _in_step(tree: Tree, metadata: StandaloneMetadata) -> None:
    assert await load_image(tree) == metadata.image


def test_topics_live_through_creation_growth_settings_restart_and_deletion() -> None:
    files = SimulatedFiles()

    async def first(tree: EmbeddedTree) -> bytes:
        metadata = metadata_of(tree, partitions=3)
        await metadata.start(broker())
        outcomes = await metadata.require_controller().create_topics(
            [NewTopic("a"), NewTopic("b", 1, 1, configs={"retention.ms": "5"})]
        )
        assert [outcome.error for outcome in outcomes] == [None, None]
        assert outcomes[0].topic is not None
        assert len(outcomes[0].topic.partitions) == 3
        await _in_step(tree, metadata)
        [outcome] = await metadata.require_controller().create_partitions([NewPartitions("b", 4)])
        assert outcome.topic is not None
        assert len(outcome.topic.partitions) == 4
        edit = ConfigEdit("cleanup.policy", EditKind.APPEND, "compact")
        [changed] = await metadata.require_controller().alter_configs([ConfigChange(ResourceKind.TOPIC, "b", [edit])])
        assert changed.error is None
        await metadata.require_controller().alter_configs(
            [ConfigChange(ResourceKind.BROKER, "", replacement={"retention.ms": "9"})]
        )
        await _in_step(tree, metadata)
        return outcomes[0].topic.topic_id

    async def second(tree: EmbeddedTree) -> None:
        metadata = metadata_of(tree, seed=1)
        await metadata.start(broker())
        image = metadata.image
        found = image.topic_by_id(topic_id)
        assert found is not None
        assert found.name == "a"
        assert [partition.leader_epoch for partition in found.partitions] == [1, 1, 1]
        assert image.topic_config("b") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
        assert image.broker_config("<default>") == {"retention.ms": "9"}
        outcomes = await metadata.require_controller().delete_topics([topic_id, "b", "b", bytes(16)])
        assert [outcome.name for outcome in outcomes] == ["a", "b", "b", ""]
        codes = [outcome.error.code if outcome.error else ErrorCode.NONE for outcome in outcomes]
        assert codes[2:] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID]
        assert codes[:2] == [ErrorCode.NONE, ErrorCode.NONE]
        assert outcomes[0].topic == found
        await _in_step(tree, metadata)
        assert await tree.children("/brokers/topics") == []
        assert await tree.children("/config/topics") == []

    topic_id = run(with_tree(files, first))
    run(with_tree(files, second))


def test_recreated_topic_has_another_id() -> None:
    async def story(metadata: StandaloneMetadata) -> None:
        [first] = await metadata.require_controller().create_topics([NewTopic("t")])
        await metadata.require_controller().delete_topics(["t"])
        [second] = await metadata.require_controller().create_topics([NewTopic("t")])
        assert first.topic is not None
        assert second.topic is not None
        assert first.topic.topic_id != second.topic.topic_id

    run(with_metadata(SimulatedFiles(), story))


def test_one_bad_topic_does_not_spoil_the_others_of_its_request() -> None:
    async def story(metadata: StandaloneMetadata) -> None:
        outcomes = await metadata.require_controller().create_topics(
            [NewTopic("good"), NewTopic("b/d"), NewTopic("twice"), NewTopic("twice"), NewTopic("big", 1, 2)]
        )
        codes = [None if outcome.error is None else outcome.error.code for outcome in outcomes]
        assert codes == [
            None,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ]
        assert set(metadata.image.topics) == {"good"}

    run(with_metadata(SimulatedFiles(), story))


def test_validate_only_changes_nothing() -> None:
    async def story(metadata: StandaloneMetadata) -> None:
        await metadata.require_controller().create_topics([NewTopic("t")])
        before = metadata.image
        made, collides = await metadata.require_controller().create_topics(
            [NewTopic("a.b"), NewTopic("a_b")], validate_only=True
        )
        assert made.topic is not None
        assert collides.error is not None
        [grown] = await metadata.require_controller().create_partitions([NewPartitions("t", 2)], validate_only=True)
        assert grown.error is None
        change = ConfigChange(ResourceKind.TOPIC, "t", replacement={"retention.ms": "x"})
        [altered] = await metadata.require_controller().alter_configs([change], validate_only=True)
        assert altered.error is not None
        assert metadata.image is before

    run(with_metadata(SimulatedFiles(), story))


def test_listeners_see_each_change_before_the_caller_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def story(metadata: StandaloneMetadata) -> None:
        seen: list[tuple[set[str], set[str]]] = []

        def fail(old: ClusterImage, new: ClusterImage) -> None:
            raise ValueError("no")

        def note(old: ClusterImage, new: ClusterImage) -> None:
            assert metadata.image is new
            found = diff(old, new)
            seen.append((set(found.topics_added), set(found.topics_removed)))

        metadata.listen(fail)
        cancel = metadata.listen(note)
        await metadata.require_controller().create_topics([NewTopic("a"), NewTopic("b")])
        await metadata.require_controller().delete_topics(["a"])
        assert seen == [({"a", "b"}, set()), (set(), {"a"})]  # what one request asks for is one change
        assert "image listener failed" in caplog.text
        cancel()
        cancel()
        await metadata.require_controller().delete_topics(["b"])
        assert len(seen) == 2

    run(with_metadata(SimulatedFiles(), story))


def test_topic_that_cannot_be_stored_does_not_spoil_the_others_of_its_request() -> None:
    async def story(metadata: StandaloneMetadata) -> None:
        huge = NewTopic("huge", configs={"cleanup.policy": "x" * MAX_DATA_BYTES})
        outcomes = await metadata.require_controller().create_topics(
            [NewTopic("a"), huge, NewTopic("bad name"), NewTopic("b")]
        )
        codes = [None if each.error is None else each.error.code for each in outcomes]
        assert codes[0] is codes[3] is None
        assert None not in codes[1:3]
        assert set(metadata.image.topics) == {"a", "b"}
        assert (await metadata.require_controller().create_topics([NewTopic("c")]))[0].error is None

    run(with_metadata(SimulatedFiles(), story))


def test_validation_of_many_topics_stores_none_and_checks_them_together() -> None:
    async def story(metadata: StandaloneMetadata) -> None:
        wanted = [NewTopic(f"t{number}") for number in range(600)] + [NewTopic("x.y"), NewTopic("x_y")]
        outcomes = await metadata.require_controller().create_topics(wanted, validate_only=True)
        assert [each.name for each in outcomes if each.error is not None] == ["x_y"]
        assert metadata.image.topics == {}
        outcomes = await metadata.require_controller().create_topics(wanted)
        assert [each.name for each in outcomes if each.error is not None] == ["x_y"]
        assert len(metadata.image.topics) == 601
        gone = await metadata.require_controller().delete_topics([*(topic.name for topic in wanted[:600]), "t5"])
        assert [each.name for each in gone if each.error is not None] == ["t5"]
        assert set(metadata.image.topics) == {"x.y"}

    run(with_metadata(SimulatedFiles(), story))


def test_requests_at_the_same_time_are_decided_one_after_another() -> None:
    async def story(metadata: StandaloneMetadata) -> None:
        answers = await asyncio.gather(
            *(metadata.require_controller().create_topics([NewTopic("t")]) for _ in range(5))
        )
        codes = [outcome.error.code if outcome.error else None for [outcome] in answers]
        assert codes == [None, *[ErrorCode.TOPIC_ALREADY_EXISTS] * 4]

    run(with_metadata(SimulatedFiles(), story))


def test_client_that_goes_away_does_not_leave_the_image_behind_the_tree() -> None:
    async def story() -> None:
        workers = ManualWorkers()
        tree = open_tree(SimulatedFiles(), workers)
        metadata = metadata_of(tree)

        async def drive(task: asyncio.Task[object]) -> None:
            while not task.done():
                workers.run_all()
                await asyncio.sleep(0)

        await drive(asyncio.create_task(metadata.start(broker())))
        request = asyncio.create_task(metadata.require_controller().create_topics([NewTopic("t")]))
        while not workers.waiting:
            await asyncio.sleep(0)
        request.cancel()
        await drive(asyncio.create_task(metadata.close()))
        assert request.cancelled()
        assert set(metadata.image.topics) == {"t"}
        await _in_step(tree, metadata)

    run(story())


def test_topic_that_fails_on_a_full_disk_can_be_created_later() -> None:
    files = SimulatedFiles()

    async def story(metadata: StandaloneMetadata) -> None:
        files.operations.fail("write", errno.ENOSPC)
        [failed] = await metadata.require_controller().create_topics([NewTopic("t")])
        assert failed.error is not None
        assert failed.error.code is ErrorCode.KAFKA_STORAGE_ERROR
        [made] = await metadata.require_controller().create_topics([NewTopic("t")])
        assert made.topic is not None

    run(with_metadata(files, story))


def test_broken_disk_fails_every_change_and_the_image_stays() -> None:
    files = SimulatedFiles()

    async def story(metadata: StandaloneMetadata) -> None:
        await metadata.require_controller().create_topics([NewTopic("t")])
        files.operations.fail("sync", errno.EIO)
        for name in ("u", "v"):
            [failed] = await metadata.require_controller().create_topics([NewTopic(name)])
            assert failed.error is not None
            assert failed.error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert set(metadata.image.topics) == {"t"}

    run(with_metadata(files, story))


def test_controller_that_was_replaced_changes_nothing() -> None:
    async def story(tree: EmbeddedTree) -> None:
        metadata = metadata_of(tree)
        await metadata.start(broker())
        await tree.set("/controller_epoch", b"7")
        [failed] = await metadata.require_controller().create_topics([NewTopic("t")])
        assert failed.error is not None
        assert await tree.children("/brokers/topics") == []

    run(with_tree(SimulatedFiles(), story))


def test_changes_of_another_session_are_seen_after_the_first_conflict() -> None:
    async def story(tree: EmbeddedTree) -> None:
        metadata = metadata_of(tree)
        await metadata.start(broker())
        await tree.create("/config/topics/t", b'{"version":1,"config":{"retention.ms":"1"}}')
        [failed] = await metadata.require_controller().create_topics([NewTopic("t")])
        assert failed.error is not None
        [made] = await metadata.require_controller().create_topics([NewTopic("t")])
        assert made.topic is not None
        await _in_step(tree, metadata)

    run(with_tree(SimulatedFiles(), story))


def test_deletion_that_was_begun_is_finished_at_the_start() -> None:
    files = SimulatedFiles()

    async def first(tree: EmbeddedTree) -> None:
        metadata = metadata_of(tree)
        await metadata.start(broker())
        await metadata.require_controller().create_topics([NewTopic("t"), NewTopic("u")])
        await tree.create("/admin/delete_topics/t")
        await tree.create("/admin/delete_topics/unknown")

    async def second(tree: EmbeddedTree) -> None:
        metadata = metadata_of(tree)
        await metadata.start(broker())
        assert set(metadata.image.topics) == {"u"}
        assert await tree.children("/admin/delete_topics") == []
        await _in_step(tree, metadata)

    run(with_tree(files, first))
    run(with_tree(files, second))


def test_topics_of_another_broker_have_no_leader_here() -> None:
    files = SimulatedFiles()

    async def first(metadata: StandaloneMetadata) -> None:
        await metadata.require_controller().create_topics([NewTopic("t")])

    async def second(metadata: StandaloneMetadata) -> None:
        [partition] = metadata.image.topics["t"].partitions
        assert (partition.leader, partition.leader_epoch, partition.isr) == (-1, 1, (0,))

    run(with_metadata(files, first))
    run(with_metadata(files, second, broker_id=5))


def test_partition_without_a_state_is_given_one_at_the_start() -> None:
    async def story(tree: EmbeddedTree) -> None:
        await tree.create("/brokers")
        await tree.create("/brokers/topics")
        await tree.create("/brokers/topics/old", b'{"version":1,"partitions":{"0":[0],"1":[0]}}')
        metadata = metadata_of(tree)
        await metadata.start(broker())
        assert [partition.leader for partition in metadata.image.topics["old"].partitions] == [0, 0]
        await _in_step(tree, metadata)

    run(with_tree(SimulatedFiles(), story))


def test_document_that_cannot_be_read_stops_the_start_and_is_named() -> None:
    async def story(tree: EmbeddedTree) -> None:
        await tree.create("/brokers")
        await tree.create("/brokers/topics")
        await tree.create("/brokers/topics/bad", b"{")
        await tree.create("/brokers/topics/bad/partitions")
        with pytest.raises(LayoutError, match="/brokers/topics/bad"):
            await metadata_of(tree).start(broker())

    run(with_tree(SimulatedFiles(), story))


def test_image_of_an_empty_tree_is_empty() -> None:
    assert run(with_tree(SimulatedFiles(), load_image)) == ClusterImage()


def test_power_lost_at_any_moment_leaves_topics_whole_and_the_answered_ones_there() -> None:
    answered: list[str] = []

    def scenario(files: SimulatedFiles) -> None:
        answered.clear()

        async def story(metadata: StandaloneMetadata) -> None:
            for number in range(3):
                [made] = await metadata.require_controller().create_topics([NewTopic(f"t{number}", 2)])
                if made.error is None:
                    answered.append(f"t{number}")
            [grown] = await metadata.require_controller().create_partitions([NewPartitions("t0", 3)])
            if grown.error is None:
                answered.append("grown")

        run(with_metadata(files, story))

    async def look(tree: EmbeddedTree) -> None:
        metadata = metadata_of(tree, seed=1)
        image = await metadata.start(broker())
        assert set(answered) - {"grown"} <= set(image.topics)
        for topic in image.topics.values():
            assert len(topic.partitions) == 2 or topic.name == "t0"
            assert all(partition.leader == 0 for partition in topic.partitions)
        if "grown" in answered:
            assert len(image.topics["t0"].partitions) == 3
        await _in_step(tree, metadata)

    for point in crash_everywhere(scenario, stride=3):
        run(with_tree(point.files, look))


@pytest.mark.parametrize("is_deleted", [True, False])
def test_large_change_interrupted_by_a_power_loss_is_finished_by_the_next_start(
    monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    monkeypatch.setattr("penstock.cluster.controller.transaction.MAX_OPERATIONS", 3)
    answered: list[str] = []

    def scenario(files: SimulatedFiles) -> None:
        answered.clear()

        async def story(metadata: StandaloneMetadata) -> None:
            [made] = await metadata.require_controller().create_topics([NewTopic("t", 4)])
            if made.error is None:
                answered.append("made")
            if is_deleted and (await metadata.require_controller().delete_topics(["t"]))[0].error is None:
                answered.append("deleted")

        run(with_metadata(files, story))

    async def look(tree: EmbeddedTree) -> None:
        metadata = metadata_of(tree, seed=1)
        image = await metadata.start(broker())
        if "deleted" in answered:
            assert image.topics == {}
        elif "made" in answered and not is_deleted:
            assert set(image.topics) == {"t"}
        for topic in image.topics.values():
            # All of it, or nothing: a partition never restarts at an earlier epoch.
            assert [partition.leader for partition in topic.partitions] == [0] * 4
            if "made" in answered:
                assert all(partition.leader_epoch == 1 for partition in topic.partitions)
        assert await tree.children(layout.DELETE_TOPICS) == []
        await _in_step(tree, metadata)
        if not image.topics:
            assert (await metadata.require_controller().create_topics([NewTopic("t", 4)]))[0].error is None

    for point in crash_everywhere(scenario, stride=2):
        run(with_tree(point.files, look))


# --- producer ids


def test_producer_ids_are_never_given_twice_across_restarts_and_blocks() -> None:
    files = SimulatedFiles()

    async def story(metadata: StandaloneMetadata) -> list[int]:
        return list(await asyncio.gather(*(metadata.allocate_producer_id() for _ in range(1500))))

    first = run(with_metadata(files, story))
    second = run(with_metadata(files, story))
    assert first == list(range(1500))
    assert second == list(range(2000, 3500))


def test_power_loss_never_brings_a_producer_id_back() -> None:
    given: list[int] = []

    def scenario(files: SimulatedFiles) -> None:
        given.clear()

        async def story(tree: EmbeddedTree) -> None:
            given.append(await ProducerIds(tree, 0).allocate())
            given.append(await ProducerIds(tree, 0).allocate())

        run(with_tree(files, story))

    for point in crash_everywhere(scenario):
        new = run(with_tree(point.files, lambda tree: ProducerIds(tree, 0).allocate()))
        assert new not in given, str(point)


def test_two_brokers_never_get_the_same_block() -> None:
    async def story(tree: EmbeddedTree) -> None:
        brokers = [ProducerIds(tree, number) for number in range(4)]
        blocks = await asyncio.gather(*(source.next_block() for source in brokers))
        assert sorted(block.first for block in blocks) == [0, 1000, 2000, 3000]

    run(with_tree(SimulatedFiles(), story))


def test_last_producer_id_is_not_followed_by_the_first() -> None:
    async def story(tree: EmbeddedTree) -> None:
        last = 2**63 - 1
        await tree.create(layout.PRODUCER_ID_BLOCK, encode_producer_ids(ProducerIdBlock(0, last - 1000, last - 1)))
        with pytest.raises(ProducerIdsExhausted):
            await ProducerIds(tree, 0).allocate()

    run(with_tree(SimulatedFiles(), story))


def test_failed_tree_gives_no_producer_id() -> None:
    files = SimulatedFiles()

    async def story(tree: EmbeddedTree) -> None:
        await tree.create(layout.PRODUCER_ID_BLOCK)
        files.operations.fail("sync", errno.EIO)
        with pytest.raises(TreeError):
            await ProducerIds(tree, 0).allocate()

    run(with_tree(files, story))
