"""A registry as any HTTP client sees it, with nothing of ours in between; and schemas to send."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.timeouts import PATIENCE_S

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class Answer(NamedTuple):
    status: int
    value: Any
    headers: Mapping[str, str]

    @property
    def error(self) -> int:
        """The registry's error code."""
        assert self.status >= 400, self.value
        return int(self.value["error_code"])


class Api:
    """One request per connection."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self._tls = tls
        self._address = urlsplit(url)

    def __call__(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": CONTENT_TYPE} if data is not None else {}
        connection = self._connection()
        try:
            connection.request(method, path, body=data, headers={**sent, **(headers or {})})
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        return Answer(response.status, json.loads(content) if content else None, dict(response.getheaders()))

    def _connection(self) -> http.client.HTTPConnection:
        host, port = str(self._address.hostname), self._address.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=PATIENCE_S, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=PATIENCE_S)

    def get(self, path: str) -> Any:
        """The answer to a GET that succeeds."""
        return self._done(self("GET", path))

    def done(self, method: str, path: str, body: Any = None) -> Any:
        return self._done(self(method, path, body))

    def _done(self, answer: Answer) -> Any:
        assert answer.status == 200, answer.value
        return answer.value

    def register(self, subject: str, schema: Mapping[str, Any]) -> Any:
        return self.done("POST", f"/subjects/{subject}/versions", schema)


def record(*fields: str, name: str = "View", optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """An Avro record of texts; `optional` fields have a default."""
    described: list[dict[str, Any]] = [{"name": each, "type": "string"} for each in fields]
    described += [{"name": each, "type": "string", "default": ""} for each in optional]
    return {"schema": json.dumps({"type": "record", "name": name, "fields": described})}
