"""The tree of errors."""

from __future__ import annotations

import pickle

import pytest

from penstock.client import errors
from penstock.client.errors import Attempt, BootstrapError, Cause, PenstockError, error_for
from penstock.wire.protocol import ErrorCode


def test_every_code_gives_an_error_that_says_where_and_whether_to_try_again() -> None:
    for code in ErrorCode:
        error = error_for(code, where="views-3")
        assert error.code is code
        assert error.retriable is code.retriable
        assert "views-3" in str(error)
        assert code.name in str(error)


def test_the_brokers_own_words_are_kept() -> None:
    error = error_for(37, where="topic t", detail="17 is less than 20.")
    assert isinstance(error, errors.InvalidSetting)
    assert str(error) == "topic t: 17 is less than 20 (INVALID_PARTITIONS)"


def test_a_code_from_the_future_is_an_error_all_the_same() -> None:
    assert error_for(9999).code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_hint_ends_the_message() -> None:
    error = error_for(36, where="topic t")
    assert str(error).endswith(". " + error.hint)
    assert error.hint.startswith("Use exist_ok=True")


@pytest.mark.parametrize(
    "error",
    [
        error_for(3, where="t-0"),
        errors.NotConnected("b:9092", "gone"),
        errors.RequestTimedOut("b:9092", "Fetch v12", 100),
        errors.UnsupportedVersion("b:9092", "Fetch", (0, 12), None),
        errors.MissingDependency("pyarrow", "to_arrow", "spark"),
        errors.DeserializationError("bad", topic="t", partition=1, offset=2, field="value", data=b"x"),
        BootstrapError([Attempt("a:1", Cause.DNS, "unknown", "look")]),
    ],
)
def test_errors_travel_between_processes(error: PenstockError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_time_outs_are_pythons_too() -> None:
    with pytest.raises(TimeoutError):
        raise errors.RequestTimedOut("b", "Fetch", 1)
    with pytest.raises(ValueError, match="linger"):
        raise errors.ConfigError("linger_ms is -1")


def test_one_failed_address_is_one_sentence_several_are_a_list() -> None:
    refused = Attempt("a:9092", Cause.REFUSED, "connection refused", "Is it running?")
    unknown = Attempt("b:9092", Cause.DNS, "no such name", "Look at it")
    assert str(BootstrapError([refused])) == "no broker was found: a:9092: connection refused. Is it running?"
    lines = str(BootstrapError([refused, unknown])).splitlines()
    assert lines[1:] == ["  a:9092: connection refused. Is it running?", "  b:9092: no such name. Look at it"]


def test_waiting_does_not_turn_a_web_server_into_a_broker() -> None:
    web = Attempt("a:80", Cause.HTTP, "", "")
    assert not BootstrapError([web]).retriable
    assert BootstrapError([web, Attempt("b:9092", Cause.REFUSED, "", "")]).retriable
