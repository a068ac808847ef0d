"""A transactional producer and a broker with scripted answers: what each error leads to, and what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.scripted import run
from tests.client.transaction_script import CUT, PRODUCER_ID, SILENCE, TOPIC, Said, TransactionScript, batches_of

from penstock import AsyncProducer, GroupMetadata, OffsetAndMetadata, errors
from penstock.client.errors import PenstockError
from penstock.client.producer.transaction_state import State
from penstock.wire.protocol import ApiKey, ErrorCode

GROUP = GroupMetadata("readers", 3, "member", "instance")
VERSIONS = pytest.mark.parametrize("version", [1, 2])


def producer_for(script: TransactionScript, **options: Any) -> AsyncProducer[Any, Any]:
    quick = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 1, **options}
    return AsyncProducer(script.address, transactional_id="tx", **quick)


def state_of(producer: AsyncProducer[Any, Any]) -> State:
    return producer._core.transactional().state.state


# --- what is sent


def test_version_2_needs_no_requests_but_produce_and_end() -> None:
    async def story() -> None:
        async with TransactionScript() as script, producer_for(script) as producer:
            for _ in range(2):
                async with producer.transaction():
                    await producer.send(TOPIC, b"x", partition=0)
                    await producer.send(TOPIC, b"y", partition=0)
                    await producer.send_offsets_to_transaction({(TOPIC, 1): 5}, GROUP)
        produced = script.of(ApiKey.PRODUCE)
        assert script.names() == [
            "INIT_PRODUCER_ID",
            *(["PRODUCE", "PRODUCE", "TXN_OFFSET_COMMIT", "END_TXN"] * 2),
        ]
        assert [version for key, version, _ in script.asked if key is ApiKey.PRODUCE] == [12] * 4
        assert {request.transactional_id for request in produced} == {"tx"}
        # Each transaction has an epoch of its own, with sequence numbers from 0 on.
        assert [batches_of(request) for request in produced] == [
            [(0, PRODUCER_ID, 0, 0, True)],
            [(0, PRODUCER_ID, 0, 1, True)],
            [(0, PRODUCER_ID, 1, 0, True)],
            [(0, PRODUCER_ID, 1, 1, True)],
        ]
        assert [(end.producer_epoch, end.committed) for end in script.of(ApiKey.END_TXN)] == [(0, True), (1, True)]

    run(story())


def test_version_1_adds_partitions_and_groups_first() -> None:
    async def story() -> None:
        async with TransactionScript(version=1) as script, producer_for(script) as producer:
            for _ in range(2):
                async with producer.transaction():
                    await producer.send(TOPIC, b"x", partition=0)
                    await producer.send(TOPIC, b"y", partition=0)
                    for _ in range(2):
                        await producer.send_offsets_to_transaction({(TOPIC, 1): 5}, GROUP)
        once = "ADD_PARTITIONS_TO_TXN PRODUCE PRODUCE ADD_OFFSETS_TO_TXN TXN_OFFSET_COMMIT TXN_OFFSET_COMMIT END_TXN"
        assert script.names() == ["INIT_PRODUCER_ID", *once.split(), *once.split()]
        versions = {key: version for key, version, _ in script.asked}
        assert versions[ApiKey.PRODUCE] == 11
        assert versions[ApiKey.END_TXN] == 4
        assert versions[ApiKey.TXN_OFFSET_COMMIT] == 4
        # The epoch stays, and sequence numbers continue across transactions.
        assert [batches_of(request)[0][2:4] for request in script.of(ApiKey.PRODUCE)] == [
            (0, 0),
            (0, 1),
            (0, 2),
            (0, 3),
        ]

    run(story())


def test_offsets_are_sent_with_the_member_that_read_them() -> None:
    async def story() -> None:
        async with TransactionScript() as script, producer_for(script) as producer, producer.transaction():
            stored: dict[tuple[str, int], int | OffsetAndMetadata]
            stored = {(TOPIC, 0): OffsetAndMetadata(5, 2, "note"), (TOPIC, 1): 6}
            await producer.send_offsets_to_transaction(stored, GROUP)
            await producer.send_offsets_to_transaction({}, GROUP)
            await producer.send_offsets_to_transaction({(TOPIC, 0): 7}, "by id alone")
        first, second = script.of(ApiKey.TXN_OFFSET_COMMIT)
        assert (first.group_id, first.generation_id, first.member_id, first.group_instance_id) == GROUP
        assert (second.group_id, second.generation_id, second.member_id) == ("by id alone", -1, "")
        (topic,) = first.topics
        assert [
            (each.partition_index, each.committed_offset, each.committed_leader_epoch, each.committed_metadata)
            for each in topic.partitions
        ] == [(0, 5, 2, "note"), (1, 6, -1, "")]

    run(story())


@VERSIONS
def test_nothing_is_ended_that_the_coordinator_has_never_heard_of(version: int) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script, producer_for(script) as producer:
            async with producer.transaction():
                pass
            await producer.begin_transaction()
            await producer.abort_transaction()
        assert script.names() == ["INIT_PRODUCER_ID"]

    run(story())


def test_an_explicit_initialization_is_sent_once() -> None:
    async def story() -> None:
        async with TransactionScript() as script, producer_for(script, transaction_timeout_ms=1234) as producer:
            await producer.init_transactions()
            await producer.init_transactions()
            await producer.begin_transaction()
        assert script.names() == ["INIT_PRODUCER_ID"]
        (request,) = script.of(ApiKey.INIT_PRODUCER_ID)
        assert (request.transactional_id, request.transaction_timeout_ms) == ("tx", 1234)

    run(story())


def test_two_phase_commit_is_asked_for_where_brokers_have_it() -> None:
    async def story() -> None:
        async with TransactionScript(INIT_PRODUCER_ID=(0, 6)) as script:
            async with producer_for(script, transaction_two_phase_commit=True) as producer:
                await producer.begin_transaction()
            assert script.of(ApiKey.INIT_PRODUCER_ID)[0].enable2_pc
            script.say(ApiKey.INIT_PRODUCER_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            async with producer_for(script, transaction_two_phase_commit=True) as producer:
                with pytest.raises(errors.AuthorizationError, match=r"transaction\.two\.phase\.commit\.enable"):
                    await producer.begin_transaction()
        async with TransactionScript() as script, producer_for(script, transaction_two_phase_commit=True) as producer:
            with pytest.raises(errors.UnsupportedVersion, match="transaction_two_phase_commit"):
                await producer.begin_transaction()
            assert state_of(producer) is State.UNINITIALIZED

    run(story())


# --- what errors lead to


async def _initialize(producer: AsyncProducer[Any, Any]) -> None:
    await producer.init_transactions()


async def _send(producer: AsyncProducer[Any, Any]) -> None:
    await producer.begin_transaction()
    await producer.send(TOPIC, b"x", partition=0)


async def _send_offsets(producer: AsyncProducer[Any, Any]) -> None:
    await producer.begin_transaction()
    await producer.send_offsets_to_transaction({(TOPIC, 0): 5}, GROUP)


async def _commit(producer: AsyncProducer[Any, Any]) -> None:
    await _send(producer)
    await producer.commit_transaction()


async def _abort(producer: AsyncProducer[Any, Any]) -> None:
    await _send(producer)
    await producer.abort_transaction()


CALLS: dict[ApiKey, Callable[[AsyncProducer[Any, Any]], Any]] = {
    ApiKey.INIT_PRODUCER_ID: _initialize,
    ApiKey.PRODUCE: _send,
    ApiKey.ADD_PARTITIONS_TO_TXN: _send,
    ApiKey.ADD_OFFSETS_TO_TXN: _send_offsets,
    ApiKey.TXN_OFFSET_COMMIT: _send_offsets,
    ApiKey.END_TXN: _commit,
}
COORDINATED = [ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN]
ONLY_IN_1 = {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN}


@pytest.mark.parametrize("api_key", [*COORDINATED, ApiKey.TXN_OFFSET_COMMIT])
@pytest.mark.parametrize(
    "said",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        CUT,
    ],
)
def test_what_passes_is_retried(api_key: ApiKey, said: Said) -> None:
    async def story() -> None:
        async with (
            TransactionScript(1 if api_key in ONLY_IN_1 else 2) as script,
            producer_for(script) as producer,
        ):
            script.say(api_key, said, said)
            await CALLS[api_key](producer)
            assert len(script.of(api_key)) == 3

    run(story())


@pytest.mark.parametrize(
    "code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER]
)
@VERSIONS
def test_a_batch_is_retried_within_its_transaction(version: int, code: ErrorCode) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script, producer_for(script) as producer:
            script.say(ApiKey.PRODUCE, code, CUT, code)
            await _commit(producer)
            produced = script.of(ApiKey.PRODUCE)
            assert len({tuple(batches_of(request)) for request in produced}) == 1
            assert len(produced) == 4

    run(story())


ABORTABLE = [
    (ApiKey.PRODUCE, ErrorCode.TRANSACTION_ABORTABLE),
    (ApiKey.PRODUCE, ErrorCode.INVALID_TXN_STATE),
    (ApiKey.PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ApiKey.PRODUCE, ErrorCode.UNKNOWN_PRODUCER_ID),
    (ApiKey.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (ApiKey.PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.TRANSACTION_ABORTABLE),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNKNOWN_MEMBER_ID),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.FENCED_INSTANCE_ID),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    (ApiKey.END_TXN, ErrorCode.TRANSACTION_ABORTABLE),
    (ApiKey.END_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
]


@VERSIONS
@pytest.mark.parametrize(("api_key", "code"), ABORTABLE)
def test_an_error_of_the_transaction_can_be_aborted(version: int, api_key: ApiKey, code: ErrorCode) -> None:
    if version == 2 and api_key in ONLY_IN_1:
        return

    async def story() -> None:
        async with TransactionScript(version) as script, producer_for(script) as producer:
            script.say(api_key, code)
            with pytest.raises(PenstockError):
                await CALLS[api_key](producer)
            assert state_of(producer) is State.ABORTABLE_ERROR
            for call in (producer.commit_transaction(), producer.send(TOPIC, b"x"), producer.begin_transaction()):
                with pytest.raises(errors.AbortableTransactionError) as raised:
                    await call
                assert raised.value.advice is errors.Advice.ABORT
                assert isinstance(raised.value.__cause__, PenstockError)
                assert raised.value.__cause__.code is code
            await producer.abort_transaction()
            assert state_of(producer) is State.READY
            await _commit(producer)

    run(story())


FATAL = [
    *((key, code) for key in COORDINATED[1:] for code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)),
    (ApiKey.PRODUCE, ErrorCode.PRODUCER_FENCED),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.PRODUCER_FENCED),
    (ApiKey.END_TXN, ErrorCode.INVALID_TXN_STATE),
    (ApiKey.END_TXN, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.INVALID_TXN_STATE),
    (ApiKey.PRODUCE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
]


@pytest.mark.parametrize(("api_key", "code"), FATAL)
def test_an_error_of_the_producer_stops_it(api_key: ApiKey, code: ErrorCode) -> None:
    async def story() -> None:
        async with TransactionScript(1 if api_key in ONLY_IN_1 else 2) as script, producer_for(script) as producer:
            script.say(api_key, code)
            with pytest.raises(PenstockError):
                await CALLS[api_key](producer)
            assert state_of(producer) is State.FATAL_ERROR
            ended = len(script.of(ApiKey.END_TXN))
            is_fenced = code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
            for call in (producer.abort_transaction, producer.begin_transaction, producer.commit_transaction):
                with pytest.raises(errors.ProducerFenced if is_fenced else errors.FatalTransactionError) as raised:
                    await call()
                assert raised.value.advice is errors.Advice.STOP  # type: ignore[attr-defined]
                assert "transactional_id" in raised.value.hint
        # Closing a stopped producer sends nothing.
        assert len(script.of(ApiKey.END_TXN)) == ended

    run(story())


def test_a_failed_initialization_can_be_repeated() -> None:
    async def story() -> None:
        async with TransactionScript() as script, producer_for(script) as producer:
            script.say(
                ApiKey.INIT_PRODUCER_ID,
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            )
            for _ in range(2):
                with pytest.raises(errors.BrokerError):
                    await producer.begin_transaction()
                assert state_of(producer) is State.UNINITIALIZED
            await producer.begin_transaction()

    run(story())


# --- epochs and sequences


def test_in_version_1_a_lost_batch_is_followed_by_a_new_epoch() -> None:
    async def story() -> None:
        async with TransactionScript(version=1) as script, producer_for(script) as producer:
            await _commit(producer)
            script.say(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
            with pytest.raises(errors.RecordTooLarge):
                await _send(producer)
            await producer.abort_transaction()
            await _commit(producer)
        requests = script.of(ApiKey.INIT_PRODUCER_ID)
        assert [(each.producer_id, each.producer_epoch) for each in requests] == [(-1, -1), (PRODUCER_ID, 0)]
        assert [batches_of(each)[0][2:4] for each in script.of(ApiKey.PRODUCE)] == [(0, 0), (0, 1), (1, 0)]

    run(story())


def test_in_version_1_an_abort_of_stored_records_keeps_the_epoch() -> None:
    async def story() -> None:
        async with TransactionScript(version=1) as script, producer_for(script) as producer:
            await _abort(producer)
            await _commit(producer)
        assert len(script.of(ApiKey.INIT_PRODUCER_ID)) == 1
        assert [batches_of(each)[0][2:4] for each in script.of(ApiKey.PRODUCE)] == [(0, 0), (0, 1)]

    run(story())


def test_a_broker_that_cannot_give_a_new_epoch_stops_the_producer() -> None:
    async def story() -> None:
        script = TransactionScript(version=1, INIT_PRODUCER_ID=(0, 2))
        async with script, producer_for(script) as producer:
            script.say(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
            with pytest.raises(errors.RecordTooLarge):
                await _send(producer)
            with pytest.raises(errors.FatalTransactionError):
                await producer.abort_transaction()
            assert state_of(producer) is State.FATAL_ERROR

    run(story())


@VERSIONS
def test_a_forgotten_producer_id_is_replaced_without_ending_the_transaction(version: int) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script, producer_for(script) as producer:
            await _send(producer)
            script.say(ApiKey.END_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            with pytest.raises(errors.AbortableTransactionError):
                await producer.commit_transaction()
            await producer.abort_transaction()
            assert [each.committed for each in script.of(ApiKey.END_TXN)] == [True]
            assert script.of(ApiKey.INIT_PRODUCER_ID)[-1].producer_id == PRODUCER_ID

    run(story())


@VERSIONS
def test_the_other_batches_of_a_failed_transaction_are_not_sent(version: int) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script, producer_for(script, linger_ms=60_000) as producer:
            script.say(ApiKey.PRODUCE, ErrorCode.TRANSACTION_ABORTABLE)
            await producer.begin_transaction()
            first = await producer.enqueue(TOPIC, b"x", partition=0)
            producer._core.hurry()
            waiting = await producer.enqueue(TOPIC, b"y", partition=1)
            with pytest.raises(PenstockError):
                await first
            with pytest.raises(errors.TransactionAborted):
                await waiting
            assert state_of(producer) is State.ABORTABLE_ERROR
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.enqueue(TOPIC, b"z", partition=1)
        assert [len(batches_of(request)) for request in script.of(ApiKey.PRODUCE)] == [1, 1]

    run(story())


# --- commits without an answer


@VERSIONS
def test_a_commit_whose_answer_is_lost_is_repeated(version: int) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script, producer_for(script) as producer:
            script.say(ApiKey.END_TXN, CUT, CUT)
            await _commit(producer)
            ends = script.of(ApiKey.END_TXN)
            assert [(end.producer_epoch, end.committed) for end in ends] == [(0, True)] * 3
            await _commit(producer)

    run(story())


@VERSIONS
def test_a_commit_without_an_answer_is_never_followed_by_an_abort(version: int) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script, producer_for(script) as producer:
            await _send(producer)
            script.say(ApiKey.END_TXN, SILENCE, SILENCE)
            for _ in range(2):
                with pytest.raises(errors.TransactionOutcomeUnknown, match="commit_transaction") as raised:
                    await producer.commit_transaction(timeout=0.5)
                assert raised.value.advice is errors.Advice.RETRY
                assert state_of(producer) is State.UNKNOWN_OUTCOME
                with pytest.raises(errors.TransactionOutcomeUnknown):
                    await producer.abort_transaction()
        assert all(end.committed for end in script.of(ApiKey.END_TXN))

    run(story())


@VERSIONS
def test_a_commit_that_was_cancelled_has_an_unknown_outcome(version: int) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script, producer_for(script) as producer:
            await _send(producer)
            script.say(ApiKey.END_TXN, SILENCE)
            task = asyncio.ensure_future(producer.commit_transaction())
            while not script.of(ApiKey.END_TXN):
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert state_of(producer) is State.UNKNOWN_OUTCOME
            producer._core.cluster._pool.keep_only({})  # the silent connection
            await producer.commit_transaction()
            assert state_of(producer) is State.READY

    run(story())


@VERSIONS
def test_a_block_whose_commit_has_an_unknown_outcome_does_not_abort(version: int) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script, producer_for(script, max_block_ms=200) as producer:
            script.say(ApiKey.END_TXN, SILENCE)
            with pytest.raises(errors.TransactionOutcomeUnknown):
                async with producer.transaction():
                    await producer.send(TOPIC, b"x", partition=0)
            assert [end.committed for end in script.of(ApiKey.END_TXN)] == [True]

    run(story())


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_commit_answered_by_a_coordinator_that_loses_its_role_has_an_unknown_outcome(code: ErrorCode) -> None:
    """Its record may be in the log, and committed by the next coordinator."""

    async def story() -> None:
        async with TransactionScript() as script, producer_for(script) as producer:
            await _send(producer)
            script.say(ApiKey.END_TXN, code, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 10_000)
            with pytest.raises(errors.TransactionOutcomeUnknown):
                await producer.commit_transaction(timeout=1.0)
            assert state_of(producer) is State.UNKNOWN_OUTCOME

    run(story())


def test_a_commit_that_could_not_be_sent_may_be_aborted() -> None:
    async def story() -> None:
        # The time is over during the wait after the first attempt, not while an attempt is on its way.
        patient = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
        async with TransactionScript() as script, producer_for(script, **patient) as producer:
            await _send(producer)
            script.say(ApiKey.END_TXN, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            with pytest.raises(errors.TimedOut, match="COORDINATOR_LOAD_IN_PROGRESS"):
                await producer.commit_transaction(timeout=1.0)
            assert state_of(producer) is State.PREPARED
            await producer.abort_transaction()
            assert script.of(ApiKey.END_TXN)[-1].committed is False

    run(story())


@pytest.mark.parametrize(
    "code",
    [ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_PRODUCER_ID_MAPPING],
)
def test_a_producer_that_is_rejected_after_an_unanswered_commit_stops_and_says_that_its_outcome_is_unknown(
    code: ErrorCode,
) -> None:
    async def story() -> None:
        async with TransactionScript() as script, producer_for(script) as producer:
            script.say(ApiKey.END_TXN, CUT, code)
            with pytest.raises(PenstockError, match="committed is not known"):
                await _commit(producer)
            assert state_of(producer) is State.FATAL_ERROR

    run(story())


def test_an_abort_without_an_answer_can_be_repeated() -> None:
    async def story() -> None:
        async with TransactionScript() as script, producer_for(script) as producer:
            await _send(producer)
            script.say(ApiKey.END_TXN, SILENCE)
            with pytest.raises(errors.TimedOut):
                await producer.abort_transaction(timeout=0.5)
            assert state_of(producer) is State.ABORTABLE_ERROR
            producer._core.cluster._pool.keep_only({})
            await producer.abort_transaction()
            assert [end.committed for end in script.of(ApiKey.END_TXN)] == [False, False]
            await _commit(producer)

    run(story())


# --- the end


@VERSIONS
def test_closing_aborts_an_open_transaction_and_leaves_a_prepared_one(version: int) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script:
            async with producer_for(script) as producer:
                await _send(producer)
            assert [end.committed for end in script.of(ApiKey.END_TXN)] == [False]
            async with producer_for(script) as producer:
                await _send(producer)
                prepared = await producer.prepare_transaction()
            assert len(script.of(ApiKey.END_TXN)) == 1
            assert (prepared.transactional_id, prepared.producer_id, prepared.version) == ("tx", PRODUCER_ID, version)
            assert prepared.epoch == script.epoch

    run(story())


@pytest.mark.parametrize(
    ("offsets", "group"),
    [
        ([(TOPIC, 0)], GROUP),
        ({TOPIC: 5}, GROUP),
        ({(TOPIC, 0): -1}, GROUP),
        ({(TOPIC, 0): "5"}, GROUP),
        ({(TOPIC, 0): True}, GROUP),
        ({(TOPIC, 0): 5}, ""),
        ({(TOPIC, 0): 5}, None),
    ],
)
def test_offsets_and_groups_that_are_none_are_rejected_and_change_nothing(offsets: Any, group: Any) -> None:
    async def story() -> None:
        async with TransactionScript() as script, producer_for(script) as producer:
            await producer.begin_transaction()
            with pytest.raises(errors.ConfigError):
                await producer.send_offsets_to_transaction(offsets, group)
            assert state_of(producer) is State.IN_TRANSACTION

    run(story())
