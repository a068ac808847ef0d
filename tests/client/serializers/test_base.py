"""Bytes, text and functions of the user's own."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.client.errors import (
    ConfigError,
    DeserializationError,
    MissingDependency,
    PenstockError,
    SerializationError,
)
from penstock.client.serializers import Bytes, Decoder, Encoder, Serializer, Text, from_callables
from penstock.client.serializers.base import decoder_from, encoder_from, load_optional


def test_bytes_pass_as_they_are() -> None:
    data = b"as it is"
    assert Bytes().encode("t", data) is data
    assert Bytes().decode("t", data) is data


@pytest.mark.parametrize("value", [bytearray(b"abc"), memoryview(b"abc")])
def test_whatever_has_a_buffer_becomes_bytes(value: bytearray | memoryview) -> None:
    encoded = Bytes().encode("t", value)
    assert encoded == b"abc"
    assert type(encoded) is bytes


def test_text_given_to_bytes_is_rejected_with_a_hint() -> None:
    with pytest.raises(SerializationError, match="str for topic views") as caught:
        Bytes().encode("views", "text")  # type: ignore[arg-type]
    assert "Text()" in caught.value.hint
    assert caught.value.topic == "views"


@pytest.mark.parametrize("text", ["", "plain", "ünï ☃ 水"])
def test_text_comes_back(text: str) -> None:
    encoded = Text().encode("t", text)
    assert encoded == text.encode()
    assert Text().decode("t", text.encode()) == text


def test_text_in_another_encoding() -> None:
    assert Text("latin-1").encode("t", "é") == b"\xe9"
    assert Text("latin-1").decode("t", b"\xe9") == "é"


def test_bytes_that_are_not_text_are_rejected_and_kept() -> None:
    with pytest.raises(DeserializationError, match=r"2 bytes .ff00. of topic views") as caught:
        Text().decode("views", b"\xff\x00")
    assert caught.value.data == b"\xff\x00"
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)


def test_a_lone_surrogate_cannot_be_encoded() -> None:
    with pytest.raises(SerializationError):
        Text().encode("t", "\ud800")


def test_a_value_that_is_not_text_is_rejected() -> None:
    with pytest.raises(SerializationError, match="not a str"):
        Text().encode("t", 5)  # type: ignore[arg-type]


def test_an_unknown_encoding_is_noticed_at_once() -> None:
    with pytest.raises(ConfigError, match="klingon"):
        Text("klingon")


def test_functions_of_the_users_own() -> None:
    serializer: Serializer[object] = from_callables(pickle.dumps, pickle.loads)
    encoded = serializer.encode("t", {"a": [1, 2]})
    assert encoded is not None
    assert serializer.decode("t", encoded) == {"a": [1, 2]}


def test_what_the_users_functions_raise_is_the_cause() -> None:
    def broken(_: object) -> bytes:
        raise KeyError("missing")

    def broken_too(_: bytes) -> object:
        raise ZeroDivisionError("nothing")

    serializer = from_callables(broken, broken_too)
    with pytest.raises(SerializationError, match="KeyError") as rejected:
        serializer.encode("t", object())
    assert isinstance(rejected.value.__cause__, KeyError)
    with pytest.raises(DeserializationError, match="ZeroDivisionError") as unread:
        serializer.decode("t", b"x")
    assert isinstance(unread.value.__cause__, ZeroDivisionError)


def test_a_function_that_does_not_return_bytes_is_caught() -> None:
    with pytest.raises(SerializationError, match="returned a str"):
        from_callables(str, bytes).encode("t", 5)  # type: ignore[arg-type]


def test_a_function_serves_as_encoder_or_decoder() -> None:
    encoder, decoder = encoder_from(lambda value: b"%d" % value, "value"), decoder_from(int, "value")
    assert encoder is not None
    assert decoder is not None
    assert encoder.encode("t", 5) == b"5"
    assert encoder.encode("t", None) is None
    assert decoder.decode("t", b"5") == 5
    with pytest.raises(SerializationError, match="topic t: TypeError"):
        encoder.encode("t", "five")
    with pytest.raises(DeserializationError, match=r"int cannot decode .* topic t: ValueError"):
        decoder.decode("t", b"five")
    text = Text()
    assert encoder_from(text, "key") is text
    assert decoder_from(text, "key") is text
    assert encoder_from(None, "key") is None
    assert decoder_from(None, "key") is None


@pytest.mark.parametrize("given", [5, "json", b"json", Text])
def test_what_cannot_serialize_is_rejected_by_the_name_of_its_option(given: object) -> None:
    for make in (encoder_from, decoder_from):
        with pytest.raises(ConfigError, match="value is"):
            make(given, "value")


def test_no_value_stays_no_value() -> None:
    def never(_: object) -> bytes:
        raise AssertionError

    assert Bytes().encode("t", None) is None
    assert Text().encode("t", None) is None
    assert from_callables(never, bytes).encode("t", None) is None  # type: ignore[arg-type]


def test_a_long_value_is_shown_by_its_beginning_only() -> None:
    with pytest.raises(PenstockError) as caught:
        Text().decode("t", b"\xff" * 10_000)
    assert len(str(caught.value)) < 400


def test_any_object_with_the_methods_serves() -> None:
    class Upper:
        def encode(self, topic: str, value: str) -> bytes:
            return value.upper().encode()

        def decode(self, topic: str, data: bytes) -> str:
            return data.decode().lower()

    encoder: Encoder[str] = Upper()
    decoder: Decoder[str] = Upper()
    assert encoder.encode("t", "a") == b"A"
    assert decoder.decode("t", b"A") == "a"


def test_a_package_that_cannot_be_imported_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("from os import no_such_name")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependency, match=r"half-installed, which cannot be imported: .*no_such_name"):
        load_optional("half_installed", "half-installed", "x", "a test")
    with pytest.raises(MissingDependency, match=r"a test needs absent, which is not installed.*penstock\[x\]"):
        load_optional("absent", "absent", "x", "a test")
