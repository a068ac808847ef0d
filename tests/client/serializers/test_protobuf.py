"""Protocol Buffers, with messages that come with the library."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from penstock.client.errors import ConfigError, DeserializationError, MissingDependency, SerializationError
from penstock.client.serializers import Protobuf

timestamps: Any = pytest.importorskip("google.protobuf.timestamp_pb2")
descriptors: Any = pytest.importorskip("google.protobuf.descriptor_pb2")


def test_a_message_comes_back() -> None:
    serializer: Protobuf[Any] = Protobuf(timestamps.Timestamp)
    message = timestamps.Timestamp(seconds=5, nanos=6)
    encoded = serializer.encode("t", message)
    assert encoded == message.SerializeToString()
    assert encoded is not None
    assert serializer.decode("t", encoded) == message


def test_a_message_of_another_class_is_not_sent() -> None:
    with pytest.raises(SerializationError, match="it is not a Timestamp"):
        Protobuf(timestamps.Timestamp).encode("t", descriptors.FileDescriptorProto())


@pytest.mark.parametrize("data", [b"\x08", b"\xff" * 12, b"\x0a\xff\xff\xff\xff\x0f"])
def test_damaged_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(DeserializationError, match=r"Protobuf.Timestamp. cannot decode .* of topic views"):
        Protobuf(timestamps.Timestamp).decode("views", data)


def test_a_message_that_lacks_what_is_required_is_not_sent() -> None:
    incomplete = descriptors.UninterpretedOption(name=[descriptors.UninterpretedOption.NamePart(name_part="x")])
    with pytest.raises(SerializationError, match="required"):
        Protobuf(descriptors.UninterpretedOption).encode("t", incomplete)


def test_no_value_stays_no_value() -> None:
    assert Protobuf(timestamps.Timestamp).encode("t", None) is None


@pytest.mark.parametrize("kind", [dict, 5, "Timestamp"])
def test_a_class_that_is_not_a_message_is_rejected_at_once(kind: Any) -> None:
    with pytest.raises(ConfigError, match="not a generated message class"):
        Protobuf(kind)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, package: str | None = None) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingDependency, match=r"penstock\[protobuf\]"):
        Protobuf(timestamps.Timestamp)
