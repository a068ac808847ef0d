"""`penstock server start` and `penstock up`: real processes, real clients, real signals."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from tests.cli.logs import run
from tests.cli.running import CLEAN_MARKER, Running, consume, produce, server
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) +[\w.]+: \S.*")


def partitions_of_a_new_topic(address: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        produce(address, "fresh", b"x")
        (topic,) = admin.describe_topics(["fresh"])
        return len(topic["partitions"])
    finally:
        admin.close()


# --- settings that are wrong


def test_everything_that_is_wrong_with_the_settings_is_reported_at_once(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=0\nlog.retention.ms=soon\n")
    with server(tmp_path / "data", "--config", config, "--set", "nonsense") as broker:
        assert broker.end() == 2
    assert "3 problems in the settings" in broker.text
    for name in ("num.partitions", "log.retention.ms", "nonsense"):
        assert name in broker.text
    assert "server.properties:2: log.retention.ms" in broker.text
    assert "Traceback" not in broker.text
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:http", "localhost:65536", "::1:9092", ":-1"])
def test_an_invalid_address_is_rejected(address: str) -> None:
    result = run("server", "start", "--listen", address)
    assert result.exit_code == 2
    assert "--listen" in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "setting"), [("--data-dir", "d", "log.dirs=e"), ("--listen", ":9", "listeners=PLAINTEXT://:8")]
)
def test_an_option_and_the_setting_it_stands_for_are_too_much(option: str, value: str, setting: str) -> None:
    result = run("server", "start", option, value, "--set", setting)
    assert result.exit_code == 2
    assert "Use one of them" in result.stderr


@pytest.mark.parametrize("command", [["server", "start"], ["up"]])
def test_a_file_is_not_a_data_folder(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("hello")
    result = run(*command, "--data-dir", tmp_path / "notes")
    assert result.exit_code == 2
    assert "is a file" in result.stderr


def test_a_folder_with_a_comma_would_be_two(tmp_path: Path) -> None:
    result = run("up", "--data-dir", tmp_path / "a,b")
    assert result.exit_code == 2
    assert "comma" in result.stderr


def test_a_settings_file_that_is_missing_is_named(tmp_path: Path) -> None:
    result = run("server", "start", "--config", tmp_path / "nowhere.properties")
    assert result.exit_code == 2
    assert "nowhere.properties: No such file" in result.stderr


# --- what keeps it from starting


@pytest.mark.parametrize("command", ["server start", "up"])
def test_a_port_in_use_is_named_with_one_that_is_free(command: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = ("--port", str(port)) if command == "up" else ("--listen", f"127.0.0.1:{port}")
        with Running(*command.split(), "--data-dir", tmp_path / "data", "--http-port", "0", *where) as broker:
            assert broker.end() == 1
    assert f"Error: 127.0.0.1:{port} is in use" in broker.text
    assert re.search(r"penstock up --port \d+" if command == "up" else r"--listen 127.0.0.1:\d+", broker.text)
    assert "Traceback" not in broker.text


def test_an_http_port_in_use_is_named(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        server(tmp_path / "data", "--http-port", str(taken.getsockname()[1])) as broker,
    ):
        assert broker.end() == 1
    assert "HTTP (metrics, health) cannot listen" in broker.text
    assert "--http-port" in broker.said[-1]


def test_a_folder_in_use_names_its_owner_and_is_not_touched(tmp_path: Path) -> None:
    with server(tmp_path / "data") as first:
        address = first.address()
        with server(tmp_path / "data") as second:
            assert second.end() == 1
        assert f"Data folder {tmp_path / 'data'} is in use (locked by process" in second.text
        assert "--data-dir" in second.said[-1]
        produce(address, "t", b"still here")
        assert first.stop() == 0


def test_damaged_metadata_is_not_guessed_at(tmp_path: Path) -> None:
    with server(tmp_path / "data") as broker:
        broker.address()
        assert broker.stop() == 0
    journal = tmp_path / "data" / ".metadata" / "tree.journal"
    content = bytearray(journal.read_bytes())
    content[40:48] = b"XXXXXXXX"
    journal.write_bytes(content)
    with server(tmp_path / "data") as broker:
        assert broker.end() == 1
    assert f"Error: {journal} is damaged at byte" in broker.text
    assert "backup" in broker.said[-1]
    assert journal.read_bytes() == content


def test_an_address_of_another_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    with Running("server", "start", "--data-dir", tmp_path, "--listen", "192.0.2.1:9092", "--http-port", "0") as broker:
        assert broker.end() == 1
    assert "Error: Cannot listen on 192.0.2.1:9092" in broker.text
    assert "Use an address of this machine" in broker.text


# --- life


def test_a_client_is_served_until_sigterm_and_after_the_next_start(tmp_path: Path) -> None:
    with server(tmp_path / "data") as broker:
        produce(broker.address(), "t", b"one", b"two")
        assert not (tmp_path / "data" / CLEAN_MARKER).exists()
        assert broker.stop(signal.SIGTERM) == 0
    assert (tmp_path / "data" / CLEAN_MARKER).exists()
    assert [line for line in broker.said if not LINE.fullmatch(line)] == []
    with server(tmp_path / "data") as broker:
        assert consume(broker.address(), "t", 2) == [b"one", b"two"]
        assert broker.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(
            signal.SIGHUP,
            marks=pytest.mark.skipif(
                signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="these tests run under nohup"
            ),
        ),
    ],
)
def test_an_interrupt_and_a_closed_terminal_are_clean_stops_too(number: signal.Signals, tmp_path: Path) -> None:
    with server(tmp_path / "data") as broker:
        broker.address()
        assert broker.stop(number) == 0
    assert (tmp_path / "data" / CLEAN_MARKER).exists()
    assert f"stopping: signal={number.name}" in broker.text


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    values = [b"value %d" % number for number in range(50)]
    with server(tmp_path / "data") as broker:
        produce(broker.address(), "t", *values)
        assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
    assert not (tmp_path / "data" / CLEAN_MARKER).exists()
    with server(tmp_path / "data") as broker:
        address = broker.address()
        assert consume(address, "t", 50) == values
        produce(address, "t", b"next")
        assert consume(address, "t", 51)[-1] == b"next"
        assert broker.stop() == 0


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    # The stop never ends, as by a disk that does not answer.
    code = (
        "import sys, threading\nfrom penstock.broker.broker import Broker\nfrom penstock.cli.main import main\n"
        "async def stuck(self):\n    print('stuck', flush=True)\n    threading.Event().wait()\n"
        "Broker.stop = stuck\nmain(sys.argv[1:])\n"
    )
    args = ["server", "start", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--http-port", "0"]
    command = [sys.executable, "-c", code, *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            while "broker started: " not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "stuck\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        finally:
            process.kill()


# --- settings that count


def test_an_unknown_setting_is_a_warning_with_the_nearest_name(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.partitons=7\n")
    with server(tmp_path / "data", "--config", config) as broker:
        broker.address()
        assert broker.stop() == 0
    (warning,) = [line for line in broker.said if " WARNING " in line]
    assert "name=num.partitons where=server.properties:1 reason=unknown setting" in warning
    assert "did you mean num.partitions?" in warning


@pytest.mark.parametrize(("options", "expected"), [((), 3), (("--set", "num.partitions=5"), 5)])
def test_the_command_line_overrides_the_file(options: tuple[str, ...], expected: int, tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=3\nlisteners=PLAINTEXT://192.0.2.1:9092\nlog.dirs=/nowhere\n")
    with server(tmp_path / "data", "--config", config, *options) as broker:
        assert partitions_of_a_new_topic(broker.address()) == expected
        assert broker.stop() == 0
    assert (tmp_path / "data" / "fresh-0").is_dir()


def test_an_advertised_name_without_an_address_is_doubted(tmp_path: Path) -> None:
    setting = "advertised.listeners=PLAINTEXT://broker.invalid:9092"
    with server(tmp_path / "data", "--set", setting) as broker:
        assert "set advertised.listeners" in broker.until("clients will connect to broker.invalid")


def test_an_unreachable_zookeeper_is_reported_with_how_to_start_one(tmp_path: Path) -> None:
    where = ("--set", f"zookeeper.connect=127.0.0.1:{free_port()}", "--set", "zookeeper.connection.timeout.ms=300")
    with server(tmp_path / "data", *where) as broker:
        assert broker.end() == 1
    assert "refuses connections" in broker.text
    assert "penstock zookeeper start" in broker.said[-1]


def test_health_and_metrics_answer(tmp_path: Path) -> None:
    with server(tmp_path / "data", "--http-port", str(free_port())) as broker:
        produce(broker.address(), "t", b"one")
        line = broker.until("http started: ")
        metrics, health = re.findall(r"http://\S+", line)
        with urllib.request.urlopen(health, timeout=PATIENCE_S) as answer:
            assert json.load(answer)["status"] == "ok"
        with urllib.request.urlopen(metrics, timeout=PATIENCE_S) as answer:
            assert 'topic="t"' in answer.read().decode()
        assert broker.stop() == 0


# --- up


# --- parts
