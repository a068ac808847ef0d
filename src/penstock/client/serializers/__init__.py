"""Serializers: bytes, text, JSON, Avro, Protocol Buffers, and your own."""

from penstock.client.serializers.avro import Avro
from penstock.client.serializers.base import Bytes, Decoder, Encoder, Serializer, Text, from_callables
from penstock.client.serializers.json import Json
from penstock.client.serializers.protobuf import Protobuf

__all__ = ["Avro", "Bytes", "Decoder", "Encoder", "Json", "Protobuf", "Serializer", "Text", "from_callables"]
