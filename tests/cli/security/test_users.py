"""Users: added, listed, changed and removed; their passwords appear nowhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.timeouts import PATIENCE_S

from penstock.client.admin import Admin
from penstock.client.errors import ConfigError, PenstockError, TimedOut
from penstock.security.scram import ScramCredential
from penstock.testing.embedded_broker import EmbeddedBroker


def test_a_user_is_added_listed_changed_and_removed(shell: Shell, broker: EmbeddedBroker, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    empty = shell("users", "list")
    assert (empty.stdout, empty.stderr) == ("", "No users.\n")
    said = shell.done("users", "add", "alice", "--password-from", f"file:{secret}")
    assert said == "User alice added.\n"
    assert shell.json("users", "list") == {"users": [{"name": "alice", "mechanisms": {"SCRAM-SHA-512": 8192}}]}
    assert "alice" in shell.done("users", "list")

    def matches(password: str) -> bool:
        stored = ScramCredential.parse(broker.broker.cluster.image.users["alice"]["SCRAM-SHA-512"])
        return ScramCredential.make(password, "SCRAM-SHA-512", stored.iterations, stored.salt) == stored

    assert matches("hunter2")
    again = shell("users", "add", "alice", "--password-from", f"file:{secret}")
    assert again.exit_code == 2
    assert "users passwd" in again.stderr
    secret.write_text("new")
    shell.done("users", "passwd", "alice", "--password-from", f"file:{secret}", "--iterations", "4096")
    assert matches("new")
    assert "Dry run" in shell.done("users", "remove", "alice", "--dry-run")
    assert matches("new")
    shell.done("users", "remove", "alice", "--yes")
    assert shell.json("users", "list") == {"users": []}


def test_a_password_comes_from_the_environment_but_never_from_an_argument(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOBS_PASSWORD", "hunter2")
    shell.done("users", "add", "bob", "--password-from", "env:BOBS_PASSWORD", "--mechanism", "SCRAM-SHA-256")
    shell.done("users", "remove", "bob", "-y")
    for source in ("hunter2", "env:NOBODYS_PASSWORD", "file:/no/such/file"):
        failed = shell("users", "add", "bob", "--password-from", source)
        assert failed.exit_code == 2
        assert "hunter2" not in failed.output
    failed = shell("users", "add", "bob")
    assert "--password-from" in failed.stderr, "there is no terminal"


def test_at_a_terminal_the_password_is_asked_for_twice_and_not_shown(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "users", "add", "carol"], stdin=theirs, stderr=subprocess.PIPE,
        env={**os.environ, **shell.environment}, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = b""
        # The prompt discards what was typed before it.
        for prompt in (b"Password: ", b"Repeat for confirmation: "):
            while not said.endswith(prompt):
                byte = process.stderr.read(1)
                assert byte, said
                said += byte
            os.write(ours, b"hunter2\n")
        assert process.wait(PATIENCE_S) == 0
        assert b"hunter2" not in said + process.stderr.read()
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
        os.close(ours)
        os.close(theirs)
    shell.done("users", "remove", "carol", "-y")


@pytest.mark.parametrize("command", [("passwd", "nobody", "--password-from", "env:HOME"), ("remove", "nobody", "-y")])
def test_a_user_who_does_not_exist_is_neither_changed_nor_removed(shell: Shell, command: tuple[str, ...]) -> None:
    assert shell.error("users", *command)["code"] == "RESOURCE_NOT_FOUND"


def test_too_few_iterations_are_rejected_before_anything_is_sent(shell: Shell) -> None:
    failed = shell("users", "add", "dave", "--password-from", "env:HOME", "--iterations", "100")
    assert failed.exit_code == 2
    assert "4096 to 16384" in failed.stderr


def test_a_login_file_needs_a_connection_with_users(shell: Shell, tmp_path: Path) -> None:
    failed = shell("users", "add", "dave", "--login-file", tmp_path / "dave.properties")
    assert failed.exit_code == 2
    assert "--login-file needs a connection with SASL" in failed.stderr
    assert not (tmp_path / "dave.properties").exists()
    assert "dave" not in shell.done("users", "list")


@pytest.mark.parametrize(("error", "stays"), [(TimedOut("no answer in time"), True), (ConfigError("no"), False)])
def test_a_login_is_deleted_only_if_the_user_was_certainly_not_added(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: PenstockError, stays: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Admin, "set_password", fail)
    monkeypatch.setattr("penstock.cli.security.users._login_text", lambda *_: "login\n")
    login = tmp_path / "eve.properties"
    failed = shell("users", "add", "eve", "--login-file", login)
    assert failed.exit_code != 0
    assert login.exists() is stays
    assert (f"stays in {login}" in failed.stderr) is stays
