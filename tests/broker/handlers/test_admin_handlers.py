"""Stories about topics and settings that clients create, change, look at and delete."""

from __future__ import annotations

import pytest
from tests.broker.handlers.admin_stories import (
    APPEND,
    BROKER,
    DELETE,
    NODE_ID,
    SET,
    SUBTRACT,
    TOPIC,
    Stage,
    on_stage,
    topic,
)

from penstock.broker.settings import load_settings, settings_from
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.wire.schemas.create_topics import CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig
from penstock.wire.schemas.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from penstock.wire.types import NO_UUID

ME = str(NODE_ID)


# --- CreateTopics


@pytest.mark.parametrize("version", range(8))
def test_a_topic_is_created_and_described_in_every_version(version: int) -> None:
    async def story(stage: Stage) -> None:
        (result,) = await stage.create(topic("news", 3, retention_ms="5000"), version=version)
        image = stage.cluster.image
        assert result.error_code == ErrorCode.NONE
        assert not result.error_message
        assert len(image.topics["news"].partitions) == 3
        assert image.topic_config("news") == {"retention.ms": "5000"}
        assert result.topic_id == (image.topics["news"].topic_id if version >= 7 else NO_UUID)
        assert (result.num_partitions, result.replication_factor) == ((3, 1) if version >= 5 else (-1, -1))
        rows = {each.name: (each.value, each.config_source) for each in result.configs or ()}
        if version >= 5:
            assert rows["retention.ms"] == ("5000", 1)
            assert rows["cleanup.policy"] == ("delete", 5)
        else:
            assert rows == {}

    on_stage(story)


def test_numbers_that_are_left_open_are_the_brokers_defaults() -> None:
    async def story(stage: Stage) -> None:
        (result,) = await stage.create(topic("news", -1, -1))
        assert (result.num_partitions, result.replication_factor) == (6, 1)

    on_stage(story, settings_from({"log.dirs": "/data", "num.partitions": "6"}))


def test_a_topic_that_the_operator_has_laid_down_starts_out_so() -> None:
    async def story(stage: Stage) -> None:
        open_numbers, given_number = await stage.create(topic("news", -1), topic("sport", 2, retention_ms="1"))
        assert open_numbers.num_partitions == 5
        assert stage.cluster.image.topic_config("news") == {"retention.ms": str(2 * 3_600_000)}
        assert given_number.num_partitions == 2
        assert stage.cluster.image.topic_config("sport") == {"retention.ms": "1"}

    assignments = [
        "log.dirs=/data",
        "topic.partition.count.map=news:5,sport:7",
        "topic.log.retention.hours=news:2,sport:3",
    ]
    on_stage(story, load_settings(assignments=assignments).settings)


def test_validation_answers_like_a_creation_and_creates_nothing() -> None:
    async def story(stage: Stage) -> None:
        good, bad = await stage.create(topic("news", 2), topic("bad", 0), validate_only=True)
        assert (good.error_code, good.num_partitions, good.topic_id) == (ErrorCode.NONE, 2, NO_UUID)
        assert bad.error_code == ErrorCode.INVALID_PARTITIONS
        assert stage.cluster.image.topics == {}

    on_stage(story)


def test_replicas_may_be_given_by_partition() -> None:
    async def story(stage: Stage) -> None:
        wanted = CreatableTopic(
            name="news",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=index, broker_ids=[NODE_ID]) for index in (1, 0)],
        )
        (result,) = await stage.create(wanted)
        assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)

    on_stage(story)


@pytest.mark.parametrize(
    ("wanted", "code", "said"),
    [
        (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "'/'"),
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "name"),
        (topic("old"), ErrorCode.TOPIC_ALREADY_EXISTS, "already"),
        (topic("old", retention_ms="no"), ErrorCode.TOPIC_ALREADY_EXISTS, "already"),
        (topic("n", -2), ErrorCode.INVALID_PARTITIONS, "-2"),
        (topic("n", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR, "replication factor 2"),
        (topic("n", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "0"),
        (topic("n", retention_ms="no"), ErrorCode.INVALID_CONFIG, "retention.ms"),
        (topic("n", retention_ms=None), ErrorCode.INVALID_CONFIG, "retention.ms"),
        (topic("n", retention_mss="1"), ErrorCode.INVALID_CONFIG, "did you mean retention.ms?"),
        (
            topic("n", min_compaction_lag_ms="9", max_compaction_lag_ms="8"),
            ErrorCode.INVALID_CONFIG,
            "must not be larger than max.compaction.lag.ms",
        ),
        (
            CreatableTopic(
                name="n",
                num_partitions=1,
                replication_factor=1,
                assignments=[CreatableReplicaAssignment(broker_ids=[NODE_ID])],
            ),
            ErrorCode.INVALID_REQUEST,
            "not both",
        ),
        (
            CreatableTopic(
                name="n",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(broker_ids=[NODE_ID])] * 2,
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "twice",
        ),
        (
            CreatableTopic(
                name="n",
                num_partitions=1,
                replication_factor=1,
                configs=[CreatableTopicConfig(name="retention.ms", value="1")] * 2,
            ),
            ErrorCode.INVALID_REQUEST,
            "twice",
        ),
    ],
)
def test_an_invalid_topic_is_rejected_with_the_reason_and_the_others_are_created(
    wanted: CreatableTopic, code: ErrorCode, said: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("old"))
        rejected, made = await stage.create(wanted, topic("good"))
        assert (rejected.name, rejected.error_code) == (wanted.name, code)
        assert said in (rejected.error_message or "")
        assert (rejected.num_partitions, rejected.configs) == (-1, [])
        assert made.error_code == ErrorCode.NONE
        assert set(stage.cluster.image.topics) == {"old", "good"}

    on_stage(story)


def test_a_topic_that_is_named_twice_is_rejected_and_answered_once() -> None:
    async def story(stage: Stage) -> None:
        results = await stage.create(topic("news", 1), topic("other"), topic("news", 2, retention_ms="no"))
        assert [(each.name, each.error_code) for each in results] == [
            ("news", ErrorCode.INVALID_REQUEST),
            ("other", ErrorCode.NONE),
        ]
        assert set(stage.cluster.image.topics) == {"other"}

    on_stage(story)


@pytest.mark.parametrize("version", [1, 7])
def test_endless_names_are_answered_with_reasons_that_still_fit_into_an_answer(version: int) -> None:
    async def story(stage: Stage) -> None:
        endless = "x" * 32_767
        wanted = topic("news")
        wanted.configs = [CreatableTopicConfig(name=endless, value=None)]
        named, configured = await stage.create(topic(endless), wanted, version=version)
        assert named.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert configured.error_code == ErrorCode.INVALID_CONFIG

    on_stage(story)


def test_many_topics_are_described_while_others_are_served() -> None:
    async def story(stage: Stage) -> None:
        results = await stage.create(*(topic(f"t{index}") for index in range(50)), validate_only=True)
        assert [each.num_partitions for each in results] == [1] * 50

    on_stage(story)


def test_a_broker_that_is_stopping_sends_clients_to_look_for_the_controller() -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("old"))
        await stage.cluster.close()
        (created,) = await stage.create(topic("news"))
        (deleted,) = (await stage.delete(DeleteTopicsRequest(topics=[DeleteTopicState(name="old")]))).responses
        grown = await stage.grow(CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="old", count=2)]))
        code, _ = await stage.edit(TOPIC, "old", ("retention.ms", SET, "1"))
        assert [created.error_code, deleted.error_code, grown[0][1], code] == [ErrorCode.NOT_CONTROLLER] * 4

    on_stage(story)


def test_a_full_disk_rejects_writes_and_is_reported() -> None:
    async def story(stage: Stage) -> None:
        stage.files.capacity_bytes = 0
        (result,) = await stage.create(topic("news", 1000))
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "space" in (result.error_message or "")
        stage.files.capacity_bytes = None
        (again,) = await stage.create(topic("news", 1000))
        assert again.error_code == ErrorCode.NONE

    on_stage(story)


# --- DeleteTopics


def brief(results: list[DeletableTopicResult]) -> list[tuple[str | None, int]]:
    return [(each.name, each.error_code) for each in results]


@pytest.mark.parametrize("version", range(6))
def test_topics_are_deleted_by_name(version: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("news"), topic("stays"))
        response = await stage.delete(DeleteTopicsRequest(topic_names=["news", "none", "news"]), version)
        assert brief(response.responses) == [("news", ErrorCode.NONE), ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert (response.responses[1].error_message is not None) == (version >= 5)
        assert set(stage.cluster.image.topics) == {"stays"}

    on_stage(story)


def test_topics_are_deleted_by_name_or_id_in_version_6() -> None:
    async def story(stage: Stage) -> None:
        first, second, stays = await stage.create(topic("a"), topic("b"), topic("stays"))
        wanted = [
            DeleteTopicState(name="a"),
            DeleteTopicState(topic_id=second.topic_id),
            DeleteTopicState(topic_id=b"\1" * 16),
            DeleteTopicState(name="stays", topic_id=stays.topic_id),
            DeleteTopicState(),
        ]
        response = await stage.delete(DeleteTopicsRequest(topics=wanted))
        found = {(each.name, each.topic_id): each.error_code for each in response.responses}
        assert found == {
            ("a", first.topic_id): ErrorCode.NONE,
            ("b", second.topic_id): ErrorCode.NONE,
            (None, b"\1" * 16): ErrorCode.UNKNOWN_TOPIC_ID,
            ("stays", stays.topic_id): ErrorCode.INVALID_REQUEST,
            (None, NO_UUID): ErrorCode.INVALID_REQUEST,
        }
        assert set(stage.cluster.image.topics) == {"stays"}

    on_stage(story)


@pytest.mark.parametrize(("version", "code"), [(2, ErrorCode.INVALID_REQUEST), (5, ErrorCode.TOPIC_DELETION_DISABLED)])
def test_an_operator_may_forbid_deletion(version: int, code: ErrorCode) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("news"))
        response = await stage.delete(DeleteTopicsRequest(topic_names=["news"]), version)
        assert brief(response.responses) == [("news", code)]
        assert "news" in stage.cluster.image.topics

    on_stage(story, settings_from({"log.dirs": "/data", "delete.topic.enable": "false"}))


# --- CreatePartitions


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows(version: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("a"), topic("b"))
        given = [CreatePartitionsAssignment(broker_ids=[NODE_ID])]
        wanted = [
            CreatePartitionsTopic(name="a", count=3, assignments=None),
            CreatePartitionsTopic(name="b", count=2, assignments=given),
        ]
        answers = await stage.grow(CreatePartitionsRequest(topics=wanted), version)
        assert answers == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]
        assert [len(each.partitions) for each in stage.cluster.image.topics.values()] == [3, 2]

    on_stage(story)


def test_partition_counts_that_cannot_grow_are_rejected() -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("a", 2), topic("b"), topic("c"))
        nowhere = [CreatePartitionsAssignment(broker_ids=[99])]
        wanted = [
            CreatePartitionsTopic(name="a", count=2, assignments=None),
            CreatePartitionsTopic(name="b", count=2, assignments=nowhere),
            CreatePartitionsTopic(name="c", count=2, assignments=None),
            CreatePartitionsTopic(name="c", count=3, assignments=None),
            CreatePartitionsTopic(name="none", count=2, assignments=None),
        ]
        assert await stage.grow(CreatePartitionsRequest(topics=wanted)) == [
            ("a", ErrorCode.INVALID_PARTITIONS),
            ("b", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ("c", ErrorCode.INVALID_REQUEST),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert [len(each.partitions) for each in stage.cluster.image.topics.values()] == [2, 1, 1]

    on_stage(story)


def test_growing_can_be_tried_out() -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("a"))
        wanted = [CreatePartitionsTopic(name="a", count=2, assignments=None)]
        answers = await stage.grow(CreatePartitionsRequest(topics=wanted, validate_only=True))
        assert answers == [("a", ErrorCode.NONE)]
        assert len(stage.cluster.image.topics["a"].partitions) == 1

    on_stage(story)


# --- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
def test_topic_settings_are_described_with_their_source(version: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("news", retention_ms="5000"))
        keys = ["retention.ms", "segment.bytes", "flush.messages", "no.such"]
        (result,) = await stage.describe((TOPIC, "news", keys), version=version, synonyms=True, docs=version >= 3)
        assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
        assert (result.resource_type, result.resource_name) == (TOPIC, "news")
        rows = {each.name: each for each in result.configs}
        assert {name: (row.value, row.config_source) for name, row in rows.items()} == {
            "retention.ms": ("5000", 1),
            "segment.bytes": ("1048576", 4),
            "flush.messages": (str(2**63 - 1), 5),
        }
        synonyms = [(each.name, each.value, each.source) for each in rows["retention.ms"].synonyms]
        # As Kafka has it: hours that stand in for milliseconds are not listed under the name of milliseconds.
        assert synonyms == [("retention.ms", "5000", 1)]
        synonyms = [(each.name, each.value, each.source) for each in rows["segment.bytes"].synonyms]
        assert synonyms == [("log.segment.bytes", "1048576", 4), ("log.segment.bytes", "1073741824", 5)]
        assert not rows["retention.ms"].read_only
        assert rows["segment.bytes"].config_type == (3 if version >= 3 else 0)
        assert bool(rows["segment.bytes"].documentation) == (version >= 3)

    on_stage(story, settings_from({"log.dirs": "/data", "log.segment.bytes": "1048576"}))


@pytest.mark.parametrize("keys", [None, []])
def test_without_names_all_settings_are_described_and_no_extras(keys: list[str] | None) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("news"))
        (result,) = await stage.describe((TOPIC, "news", keys))
        assert {"cleanup.policy", "retention.ms", "min.insync.replicas"} <= {each.name for each in result.configs}
        assert all(each.synonyms == [] and each.documentation is None for each in result.configs)

    on_stage(story)


def test_a_broker_shows_its_own_settings_and_which_cannot_be_changed() -> None:
    async def story(stage: Stage) -> None:
        (result,) = await stage.describe((BROKER, ME, ["broker.id", "log.retention.ms", "num.io.threads"]))
        rows = {each.name: each for each in result.configs}
        assert rows["broker.id"].value == ME
        assert rows["broker.id"].read_only
        assert not rows["log.retention.ms"].read_only

    on_stage(story)


def test_unknown_and_foreign_resources_are_not_described() -> None:
    async def story(stage: Stage) -> None:
        asked = [(TOPIC, "none"), (TOPIC, "a/b"), (BROKER, "99"), (BROKER, "one"), (8, ME), (0, ""), (127, "x")]
        results = await stage.describe(*((kind, name, None) for kind, name in asked))
        assert [(each.resource_type, each.resource_name) for each in results] == asked
        assert [each.error_code for each in results] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            *[ErrorCode.INVALID_REQUEST] * 5,
        ]
        assert all(each.error_message and not each.configs for each in results)

    on_stage(story)


def test_many_resources_are_described_while_others_are_served_and_repeated_ones_once() -> None:
    async def story(stage: Stage) -> None:
        names = [f"t{index}" for index in range(45)]
        await stage.create(*map(topic, names))
        asked = [(TOPIC, name, ["retention.ms"]) for name in names]
        results = await stage.describe(*asked, *asked)
        assert [each.resource_name for each in results] == names
        assert all(len(each.configs) == 1 for each in results)

    on_stage(story)


# --- AlterConfigs and IncrementalAlterConfigs


@pytest.mark.parametrize("version", range(3))
def test_all_settings_of_a_topic_are_replaced(version: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("news", retention_ms="5", flush_messages="7"))
        response = await stage.replace((TOPIC, "news", {"retention.ms": "6"}), version=version)
        (only,) = response.responses
        assert (only.error_code, only.error_message, only.resource_name) == (ErrorCode.NONE, None, "news")
        assert stage.cluster.image.topic_config("news") == {"retention.ms": "6"}

    on_stage(story)


def test_resources_are_changed_independently_and_duplicates_are_rejected() -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("a"), topic("b"), topic("c"))
        response = await stage.replace(
            (TOPIC, "a", {"retention.ms": "no"}),
            (TOPIC, "b", {"retention.ms": "1"}),
            (TOPIC, "c", {"retention.ms": "1"}),
            (TOPIC, "b", {"retention.ms": "no"}),
            (TOPIC, "none", {"retention.ms": "1"}),
            (TOPIC, "c2", {"retention.ms": None}),
            (8, "root", {"level": "DEBUG"}),
        )
        assert [(each.resource_name, each.error_code) for each in response.responses] == [
            ("a", ErrorCode.INVALID_CONFIG),
            ("b", ErrorCode.INVALID_REQUEST),
            ("c", ErrorCode.NONE),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("c2", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("root", ErrorCode.INVALID_REQUEST),
        ]
        configs = stage.cluster.image.topic_configs
        assert {name: dict(own) for name, own in configs.items() if own} == {"c": {"retention.ms": "1"}}

    on_stage(story)


@pytest.mark.parametrize("version", range(2))
def test_single_settings_are_set_deleted_extended_and_reduced(version: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("news", retention_ms="5"))

        async def edit(*edits: tuple[str, int, str | None]) -> None:
            assert await stage.edit(TOPIC, "news", *edits, version=version) == (ErrorCode.NONE, None)

        await edit(("retention.ms", DELETE, None), ("flush.messages", SET, "9"), ("cleanup.policy", APPEND, "compact"))
        assert stage.cluster.image.topic_config("news") == {"flush.messages": "9", "cleanup.policy": "delete,compact"}
        await edit(("cleanup.policy", SUBTRACT, "delete"))
        assert stage.cluster.image.topic_config("news") == {"flush.messages": "9", "cleanup.policy": "compact"}

    on_stage(story)


@pytest.mark.parametrize(
    ("edits", "code"),
    [
        ([("retention.ms", SET, "no")], ErrorCode.INVALID_CONFIG),
        ([("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", -1, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ([("flush.messages", SET, "1"), ("max.compaction.lag.ms", SET, "50")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_change_that_cannot_be_leaves_everything_as_it_was(
    edits: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("news", min_compaction_lag_ms="100"))
        found, text = await stage.edit(TOPIC, "news", *edits)
        assert found == code
        assert text
        assert stage.cluster.image.topic_config("news") == {"min.compaction.lag.ms": "100"}

    on_stage(story)


def test_a_list_cannot_grow_beyond_what_can_be_shown() -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("news"))
        name = "leader.replication.throttled.replicas"
        codes = []
        for start in range(3):
            more = ",".join(f"{partition}:{start}" for partition in range(2000))
            codes.append((await stage.edit(TOPIC, "news", (name, APPEND, more)))[0])
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_CONFIG]
        (result,) = await stage.describe((TOPIC, "news", None), version=1)
        assert result.error_code == ErrorCode.NONE

    on_stage(story)


def test_changes_can_be_tried_out() -> None:
    async def story(stage: Stage) -> None:
        await stage.create(topic("news"))
        edit = ("retention.ms", SET, "1")
        assert await stage.edit(TOPIC, "news", edit, validate_only=True) == (ErrorCode.NONE, None)
        response = await stage.replace((TOPIC, "news", {"retention.ms": "1"}), validate_only=True)
        assert response.responses[0].error_code == ErrorCode.NONE
        assert stage.cluster.image.topic_config("news") == {}

    on_stage(story)


@pytest.mark.parametrize(("name", "source"), [(ME, 2), ("", 3)])
def test_a_change_of_one_or_all_brokers_is_shown_with_its_source(name: str, source: int) -> None:
    async def story(stage: Stage) -> None:
        assert await stage.edit(BROKER, name, ("log.retention.ms", SET, "77")) == (ErrorCode.NONE, None)
        everywhere, here = await stage.describe((BROKER, "", None), (BROKER, ME, ["log.retention.ms"]), synonyms=True)
        assert [(each.name, each.value) for each in everywhere.configs] == (
            [] if name else [("log.retention.ms", "77")]
        )
        (row,) = here.configs
        assert (row.value, row.config_source) == ("77", source)
        assert (await stage.replace((BROKER, name, {}))).responses[0].error_code == ErrorCode.NONE
        (back,) = await stage.describe((BROKER, ME, ["log.retention.ms"]))
        assert back.configs[0].config_source == 5

    on_stage(story)


def test_a_broker_rejects_changes_that_are_static_contradictory_or_not_its_own() -> None:
    async def story(stage: Stage) -> None:
        fixed = await stage.edit(BROKER, ME, ("broker.id", SET, "4"))
        assert fixed[0] == ErrorCode.INVALID_REQUEST
        assert "restart" in (fixed[1] or "")
        assert (await stage.edit(BROKER, ME, ("message.max.bytes", SET, "big")))[0] == ErrorCode.INVALID_REQUEST
        (replaced,) = (await stage.replace((BROKER, ME, {"message.max.bytes": "big"}))).responses
        assert replaced.error_code == ErrorCode.INVALID_REQUEST
        minimum = ("log.cleaner.min.compaction.lag.ms", SET, "100")
        assert (await stage.edit(BROKER, "", minimum))[0] == ErrorCode.NONE
        contradiction = await stage.edit(BROKER, ME, ("log.cleaner.max.compaction.lag.ms", SET, "50"))
        assert contradiction[0] == ErrorCode.INVALID_REQUEST
        assert "log.cleaner.max.compaction.lag.ms" in (contradiction[1] or "")
        assert (await stage.edit(BROKER, "99", minimum))[0] == ErrorCode.INVALID_REQUEST
        assert stage.cluster.image.broker_configs == {"<default>": {"log.cleaner.min.compaction.lag.ms": "100"}}

    on_stage(story)


def test_a_name_that_the_broker_does_not_know_is_kept_and_described_without_its_value() -> None:
    async def story(stage: Stage) -> None:
        assert (await stage.edit(BROKER, ME, ("audit.plugin.secret", SET, "hunter2")))[0] == ErrorCode.NONE
        assert (await stage.edit(BROKER, "", ("audit.plugin.url", SET, "x")))[0] == ErrorCode.NONE
        assert stage.cluster.image.broker_configs[ME] == {"audit.plugin.secret": "hunter2"}
        (mine,) = await stage.describe((BROKER, ME, ["audit.plugin.secret", "audit.plugin.url"]), synonyms=True)
        assert [
            (
                row.name,
                row.value,
                row.is_sensitive,
                row.read_only,
                row.config_source,
                len(row.synonyms),
                row.config_type,
            )
            for row in mine.configs
        ] == [("audit.plugin.secret", None, True, True, 2, 1, 0), ("audit.plugin.url", None, True, True, 3, 1, 0)]
        assert [each.value for row in mine.configs for each in row.synonyms] == [None, None]
        (everybody,) = await stage.describe((BROKER, "", None))
        assert [(row.name, row.value) for row in everybody.configs] == [("audit.plugin.url", None)]
        # A list is only what is known to be one.
        code, _ = await stage.edit(BROKER, ME, ("audit.plugin.secret", APPEND, "more"))
        assert code == ErrorCode.INVALID_CONFIG
        # Of a topic nothing is kept that is not known.
        await stage.create(topic("news"))
        assert (await stage.edit(TOPIC, "news", ("audit.plugin.url", SET, "x")))[0] == ErrorCode.INVALID_CONFIG

    on_stage(story)
