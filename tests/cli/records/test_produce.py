"""`penstock produce`: lines and files become records."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from tests.cli.commands import Shell, stored


def values(shell: Shell, topic: str) -> list[bytes | None]:
    return [record.value for record in stored(shell, topic)]


def test_lines_are_records_whatever_ends_them(shell: Shell, single: str) -> None:
    result = shell("produce", single, stdin=b"one\ntwo\r\n\nb\xff\nlast")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"5 records sent to {single}.\n"
    assert values(shell, single) == [b"one", b"two", b"", b"b\xff", b"last"]


def test_nothing_to_read_is_nothing_to_send(shell: Shell, single: str) -> None:
    assert shell("produce", single, stdin=b"").stderr == f"0 records sent to {single}.\n"


def test_files_are_read_in_their_order(shell: Shell, single: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3")
    shell.done("produce", "-q", single, tmp_path / "a", "-", tmp_path / "b", stdin="between\n")
    assert values(shell, single) == [b"1", b"2", b"between", b"3"]


def test_a_file_that_does_not_exist_sends_nothing(shell: Shell, single: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    result = shell("produce", single, tmp_path / "a", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "nowhere: no such file" in result.stderr
    assert values(shell, single) == []


def test_keys_and_headers_come_out_of_lines(shell: Shell, single: str) -> None:
    shell.done("produce", single, "-K", "=", "--headers-separator", "|", stdin="a:1,b:2|k=v=w\n|k2=v2\n")
    first, second = stored(shell, single)
    assert (first.key, first.value, first.headers) == (b"k", b"v=w", (("a", b"1"), ("b", b"2")))
    assert (second.key, second.value, second.headers) == (b"k2", b"v2", ())


def test_the_properties_of_kafka_s_line_reader(shell: Shell, single: str) -> None:
    properties = ["parse.key=true", "key.separator=\\t", "null.marker=NULL", "parse.headers=true"]
    options = [part for name in properties for part in ("--property", name)]
    shell.done("produce", single, *options, stdin="NULL\tk\tNULL\nh:NULL\tNULL\tv\n")
    first, second = stored(shell, single)
    assert (first.key, first.value, first.headers) == (b"k", None, ())
    assert (second.key, second.value, second.headers) == (None, b"v", (("h", None),))


def test_a_key_and_headers_for_all(shell: Shell, single: str) -> None:
    shell.done("produce", single, "-k", "all", "-H", "src=web", stdin="v\n")
    (record,) = stored(shell, single)
    assert (record.key, record.headers) == (b"all", (("src", b"web"),))


def test_a_line_that_is_not_a_record_ends_it_but_not_what_came_before(shell: Shell, single: str) -> None:
    result = shell("produce", single, "-K", ":", stdin="a:1\nb:2\nbad\nc:3\n")
    assert result.exit_code == 1
    assert "line 3 is not a record: no ':'" in result.stderr
    assert values(shell, single) == [b"1", b"2"]


@pytest.mark.parametrize("option", [("--skip-bad",), ("--property", "ignore.error=true")])
def test_a_line_that_is_not_a_record_can_be_passed_over(shell: Shell, single: str, option: tuple[str, ...]) -> None:
    result = shell("produce", single, "-K", ":", *option, stdin="a:1\nbad\nc:3\n")
    assert result.exit_code == 1
    assert "Skipped line 2" in result.stderr
    assert "2 records of 3" in result.stderr
    assert values(shell, single) == [b"1", b"3"]


def test_a_whole_file_is_one_record(shell: Shell, single: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "picture").write_bytes(data)
    shell.done("produce", single, "--format", "raw", "-k", "picture", tmp_path / "picture")
    (record,) = stored(shell, single)
    assert (record.key, record.value) == (b"picture", data)


def test_json_lines_are_records(shell: Shell, topic: str) -> None:
    binary = base64.b64encode(b"\xff\x00").decode()
    lines = [
        '{"key": "k", "value": "v", "partition": 2, "timestamp": 1700000000000, "headers": {"a": "b"}}',
        json.dumps({"valueBase64": binary, "partition": 2, "headers": [["h", None], ["h", {"base64": binary}]]}),
        '{"key": null, "value": {"a": [1, true]}, "partition": 2, "topic": "other", "offset": 7}',
    ]
    shell.done("produce", topic, "--format", "json", stdin="\n".join(lines))
    first, second, third = stored(shell, topic)
    assert (first.partition, first.timestamp, first.key, first.headers) == (2, 1_700_000_000_000, b"k", (("a", b"b"),))
    assert (second.value, second.headers) == (b"\xff\x00", (("h", None), ("h", b"\xff\x00")))
    assert (third.key, third.value) == (None, b'{"a": [1, true]}')


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", '"text"', '{"vlaue": "x"}', '{"partition": -1}', '{"valueBase64": "*"}', '{"headers": [1]}',
     '{"headers": {"a": 5}}', '{"timestamp": true}'],
)  # fmt: skip
def test_json_that_is_not_a_record_is_rejected(shell: Shell, single: str, line: str) -> None:
    result = shell("produce", single, "--format", "json", stdin=line)
    assert result.exit_code == 1
    assert "line 1 is not a record" in result.stderr
    assert values(shell, single) == []


@pytest.mark.parametrize(
    ("codec", "typed", "expected"),
    [
        ("hex", "00ff", b"\x00\xff"),
        ("base64", "AP8=", b"\x00\xff"),
        ("int", "258", b"\x00\x00\x01\x02"),
        ("long", "-1", b"\xff" * 8),
        ("double", "1", b"\x3f\xf0" + b"\x00" * 6),
        ("json", '{"a":1}', b'{"a":1}'),
        ("kafka.serializer.StringEncoder", "x", b"x"),
        ("org.apache.kafka.common.serialization.LongSerializer", "1", b"\x00" * 7 + b"\x01"),
    ],
)
def test_values_are_encoded(shell: Shell, single: str, codec: str, typed: str, expected: bytes) -> None:
    shell.done("produce", single, "--value-encoder", codec, stdin=typed)
    assert values(shell, single) == [expected]


@pytest.mark.parametrize(("codec", "typed"), [("hex", "0g"), ("int", "x"), ("int", "9" * 12), ("json", "{")])
def test_values_that_do_not_fit_are_rejected(shell: Shell, single: str, codec: str, typed: str) -> None:
    result = shell("produce", single, "--value-encoder", codec, stdin=typed)
    assert result.exit_code == 1
    assert f"is not {codec}" in result.stderr


def test_an_unknown_encoder_lists_the_encoders(shell: Shell, single: str) -> None:
    result = shell("produce", single, "--value-encoder", "morse", stdin="x")
    assert result.exit_code == 2
    assert "base64" in result.stderr


def test_the_options_of_the_first_console_producer(shell: Shell, single: str) -> None:
    shell.done(
        "produce", "--broker-list", shell.address, "--topic", single, "--compress", "--batch-size", 2, "--timeout", 50,
        "--line-reader", "kafka.producer.ConsoleProducer$LineMessageReader", "--message-encoder",
        "kafka.serializer.StringEncoder", "--message-send-max-retries", 3, "--property", "parse.key=false",
        "--socket-buffer-size", 1000, stdin="1\n2\n3\n4\n5\n",
    )  # fmt: skip
    assert values(shell, single) == [b"1", b"2", b"3", b"4", b"5"]
    shell.done("produce", "--topic", single, "--sync", "--request-required-acks", "1", stdin="6\n7\n")
    assert values(shell, single)[5:] == [b"6", b"7"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_all_codecs(shell: Shell, single: str, codec: str) -> None:
    shell.done("produce", single, "-z", codec, stdin="x\n" * 500)
    assert values(shell, single) == [b"x"] * 500


def test_records_go_to_the_partition_that_is_named(shell: Shell, topic: str) -> None:
    shell.done("produce", topic, "-p", 1, stdin="a\nb\n")
    assert [record.partition for record in stored(shell, topic)] == [1, 1]
    result = shell("produce", topic, "-p", 9, stdin="a\n")
    assert result.exit_code == 2
    assert "partitions 0 to 2" in result.stderr


def test_a_record_that_is_too_large_is_reported(shell: Shell, single: str) -> None:
    result = shell("produce", single, stdin="small\n" + "x" * 2_000_000 + "\nsmall\n")
    assert result.exit_code == 1
    assert "Not delivered" in result.stderr
    assert "2 records of 3" in result.stderr
    assert values(shell, single) == [b"small", b"small"]


def test_no_topic_shows_how(shell: Shell) -> None:
    result = shell("produce", stdin="x")
    assert result.exit_code == 2
    assert "penstock produce views" in result.stderr


def test_a_topic_that_is_created_is_reported(shell: Shell, single: str) -> None:
    name = f"{single}-new"
    assert shell("produce", name, stdin="a\n").stderr == (f"1 record sent to {name}.\nCreated topic '{name}'.\n")
    assert shell("produce", name, stdin="a\n").stderr == f"1 record sent to {name}.\n"


def test_a_typing_mistake_at_a_terminal_creates_no_topic(shell: Shell, single: str) -> None:
    typo = f"{single}x"
    result = shell.at_terminal("produce", typo, answer="hello\n\x04")
    assert result.returncode == 4
    assert f"Topic '{typo}' does not exist." in result.stderr
    assert f"Did you mean {single}? Use --create to create it." in result.stderr
    assert typo not in shell.lines("topics", "list")
    meant = shell.at_terminal("produce", typo, "--create", answer="hello\n\x04")
    assert meant.returncode == 0, meant.stderr
    assert values(shell, typo) == [b"hello"]
