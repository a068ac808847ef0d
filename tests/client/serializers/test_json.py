"""JSON, plain and of a type."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.errors import ConfigError, DeserializationError, SerializationError
from penstock.client.serializers import Json


@dataclass
class View:
    page: int
    user: str = "nobody"
    tags: list[str] = field(default_factory=list)


class Click(msgspec.Struct, frozen=True):
    x: int
    view: View


class Named(TypedDict):
    name: str


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(_VALUES)
@settings(max_examples=60)
def test_plain_values_come_back_and_are_json_to_everybody(value: Any) -> None:
    encoded = Json().encode("t", value)
    assert encoded is not None
    assert json.loads(encoded) == value
    assert Json().decode("t", encoded) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (View, View(1, "ann", ["a"])),
        (Click, Click(3, View(2))),
        (list[View], [View(1), View(2)]),
        (Named, {"name": "ann"}),
        (float, 1),
    ],
)
def test_typed_values_come_back_as_what_they_were(kind: type, value: object) -> None:
    serializer: Json[Any] = Json(kind)
    encoded = serializer.encode("t", value)
    assert encoded is not None
    assert serializer.decode("t", encoded) == value


def test_a_type_gives_instances_and_fills_in_defaults() -> None:
    decoded = Json(View).decode("t", b'{"page": 7}')
    assert decoded == View(7)
    assert type(decoded) is View


def test_fields_of_a_newer_writer_are_ignored() -> None:
    assert Json(View).decode("t", b'{"page": 7, "since_version_2": true}') == View(7)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "truncated"),
        (b'{"page": 1', "truncated"),
        (b"\xff\xfe", "0 byte|invalid|malformed"),
        (b'{"page": "seven"}', "page"),
        (b"{}", "page"),
        (b"[1]", "object"),
        (b"[" * 100_000, "."),
    ],
)
def test_a_value_of_another_type_is_rejected_with_the_reason(data: bytes, says: str) -> None:
    with pytest.raises(
        DeserializationError, match=f"(?s)Json.View. cannot decode .* of topic views: .*({says})"
    ) as caught:
        Json(View).decode("views", data)
    assert caught.value.topic == "views"
    assert caught.value.data == data


def test_another_class_than_the_one_named_is_not_sent() -> None:
    with pytest.raises(SerializationError, match=r"Json.View. cannot encode a dict for topic views: it is not a View"):
        Json(View).encode("views", {"page": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [object(), 1 + 2j, {(1, 2): 3}])
def test_what_json_cannot_express_is_rejected(value: object) -> None:
    with pytest.raises(SerializationError):
        Json().encode("t", value)


def test_hooks_teach_it_a_type() -> None:
    serializer = Json(
        complex, enc_hook=lambda value: [value.real, value.imag], dec_hook=lambda kind, parts: kind(*parts)
    )
    encoded = serializer.encode("t", 1 + 2j)
    assert encoded == b"[1.0,2.0]"
    assert serializer.decode("t", encoded) == 1 + 2j


def test_no_value_stays_no_value() -> None:
    assert Json().encode("t", None) is None
    assert Json(View).encode("t", None) is None


def test_a_type_that_cannot_be_decoded_is_noticed_at_once() -> None:
    with pytest.raises(ConfigError, match="more than one"):
        Json(View | Click)  # type: ignore[arg-type]
