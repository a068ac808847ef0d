"""The console producer: readers, retries and Ctrl-C."""

from __future__ import annotations

import logging
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.commands import Shell, stored
from tests.timeouts import PATIENCE_S

from penstock.cli.records.console_producer import RetryNotice
from penstock.client.consumer import Consumer
from penstock.client.errors import error_for
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ErrorCode


def test_your_own_reader(shell: Shell, single: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_readers.py").write_text(
        "from penstock.client.producer import ProducerRecord\n"
        "def words(stream, properties):\n"
        "    for word in stream.read().split():\n"
        "        yield ProducerRecord(word, key=properties['tag'].encode())\n"
    )
    monkeypatch.chdir(tmp_path)
    shell.done("produce", single, "--reader", "my_readers:words", "--property", "tag=x", stdin="one two\nthree")
    assert [(record.key, record.value) for record in stored(shell, single)] == [
        (b"x", b"one"),
        (b"x", b"two"),
        (b"x", b"three"),
    ]
    for name in ("nonsense", "my_readers:nothing", "no_such_module:x"):
        assert shell("produce", single, "--reader", name, stdin="").exit_code == 2


def test_a_line_goes_out_when_it_is_typed_and_ctrl_c_counts(shell: Shell, single: str) -> None:
    import subprocess

    with shell.process("produce", single, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"typed\n")
        process.stdin.flush()
        with Consumer(bootstrap_servers=shell.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([(single, 0)])
            assert consumer.poll(timeout_ms=PATIENCE_S * 1000)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read().decode()
        process.wait(PATIENCE_S)
    assert process.returncode == 130
    assert "1 record sent" in errors
    assert "Traceback" not in errors


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_tried_again_is_reported_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    notice = RetryNotice(clock)
    error = error_for(ErrorCode.NOT_ENOUGH_REPLICAS, where="views-0 on broker 0")
    log = logging.getLogger("penstock.producer")
    with notice.listening():
        for clock.now_s in (0.0, 1.0, 3.0, 4.0, 20.0):
            log.debug("%s-%d: attempt %d failed: %s", "views", 0, 1, error)
        log.debug("something else: %s", "no error")
        notice.progressed()
        clock.now_s = 40.0
        log.debug("%s-%d: attempt %d failed: %s", "views", 0, 1, error)
    log.debug("%s", error)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("Still retrying after 3 s: views-0 on broker 0: ")
    assert "(NOT_ENOUGH_REPLICAS)" in first
    assert "--set min.insync.replicas=N" in first
    assert second.startswith("Still retrying after 20 s: views-0 on broker 0: ")


def test_why_a_record_is_rejected_is_reported_while_it_is_retried() -> None:
    """For two minutes it would be tried; the reason comes at once."""
    with EmbeddedBroker(settings={"min.insync.replicas": "2"}) as broker:
        broker.create_topic("views")
        with Shell(broker.address).process("produce", "views", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"not taken\n")
            process.stdin.flush()
            line = process.stderr.readline().decode()
    assert line.startswith("Still retrying after ")
    assert "views-0 on broker 0: min.insync.replicas=2, in-sync replicas: 1 (NOT_ENOUGH_REPLICAS)." in line
