"""Events as bytes: what the kind's schema reads is what was made, and what was spoilt is read by none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.activity.events import BY_TOPIC, KINDS, Kind
from penstock.activity.site import Site
from penstock.activity.site.behaviour import joined_columns
from penstock.activity.site.encoding import Batches, Encoded, ValueCorruptor
from penstock.client.errors import DeserializationError
from penstock.client.serializers import Avro
from penstock.spark.formats.decoder import Undecodable, record_format
from penstock.spark.formats.spec import parse_spec

SITE = Site(seed=5, rate=3000, origin_ms=1_790_000_000_000)
TICKS = range(SITE.first_tick + 40, SITE.first_tick + 60)


def rows_of(kind: Kind) -> list[dict[str, Any]]:
    parts = [made[kind.topic] for tick in TICKS if kind.topic in (made := SITE.tick(tick))]
    return list(joined_columns(parts).rows())


def batches(value_format: str = "json", malformed: float = 0.0, ticks: range = TICKS) -> dict[str, Encoded]:
    return {each.topic: each for each in Batches(SITE, value_format, malformed).of(ticks)}


def values(batch: Encoded) -> list[bytes]:
    found: list[bytes] = batch.records.column("value").to_pylist()
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.topic)
def test_json_values_are_the_rows_and_the_kind_s_schema_reads_them(kind: Kind) -> None:
    batch = batches()[kind.topic]
    rows = rows_of(kind)
    assert [json.loads(value) for value in values(batch)] == rows
    assert list(json.loads(values(batch)[0])) == list(kind.names)
    read = record_format(parse_spec(f"json: {kind.ddl}")).read
    for value in values(batch):
        read(value)
    assert batch.records.column("key").to_pylist() == [str(row[kind.key]) for row in rows]
    assert batch.records.column("timestamp").cast("int64").to_pylist() == [row["time"] for row in rows]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.topic)
def test_avro_values_are_the_rows(kind: Kind) -> None:
    reader: Avro[Any] = Avro(json.loads(kind.avro))
    assert [reader.decode(kind.topic, value) for value in values(batches("avro")[kind.topic])] == rows_of(kind)


def is_read(value_format: str, topic: str, value: bytes) -> bool:
    kind = BY_TOPIC[topic]
    try:
        if value_format == "json":
            record_format(parse_spec(f"json: {kind.ddl}")).read(value)
        else:
            Avro[Any](json.loads(kind.avro)).decode(topic, value)
    except (Undecodable, DeserializationError):
        return False
    return True


@pytest.mark.parametrize("value_format", ["json", "avro"])
def test_malformed_values_are_those_that_no_reader_reads_and_keep_their_keys(value_format: str) -> None:
    good, spoilt = batches(value_format), batches(value_format, 0.2)
    total = hit = 0
    for topic, batch in spoilt.items():
        unread = {place for place, value in enumerate(values(batch)) if not is_read(value_format, topic, value)}
        assert unread == batch.malformed
        assert batch.records.column("key") == good[topic].records.column("key")
        kept = [place for place in range(len(batch)) if place not in unread]
        before, after = values(good[topic]), values(batch)
        assert [after[place] for place in kept] == [before[place] for place in kept]
        total, hit = total + len(batch), hit + len(unread)
    assert hit / total == pytest.approx(0.2, abs=0.02)


def test_there_are_several_ways_to_be_malformed() -> None:
    batch = batches("json", 0.5)["views"]
    spoilt = [values(batch)[place] for place in batch.malformed]
    assert sum(value[0] >= 0x80 for value in spoilt) > 10
    assert sum(b'["yesterday"]' in value for value in spoilt) > 10
    ended = [json.loads(value) for value in spoilt if value.endswith(b"}") and b"yesterday" not in value]
    assert sum(len(row) == len(BY_TOPIC["views"].columns) - 1 for row in ended) > 10
    assert sum(value.startswith(b"{") and not value.endswith(b"}") for value in spoilt) > 10


def test_how_ticks_are_put_together_changes_no_byte() -> None:
    whole = batches("json", 0.1)
    one_by_one = [batches("json", 0.1, range(tick, tick + 1)) for tick in TICKS]
    for topic, batch in whole.items():
        assert values(batch) == [value for part in one_by_one if topic in part for value in values(part[topic])]


def test_a_limit_cuts_the_last_tick() -> None:
    assert sum(len(batch) for batch in Batches(SITE).of(TICKS, 1234)) == 1234


def test_a_share_beyond_one_is_rejected() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        ValueCorruptor(1.5, "json", 1)
