"""Avro on the command line: JSON in, Avro in the log, JSON out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.cli.commands import Shell

from penstock import Consumer

fastavro = pytest.importorskip("fastavro")

SCHEMA = {
    "type": "record",
    "name": "View",
    "fields": [
        {"name": "member", "type": "long"},
        {"name": "page", "type": "string"},
        {"name": "referrer", "type": ["null", "string"], "default": None},
    ],
}
VIEWS = [{"member": 1, "page": "/jobs", "referrer": None}, {"member": 2**40, "page": "/größe", "referrer": "mail"}]


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "view.avsc"
    path.write_text(json.dumps(SCHEMA))
    return path


def lines_of(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_views_go_in_as_json_lie_there_as_avro_and_come_out_as_json(shell: Shell, single: str, schema: Path) -> None:
    avro = f"avro:{schema}"
    shell.done("produce", single, "--value-encoder", avro, stdin=lines_of(*VIEWS))
    with Consumer(
        single, bootstrap_servers=shell.address, auto_offset_reset="earliest", consumer_timeout_ms=5_000
    ) as consumer:
        stored = [next(consumer).value for _ in VIEWS]
    assert [fastavro.schemaless_reader(io.BytesIO(value), SCHEMA, None) for value in stored] == VIEWS
    shown = shell.lines("consume", single, "--from-beginning", "--exit", "--value-decoder", avro)
    assert [json.loads(line) for line in shown] == VIEWS
    records = shell.lines("consume", single, "--from-beginning", "--exit", "--value-decoder", avro, "--format", "json")
    assert [json.loads(line)["value"] for line in records] == VIEWS


def test_a_default_of_the_schema_need_not_be_typed(shell: Shell, single: str, schema: Path) -> None:
    shell.done("produce", single, "--value-encoder", f"avro:{schema}", stdin='{"member": 1, "page": "/"}\n')
    (line,) = shell.lines("consume", single, "--from-beginning", "--exit", "--value-decoder", f"avro:{schema}")
    assert json.loads(line) == {"member": 1, "page": "/", "referrer": None}


def test_keys_are_avro_too(shell: Shell, single: str, schema: Path, tmp_path: Path) -> None:
    number = tmp_path / "number.avsc"
    number.write_text('"long"')
    shell.done(
        "produce", single, "--key-separator", "|", "--key-encoder", f"avro:{number}", "--value-encoder",
        f"avro:{schema}", stdin=f"7|{json.dumps(VIEWS[0])}\n",
    )  # fmt: skip
    (line,) = shell.lines(
        "consume", single, "--from-beginning", "--exit", "--format", "json", "--key-decoder", f"avro:{number}",
        "--value-decoder", f"avro:{schema}",
    )  # fmt: skip
    assert (json.loads(line)["key"], json.loads(line)["value"]) == (7, VIEWS[0])


def test_bytes_and_times_are_shown(shell: Shell, single: str, tmp_path: Path) -> None:
    path = tmp_path / "event.avsc"
    fields = [
        {"name": "data", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ]
    event = {"type": "record", "name": "Event", "fields": fields}
    path.write_text(json.dumps(event))
    written = io.BytesIO()
    fastavro.schemaless_writer(written, event, {"data": b"\xff\x00", "at": 1_700_000_000_000})
    shell.done("produce", single, "--value-encoder", "hex", stdin=written.getvalue().hex() + "\n")
    decoded = ("consume", single, "--from-beginning", "--exit", "--value-decoder", f"avro:{path}")
    shown = {"data": "\xff\x00", "at": "2023-11-14T22:13:20+00:00"}
    (line,) = shell.lines(*decoded)
    assert json.loads(line) == shown
    (line,) = shell.lines(*decoded, "--format", "json")
    assert json.loads(line)["value"] == shown


def test_what_does_not_fit_the_schema_is_reported_with_its_line(shell: Shell, single: str, schema: Path) -> None:
    stdin = lines_of(VIEWS[0], {"member": "one", "page": "/"}, VIEWS[1]) + "no json\n"
    result = shell("produce", single, "--value-encoder", f"avro:{schema}", "--skip-bad", stdin=stdin)
    assert result.exit_code == 1
    second, fourth, summary = result.stderr.splitlines()
    assert second.startswith("Skipped line 2: Avro cannot encode a dict: ")
    assert "member" in second
    assert fourth.startswith("Skipped line 4: 'no json' is not JSON")
    assert summary.startswith("2 records of 4 sent")
    shown = shell.lines("consume", single, "--from-beginning", "--exit", "--value-decoder", f"avro:{schema}")
    assert [json.loads(line) for line in shown] == VIEWS


def test_a_value_that_is_not_avro_of_the_schema_is_reported_by_consume(shell: Shell, single: str, schema: Path) -> None:
    shell.done("produce", single, stdin="plain text\n")
    result = shell("consume", single, "--from-beginning", "--exit", "--value-decoder", f"avro:{schema}")
    assert result.exit_code == 1
    assert f"{single}-0, offset 0 cannot be decoded: Avro cannot decode 10 bytes" in result.stderr
    assert "--skip-message-on-error" in result.stderr


@pytest.mark.parametrize(
    ("text", "reported"),
    [(None, "cannot be read"), ("{", "is not JSON"), ('{"type": "nonsense"}', "not a schema: {'type': 'nonsense'}")],
)
def test_a_schema_that_is_missing_or_none_is_reported_before_anything_is_sent(
    shell: Shell, single: str, tmp_path: Path, text: str | None, reported: str
) -> None:
    path = tmp_path / "bad.avsc"
    if text is not None:
        path.write_text(text)
    for command in (
        ["produce", single, "--value-encoder", f"avro:{path}"],
        ["consume", single, "--exit", "--value-decoder", f"avro:{path}"],
    ):
        result = shell(*command, stdin="{}\n")
        assert result.exit_code == 2, result.output
        assert reported in result.stderr
