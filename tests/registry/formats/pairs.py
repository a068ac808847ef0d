"""A pair of schemas with the verdicts that the specifications give it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.registry.formats import SchemaType, parse_schema, reader_incompatibilities


@dataclass(frozen=True, slots=True)
class Pair:
    """`backward`: the new schema reads data of the old one. `forward`: the old one reads data of the new one."""

    rule: str
    old: str
    new: str
    backward: bool
    forward: bool


def text(schema: object) -> str:
    """Schemas of Protobuf are text, those in JSON are values here."""
    return json.dumps(schema)


def mismatches(schema_type: SchemaType, pairs: Sequence[Pair]) -> list[str]:
    """Each verdict that differs from the expected one, with what the verdict is based on."""
    found = []
    for pair in pairs:
        old, new = parse_schema(schema_type, pair.old), parse_schema(schema_type, pair.new)
        for direction, reader, writer, expected in (
            ("backward", new, old, pair.backward),
            ("forward", old, new, pair.forward),
        ):
            differences = reader_incompatibilities(reader, writer)
            if (not differences) != expected:
                kinds = [f"{each.kind} {each.path}" for each in differences]
                found.append(f"{pair.rule}: {direction} expected {expected}, got {kinds}\n  {pair.old}\n  {pair.new}")
    return found
