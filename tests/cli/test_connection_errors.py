"""What a command says when it cannot do what it was asked for: to people, and with --format json to programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.ports import free_port
from tests.security.certificates import broker_settings, write_ca

from penstock.cli.connection import command_error_for
from penstock.client.errors import ConfigError, MissingDependency, PenstockError, TimedOut, error_for
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ErrorCode

_TLS = "SSL://127.0.0.1:0"


def test_a_package_that_is_missing_is_named_as_it_is_installed() -> None:
    error = command_error_for(MissingDependency("pyarrow", "reading Arrow", "spark"))
    assert (error.hint, error.code, error.exit_code) == ('pip install "penstock[spark]"', "MISSING_PACKAGE", 2)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE], ids=lambda code: code.name)
def test_hints_are_for_the_command_line(code: ErrorCode) -> None:
    """Not in the words of the Python clients: no argument, no True."""
    hint = command_error_for(error_for(code, where="views-0")).hint
    assert re.search(r"[a-z]_[a-z]|=True|=None|await|async", hint) is None, hint


def test_options_of_the_python_clients_are_named_as_properties() -> None:
    error = command_error_for(ConfigError("linger_ms is -5", hint="Raise max_request_size of my_topic"))
    assert (error.problem, error.hint) == ("linger.ms is -5.", "Raise max.request.size of my_topic.")


def test_a_broker_that_may_require_a_certificate_or_a_login_is_reported_with_the_properties(tmp_path: Path) -> None:
    with EmbeddedBroker(settings={**broker_settings(tmp_path, client_auth="required"), "listeners": _TLS}) as broker:
        for command in (["topics", "list"], ["doctor"]):
            rejected = Shell(broker.address)(
                *command, "-X", "security.protocol=SSL", "-X", f"ssl.ca.location={write_ca(tmp_path)}",
                "--request-timeout-ms", "3000",
            )  # fmt: skip
            assert rejected.exit_code != 0
            assert "ssl.keystore.location" in rejected.output
            assert "security.protocol=SASL_SSL" in rejected.output
            assert re.search("ssl_|security_", rejected.output) is None


def test_the_doctor_is_recommended_only_where_it_can_help() -> None:
    assert "penstock doctor" in command_error_for(TimedOut("listing topics did not finish")).hint
    assert "penstock doctor" in command_error_for(error_for(ErrorCode.KAFKA_STORAGE_ERROR, where="views-0")).hint
    for code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_PARTITIONS):
        assert "doctor" not in command_error_for(error_for(code, where="topic x")).hint
    assert command_error_for(PenstockError("It failed")).message == "It failed."


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "describe"), ("topics", "delete"), ("topics", "alter", "-p", "9"), ("offsets",),
        ("topics", "trim", "--all-records"), ("groups", "seek", "g", "--to-earliest", "-t"), ("consume", "--exit"),
        ("elect", "preferred"), ("configs", "describe", "-t"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_topic_that_does_not_exist_is_reported_in_the_same_words(
    shell: Shell, single: str, command: tuple[str, ...]
) -> None:
    error = shell.error(*command, f"{single}x")
    assert error == {
        "code": "UNKNOWN_TOPIC_OR_PARTITION",
        "message": f"Topic '{single}x' does not exist.",
        "hint": f"Did you mean {single}?",
        "exitCode": 4,
    }


def test_other_errors_for_programs(shell: Shell, group: str) -> None:
    usage = shell.error("topics", "create")
    assert (usage["code"], usage["exitCode"]) == ("USAGE", 2)
    assert usage["hint"] == "`penstock topics create --help` shows the options"
    missing = shell.error("groups", "describe", group)
    assert (missing["code"], missing["exitCode"]) == ("GROUP_ID_NOT_FOUND", 4)
    nowhere = Shell(f"127.0.0.1:{free_port()}").error("topics", "list")
    assert (nowhere["code"], nowhere["exitCode"]) == ("UNREACHABLE", 3)
    assert "penstock up" in nowhere["hint"]


def test_failures_within_a_document_are_for_programs_too(shell: Shell, single: str) -> None:
    result = shell("topics", "delete", f"{single}x", f"{single}y", "--format", "json")
    failed = json.loads(result.stdout)["failed"]
    expected = {"code": "UNKNOWN_TOPIC_OR_PARTITION", "hint": f"Did you mean {single}?"}
    for name in (f"{single}x", f"{single}y"):
        assert failed[name] == {**expected, "message": f"Topic '{name}' does not exist."}
    # The first error ends the command; this is the other one.
    other = json.loads(result.stderr.splitlines()[0])
    assert other == {**failed[f"{single}y"], "exitCode": 4}
