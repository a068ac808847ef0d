"""What people write on the command line, understood or rejected."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest
from tests.cli.commands import Shell

from penstock.cli.values import (
    EARLIEST,
    LATEST,
    Assignment,
    BrokerIds,
    ByteCount,
    NameAndPartitions,
    StartOffset,
    StartOffsetType,
    TopicPartitions,
    parse_duration_ms,
    parse_time_ms,
)
from penstock.runtime.quantities import duration_text, time_text

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        ("PT1H30M", 5_400_000),
        ("P1DT2H", 93_600_000),
        ("p1w", 604_800_000),
        ("PT0.5S", 500),
        ("90 minutes", 5_400_000),
        ("1 hour 30 min", 5_400_000),
        ("1h 30m", 5_400_000),
        ("2 Weeks", 1_209_600_000),
    ],
)
def test_durations(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "h", "1", "1y", "-1h", "1 hour 30", "3 stunden", "an", "P", "PT", "1h30", "P1H"])
def test_an_invalid_duration_shows_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="1h30m"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("now", NOW_MS),
        ("-1h", NOW_MS - 3_600_000),
        ("15m ago", NOW_MS - 900_000),
        ("1 hour ago", NOW_MS - 3_600_000),
        ("an hour ago", NOW_MS - 3_600_000),
        ("2 days and 30 minutes ago", NOW_MS - 2 * 86_400_000 - 1_800_000),
        ("1700000000123", 1_700_000_000_123),
        ("1700000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-14T23:13:20.5+01:00", NOW_MS + 500),
    ],
)
def test_times(text: str, expected_ms: int) -> None:
    assert parse_time_ms(text, NOW_MS) == expected_ms


def test_yesterday_began_at_local_midnight() -> None:
    today = datetime.fromtimestamp(parse_time_ms("today", NOW_MS) / 1000)
    yesterday = datetime.fromtimestamp(parse_time_ms("yesterday", NOW_MS) / 1000)
    assert (today.hour, today.minute, yesterday.hour, yesterday.minute) == (0, 0, 0, 0)
    assert today.date() == datetime.fromtimestamp(NOW_MS / 1000).date()
    assert (today.date() - yesterday.date()).days == 1


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2024, 5, 6, 7, 8)
    assert parse_time_ms("2024-05-06T07:08", NOW_MS) == int(local.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "someday", "-", "12:30", "99999999999999999999", "2023-13-01", "-1y"])
def test_a_value_that_is_not_a_time_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"Examples: |between 1970"):
        parse_time_ms(text, NOW_MS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", EARLIEST),
        ("beginning", EARLIEST),
        ("LATEST", LATEST),
        ("end", LATEST),
        ("17", StartOffset("offset", 17)),
        ("-17", StartOffset("from end", 17)),
    ],
)
def test_offsets(text: str, expected: StartOffset) -> None:
    assert StartOffsetType().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["", "-", "1.5", "first", "--1", "9" * 30])
def test_a_value_that_is_not_an_offset_is_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        StartOffsetType().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("views", NameAndPartitions("views")),
        ("views:0", NameAndPartitions("views", (0,))),
        ("views:2,0,4-6", NameAndPartitions("views", (2, 0, 4, 5, 6))),
    ],
)
def test_topics_with_partitions(text: str, expected: NameAndPartitions) -> None:
    assert TopicPartitions().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["", ":0", "views:", "views:x", "views:1,", "views:-1", "views:0-999999999"])
def test_topics_with_no_partitions_are_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        TopicPartitions().convert(text, None, None)


def test_a_value_may_hold_an_equals_sign() -> None:
    assert Assignment().convert("a=b=c", None, None) == ("a", "b=c")
    assert Assignment().convert("a=", None, None) == ("a", "")
    with pytest.raises(click.BadParameter):
        Assignment().convert("=b", None, None)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (0, "0 s"), (3.21, "3.2 s"), (250, "4 m 10 s"), (7_500, "2 h 5 m"), (273_600, "3 d 4 h")],
)
def test_durations_for_people(seconds: float | None, expected: str) -> None:
    assert duration_text(seconds) == expected


def test_times_for_people_are_utc() -> None:
    assert time_text(NOW_MS) == "2023-11-14T22:13:20.000Z"
    assert datetime.fromisoformat(time_text(NOW_MS)) == datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert time_text(-1) == "-"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("512KB", 524_288), ("50 mb", 52_428_800), ("1.5GB", 1_610_612_736), ("1024B", 1024)],
)
def test_numbers_of_bytes(text: str, expected: int) -> None:
    assert ByteCount().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "1XB", "9999999TB", "1e3"])
def test_an_invalid_number_of_bytes_is_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter, match="50MB"):
        ByteCount().convert(text, None, None)


def test_numbers_of_brokers() -> None:
    assert BrokerIds().convert("3, 1,3", None, None) == (3, 1)
    for text in ("", "1,", "a", "-1", "1;2", "99999999999"):
        with pytest.raises(click.BadParameter, match="Example: 1,2,3"):
            BrokerIds().convert(text, None, None)


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "create", "x", "-p", 2**31),
        ("topics", "create", "x", "-r", 2**15),
        ("topics", "list", "--request-timeout-ms", 2**31),
        ("consume", "x", "--fetch-size", 2**63),
        ("perf", "latency", "-t", "x", "-s", 2**63),
    ],
)
def test_numbers_that_the_protocol_has_no_room_for_are_usage_errors(words: tuple[str | int, ...]) -> None:
    result = Shell("127.0.0.1:1")(*words)
    assert (result.exit_code, "Invalid value" in result.stderr) == (2, True)
