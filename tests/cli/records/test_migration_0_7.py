"""The header that makes a target remember what was imported into it."""

from __future__ import annotations

import pytest

from penstock.cli.records.migration_0_7 import Place, parse_header


@pytest.mark.parametrize("source", ["/tmp/kafka-logs", "broker 1", "\u00e9"])
def test_a_header_says_place_and_source(source: str) -> None:
    assert parse_header(Place(4096, 3).header(source)) == (Place(4096, 3), source)


@pytest.mark.parametrize("value", [None, b"", b"1", b"1 2", b"1 2 ", b"x 2 s", b"1 -2 s", b"\xff"])
def test_other_headers_are_ignored(value: bytes | None) -> None:
    assert parse_header(value) is None
