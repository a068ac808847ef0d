"""Avro: schemas from everywhere, evolution, and the frame of a schema registry."""

from __future__ import annotations

import datetime
import enum
import importlib
import io
import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from penstock.client.errors import ConfigError, DeserializationError, MissingDependency, SerializationError
from penstock.client.serializers import Avro
from penstock.client.serializers.avro import schema_of

fastavro: Any = pytest.importorskip("fastavro")

VIEW = {"type": "record", "name": "View", "fields": [{"name": "page", "type": "long"}]}
VIEW_2 = {
    "type": "record",
    "name": "View",
    "fields": [{"name": "page", "type": "long"}, {"name": "user", "type": "string", "default": "nobody"}],
}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    lat: float
    next: Place | None = None


class Device(msgspec.Struct):
    name: str
    screens: list[Place] = []


@dataclass
class Everything:
    flag: bool
    count: int
    ratio: float
    text: str
    data: bytes
    when: datetime.datetime
    day: datetime.date
    id: uuid.UUID
    colour: Colour
    kind: Literal["a", "b"]
    maybe: int | None = None
    places: list[Place] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    device: Device | None = None
    again: Colour | None = None


@dataclass
class View:
    page: int
    user: str = "nobody"


def everything() -> Everything:
    return Everything(
        True,
        2**40,
        0.5,
        "ünï",
        b"\x00\xff",
        datetime.datetime(2020, 1, 2, 3, 4, 5, 678_901, tzinfo=datetime.UTC),
        datetime.date(2020, 1, 2),
        uuid.UUID(int=7),
        Colour.BLUE,
        "b",
        None,
        [Place(1.0, Place(2.0))],
        {"x": 1},
        Device("phone", [Place(3.0)]),
        Colour.RED,
    )


def written(schema: Any, value: Any) -> bytes:
    """By fastavro itself."""
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), value)
    return output.getvalue()


def test_a_class_comes_back_as_itself() -> None:
    serializer = Avro(Everything)
    encoded = serializer.encode("t", everything())
    assert encoded is not None
    assert serializer.decode("t", encoded) == everything()


def test_the_schema_of_a_class_is_one_that_others_accept() -> None:
    schema = json.loads(json.dumps(schema_of(Everything)))
    fastavro.parse_schema(schema)
    fields = {each["name"]: each for each in schema["fields"]}
    assert fields["maybe"] == {"name": "maybe", "type": ["null", "long"], "default": None}
    assert fields["again"]["type"] == ["null", "Colour"], "a name is defined once and then referred to"


def test_a_schema_from_text_a_dict_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "view.avsc"
    path.write_text(json.dumps(VIEW))
    data = written(VIEW, {"page": 9})
    for source in (json.dumps(VIEW), VIEW, path, str(path)):
        serializer = Avro(source)
        assert serializer.encode("t", {"page": 9}) == data
        assert serializer.decode("t", data) == {"page": 9}


def test_a_primitive_by_its_name() -> None:
    assert Avro("string").decode("t", Avro("string").encode("t", "x") or b"") == "x"


def test_an_old_record_is_seen_through_a_newer_schema() -> None:
    data = written(VIEW, {"page": 9})
    assert Avro(VIEW, reader_schema=VIEW_2).decode("t", data) == {"page": 9, "user": "nobody"}
    assert Avro(VIEW, reader_schema=View).decode("t", data) == View(9)


def test_the_registrys_frame_names_the_writers_schema() -> None:
    asked: list[int] = []

    def resolver(number: int) -> Any:
        asked.append(number)
        return {7: VIEW, 8: json.dumps(VIEW_2)}[number]

    serializer = Avro(View, framing="confluent", resolver=resolver)
    old = b"\x00\x00\x00\x00\x07" + written(VIEW, {"page": 1})
    new = b"\x00\x00\x00\x00\x08" + written(VIEW_2, {"page": 2, "user": "ann"})
    assert [serializer.decode("t", each) for each in (old, new, old)] == [View(1), View(2, "ann"), View(1)]
    assert asked == [7, 8], "a schema is asked for once"


def test_without_a_schema_of_ones_own_the_writers_is_taken() -> None:
    serializer = Avro(framing="confluent", resolver=lambda number: VIEW_2)
    data = b"\x00\x00\x00\x00\x01" + written(VIEW_2, {"page": 2, "user": "ann"})
    assert serializer.decode("t", data) == {"page": 2, "user": "ann"}
    with pytest.raises(SerializationError, match="no schema to write with"):
        serializer.encode("t", {"page": 1})


def test_writing_in_the_frame_puts_the_number_before_the_value() -> None:
    serializer = Avro(VIEW, framing="confluent", schema_id=0x01020304)
    encoded = serializer.encode("t", {"page": 1})
    assert encoded == b"\x00\x01\x02\x03\x04" + written(VIEW, {"page": 1})
    assert serializer.decode("t", encoded) == {"page": 1}


def test_a_schema_that_the_registry_does_not_have_is_asked_for_again_next_time() -> None:
    known: dict[int, Any] = {}
    serializer = Avro(View, framing="confluent", resolver=lambda number: known[number])
    data = b"\x00\x00\x00\x00\x07" + written(VIEW, {"page": 1})
    with pytest.raises(DeserializationError, match="schema 7 could not be loaded: KeyError"):
        serializer.decode("t", data)
    known[7] = VIEW
    assert serializer.decode("t", data) == View(1)


def test_a_schema_id_without_a_resolver_is_rejected_with_a_hint() -> None:
    serializer = Avro(VIEW, framing="confluent", schema_id=1)
    with pytest.raises(DeserializationError, match="schema 2, which is not known") as caught:
        serializer.decode("t", b"\x00\x00\x00\x00\x02\x02")
    assert "resolver=" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"\x00\x00", b"\x01\x00\x00\x00\x07\x02", b'{"page": 1}'])
def test_bytes_without_the_header_are_rejected(data: bytes) -> None:
    with pytest.raises(DeserializationError, match="schema-registry header"):
        Avro(VIEW, framing="confluent", resolver=lambda number: VIEW).decode("t", data)


def test_every_truncation_is_an_error_and_so_is_what_is_left_over() -> None:
    serializer = Avro(Everything)
    encoded = serializer.encode("t", everything())
    assert encoded is not None
    for length in range(len(encoded)):
        with pytest.raises(DeserializationError):
            serializer.decode("t", encoded[:length])
    with pytest.raises(DeserializationError, match="1 bytes are left over"):
        serializer.decode("t", encoded + b"\x00")


@pytest.mark.parametrize("data", [b"\xff" * 9 + b"\x7f", b"\x01" * 3, b"\xfe\xff\xff\xff\x0f"])
def test_hostile_lengths_are_an_error(data: bytes) -> None:
    with pytest.raises(DeserializationError):
        Avro("string").decode("t", data)


@pytest.mark.parametrize("value", [{"page": "nine"}, {}, 5, {"page": 2**70}])
def test_what_is_not_of_the_schema_is_not_sent(value: object) -> None:
    with pytest.raises(SerializationError, match="topic views"):
        Avro(VIEW).encode("views", value)


def test_another_class_is_not_sent() -> None:
    with pytest.raises(SerializationError, match="it is not a View"):
        Avro(View).encode("t", Place(1.0))  # type: ignore[arg-type]


def test_no_value_stays_no_value() -> None:
    assert Avro(View).encode("t", None) is None


@dataclass
class Unsayable:
    what: set[int]


@dataclass
class Numbers:
    what: Literal[1, 2]


@pytest.mark.parametrize("source", [{"type": "nonsense"}, "{not json", "no/such/file.avsc", 5, Unsayable, Numbers])
def test_an_invalid_schema_is_rejected_at_once(source: Any) -> None:
    with pytest.raises(ConfigError, match="Avro"):
        Avro(source)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schema": VIEW, "framing": "none", "schema_id": 1},
        {"schema": VIEW, "framing": "confluent"},
        {"schema": VIEW, "framing": "glue"},
        {"framing": "confluent", "schema_id": 1},
        {"schema": VIEW, "framing": "confluent", "schema_id": -1},
    ],
)
def test_options_that_make_no_sense_together(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Avro"):
        Avro(**options)


def test_without_fastavro_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name == "fastavro":
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingDependency, match=r"penstock\[avro\]"):
        Avro(View)
