"""Verdicts on hundreds of pairs of schemas beside those of the specifications."""

from __future__ import annotations

from tests.registry.formats.avro_pairs import PAIRS as AVRO_PAIRS
from tests.registry.formats.json_schema_pairs import PAIRS as JSON_PAIRS
from tests.registry.formats.pairs import mismatches
from tests.registry.formats.protobuf_pairs import PAIRS as PROTOBUF_PAIRS


def test_pairs_of_avro_schemas_are_judged_as_the_specification_does() -> None:
    assert "\n".join(mismatches("AVRO", AVRO_PAIRS)) == ""


def test_pairs_of_json_schemas_are_judged_as_the_specification_does() -> None:
    assert "\n".join(mismatches("JSON", JSON_PAIRS)) == ""


def test_pairs_of_protobuf_schemas_are_judged_as_the_language_guide_does() -> None:
    assert "\n".join(mismatches("PROTOBUF", PROTOBUF_PAIRS)) == ""


def test_there_are_at_least_five_hundred_different_pairs() -> None:
    pairs = {(each.old, each.new) for pairs in (AVRO_PAIRS, JSON_PAIRS, PROTOBUF_PAIRS) for each in pairs}
    assert len(pairs) >= 500
    assert all(len(pairs) >= 150 for pairs in (AVRO_PAIRS, JSON_PAIRS, PROTOBUF_PAIRS))
