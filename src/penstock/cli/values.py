"""Types of command-line values: timestamps, durations, offsets, TOPIC:PARTITIONS, sizes, NAME=VALUE pairs.

A value that cannot be parsed is rejected with what is wrong and an example that can be copied. A timestamp without a
time zone is local time. Durations are written as "90s", "1h30m", "2 days", or in ISO 8601 as "PT1H30M".
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not generic in older versions of click

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_NAMED_UNITS_MS: Final = {
    "millisecond": 1, "second": 1_000, "sec": 1_000, "minute": 60_000, "min": 60_000, "hour": 3_600_000,
    "day": 86_400_000, "week": 604_800_000, **_UNITS_MS,
}  # fmt: skip
# "1 hour", "2 days 3 hours", "an hour and 30 minutes"
_WORD_OF_TIME = re.compile(
    rf"(?:(\d+(?:\.\d+)?)\s*|an?\s+)({'|'.join(sorted(_NAMED_UNITS_MS, key=len, reverse=True))})s?\b", re.IGNORECASE
)
_WORDS_OF_TIME = re.compile(rf"(?:{_WORD_OF_TIME.pattern}(?:\s*(?:,|and)?\s*|$))+", re.IGNORECASE)
_ISO = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
_ISO_UNITS_MS: Final = (604_800_000, 86_400_000, 3_600_000, 60_000, 1_000)
# Eleven digits of seconds are the year 5138; of milliseconds, 1973.
_SECONDS_DIGITS: Final = 11
_MOST_MS: Final = 253_402_300_799_000
_INDEXES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_MOST_PARTITIONS: Final = 100_000
_BYTES = re.compile(r"(\d{1,15}(?:\.\d{1,3})?)\s*(B|KB|MB|GB|TB)?", re.IGNORECASE)
_UNITS_BYTES: Final = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


# The protocol has 32 bits for a count, a size or a time, and 16 for a replication factor.
COUNT: Final = click.IntRange(1, 2**31 - 1)
FACTOR: Final = click.IntRange(1, 2**15 - 1)


def parse_duration_ms(text: str) -> int:
    """Raises ValueError."""
    plain = text.strip()
    if _DURATION.fullmatch(plain):
        return round(sum(float(count) * _UNITS_MS[unit] for count, unit in _PART.findall(plain)))
    if _WORDS_OF_TIME.fullmatch(plain):
        parts = _WORD_OF_TIME.findall(plain)
        return round(sum(float(count or 1) * _NAMED_UNITS_MS[unit.lower()] for count, unit in parts))
    iso = _ISO.fullmatch(plain)
    if iso and any(iso.groups()):
        return round(sum(float(count) * unit for count, unit in zip(iso.groups(), _ISO_UNITS_MS, strict=True) if count))
    raise ValueError(f"{text!r} is not a duration. Examples: 90s, 15m, 1h30m, '2 days', PT1H30M.")


def parse_time_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970; raises ValueError."""
    plain = text.strip()
    if plain == "now":
        return now_ms
    if plain in ("today", "yesterday"):
        midnight = datetime.fromtimestamp(now_ms / 1000).replace(hour=0, minute=0, second=0, microsecond=0)
        return round((midnight - timedelta(days=plain == "yesterday")).timestamp() * 1000)
    ago = plain[1:] if plain.startswith("-") else plain[:-4] if plain.endswith(" ago") else ""
    if ago:
        return now_ms - parse_duration_ms(ago)
    if plain.isascii() and plain.isdigit():
        number = int(plain[:20])
        time_ms = number * 1000 if len(plain) < _SECONDS_DIGITS else number
    else:
        try:
            time_ms = round(datetime.fromisoformat(plain).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise ValueError(
                f"{text!r} is not a time. Examples: 2026-11-15T10:30, 2026-11-15T10:30:00Z, '1 hour ago', -1h, "
                "yesterday, 1700000000000 (milliseconds since 1970)."
            ) from None
    if not 0 <= time_ms <= _MOST_MS:
        raise ValueError(f"{text!r} is out of range. Times are between 1970 and 9999.")
    return time_ms


class Timestamp(_ParamType):
    """A time, as milliseconds since 1970."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_time_ms(value, now_ms())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Duration(_ParamType):
    """A length of time, as milliseconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration_ms(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class StartOffset(NamedTuple):
    """Where to start in a partition: its beginning or end, `number` records before its end, or an offset."""

    kind: str
    number: int = 0


EARLIEST: Final = StartOffset("earliest")
LATEST: Final = StartOffset("latest")
_WORDS: Final = {"earliest": EARLIEST, "beginning": EARLIEST, "latest": LATEST, "end": LATEST}


class StartOffsetType(_ParamType):
    """earliest, latest, N, or -N for the last N records."""

    name = "OFFSET"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> StartOffset:
        if isinstance(value, StartOffset):
            return value
        text = value.strip().lower()
        if text in _WORDS:
            return _WORDS[text]
        sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            self.fail(
                f"{value!r} is not an offset. Use earliest, latest, a number, or -N for the last N records.", param, ctx
            )
        return StartOffset("from end", int(digits)) if sign else StartOffset("offset", int(digits))


class NameAndPartitions(NamedTuple):
    """A topic and some of its partitions; None is all of them."""

    topic: str
    partitions: tuple[int, ...] | None = None


class TopicPartitions(_ParamType):
    """TOPIC or TOPIC:0,2,5-7."""

    name = "TOPIC[:P,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NameAndPartitions:
        if isinstance(value, NameAndPartitions):
            return value
        topic, colon, indexes = value.partition(":")
        if not topic:
            self.fail(f"{value!r} has no topic name.", param, ctx)
        if not colon:
            return NameAndPartitions(topic)
        if not _INDEXES.fullmatch(indexes) or len(indexes) > 10_000:
            self.fail(f"{value!r} is not TOPIC:PARTITIONS. Examples: {topic}:0,2 or {topic}:0-3.", param, ctx)
        found: dict[int, None] = {}
        for part in indexes.split(","):
            first, _, last = part.partition("-")
            begin, end = int(first[:9]), int((last or first)[:9])
            if end - begin >= _MOST_PARTITIONS:
                self.fail(f"{value!r} names more than {_MOST_PARTITIONS} partitions.", param, ctx)
            found.update(dict.fromkeys(range(begin, end + 1)))
        return NameAndPartitions(topic, tuple(found))


class BrokerIds(_ParamType):
    """1,2,3: broker ids, each once."""

    name = "ID,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 11 for part in parts):
            self.fail(f"{value!r} is not a list of broker ids. Example: 1,2,3.", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


class ByteCount(_ParamType):
    """50MB, 512 KB, 1048576; units of 1024."""

    name = "BYTES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _BYTES.fullmatch(value.strip())
        count = round(float(found[1]) * _UNITS_BYTES[(found[2] or "B").upper()]) if found else 0
        if not 0 < count < 1 << 62:
            self.fail(f"{value!r} is not a number of bytes above 0. Examples: 50MB, 512KB, 1048576.", param, ctx)
        return count


class Assignment(_ParamType):
    """NAME=VALUE, as a pair."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name.strip():
            self.fail(f"{value!r} is not NAME=VALUE.", param, ctx)
        return name.strip(), text
