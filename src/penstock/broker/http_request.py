"""The head of an HTTP/1.1 request: what a peer wants, read without I/O.

Rule: strict. Whatever two readers could understand in two ways (a folded header, two lengths, a stray line end) is
refused, so that nothing is ever taken for a request that its sender did not mean as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_FIELD_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(r"(?:https?://[^/?#]+)?(/[^?]*|(?=\?|$))(?:\?(.*))?|\*", re.IGNORECASE)


class Refused(Exception):
    """A request that gets an error for an answer, and its connection an end."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request. Names of headers are in lower case, values of repeated ones joined by commas."""

    method: str
    path: str
    query: str
    minor_version: int
    headers: Mapping[str, str]

    @property
    def has_body(self) -> bool:
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0").strip("0") != ""

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection goes on after this. A body is never read, so what follows it cannot be either."""
        options = {option.strip().lower() for option in self.headers.get("connection", "").split(",")}
        return not self.has_body and "close" not in options and (self.minor_version >= 1 or "keep-alive" in options)

    @property
    def accepts_gzip(self) -> bool:
        for item in self.headers.get("accept-encoding", "").lower().split(","):
            coding, *parameters = (part.strip() for part in item.split(";"))
            if coding in ("gzip", "x-gzip"):
                return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
        return False


def parse_request(head: bytes) -> Request:
    """The request of a head, which ends with an empty line. Raises `Refused`."""
    line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise Refused(HTTPStatus.BAD_REQUEST, "the first line is not that of an HTTP/1.1 request")
    method, target, major, minor = (group.decode("ascii") for group in match.groups())
    if major != "1":
        raise Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 is spoken here")
    headers = _parse_fields(fields)
    if minor != "0" and "host" not in headers:
        raise Refused(HTTPStatus.BAD_REQUEST, "a Host header is missing")
    where = _TARGET.fullmatch(target)
    if where is None:
        raise Refused(HTTPStatus.BAD_REQUEST, "the target of a request is a path")
    return Request(method, where[1] or "/", where[2] or "", int(minor), headers)


def _parse_fields(fields: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise Refused(HTTPStatus.BAD_REQUEST, "a header is malformed")
        key, text = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
        if key in headers:
            if key in ("host", "content-length"):
                raise Refused(HTTPStatus.BAD_REQUEST, f"there is more than one {key} header")
            text = f"{headers[key]}, {text}"
        headers[key] = text
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or ("transfer-encoding" in headers and "content-length" in headers):
        raise Refused(HTTPStatus.BAD_REQUEST, "the length of the body is not clear")
    return headers
