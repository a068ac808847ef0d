"""Serializers: bytes, text, JSON, Avro, Protocol Buffers, and your own; and a client of schema registries."""

from penstock.client.serializers.avro import Avro
from penstock.client.serializers.base import Bytes, Decoder, Encoder, Serializer, Text, from_callables
from penstock.client.serializers.framed import RegistryOptions
from penstock.client.serializers.json import Json
from penstock.client.serializers.protobuf import Protobuf
from penstock.client.serializers.registry_client import (
    RegisteredSchema,
    RegistryClient,
    RegistrySchema,
    SchemaReference,
)

__all__ = [
    "Avro",
    "Bytes",
    "Decoder",
    "Encoder",
    "Json",
    "Protobuf",
    "RegisteredSchema",
    "RegistryClient",
    "RegistryOptions",
    "RegistrySchema",
    "SchemaReference",
    "Serializer",
    "Text",
    "from_callables",
]
