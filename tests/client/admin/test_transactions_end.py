"""The second phase: what a coordinator can still say about a transaction that has ended before."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.scripted import run
from tests.client.transaction_script import CUT, PRODUCER_ID, SILENCE, TransactionScript

from penstock import AsyncAdmin, errors
from penstock.client.transactions import PreparedTransaction
from penstock.wire.protocol import ApiKey, ErrorCode

EPOCH = 5
FENCED = ErrorCode.PRODUCER_FENCED
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


def prepared(version: int = 2, **changes: Any) -> PreparedTransaction:
    return PreparedTransaction("tx", PRODUCER_ID, EPOCH, version, **changes)


async def end(script: TransactionScript, commit: bool, version: int = 2, **options: Any) -> None:
    async with AsyncAdmin(script.address, retry_backoff_ms=1) as admin:
        await admin.end_transaction(prepared(version), commit, **options)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_the_end_is_sent_in_the_version_of_the_transaction(version: int, commit: bool) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script:
            await end(script, commit, version)
            ((_, api_version, request),) = script.asked
            assert api_version == (5 if version == 2 else 4)
            assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("tx", PRODUCER_ID, EPOCH)
            assert request.committed is commit

    run(story())


def test_what_passes_is_retried_until_the_time_is_over() -> None:
    async def story() -> None:
        async with TransactionScript() as script:
            script.say(ApiKey.END_TXN, CUT, ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS)
            await end(script, True)
            assert len(script.of(ApiKey.END_TXN)) == 4
            script.say(ApiKey.END_TXN, SILENCE)
            with pytest.raises(errors.TimedOut):
                await end(script, True, timeout_ms=100)

    run(story())


@pytest.mark.parametrize(
    ("version", "state", "epoch", "found"),
    [
        (2, "CompleteCommit", EPOCH + 1, COMMITTED),
        (2, "PrepareCommit", EPOCH + 1, COMMITTED),
        (2, "CompleteCommit", EPOCH + 3, UNKNOWN),
        (2, "CompleteAbort", EPOCH + 1, ABORTED),
        (2, "CompleteAbort", EPOCH + 2, ABORTED),
        (2, "PrepareAbort", EPOCH + 1, ABORTED),
        (2, "CompleteAbort", EPOCH + 3, UNKNOWN),
        (2, "Empty", EPOCH + 2, UNKNOWN),
        (2, "Ongoing", EPOCH + 1, UNKNOWN),
        (1, "CompleteCommit", EPOCH, COMMITTED),
        (1, "CompleteCommit", EPOCH + 1, UNKNOWN),
        (1, "CompleteAbort", EPOCH, ABORTED),
        (1, "CompleteAbort", EPOCH + 1, ABORTED),
        (1, "Empty", EPOCH + 1, UNKNOWN),
    ],
)
@pytest.mark.parametrize("code", [FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_transaction_that_has_ended_is_recognised_as_far_as_the_coordinator_remembers(
    version: int, state: str, epoch: int, found: str, code: ErrorCode
) -> None:
    async def story() -> None:
        async with TransactionScript(version) as script:
            script.described = (state, PRODUCER_ID, epoch)
            script.say(ApiKey.END_TXN, code, code)
            if found == COMMITTED:
                await end(script, True, version)
                with pytest.raises(errors.TransactionError, match="it was committed"):
                    await end(script, False, version)
            elif found == ABORTED:
                await end(script, False, version)
                with pytest.raises(errors.TransactionAborted, match="it was aborted"):
                    await end(script, True, version)
            else:
                for commit in (True, False):
                    with pytest.raises(errors.TransactionOutcomeUnknown, match="no longer open") as raised:
                        await end(script, commit, version)
                    assert not raised.value.retriable

    run(story())


def test_an_id_that_was_forgotten_or_belongs_to_another_producer_has_no_known_outcome() -> None:
    async def story() -> None:
        async with TransactionScript() as script:
            script.described = ("CompleteCommit", PRODUCER_ID + 1, EPOCH + 1)
            script.say(ApiKey.END_TXN, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            with pytest.raises(errors.TransactionOutcomeUnknown):
                await end(script, True)
            script.say(ApiKey.DESCRIBE_TRANSACTIONS, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            with pytest.raises(errors.TransactionOutcomeUnknown):
                await end(script, True)

    run(story())


def test_a_broker_that_cannot_describe_transactions_leaves_the_outcome_unknown() -> None:
    async def story() -> None:
        async with TransactionScript(DESCRIBE_TRANSACTIONS=(9, 9)) as script:
            script.say(ApiKey.END_TXN, FENCED)
            with pytest.raises(errors.TransactionOutcomeUnknown):
                await end(script, True)

    run(story())


def test_other_errors_are_raised_as_they_are() -> None:
    async def story() -> None:
        async with TransactionScript() as script:
            script.say(ApiKey.END_TXN, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            with pytest.raises(errors.AuthorizationError):
                await end(script, True)

    run(story())


def test_a_transaction_without_records_needs_no_end_and_anything_else_is_rejected() -> None:
    async def story() -> None:
        async with TransactionScript() as script, AsyncAdmin(script.address) as admin:
            await admin.end_transaction(prepared(is_empty=True), commit=True)
            assert script.asked == []
            wrong: Any = {"transactional_id": "tx"}
            with pytest.raises(errors.ConfigError, match="prepare_transaction"):
                await admin.end_transaction(wrong, commit=True)

    run(story())
