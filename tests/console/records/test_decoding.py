"""Values as text, whatever the bytes are."""

from __future__ import annotations

import http.server
import io
import json
import threading
from collections.abc import Iterator

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.console.records.decoding import FORMATS, SHOWN_CHARS, Registry, decode, hex_text

SCHEMA = {"type": "record", "name": "View", "fields": [{"name": "page", "type": "string"}]}
PROTO = b"\x08\x96\x01\x12\x07testing\x1a\x03\x08\x96\x01"


@pytest.mark.parametrize(
    ("data", "text", "kind"),
    [
        (None, "null", "null"), (b"", "", "empty"), (b"plain words", "plain words", "text"),
        (b'{"a":1.0,"b":[12345678901234567890]}', '{\n  "a": 1.0,\n  "b": [\n    12345678901234567890\n  ]\n}', "json"),
        (b"{broken", "{broken", "text"), ("gr\u00fcn".encode(), "gr\u00fcn", "text"),
        (b"\0\0\0\0\0\0\1\1", "257", "int"), (b"\0\0\0\x01\x02{}", "{}", "json"),
        (PROTO, '1: 150\n2: "testing"\n3 {\n  1: 150\n}', "protobuf"),
        (b"\xff\xfe\xfd\xfc\xfb", hex_text(b"\xff\xfe\xfd\xfc\xfb"), "hex"),
    ],
)  # fmt: skip
def test_the_format_is_found(data: bytes | None, text: str, kind: str) -> None:
    found = decode(data)
    assert (found.text, found.format) == (text, kind)


@given(st.binary(), st.sampled_from(FORMATS))
def test_any_bytes_are_shown_in_any_format(data: bytes, wanted: str) -> None:
    found = decode(data, wanted)
    assert isinstance(found.text, str)
    assert len(found.text) <= 2 * SHOWN_CHARS


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"a":' * 100_000, b"\x0a\xff" * 50_000, b"9" * 5_000_000])
def test_huge_and_deep_values_are_bounded(data: bytes) -> None:
    assert len(decode(data).text) <= 2 * SHOWN_CHARS
    assert len(decode(data, "protobuf").text) <= 2 * SHOWN_CHARS


def test_a_wrong_choice_of_format_says_so() -> None:
    found = decode(b"words", "int")
    assert found.format == "hex"
    assert "not int" in found.note
    assert decode(b"\x00\x00\x00\x07", "int").text == "7"
    assert decode(b"\x40\x09\x21\xfb\x54\x44\x2d\x18", "double").text.startswith("3.14")
    assert "registry" in decode(b"\0\0\0\0\1abc", "avro").note


@pytest.fixture
def registry() -> Iterator[Registry]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            documents = {"/schemas/ids/7": {"schema": json.dumps(SCHEMA)},
                         "/schemas/ids/8": {"schemaType": "PROTOBUF", "schema": "x"},
                         "/schemas/ids/9": {"schemaType": "JSON", "schema": "{}"}}  # fmt: skip
            document = documents.get(self.path)
            self.send_response(404 if document is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(document or {}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Registry(f"http://127.0.0.1:{server.server_address[1]}/")
    server.shutdown()
    thread.join()
    server.server_close()


def test_values_with_the_id_of_a_schema_are_decoded_by_the_registry(registry: Registry) -> None:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), {"page": "home"})
    avro = decode(b"\0\0\0\0\x07" + body.getvalue(), "auto", registry)
    assert (json.loads(avro.text), avro.format, avro.note) == ({"page": "home"}, "avro", "schema 7")
    assert decode(b"\0\0\0\0\x08\0" + PROTO, "auto", registry).text.startswith("1: 150")
    assert decode(b'\0\0\0\0\x09{"a":1}', "auto", registry).format == "json"
    unknown = decode(b"\0\0\0\0\x63abc", "auto", registry)
    assert unknown.format == "hex"
    assert "99" in unknown.note


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x", "nonsense"])
def test_a_registry_is_reached_by_http_only(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        Registry(url)
