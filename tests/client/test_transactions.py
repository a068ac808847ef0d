"""What errors of transactions mean, and the name of a prepared one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock.client.errors import ConfigError
from penstock.client.transactions import VERDICTS, PreparedTransaction, Verdict, verdict_of
from penstock.wire.protocol import ApiKey, ErrorCode

PREPARED = PreparedTransaction("tx", 7, 3, 2)


@pytest.mark.parametrize("api_key", [key for key in VERDICTS if key is not ApiKey.PRODUCE])
def test_what_the_table_does_not_name_is_retried_or_stops_the_producer(api_key: ApiKey) -> None:
    for code in ErrorCode:
        if code in VERDICTS[api_key] or code is ErrorCode.NONE:
            continue
        assert verdict_of(api_key, code) is (Verdict.RETRY if code.retriable else Verdict.STOP)


@pytest.mark.parametrize("api_key", VERDICTS)
def test_a_fenced_producer_always_stops_and_an_abortable_error_never_does(api_key: ApiKey) -> None:
    assert verdict_of(api_key, ErrorCode.PRODUCER_FENCED) is Verdict.FENCED
    assert verdict_of(api_key, ErrorCode.TRANSACTION_ABORTABLE) is Verdict.ABORT
    assert verdict_of(api_key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) is Verdict.STOP


def test_whatever_happens_to_a_batch_the_transaction_can_be_aborted_except_when_the_producer_is_replaced() -> None:
    stopping = {code for code in ErrorCode if verdict_of(ApiKey.PRODUCE, code) in (Verdict.STOP, Verdict.FENCED)}
    assert stopping == {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }


def test_no_retriable_error_counts_as_permanent() -> None:
    for api_key, verdicts in VERDICTS.items():
        for code, verdict in verdicts.items():
            if code.retriable and code is not ErrorCode.REBALANCE_IN_PROGRESS:
                assert verdict in (Verdict.RETRY, Verdict.MOVED), (api_key, code)


def test_a_prepared_transaction_travels_as_json_and_as_a_pickle() -> None:
    assert PreparedTransaction.from_json(PREPARED.to_json()) == PREPARED
    assert pickle.loads(pickle.dumps(PREPARED)) == PREPARED
    assert hash(PREPARED) == hash(PreparedTransaction.from_json(PREPARED.to_json().encode()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"transactional_id": "tx"}',
        '{"transactional_id": "tx", "producer_id": "7", "epoch": 3, "version": 2}',
        '{"transactional_id": "tx", "producer_id": 7, "epoch": 3, "version": 9}',
        '{"transactional_id": "", "producer_id": 7, "epoch": 3, "version": 2}',
        '{"transactional_id": "tx", "producer_id": 7, "epoch": 3, "version": 2, "more": 1}',
    ],
)
def test_a_text_that_is_not_a_prepared_transaction_is_rejected(text: Any) -> None:
    with pytest.raises(ConfigError, match="prepared transaction"):
        PreparedTransaction.from_json(text)
