"""Admin calls about transactions where brokers disagree, move, are old or change in between; the rest is a contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.cli.scripted_transactions import STATE_TOPIC, Known, ScriptedTransactions, writer
from tests.timeouts import PATIENCE_MS

from penstock.client.admin import Admin, OpenTransaction
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import (
    AuthorizationError,
    ConfigError,
    CoordinatorError,
    NoOpenTransaction,
    NotLeader,
    PenstockError,
    TransactionOngoing,
    UnknownTopic,
    UnsupportedVersion,
)
from penstock.wire.protocol import ApiKey, ErrorCode

VIEWS = [TopicPartition("views", index) for index in range(3)]
NEW_APIS = {ApiKey.DESCRIBE_PRODUCERS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS}


@contextmanager
def administered(cluster: ScriptedTransactions, **options: Any) -> Iterator[Admin]:
    with cluster, Admin(cluster.address, retry_backoff_ms=1, **options) as admin:
        yield admin


def opened(admin: Admin, partition: TopicPartition = VIEWS[0], **options: Any) -> tuple[OpenTransaction, ...]:
    found = admin.open_transactions([partition], **options)[partition]
    assert not isinstance(found, PenstockError), found
    return found


# --- coordinators


def test_every_broker_is_asked_for_its_transactional_ids() -> None:
    ids = {name: Known(number, coordinator=number) for number, name in enumerate(["c", "b", "a"])}
    with administered(ScriptedTransactions(ids)) as admin:
        found = admin.list_transactions()
    assert [(each.transactional_id, each.producer_id, each.coordinator.id) for each in found] == [
        ("a", 2, 2), ("b", 1, 1), ("c", 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("newest", "filters", "api"),
    [(0, {"duration_ms": 1}, "by duration"), (1, {"transactional_id_pattern": "a"}, "by pattern")],
)
def test_a_filter_that_a_broker_does_not_know_is_not_ignored(newest: int, filters: dict[str, Any], api: str) -> None:
    cluster = ScriptedTransactions({"a": Known(1)})
    cluster.newest[ApiKey.LIST_TRANSACTIONS] = newest
    with administered(cluster) as admin:
        assert len(admin.list_transactions(states=["Ongoing"], producer_ids=[1])) == 1
        with pytest.raises(UnsupportedVersion, match=api):
            admin.list_transactions(**filters)


def test_a_duration_finds_open_transactions_only() -> None:
    """Brokers count from the begin of the last transaction, whether it is over or not."""
    states = ("Empty", "Ongoing", "PrepareAbort", "CompleteCommit", "Dead")
    with administered(ScriptedTransactions({state: Known(1, state) for state in states})) as admin:
        found = admin.list_transactions(duration_ms=0)
    assert [each.state for each in found] == ["Ongoing", "PrepareAbort"]


def test_a_coordinator_that_has_moved_is_found_again() -> None:
    cluster = ScriptedTransactions({"a": Known(7, coordinator=0)})
    with administered(cluster) as admin:
        assert admin.describe_transaction("a").producer_id == 7
        cluster.ids["a"].coordinator = 2
        described = admin.describe_transaction("a")
    assert described.coordinator is not None
    assert described.coordinator.id == 2
    assert [broker for broker, _ in cluster.questions(ApiKey.DESCRIBE_TRANSACTIONS)] == [0, 0, 2]


def test_fencing_waits_until_the_open_transaction_is_over() -> None:
    known = Known(7, epoch=3, errors=[ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS])
    cluster = ScriptedTransactions({"a": known})
    with administered(cluster) as admin:
        found = admin.fence_producers(["a"], timeout_ms=PATIENCE_MS)["a"]
    assert not isinstance(found, PenstockError)
    assert (found.producer_id, found.producer_epoch) == (7, 4)
    requests = [message for _, message in cluster.questions(ApiKey.INIT_PRODUCER_ID)]
    assert len(requests) == 3
    # Longer than transaction.max.timeout.ms would be rejected, however long the caller waits.
    assert {(each.transactional_id, each.producer_id, each.producer_epoch) for each in requests} == {("a", -1, -1)}
    assert all(0 < each.transaction_timeout_ms <= 60_000 for each in requests)


def test_of_several_ids_each_has_its_own_result() -> None:
    denied: list[int] = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    with administered(ScriptedTransactions({"a": Known(1, errors=denied), "b": Known(2)})) as admin:
        found = admin.fence_producers(["a", "b", "b"])
        with pytest.raises(ConfigError, match="empty"):
            admin.describe_transactions(["b", ""])
    assert isinstance(found["a"], AuthorizationError)
    assert not isinstance(found["b"], PenstockError)


# --- which transactions hang


@pytest.mark.parametrize(
    ("known", "is_hanging"),
    [
        (None, True),
        (Known(5, "Ongoing", partitions=[("views", 0), ("views", 1)]), False),
        (Known(5, "Ongoing", partitions=[("views", 1)]), True),
        (Known(5, "PrepareCommit", partitions=[("views", 0)]), False),
        (Known(5, "PrepareAbort", partitions=[("views", 0)]), False),
        (Known(5, "PrepareEpochFence", partitions=[("views", 0)]), False),
        (Known(5, "CompleteCommit"), True),
        (Known(5, "Empty"), True),
        (Known(6, "Ongoing", partitions=[("views", 0)]), True),
    ],
)
def test_a_transaction_hangs_if_its_coordinator_will_not_complete_it(known: Known | None, is_hanging: bool) -> None:
    cluster = ScriptedTransactions({} if known is None else {"a": known}, {("views", 0): [writer(5, 40), writer(8)]})
    with administered(cluster) as admin:
        (found,) = opened(admin)
    assert (found.is_hanging, found.start_offset, found.producer.producer_id) == (is_hanging, 40, 5)
    assert found.transactional_id == ("a" if known is not None and known.producer_id == 5 else None)
    assert (found.start_time_ms is None) is is_hanging


@pytest.mark.parametrize("moment", [ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS])
def test_a_transaction_that_is_completed_while_one_looks_does_not_hang(moment: ApiKey) -> None:
    cluster = ScriptedTransactions({"a": Known(5, partitions=[("views", 0)])}, {("views", 0): [writer(5, 40)]})

    def complete(key: ApiKey) -> None:
        if key is moment:
            cluster.ids["a"].state, cluster.ids["a"].partitions = "CompleteCommit", []
            cluster.producers["views", 0] = [writer(5)]

    cluster.before = complete
    with administered(cluster) as admin:
        assert opened(admin) == ()


def test_the_next_transaction_of_a_producer_is_not_confused_with_one_that_hung_before() -> None:
    """Between two looks the transaction was completed and the next one had begun, before it was known."""
    cluster = ScriptedTransactions({"a": Known(5, "CompleteCommit")}, {("views", 0): [writer(5, 40)]})

    def go_on(key: ApiKey) -> None:
        if key is ApiKey.DESCRIBE_PRODUCERS and len(cluster.questions(key)) == 2:
            cluster.producers["views", 0] = [writer(5, 60)]

    cluster.before = go_on
    with administered(cluster) as admin:
        assert opened(admin) == ()


def test_a_transactional_id_that_got_another_producer_id_does_not_complete_the_old_transaction() -> None:
    cluster = ScriptedTransactions({"a": Known(5, partitions=[("views", 0)])}, {("views", 0): [writer(5, 40)]})

    def rotate(key: ApiKey) -> None:
        if key is ApiKey.DESCRIBE_TRANSACTIONS:
            cluster.ids["a"].producer_id = 6

    cluster.before = rotate
    with administered(cluster) as admin:
        assert [each.is_hanging for each in opened(admin)] == [True]


def test_only_transactions_without_recent_records_are_looked_at() -> None:
    cluster = ScriptedTransactions({}, {("views", 0): [writer(5, 40, last_ms=2**50)]})
    with administered(cluster) as admin:
        assert opened(admin, idle_ms=60_000) == ()
        assert not cluster.questions(ApiKey.LIST_TRANSACTIONS)


@pytest.mark.long
def test_nothing_hangs_while_the_coordinator_of_some_ids_is_absent() -> None:
    cluster = ScriptedTransactions({}, {("views", 0): [writer(5, 40)]})
    cluster.topics[STATE_TOPIC][0].leader = -1
    with administered(cluster, request_timeout_ms=5_000) as admin:
        with pytest.raises(CoordinatorError, match=f"{STATE_TOPIC}-0: without a leader"):
            admin.open_transactions(VIEWS)
        with pytest.raises(CoordinatorError):
            admin.abort_transaction("views", 0, start_offset=40)
    assert cluster.markers == []


def test_nothing_hangs_because_the_coordinator_cannot_be_asked() -> None:
    denied: list[int] = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    producers = {("views", 0): [writer(5, 40)], ("views", 1): [writer(6, 41)]}
    with administered(ScriptedTransactions({"a": Known(5, errors=denied)}, producers)) as admin:
        found = admin.open_transactions(VIEWS)
    assert isinstance(found[VIEWS[0]], AuthorizationError)
    assert [each.is_hanging for each in _items(found[VIEWS[1]])] == [True]
    assert found[VIEWS[2]] == ()


def _items(found: tuple[OpenTransaction, ...] | PenstockError) -> tuple[OpenTransaction, ...]:
    assert not isinstance(found, PenstockError)
    return found


# --- partitions


def test_leaders_are_asked_or_one_replica() -> None:
    cluster = ScriptedTransactions({}, {("views", index): [writer(index)] for index in range(3)})
    cluster.topics["views"][2].isr = [2, 0]
    with administered(cluster) as admin:
        by_leader = admin.describe_producers(VIEWS)
        assert sorted(broker for broker, _ in cluster.questions(ApiKey.DESCRIBE_PRODUCERS)) == [0, 1, 2]
        by_replica = admin.describe_producers(VIEWS, broker_id=1)
        unknown = admin.describe_producers([("views", 0), ("views", 9)])
    assert [_producer_ids(by_leader[key]) for key in VIEWS] == [[0], [1], [2]]
    assert [_producer_ids(by_replica[key]) for key in VIEWS[:2]] == [[0], [1]]
    assert isinstance(by_replica[VIEWS[2]], NotLeader)
    assert isinstance(unknown[TopicPartition("views", 9)], UnknownTopic)


def _producer_ids(found: Any) -> list[int]:
    assert not isinstance(found, PenstockError)
    return [each.producer_id for each in found]


def test_many_partitions_and_producers_are_asked_for_in_parts() -> None:
    count = 1_600
    producers = {("views", index): [writer(index, index)] for index in range(count)}
    cluster = ScriptedTransactions({}, producers, partitions=count)
    with administered(cluster) as admin:
        found = admin.open_transactions([("views", index) for index in range(count)])
    assert all(item.is_hanging for each in found.values() for item in _items(each))
    requests = [message for _, message in cluster.questions(ApiKey.DESCRIBE_PRODUCERS)]
    assert max(len(topic.partition_indexes) for each in requests for topic in each.topics) == 500
    filters = [message.producer_id_filters for _, message in cluster.questions(ApiKey.LIST_TRANSACTIONS)]
    assert max(map(len, filters)) == 500
    assert {each for part in filters for each in part} == set(range(count))


# --- abort


@pytest.mark.parametrize(("known_epoch", "written"), [(-1, 0), (12, 12)])
def test_the_marker_has_the_epochs_that_the_partition_knows(known_epoch: int, written: int) -> None:
    producers = {("views", 1): [writer(5, 40, epoch=3, coordinator_epoch=known_epoch), writer(6, 41)]}
    cluster = ScriptedTransactions({}, producers)
    with administered(cluster) as admin:
        admin.abort_transaction("views", 1, start_offset=40)
        assert [each.start_offset for each in opened(admin, VIEWS[1])] == [41]
    (marker,) = cluster.markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (5, 3, written)
    assert marker.transaction_result is False
    ((broker, _),) = cluster.questions(ApiKey.WRITE_TXN_MARKERS)
    assert broker == 1


def test_the_marker_goes_to_the_leader_of_the_moment() -> None:
    cluster = ScriptedTransactions({}, {("views", 0): [writer(5, 40)]})

    def move(key: ApiKey) -> None:
        if key is ApiKey.WRITE_TXN_MARKERS:
            cluster.topics["views"][0].leader = 2

    cluster.before = move
    with administered(cluster) as admin:
        admin.abort_transaction("views", 0, start_offset=40)
    assert len(cluster.markers) == 1
    assert [broker for broker, _ in cluster.questions(ApiKey.WRITE_TXN_MARKERS)][-1] == 2


def test_a_rejected_marker_is_an_error() -> None:
    cluster = ScriptedTransactions({}, {("views", 0): [writer(5, 40)]})
    cluster.marker_errors = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    with administered(cluster) as admin, pytest.raises(PenstockError, match="TRANSACTION_COORDINATOR_FENCED"):
        admin.abort_transaction("views", 0, start_offset=40, coordinator_epoch=1)
    ((_, request),) = cluster.questions(ApiKey.WRITE_TXN_MARKERS)
    assert request.markers[0].coordinator_epoch == 1


def test_a_transaction_that_its_coordinator_completes_is_left_alone() -> None:
    cluster = ScriptedTransactions({"a": Known(5, partitions=[("views", 0)])}, {("views", 0): [writer(5, 40, epoch=2)]})
    with administered(cluster) as admin:
        for which in ({"start_offset": 40}, {"producer_id": 5, "producer_epoch": 2, "coordinator_epoch": 0}):
            with pytest.raises(TransactionOngoing) as raised:
                admin.abort_transaction("views", 0, **which)
            assert (raised.value.transactional_id, raised.value.state) == ("a", "Ongoing")
        with pytest.raises(NoOpenTransaction, match="of producer 5 with epoch 1"):
            admin.abort_transaction("views", 0, producer_id=5, producer_epoch=1)
    assert cluster.markers == []


@pytest.mark.parametrize("absent", [NEW_APIS, {ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS}])
def test_old_brokers_need_all_epochs_and_check_nothing(absent: set[ApiKey]) -> None:
    cluster = ScriptedTransactions({}, {("views", 0): [writer(5, 40)]})
    cluster.absent = absent
    with administered(cluster) as admin:
        for which in ({"start_offset": 40}, {"producer_id": 5, "producer_epoch": 0}):
            with pytest.raises(UnsupportedVersion):
                admin.abort_transaction("views", 0, **which)
        assert cluster.markers == []
        admin.abort_transaction("views", 0, producer_id=5, producer_epoch=0, coordinator_epoch=9)
    (marker,) = cluster.markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (5, 0, 9)


@pytest.mark.parametrize(
    ("which", "problem"),
    [
        ({}, "no transaction is named"),
        ({"coordinator_epoch": 1}, "no transaction is named"),
        ({"producer_id": 5}, "producer_epoch is missing"),
        ({"producer_epoch": 5}, "producer_id is missing"),
        ({"start_offset": 1, "producer_id": 5}, "named twice"),
        ({"start_offset": 1, "producer_id": 5, "producer_epoch": 0}, "named twice"),
    ],
)
def test_a_transaction_must_be_named_in_one_way(which: dict[str, int], problem: str) -> None:
    cluster = ScriptedTransactions()
    with administered(cluster) as admin:
        with pytest.raises(ConfigError, match=problem):
            admin.abort_transaction("views", 0, **which)
        assert not cluster.questions(ApiKey.DESCRIBE_PRODUCERS)
