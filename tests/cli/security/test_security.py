"""`penstock security` and `penstock up --secure`: TLS and users by one command."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoAuthError  # type: ignore[import-untyped]
from tests.cli.commands import Shell, put_on_path
from tests.cli.running import Running
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock.cluster.tree.layout import CLUSTER_SECRET


def test_init_makes_what_a_broker_and_its_clients_need(tmp_path: Path) -> None:
    shell = Shell("")
    home, port = tmp_path / "secure", free_port()
    printed = shell.done("security", "init", "--folder", home, "--host", "localhost", "--port", port)
    assert "the user admin" in printed
    for path in home.iterdir():
        mode = stat.S_IMODE(os.stat(path).st_mode)
        assert mode == (0o644 if path.name == "ca.pem" else 0o600), path
    password = (home / "admin.password").read_text().strip()
    assert password not in printed
    assert password not in (home / "server.properties").read_text()
    options = ("--data-dir", tmp_path / "data", "--http-port", "0")
    with Running("server", "start", "--config", home / "server.properties", *options) as broker:
        broker.until("broker started")
        login = ("--command-config", home / "admin.properties")
        plain = Shell("")
        plain.environment = {}
        plain.done("topics", "create", "secret", *login)
        assert "secret" in plain.done("topics", "list", *login)
        wrong = plain("topics", "list", *login, "-X", "sasl.jaas.config=", "-X", "sasl.username=admin", "-X",
                      "sasl.password=hunter2")  # fmt: skip
        assert wrong.exit_code != 0
        assert "authentication failed" in wrong.stderr
        assert "hunter2" not in wrong.stderr
        unknown = plain("topics", "list", "-b", f"localhost:{port}", "--request-timeout-ms", "3000")
        assert unknown.exit_code == 3
        assert broker.stop(signal.SIGINT) == 0
    assert password not in broker.text


def test_a_certificate_that_cannot_be_used_is_reported_as_a_setting(tmp_path: Path) -> None:
    Shell("").done("security", "init", "--folder", tmp_path)
    (tmp_path / "broker.pem").write_text("nonsense")
    options = ("--data-dir", tmp_path / "data", "--http-port", "0")
    with Running("server", "start", "--config", tmp_path / "server.properties", *options) as broker:
        assert broker.end() == 2
    assert "listener SASL_SSL" in broker.text
    assert "Traceback" not in broker.text


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    shell = Shell("")
    shell.done("security", "init", "--folder", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = shell("security", "init", "--folder", tmp_path)
    assert again.exit_code == 1
    assert "exists already" in again.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_further_certificates_are_issued(tmp_path: Path) -> None:
    shell = Shell("")
    missing = shell("security", "certificate", "alice", "--folder", tmp_path)
    assert missing.exit_code == 2
    assert "security init" in missing.stderr
    shell.done("security", "init", "--folder", tmp_path)
    shell.done("security", "certificate", "alice", "--folder", tmp_path)
    assert b"PRIVATE KEY" in (tmp_path / "alice.pem").read_bytes()
    assert shell("security", "certificate", "alice", "--folder", tmp_path).exit_code == 1
    assert shell("security", "certificate", "../alice", "--folder", tmp_path).exit_code == 2
    assert shell("security", "init", "--folder", tmp_path / "x", "--user", "a/b").exit_code == 2


_PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"


def blocks(title: str) -> list[str]:
    """The commands of a section of the page, block by block."""
    section = _PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)


def run_lines(text: str, folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Each line in a shell, as a reader would."""
    environment = put_on_path(folder)
    environment.pop("PENSTOCK_BOOTSTRAP_SERVER", None)
    return [
        subprocess.run(
            line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
            check=False,
        )
        for line in text.splitlines()
    ]  # fmt: skip


def test_the_five_minutes_of_the_page_are_true(tmp_path: Path) -> None:
    """Its commands as they are, but for the port, which may be in use."""
    up, steps, others = blocks("TLS, users and ACLs in five minutes")
    assert up.strip() == "penstock up --secure"
    port = free_port()
    with Running(*shlex.split(up)[1:], "--port", str(port), "--http-port", "0", cwd=tmp_path) as broker:
        broker.until("Ctrl-C to stop")
        shown = snippet(broker.said, "Add a user and an ACL")
        assert shown.replace(f" -b 127.0.0.1:{port}", "").replace(f"{tmp_path}/", "") == steps.strip()
        added, allowed, produced, consumed, explained = run_lines(steps, tmp_path)
        for each in (added, allowed, produced, consumed):
            assert each.returncode == 0, each.stderr
        assert consumed.stdout == "hello\n"
        assert explained.returncode == 1, explained.stderr
        assert "denied" in explained.stdout
        mode = stat.S_IMODE(os.stat(tmp_path / "alice.properties").st_mode)
        assert mode == 0o600
        denied = run_lines("penstock topics delete greetings --execute --command-config alice.properties", tmp_path)
        assert denied[0].returncode == 4, denied[0].stderr
        assert broker.stop(signal.SIGINT) == 0
    init, start, listing = others.splitlines()
    assert run_lines(init, tmp_path)[0].returncode == 0
    options = ("--data-dir", "other", "--http-port", "0", "--set", f"listeners=SASL_SSL://0.0.0.0:{port}")
    with Running(*shlex.split(start)[1:], *options, cwd=tmp_path) as broker:
        broker.until("broker started")
        # The host of the page does not exist.
        (listed,) = run_lines(f"{listing} -b localhost:{port}", tmp_path)
        assert listed.returncode == 3, "the address that it gets does not exist either"
        assert "kafka-1.example.com" in listed.stderr


def test_the_admin_is_a_user_of_the_tree(tmp_path: Path) -> None:
    """It is listed and changed like others, and one that was removed stays so."""
    shell, home, port = Shell(""), tmp_path / "secure", free_port()
    shell.environment = {}
    printed = shell.done("security", "init", "--folder", home, "--host", "localhost", "--port", port)
    assert "users add alice" in printed
    assert "acls add" in printed
    login = ("--command-config", home / "admin.properties")
    start = ("server", "start", "--config", home / "server.properties", "--data-dir", tmp_path / "data",
             "--http-port", "0")  # fmt: skip
    other = tmp_path / "root.properties"
    with Running(*start) as broker:
        broker.until("broker started")
        assert [each["name"] for each in shell.json("users", "list", *login)["users"]] == ["admin"]
        shell.done("users", "add", "root", "--login-file", other, *login)
        again = shell("users", "add", "eve", "--login-file", other, *login)
        assert again.exit_code == 1, "a file is not overwritten"
        shell.done("acls", "add", "-p", "User:root", "-o", "all", "--cluster", *login)
        shell.done("users", "remove", "admin", "--yes", *login)
        assert "authentication failed" in shell("topics", "list", *login).stderr
        assert broker.stop(signal.SIGINT) == 0
    with Running(*start) as broker:
        broker.until("broker started")
        assert "authentication failed" in shell("topics", "list", *login).stderr
        listed = shell.json("users", "list", "--command-config", other)["users"]
        assert [each["name"] for each in listed] == ["root"]
        assert broker.stop(signal.SIGINT) == 0


def snippet(said: list[str], title: str) -> str:
    begin = next(number for number, line in enumerate(said) if line.startswith(title)) + 1
    return "\n".join(said[begin : said.index("", begin)])


def test_up_secure_runs_with_users_and_stays_secure(tmp_path: Path) -> None:
    for options in (("--secure",), ()):
        port = free_port()
        with Running("up", *options, "--port", str(port), "--http-port", "0", cwd=tmp_path) as broker:
            broker.until("Ctrl-C to stop")
            produced = snippet(broker.said, "Produce from Python")
            assert "SASL_SSL" in produced
            subprocess.run([sys.executable, "-c", produced], check=True, timeout=PATIENCE_S, capture_output=True)
            shell = Shell("")
            login = tmp_path / "penstock-data" / "security" / "admin.properties"
            lines = shell.lines(
                "consume",
                "greetings",
                "--from-beginning",
                "--exit",
                "-b",
                f"127.0.0.1:{port}",
                "--command-config",
                login,
            )
            assert lines.count("hello") >= 1
            assert broker.stop(signal.SIGINT) == 0
            assert "WARNING" not in broker.text


def strangers_get_nothing(cluster: Running, folder: Path) -> None:
    """Programs of this machine may not read what is secret, nor change anything, in ZooKeeper or in its files."""
    place = next(line for line in cluster.said if line.startswith("  ZooKeeper")).split()[-1]
    outsider = KazooClient(place)
    outsider.start()
    try:
        for path in (CLUSTER_SECRET, "/config/users/admin"):
            with pytest.raises(NoAuthError):
                outsider.get(path)
        for path in (CLUSTER_SECRET, "/controller_epoch", "/brokers/topics/views"):
            with pytest.raises(NoAuthError):
                outsider.set(path, b"{}")
    finally:
        outsider.stop()
        outsider.close()
    assert [each.stat().st_mode & 0o077 for each in folder.iterdir()] == [0]


@pytest.mark.long
def test_a_secure_cluster_replicates(tmp_path: Path) -> None:
    with Running("up", "--secure", "--brokers", "2", "--port", "0", "--http-port", "0", cwd=tmp_path) as cluster:
        cluster.until("Ctrl-C to stop")
        address = next(line for line in cluster.said if "Kafka clients" in line).split()[-1]
        login = ("--command-config", tmp_path / "penstock-data" / "security" / "admin.properties")
        shell = Shell(address)
        shell.done("topics", "create", "views", "-p", 2, "--replication-factor", 2, *login)
        shell.done("produce", "views", *login, stdin="one\ntwo\n")
        found = shell.lines("consume", "views", "--from-beginning", "--exit", *login)
        assert sorted(found) == ["one", "two"]
        checked = shell("doctor", *login).stdout
        assert checked.count("answers at its advertised address") == 2
        assert "problem broker" not in checked
        strangers_get_nothing(cluster, tmp_path / "penstock-data" / "zookeepers")
        assert cluster.stop(signal.SIGINT) == 0
    secret = (tmp_path / "penstock-data" / "security" / "admin.password").read_text().strip()
    assert secret not in cluster.text
