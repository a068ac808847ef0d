"""The console consumer: formats, ends and signals."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.timeouts import PATIENCE_S

from penstock.cli.records.console_consumer import _buffered
from penstock.client.producer import Producer
from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture
def filled(shell: Shell, single: str) -> str:
    """Ten records v0 to v9, with keys, the times of which are a second apart."""
    with Producer[bytes, bytes](shell.address) as producer:
        for number in range(10):
            producer.send(single, b"v%d" % number, b"k%d" % number, timestamp_ms=1_700_000_000_000 + number * 1000)
    return single


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("%t %p %o %k %s", "{topic} 0 0 k0 v0\n"),
        ("%K:%S:%T", "2:2:1700000000000\n"),
        ("%s\\n", "v0\n"),
        ("%s\\x7c", "v0|"),
        ("%%%s\\t%d\\c", "%v0\t2023-11-14T22:13:20.000Z"),
        ("value", "v0\n"),
        ("text", "v0\n"),
    ],
)
def test_templates(shell: Shell, filled: str, form: str, expected: str) -> None:
    shown = shell.done("consume", filled, "-o", 0, "-n", 1, "-q", "-f", form)
    assert shown == expected.format(topic=filled)


@pytest.mark.parametrize("form", ["%y", "%s%", "yaml"])
def test_a_format_that_means_nothing_is_rejected(shell: Shell, filled: str, form: str) -> None:
    result = shell("consume", filled, "-f", form)
    assert result.exit_code == 2
    assert "%s" in result.stderr


def test_your_own_formatter(shell: Shell, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_formats.py").write_text(
        "def shout(record):\n    return record.value.decode().upper() + '!\\n'\n"
        "class Tagged:\n"
        "    def __init__(self, properties):\n        self.tag = properties['tag'].encode()\n"
        "    def __call__(self, record):\n        return self.tag + record.value + b'\\n'\n"
        "def fails(record):\n    raise RuntimeError('no idea')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert shell.done("consume", filled, "-o", "9", "-e", "-q", "--formatter", "my_formats:shout") == "V9!\n"
    options = ("--formatter", "my_formats:Tagged", "--property", "tag=<")
    assert shell.done("consume", filled, "-o", "9", "-e", "-q", *options) == "<v9\n"
    result = shell("consume", filled, "-o", "9", "-e", "-q", "--formatter", "my_formats:fails")
    assert result.exit_code == 2
    assert "offset 9 cannot be decoded: no idea" in result.stderr
    assert shell.done("consume", filled, "-e", "-q", "--formatter", "kafka.tools.NoOpMessageFormatter") == ""


def test_an_end_is_found_behind_records_that_are_gone(shell: Shell, broker: EmbeddedBroker, single: str) -> None:
    from penstock.client.admin import Admin

    shell.done("produce", single, stdin="a\nb\nc\n")
    with Admin(shell.address) as admin:
        admin.delete_records({(single, 0): -1})
    assert shell.done("consume", single, "-e", "-q") == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_cleanly_with_a_count(
    shell: Shell, filled: str, group: str, number: signal.Signals, code: int
) -> None:
    with shell.process("consume", filled, "--from-beginning", "--group", group) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = [process.stdout.readline() for _ in range(10)]
        process.send_signal(number)
        errors = process.stderr.read().decode()
        process.wait(PATIENCE_S)
    assert shown[-1] == b"v9\n"
    assert (process.returncode, errors) == (code, "10 records.\n")
    (described,) = shell.json("groups", "describe", group)["groups"]
    assert (described["state"], described["lagRecords"]) == ("Empty", 0)


def test_output_is_buffered_even_where_python_s_is_not(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb", buffering=0) as raw:
        stream = _buffered(raw)
        stream.write(b"x")
        assert (tmp_path / "out").read_bytes() == b""
        stream.flush()
        assert (tmp_path / "out").read_bytes() == b"x"
        assert not raw.closed
    assert _buffered(stream) is stream


def test_a_reader_that_leaves_ends_it_even_if_nothing_comes(shell: Shell, filled: str) -> None:
    with shell.process("consume", filled, "--from-beginning") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"v0\n"
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(PATIENCE_S)
    assert (process.returncode, errors) == (141, b"")
