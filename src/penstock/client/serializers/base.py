"""What turns values into the bytes of a record, and bytes into values.

Noun: an encoder, a decoder, and a serializer, which is both. They are protocols: any object with these methods serves,
ours have no base class to inherit from. Where a client takes one it takes a function of one argument as well
(`AnyEncoder`, `AnyDecoder`), as kafka-python and aiokafka do.

Rule: None is "no value" (in a compacted topic: a tombstone) and stays None; a decoder is never asked about it. Whatever
goes wrong is a SerializationError or a DeserializationError that names the topic; the cause is its `__cause__`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Protocol, TypeVar

from penstock.client.errors import DeserializationError, MissingDependency, SerializationError

T = TypeVar("T")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

_SHOWN_BYTES = 24


class Encoder(Protocol[In_contra]):
    """Values of a topic to bytes."""

    def encode(self, topic: str, value: In_contra) -> bytes | None: ...


class Decoder(Protocol[Out_co]):
    """Bytes of a topic to values."""

    def decode(self, topic: str, data: bytes) -> Out_co: ...


AnyEncoder = Encoder[In_contra] | Callable[[In_contra], bytes | None]
AnyDecoder = Decoder[Out_co] | Callable[[bytes], Out_co]


class Serializer(Encoder[T], Decoder[T], Protocol[T]):
    """Both ways."""


def load_optional(module: str, package: str, extra: str, purpose: str) -> ModuleType:
    """A module of a package that is installed only where it is wanted; raises MissingDependency."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(package, purpose, extra) from error


def not_encodable(serializer: str, topic: str, value: object, why: object, hint: str = "") -> SerializationError:
    return SerializationError(
        f"{serializer} cannot encode a {type(value).__name__} for topic {topic}: {why}",
        topic=topic,
        hint=hint or f"Send what {serializer} accepts, or give the producer another serializer",
    )


def not_decodable(serializer: str, topic: str, data: bytes, why: object, hint: str = "") -> DeserializationError:
    shown = data[:_SHOWN_BYTES].hex() + ("..." if len(data) > _SHOWN_BYTES else "")
    return DeserializationError(
        f"{serializer} cannot decode {len(data)} bytes ({shown}) of topic {topic}: {why}",
        topic=topic,
        data=data,
        hint=hint or "The record was written by another serializer, or in another version of its format",
    )
