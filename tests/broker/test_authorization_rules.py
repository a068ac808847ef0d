"""The table of permissions: complete over all APIs and versions, each denied and allowed, with nothing too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast, get_args, get_type_hints

import pytest

from penstock.broker.api_table import API_TABLE
from penstock.broker.authorization import AccessControl, Authorizer
from penstock.broker.authorization_rules import OPEN, RULES, SLICE
from penstock.broker.request import Channel, CloseConnection, Request, Services
from penstock.broker.router import error_codes
from penstock.broker.settings import settings_from
from penstock.cluster.image import ClusterImage, TopicImage
from penstock.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    Acls,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from penstock.security.principal import Principal, Session
from penstock.wire.protocol import ApiKey, ErrorCode, find_api, request_codec, response_codec
from penstock.wire.schemas import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    authenticate_broker,
    controlled_shutdown,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    forward,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_image,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from penstock.wire.types import Message

OP, R = Operation, ResourceType
ALICE = Session(Principal("User", "alice"), host="10.0.0.1")
ID = b"1" * 16
HIDDEN_ID = b"2" * 16
DENIALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
Needed = tuple[Operation, ResourceType, str]
ON_CLUSTER = CLUSTER_NAME


NO_SETTINGS: Mapping[str, str] = {}


class LongWork:
    """Runs what is long to its end, and counts its slices."""

    def __init__(self) -> None:
        self.slices = 0

    def start(self, channel: Any, size: int, work: Callable[[], Any]) -> None:
        coroutine = work()
        try:
            while True:
                coroutine.send(None)
        except StopIteration:
            pass

    async def pause(self, channel: Any = None) -> None:
        self.slices += 1

    async def through(self, work: Iterator[None], channel: Any = None) -> Any:
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value
            self.slices += 1


@dataclass
class Metadata:
    image: ClusterImage


@dataclass
class FakeServices:
    cluster: Metadata
    settings: Any
    long_requests: LongWork = field(default_factory=LongWork)


def image(*names: str) -> ClusterImage:
    topics = [TopicImage(name, ID if name == "views" else name.encode().ljust(16, b"0"), ()) for name in names]
    return ClusterImage().with_topics([*topics, TopicImage("hidden", HIDDEN_ID, ())])


class Desk:
    """An access control and a handler that records what reaches it."""

    def __init__(self, *needed: Needed, deny: Needed | None = None, settings: Mapping[str, str] = NO_SETTINGS) -> None:
        given = settings_from({"log.dirs": "/d", "authorizer.class.name": "penstock", **settings})
        authorizer = Authorizer(given)
        bindings = [acl(each) for each in needed] + ([acl(deny, Permission.DENY)] if deny else [])
        self.image = image("views").with_acls(Acls.of(bindings))
        authorizer.follow(self.image, self.image)
        self.services = FakeServices(Metadata(self.image), given)
        self.control = AccessControl(authorizer)
        self.passed: list[Any] = []
        self.permits: Callable[[str], bool] | None = None

    def ask(
        self, key: int, message: Any, version: int, response: Message | None = None, session: Session = ALICE
    ) -> Any:
        """Through the codec and back, so that every field of the answer exists in its version."""
        sent, _ = request_codec(key, version).decode(request_codec(key, version).encode(message), 0)
        answers: list[Any] = []

        def handle(_: Services, request: Request, answer: Callable[[Any], None]) -> None:
            self.passed.append(request.message)
            self.permits = request.permits
            answer(find_api(key).response() if response is None else response)

        channel = Channel(lambda: None, lambda _: None, session)
        permits = self.control.permits(channel, sent) if key == ApiKey.FETCH else None
        request = Request(key, version, "client", "peer:1", sent, 0, None, 0, session, permits)
        guarded = self.control.guarded(API_TABLE[key].splits, request, handle)
        guarded(cast(Services, self.services), request, answers.append)
        [answered] = answers
        body = response_codec(key, version).encode(answered)
        decoded, _ = response_codec(key, version).decode(body, 0)
        return decoded


def acl(needed: Needed, permission: Permission = Permission.ALLOW) -> AclBinding:
    operation, kind, name = needed
    prefixed = name.endswith("~")
    pattern = ResourcePattern(kind, name.rstrip("~"), PatternType.PREFIXED if prefixed else PatternType.LITERAL)
    return AclBinding(pattern, AclEntry("User:alice", "*", operation, permission))


def codes(response: Any) -> set[int]:
    found = set(error_codes(response))
    if isinstance(response, add_partitions_to_txn.AddPartitionsToTxnResponse):
        for topic in response.results_by_topic_v3_and_below:
            found |= {each.partition_error_code for each in topic.results_by_partition}
    return found


# --- one request of each API, and exactly the permissions that it needs


@dataclass
class Case:
    message: Callable[[int], Message]
    needed: tuple[Needed, ...] | Callable[[int], tuple[Needed, ...]] = ()
    hides: bool = False
    """Whether a denied request is served with less, without an error."""

    def needs(self, version: int) -> tuple[Needed, ...]:
        return self.needed(version) if callable(self.needed) else self.needed


def always(message: Message) -> Callable[[int], Message]:
    return lambda _: message


def topics_of(schema: Any, topic: str, partition: str) -> list[Any]:
    row = getattr(schema, partition)
    return [getattr(schema, topic)(name="views", partitions=[row(partition_index=0)])]


WRITES, READS, DESCRIBES = (OP.WRITE, R.TOPIC, "views"), (OP.READ, R.TOPIC, "views"), (OP.DESCRIBE, R.TOPIC, "views")
GROUP, TXN = (OP.READ, R.GROUP, "g"), (OP.WRITE, R.TRANSACTIONAL_ID, "tx")


def cluster(operation: Operation) -> tuple[Needed, ...]:
    return ((operation, R.CLUSTER, ON_CLUSTER),)


def produce_message(version: int) -> Message:
    data = produce.TopicProduceData(name="views", partition_data=[produce.PartitionProduceData(index=0, records=b"")])
    return produce.ProduceRequest(transactional_id="tx" if version >= 3 else None, acks=-1, topic_data=[data])


def offset_fetch_message(version: int) -> Message:
    if version < 8:
        row = offset_fetch.OffsetFetchRequestTopic(name="views", partition_indexes=[0])
        return offset_fetch.OffsetFetchRequest(group_id="g", topics=[row])
    topic = offset_fetch.OffsetFetchRequestTopics(name="views", partition_indexes=[0])
    return offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=[topic])])


def find_coordinator_message(version: int) -> Message:
    if version < 4:
        return find_coordinator.FindCoordinatorRequest(key="g")
    return find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"])


def delete_topics_message(version: int) -> Message:
    if version < 6:
        return delete_topics.DeleteTopicsRequest(topic_names=["views"])
    return delete_topics.DeleteTopicsRequest(topics=[delete_topics.DeleteTopicState(name="views")])


def add_partitions_message(version: int) -> Message:
    topic = add_partitions_to_txn.AddPartitionsToTxnTopic(name="views", partitions=[0])
    if version < 4:
        return add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx", v3_and_below_topics=[topic]
        )
    transaction = add_partitions_to_txn.AddPartitionsToTxnTransaction(transactional_id="tx", topics=[topic])
    return add_partitions_to_txn.AddPartitionsToTxnRequest(transactions=[transaction])


def init_producer_id_message(version: int) -> Message:
    return init_producer_id.InitProducerIdRequest(transactional_id="tx", enable2_pc=version >= 6)


def leave_message(version: int) -> Message:
    return leave_group.LeaveGroupRequest(group_id="g")


MARKER = write_txn_markers.WritableTxnMarker(
    topics=[write_txn_markers.WritableTxnMarkerTopic(name="views", partition_indexes=[0])]
)
EPOCHS = offset_for_leader_epoch.OffsetForLeaderTopic(
    topic="views", partitions=[offset_for_leader_epoch.OffsetForLeaderPartition()]
)
DIRECTORY = alter_replica_log_dirs.AlterReplicaLogDir(
    path="/d", topics=[alter_replica_log_dirs.AlterReplicaLogDirTopic(name="views", partitions=[0])]
)
CASES: dict[int, Case] = {
    ApiKey.PRODUCE: Case(produce_message, lambda version: (WRITES, TXN) if version >= 3 else (WRITES,)),
    ApiKey.FETCH: Case(always(fetch.FetchRequest()), hides=True),  # see its own tests
    ApiKey.LIST_OFFSETS: Case(
        always(
            list_offsets.ListOffsetsRequest(topics=topics_of(list_offsets, "ListOffsetsTopic", "ListOffsetsPartition"))
        ),
        (DESCRIBES,),
    ),
    ApiKey.METADATA: Case(
        always(metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="views")])), (DESCRIBES,)
    ),
    ApiKey.OFFSET_COMMIT: Case(
        always(
            offset_commit.OffsetCommitRequest(
                group_id="g",
                topics=topics_of(offset_commit, "OffsetCommitRequestTopic", "OffsetCommitRequestPartition"),
            )
        ),
        (GROUP, READS),
    ),
    ApiKey.OFFSET_FETCH: Case(offset_fetch_message, ((OP.DESCRIBE, R.GROUP, "g"), DESCRIBES)),
    ApiKey.FIND_COORDINATOR: Case(find_coordinator_message, ((OP.DESCRIBE, R.GROUP, "g"),)),
    ApiKey.JOIN_GROUP: Case(always(join_group.JoinGroupRequest(group_id="g")), (GROUP,)),
    ApiKey.HEARTBEAT: Case(always(heartbeat.HeartbeatRequest(group_id="g")), (GROUP,)),
    ApiKey.LEAVE_GROUP: Case(leave_message, (GROUP,)),
    ApiKey.SYNC_GROUP: Case(always(sync_group.SyncGroupRequest(group_id="g")), (GROUP,)),
    ApiKey.DESCRIBE_GROUPS: Case(
        always(describe_groups.DescribeGroupsRequest(groups=["g"])), ((OP.DESCRIBE, R.GROUP, "g"),)
    ),
    ApiKey.LIST_GROUPS: Case(always(list_groups.ListGroupsRequest()), hides=True),
    ApiKey.API_VERSIONS: Case(always(api_versions.ApiVersionsRequest()), hides=True),
    ApiKey.CREATE_TOPICS: Case(
        always(create_topics.CreateTopicsRequest(topics=[create_topics.CreatableTopic(name="views")])),
        ((OP.CREATE, R.TOPIC, "views"),),
    ),
    ApiKey.DELETE_TOPICS: Case(delete_topics_message, ((OP.DELETE, R.TOPIC, "views"),)),
    ApiKey.DELETE_RECORDS: Case(
        always(
            delete_records.DeleteRecordsRequest(
                topics=topics_of(delete_records, "DeleteRecordsTopic", "DeleteRecordsPartition")
            )
        ),
        ((OP.DELETE, R.TOPIC, "views"),),
    ),
    ApiKey.INIT_PRODUCER_ID: Case(
        init_producer_id_message,
        lambda version: (TXN, (OP.TWO_PHASE_COMMIT, R.TRANSACTIONAL_ID, "tx")) if version >= 6 else (TXN,),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Case(
        add_partitions_message, lambda version: cluster(OP.CLUSTER_ACTION) if version >= 4 else (TXN, WRITES)
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Case(
        always(add_offsets_to_txn.AddOffsetsToTxnRequest(transactional_id="tx", group_id="g")), (TXN, GROUP)
    ),
    ApiKey.END_TXN: Case(always(end_txn.EndTxnRequest(transactional_id="tx")), (TXN,)),
    ApiKey.WRITE_TXN_MARKERS: Case(
        always(write_txn_markers.WriteTxnMarkersRequest(markers=[MARKER])), cluster(OP.ALTER)
    ),
    ApiKey.TXN_OFFSET_COMMIT: Case(
        always(
            txn_offset_commit.TxnOffsetCommitRequest(
                transactional_id="tx",
                group_id="g",
                topics=topics_of(txn_offset_commit, "TxnOffsetCommitRequestTopic", "TxnOffsetCommitRequestPartition"),
            )
        ),
        (TXN, GROUP, READS),
    ),
    ApiKey.DESCRIBE_PRODUCERS: Case(
        always(
            describe_producers.DescribeProducersRequest(
                topics=[describe_producers.TopicRequest(name="views", partition_indexes=[0])]
            )
        ),
        (READS,),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Case(
        always(describe_transactions.DescribeTransactionsRequest(transactional_ids=["tx"])),
        ((OP.DESCRIBE, R.TRANSACTIONAL_ID, "tx"),),
    ),
    ApiKey.LIST_TRANSACTIONS: Case(always(list_transactions.ListTransactionsRequest()), hides=True),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Case(
        always(offset_for_leader_epoch.OffsetForLeaderEpochRequest(topics=[EPOCHS])), (DESCRIBES,)
    ),
    ApiKey.DESCRIBE_CONFIGS: Case(
        always(
            describe_configs.DescribeConfigsRequest(
                resources=[
                    describe_configs.DescribeConfigsResource(resource_type=2, resource_name="views"),
                    describe_configs.DescribeConfigsResource(resource_type=4, resource_name="1"),
                ]
            )
        ),
        ((OP.DESCRIBE_CONFIGS, R.TOPIC, "views"), *cluster(OP.DESCRIBE_CONFIGS)),
    ),
    ApiKey.ALTER_CONFIGS: Case(
        always(
            alter_configs.AlterConfigsRequest(
                resources=[alter_configs.AlterConfigsResource(resource_type=2, resource_name="views")]
            )
        ),
        ((OP.ALTER_CONFIGS, R.TOPIC, "views"),),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Case(
        always(
            incremental_alter_configs.IncrementalAlterConfigsRequest(
                resources=[incremental_alter_configs.AlterConfigsResource(resource_type=4, resource_name="1")]
            )
        ),
        cluster(OP.ALTER_CONFIGS),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Case(
        always(alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=[DIRECTORY])), cluster(OP.ALTER)
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Case(always(describe_log_dirs.DescribeLogDirsRequest(topics=None)), cluster(OP.DESCRIBE)),
    ApiKey.CREATE_PARTITIONS: Case(
        always(
            create_partitions.CreatePartitionsRequest(topics=[create_partitions.CreatePartitionsTopic(name="views")])
        ),
        ((OP.ALTER, R.TOPIC, "views"),),
    ),
    ApiKey.DELETE_GROUPS: Case(
        always(delete_groups.DeleteGroupsRequest(groups_names=["g"])), ((OP.DELETE, R.GROUP, "g"),)
    ),
    ApiKey.OFFSET_DELETE: Case(
        always(
            offset_delete.OffsetDeleteRequest(
                group_id="g",
                topics=topics_of(offset_delete, "OffsetDeleteRequestTopic", "OffsetDeleteRequestPartition"),
            )
        ),
        ((OP.DELETE, R.GROUP, "g"), READS),
    ),
    ApiKey.DESCRIBE_ACLS: Case(
        always(describe_acls.DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1)),
        cluster(OP.DESCRIBE),
    ),
    ApiKey.CREATE_ACLS: Case(
        always(create_acls.CreateAclsRequest(creations=[create_acls.AclCreation()])), cluster(OP.ALTER)
    ),
    ApiKey.DELETE_ACLS: Case(
        always(delete_acls.DeleteAclsRequest(filters=[delete_acls.DeleteAclsFilter()])), cluster(OP.ALTER)
    ),
    ApiKey.DESCRIBE_CLUSTER: Case(always(describe_cluster.DescribeClusterRequest()), hides=True),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Case(
        always(
            describe_topic_partitions.DescribeTopicPartitionsRequest(
                topics=[describe_topic_partitions.TopicRequest(name="views")]
            )
        ),
        (DESCRIBES,),
    ),
    ApiKey.ELECT_LEADERS: Case(
        always(
            elect_leaders.ElectLeadersRequest(
                topic_partitions=[elect_leaders.TopicPartitions(topic="views", partitions=[0])]
            )
        ),
        cluster(OP.ALTER),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Case(
        always(alter_partition_reassignments.AlterPartitionReassignmentsRequest()), cluster(OP.ALTER)
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Case(
        always(list_partition_reassignments.ListPartitionReassignmentsRequest()), cluster(OP.DESCRIBE)
    ),
    ApiKey.ALTER_PARTITION: Case(always(alter_partition.AlterPartitionRequest()), cluster(OP.CLUSTER_ACTION)),
    ApiKey.CONTROLLED_SHUTDOWN: Case(
        always(controlled_shutdown.ControlledShutdownRequest()), cluster(OP.CLUSTER_ACTION)
    ),
    ApiKey.PUSH_IMAGE: Case(always(push_image.PushImageRequest()), cluster(OP.CLUSTER_ACTION)),
    ApiKey.FORWARD: Case(always(forward.ForwardRequest()), cluster(OP.CLUSTER_ACTION)),
    ApiKey.AUTHENTICATE_BROKER: Case(always(authenticate_broker.AuthenticateBrokerRequest()), hides=True),
    ApiKey.SASL_HANDSHAKE: Case(always(sasl_handshake.SaslHandshakeRequest()), hides=True),
    ApiKey.SASL_AUTHENTICATE: Case(always(sasl_authenticate.SaslAuthenticateRequest()), hides=True),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Case(
        always(describe_client_quotas.DescribeClientQuotasRequest()), cluster(OP.DESCRIBE_CONFIGS)
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Case(
        always(alter_client_quotas.AlterClientQuotasRequest(entries=[alter_client_quotas.EntryData()])),
        cluster(OP.ALTER_CONFIGS),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Case(
        always(describe_user_scram_credentials.DescribeUserScramCredentialsRequest()), cluster(OP.DESCRIBE)
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Case(
        always(
            alter_user_scram_credentials.AlterUserScramCredentialsRequest(
                deletions=[alter_user_scram_credentials.ScramCredentialDeletion(name="bob")]
            )
        ),
        cluster(OP.ALTER),
    ),
}
VERSIONS = [
    pytest.param(key, version, id=f"{ApiKey(key).name}-{version}")
    for key, api in API_TABLE.items()
    for version in range(api.min_version, api.max_version + 1)
]


def test_every_api_has_a_rule_and_a_case() -> None:
    assert sorted(ApiKey(key).name for key in API_TABLE if key not in RULES) == []
    assert sorted(ApiKey(key).name for key in API_TABLE if key not in CASES) == []
    opened = {ApiKey(key).name for key, rule in RULES.items() if rule is OPEN}
    assert opened == {"API_VERSIONS", "AUTHENTICATE_BROKER", "SASL_HANDSHAKE", "SASL_AUTHENTICATE"}


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_what_is_not_permitted_does_not_reach_its_handler(key: int, version: int) -> None:
    case, desk = CASES[key], Desk()
    response = desk.ask(key, case.message(version), version)
    if case.hides:
        assert not codes(response)
        return
    # Metadata serves the list of brokers, DescribeLogDirs has no room for an error before version 3.
    assert desk.passed == [] or (key == ApiKey.METADATA and desk.passed[0].topics == [])
    if key != ApiKey.DESCRIBE_LOG_DIRS or version >= 3:
        assert codes(response) & DENIALS
        assert codes(response) <= DENIALS | {ErrorCode.OPERATION_NOT_ATTEMPTED}


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_what_is_permitted_passes_unchanged(key: int, version: int) -> None:
    case = CASES[key]
    desk = Desk(*case.needs(version))
    response = desk.ask(key, case.message(version), version)
    [passed] = desk.passed
    codec = request_codec(key, version)
    assert codec.encode(passed) == codec.encode(case.message(version))
    assert not codes(response)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_each_permission_is_needed(key: int, version: int) -> None:
    case = CASES[key]
    needed = case.needs(version)
    for missing in needed if len(needed) > 1 else ():
        desk = Desk(*(each for each in needed if each != missing))
        response = desk.ask(key, case.message(version), version)
        assert codes(response) & DENIALS, missing
    for each in needed:
        denied = Desk(*needed, deny=each)
        response = denied.ask(key, case.message(version), version)
        assert codes(response) & DENIALS or (key == ApiKey.DESCRIBE_LOG_DIRS and version < 3), each


@pytest.mark.parametrize("key", sorted(API_TABLE))
def test_brokers_and_super_users_pass(key: int) -> None:
    version = API_TABLE[key].max_version
    for desk, session in (
        (Desk(), Session(is_broker=True)),
        (Desk(settings={"super.users": "User:alice"}), ALICE),
        (Desk(settings={"allow.everyone.if.no.acl.found": "true"}), ALICE),
    ):
        response = desk.ask(key, CASES[key].message(version), version, session=session)
        assert len(desk.passed) == 1
        assert not codes(response)


def empty_messages(key: int, version: int) -> Iterator[Message]:
    """A request without anything in it, with null for each field that may be null, and with an empty element in each
    array.
    """
    kind = find_api(key).request
    yield kind()
    for name in kind.__struct_fields__:
        value = getattr(kind(), name)
        for other in (None, *([[element()]] if (element := element_of(kind, name)) is not None else [])):
            message = kind()
            setattr(message, name, other)
            try:
                request_codec(key, version).encode(message)
            except Exception:  # noqa: BLE001 - not in this version
                continue
            if other != value:
                yield message


def element_of(kind: type[Message], name: str) -> type[Message] | None:
    hints = get_type_hints(kind)[name]
    found = (*get_args(hints), *(inner for each in get_args(hints) for inner in get_args(each)))
    return next((each for each in found if isinstance(each, type) and issubclass(each, Message)), None)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_empty_and_null_requests_are_decided_too(key: int, version: int) -> None:
    for message in empty_messages(key, version):
        for desk in (Desk(), Desk(*CASES[key].needs(version)), Desk(settings={"super.users": "User:alice"})):
            with suppress(CloseConnection):  # a Produce with acks=0
                desk.ask(key, message, version)


# --- parts of a request


def two_topics(*names: str) -> produce.ProduceRequest:
    data = [
        produce.TopicProduceData(name=name, partition_data=[produce.PartitionProduceData(index=0, records=b"")])
        for name in names
    ]
    return produce.ProduceRequest(acks=-1, topic_data=data)


def test_the_permitted_part_is_served_and_the_order_is_kept() -> None:
    desk = Desk((OP.WRITE, R.TOPIC, "a"), (OP.WRITE, R.TOPIC, "c"))
    served = produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name=name, partition_responses=[produce.PartitionProduceResponse(index=0, base_offset=7)]
            )
            for name in ("a", "c")
        ]
    )
    response = desk.ask(ApiKey.PRODUCE, two_topics("x", "a", "y", "c", "z"), 9, served)
    assert [topic.name for topic in desk.passed[0].topic_data] == ["a", "c"]
    assert [(topic.name, topic.partition_responses[0].error_code) for topic in response.responses] == [
        ("x", 29), ("a", 0), ("y", 29), ("c", 0), ("z", 29),
    ]  # fmt: skip
    assert response.responses[0].partition_responses[0].base_offset == -1


def test_without_a_response_a_denied_producer_loses_its_connection() -> None:
    desk = Desk((OP.WRITE, R.TOPIC, "a"))
    message = two_topics("x")
    message.acks = 0
    with pytest.raises(CloseConnection):
        desk.ask(ApiKey.PRODUCE, message, 9)
    assert desk.passed == []


def test_long_requests_are_examined_in_slices() -> None:
    desk = Desk((OP.WRITE, R.TOPIC, "a~"))
    names = [f"{'a' if number % 2 else 'b'}{number}" for number in range(3 * SLICE)]
    desk.ask(ApiKey.PRODUCE, two_topics(*names), 9)
    assert desk.services.long_requests.slices >= 3
    assert len(desk.passed[0].topic_data) == len(names) // 2


# --- topics that must stay hidden


@pytest.mark.parametrize("version", range(13))
def test_all_topics_are_those_that_the_sender_may_describe(version: int) -> None:
    desk = Desk(DESCRIBES)
    everything = metadata.MetadataRequest(topics=[] if version == 0 else None)
    desk.ask(ApiKey.METADATA, everything, version)
    [passed] = desk.passed
    assert [topic.name for topic in passed.topics] == ["views"]
    assert passed.allow_auto_topic_creation is False
    nothing = Desk()
    response = nothing.ask(ApiKey.METADATA, everything, version)
    assert nothing.passed[0].topics == []
    assert response.topics == []


def test_all_topics_pass_as_they_are_if_all_may_be_described() -> None:
    desk = Desk((OP.DESCRIBE, R.TOPIC, "*"))
    desk.ask(ApiKey.METADATA, metadata.MetadataRequest(topics=None), 9)
    assert desk.passed[0].topics is None


def test_a_hidden_topic_is_answered_like_one_that_does_not_exist() -> None:
    for name in ("hidden", "nowhere"):
        row = Desk().ask(
            ApiKey.METADATA, metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=name)]), 12
        )
        [topic] = row.topics
        assert (topic.error_code, topic.topic_id, topic.partitions) == (29, bytes(16), [])


def test_a_topic_id_does_not_reveal_its_name() -> None:
    wanted = [metadata.MetadataRequestTopic(name=None, topic_id=each) for each in (HIDDEN_ID, b"9" * 16)]
    response = Desk().ask(ApiKey.METADATA, metadata.MetadataRequest(topics=wanted), 12)
    assert [(each.name, each.error_code) for each in response.topics] == [(None, 29), (None, 100)]


def test_creation_by_metadata_needs_create() -> None:
    message = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="new")])
    describes = (OP.DESCRIBE, R.TOPIC, "new")
    assert codes(Desk(describes).ask(ApiKey.METADATA, message, 9)) == {29}
    for create in ((OP.CREATE, R.TOPIC, "new"), (OP.CREATE, R.CLUSTER, ON_CLUSTER)):
        assert not codes(Desk(describes, create).ask(ApiKey.METADATA, message, 9))
    without = metadata.MetadataRequest(topics=message.topics, allow_auto_topic_creation=False)
    assert not codes(Desk(describes).ask(ApiKey.METADATA, without, 9))
    off = Desk(describes, settings={"auto.create.topics.enable": "false"})
    assert not codes(off.ask(ApiKey.METADATA, message, 9))


def test_pages_of_topics_show_what_may_be_described() -> None:
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    everything = describe_topic_partitions.DescribeTopicPartitionsRequest()
    desk = Desk(DESCRIBES)
    desk.ask(key, everything, 0)
    assert [topic.name for topic in desk.passed[0].topics] == ["views"]
    nothing = Desk()
    assert nothing.ask(key, everything, 0).topics == []
    assert nothing.passed == []


def test_deletion_by_id_hides_the_name_and_never_passes_an_unknown_id_on() -> None:
    def delete(desk: Desk, topic_id: bytes) -> tuple[str | None, int]:
        state = delete_topics.DeleteTopicState(topic_id=topic_id)
        [row] = desk.ask(ApiKey.DELETE_TOPICS, delete_topics.DeleteTopicsRequest(topics=[state]), 6).responses
        return row.name, row.error_code

    assert delete(Desk(), HIDDEN_ID) == (None, 29)
    assert delete(Desk((OP.DESCRIBE, R.TOPIC, "hidden")), HIDDEN_ID) == ("hidden", 29)
    desk = Desk((OP.DELETE, R.TOPIC, "views"))
    assert delete(desk, b"9" * 16) == (None, 100)
    assert desk.passed == []
    missing = Desk((OP.DESCRIBE, R.TOPIC, "gone"))
    response = missing.ask(ApiKey.DELETE_TOPICS, delete_topics.DeleteTopicsRequest(topic_names=["gone"]), 5)
    assert [row.error_code for row in response.responses] == [3]


# --- fetches


def readable(desk: Desk, version: int, **message: Any) -> Callable[[str], bool]:
    desk.ask(ApiKey.FETCH, fetch.FetchRequest(**message), version)
    assert desk.permits is not None
    return desk.permits


@pytest.mark.parametrize("version", range(API_TABLE[ApiKey.FETCH].max_version + 1))
def test_a_consumer_reads_the_topics_that_it_may_read_and_a_follower_needs_the_cluster(version: int) -> None:
    permits = readable(Desk(READS), version)
    assert permits("views")
    assert not permits("hidden")
    follower: dict[str, Any] = {"replica_id": 3}
    if version >= 15:
        follower = {"replica_state": fetch.ReplicaState(replica_id=3)}
    assert not readable(Desk(READS), version, **follower)("views")
    assert readable(Desk(*cluster(OP.CLUSTER_ACTION)), version, **follower)("hidden")


# --- groups and transactions


def test_groups_and_transactions_are_listed_as_far_as_they_may_be_described() -> None:
    groups = list_groups.ListGroupsResponse(groups=[list_groups.ListedGroup(group_id=each) for each in "ab"])
    listed = Desk((OP.READ, R.GROUP, "b")).ask(ApiKey.LIST_GROUPS, list_groups.ListGroupsRequest(), 4, groups)
    assert [group.group_id for group in listed.groups] == ["b"]
    states = [list_transactions.TransactionState(transactional_id=each) for each in "ab"]
    response = list_transactions.ListTransactionsResponse(transaction_states=states)
    key, message = ApiKey.LIST_TRANSACTIONS, list_transactions.ListTransactionsRequest()
    shown = Desk((OP.DESCRIBE, R.TRANSACTIONAL_ID, "a")).ask(key, message, 1, response)
    assert [state.transactional_id for state in shown.transaction_states] == ["a"]


def test_groups_are_listed_to_those_who_may_describe_the_cluster() -> None:
    groups = list_groups.ListGroupsResponse(groups=[list_groups.ListedGroup(group_id="a")])
    listed = Desk(*cluster(OP.DESCRIBE)).ask(ApiKey.LIST_GROUPS, list_groups.ListGroupsRequest(), 4, groups)
    assert len(listed.groups) == 1


def test_a_described_transaction_shows_the_topics_that_may_be_described() -> None:
    topics = [describe_transactions.TopicData(topic=each) for each in ("views", "hidden")]
    state = describe_transactions.TransactionState(transactional_id="tx", topics=topics)
    response = describe_transactions.DescribeTransactionsResponse(transaction_states=[state])
    message = describe_transactions.DescribeTransactionsRequest(transactional_ids=["tx"])
    found = Desk(TXN, DESCRIBES).ask(ApiKey.DESCRIBE_TRANSACTIONS, message, 0, response)
    assert [topic.topic for topic in found.transaction_states[0].topics] == ["views"]


@pytest.mark.parametrize("version", [7, 8, 9])
def test_all_offsets_of_a_group_are_those_of_visible_topics(version: int) -> None:
    describes = (OP.DESCRIBE, R.GROUP, "g")
    if version < 8:
        message = offset_fetch.OffsetFetchRequest(group_id="g", topics=None)
        rows: list[Any] = [offset_fetch.OffsetFetchResponseTopic(name=name) for name in ("views", "hidden")]
        found = Desk(describes, DESCRIBES).ask(
            ApiKey.OFFSET_FETCH, message, version, offset_fetch.OffsetFetchResponse(topics=rows)
        )
        assert [topic.name for topic in found.topics] == ["views"]
        return
    message = offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=None)])
    rows = [offset_fetch.OffsetFetchResponseTopics(name=name) for name in ("views", "hidden")]
    response = offset_fetch.OffsetFetchResponse(
        groups=[offset_fetch.OffsetFetchResponseGroup(group_id="g", topics=rows)]
    )
    found = Desk(describes, DESCRIBES).ask(ApiKey.OFFSET_FETCH, message, version, response)
    assert [topic.name for topic in found.groups[0].topics] == ["views"]


def test_offsets_of_several_groups_are_answered_group_by_group() -> None:
    topics = [offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in ("views", "hidden")]
    groups = [offset_fetch.OffsetFetchRequestGroup(group_id=each, topics=topics) for each in ("g", "other")]
    served = offset_fetch.OffsetFetchResponse(
        groups=[
            offset_fetch.OffsetFetchResponseGroup(
                group_id="g",
                topics=[
                    offset_fetch.OffsetFetchResponseTopics(
                        name="views",
                        partitions=[offset_fetch.OffsetFetchResponsePartitions(partition_index=0, committed_offset=5)],
                    )
                ],
            )
        ]
    )
    desk = Desk((OP.DESCRIBE, R.GROUP, "g"), DESCRIBES)
    response = desk.ask(ApiKey.OFFSET_FETCH, offset_fetch.OffsetFetchRequest(groups=groups), 8, served)
    assert [(group.group_id, [topic.name for topic in group.topics]) for group in desk.passed[0].groups] == [
        ("g", ["views"])
    ]
    mine, other = response.groups
    assert [(each.name, each.partitions[0].error_code) for each in mine.topics] == [("views", 0), ("hidden", 29)]
    assert (other.group_id, other.error_code) == ("other", 30)


def test_a_transaction_takes_all_partitions_or_none() -> None:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=each, partitions=[0]) for each in ("views", "hidden")]
    message = add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx", v3_and_below_topics=topics
    )
    desk = Desk(TXN, WRITES)
    response = desk.ask(ApiKey.ADD_PARTITIONS_TO_TXN, message, 3)
    found = {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in response.results_by_topic_v3_and_below
    }
    assert found == {"views": ErrorCode.OPERATION_NOT_ATTEMPTED, "hidden": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert desk.passed == []


@pytest.mark.parametrize("version", range(6))
def test_a_producer_without_transactions_needs_some_topic_to_write_to(version: int) -> None:
    message = init_producer_id.InitProducerIdRequest(transactional_id=None)
    key = ApiKey.INIT_PRODUCER_ID
    assert codes(Desk(READS).ask(key, message, version)) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    for needed in ((OP.WRITE, R.TOPIC, "any~"), (OP.IDEMPOTENT_WRITE, R.CLUSTER, ON_CLUSTER)):
        assert not codes(Desk(needed).ask(key, message, version))


# --- what the sender may do, as bit fields


def test_authorized_operations_are_those_of_the_sender() -> None:
    reads = (1 << OP.READ) | (1 << OP.DESCRIBE)
    topic = metadata.MetadataResponseTopic(name="views")
    message = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name="views")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    response = Desk(READS).ask(ApiKey.METADATA, message, 9, metadata.MetadataResponse(topics=[topic]))
    assert (response.topics[0].topic_authorized_operations, response.cluster_authorized_operations) == (reads, 0)
    message.include_topic_authorized_operations = message.include_cluster_authorized_operations = False
    silent = Desk(READS).ask(
        ApiKey.METADATA, message, 9, metadata.MetadataResponse(topics=[metadata.MetadataResponseTopic(name="views")])
    )
    assert silent.topics[0].topic_authorized_operations == -(2**31)
    groups = describe_groups.DescribeGroupsResponse(groups=[describe_groups.DescribedGroup(group_id="g")])
    asked = describe_groups.DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    described = Desk(GROUP).ask(ApiKey.DESCRIBE_GROUPS, asked, 5, groups)
    assert described.groups[0].authorized_operations == reads
    about = describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True)
    key = ApiKey.DESCRIBE_CLUSTER
    assert Desk().ask(key, about, 1).cluster_authorized_operations == 0
    assert Desk(*cluster(OP.ALTER)).ask(key, about, 1).cluster_authorized_operations == (1 << OP.ALTER) | (
        1 << OP.DESCRIBE
    )


def test_settings_of_a_new_topic_are_shown_to_those_who_may_describe_them() -> None:
    creates = (OP.CREATE, R.TOPIC, "views")
    message = create_topics.CreateTopicsRequest(topics=[create_topics.CreatableTopic(name="views")])

    def created(*needed: Needed) -> create_topics.CreatableTopicResult:
        row = create_topics.CreatableTopicResult(
            name="views",
            num_partitions=3,
            replication_factor=1,
            configs=[create_topics.CreatableTopicConfigs(name="a")],
        )
        response = Desk(*needed).ask(ApiKey.CREATE_TOPICS, message, 5, create_topics.CreateTopicsResponse(topics=[row]))
        found: create_topics.CreatableTopicResult = response.topics[0]
        return found

    hidden = created(creates)
    assert (hidden.num_partitions, hidden.configs, hidden.topic_config_error_code) == (-1, [], 29)
    shown = created(creates, (OP.DESCRIBE_CONFIGS, R.TOPIC, "views"))
    assert (shown.num_partitions, shown.topic_config_error_code) == (3, 0)


def test_an_api_without_a_rule_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, ApiKey.LIST_GROUPS)
    desk = Desk(settings={"super.users": "User:alice"})
    with pytest.raises(CloseConnection):
        desk.ask(ApiKey.LIST_GROUPS, list_groups.ListGroupsRequest(), 0)
