"""A console in this process, and a visitor that keeps cookies and fills in forms, as a browser does."""

from __future__ import annotations

import asyncio
import html
import http.client
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.timeouts import PATIENCE_S

from penstock.console.accounts import ConsoleOptions
from penstock.console.server import ConsoleServer, listen

_TOKEN = re.compile(r'name="csrf" value="([0-9a-f]+)"')
_HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def words(self) -> str:
        """The text without tags, as somebody reads it."""
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", self.text)).split())


class Visitor:
    """One browser."""

    def __init__(self, port: int, host: str | None = None) -> None:
        self.port = port
        self.host = host or f"127.0.0.1:{port}"
        self.cookies: dict[str, str] = {}

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            given = {"Host": self.host, **(headers or {})}
            if self.cookies:
                given["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            for line in answer.headers.get_all("set-cookie") or []:
                name, _, value = line.partition(";")[0].partition("=")
                self.cookies[name] = value
            text = answer.read().decode()
            return Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, text)
        finally:
            connection.close()

    def get(self, path: str, **query: object) -> Answer:
        return self.ask("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, fields: Mapping[str, object], **headers: str) -> Answer:
        return self.ask(
            "POST", path, urlencode(fields).encode(), {"Content-Type": "application/x-www-form-urlencoded", **headers}
        )

    def token(self, path: str = "/topics/new") -> str:
        """The CSRF token in the form of a page."""
        found = _TOKEN.search(self.get(path).text)
        assert found is not None
        return found[1]

    def change(self, path: str, page: str = "/topics/new", **fields: object) -> Answer:
        """Send a form, and confirm what is asked; the page after that."""
        asked = self.post(path, {**fields, "csrf": self.token(page)})
        if asked.status != 200 or 'name="confirm" value="yes"' not in asked.text:
            return asked
        hidden = {name: html.unescape(value) for name, value in _HIDDEN.findall(asked.text)}
        done = self.post(path, hidden)
        return self.get(done.headers["location"]) if done.status == 303 else done

    @contextmanager
    def events(self, path: str, **query: object) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
        """The events of a stream, as they arrive."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request("GET", f"{path}?{urlencode(query)}", headers={"Host": self.host, "Cookie": cookies})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield _events(answer)
        finally:
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    while line := answer.readline():
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


@contextmanager
def console(servers: str, **options: Any) -> Iterator[Visitor]:
    """A console that serves on a free port until the end of the block."""
    given = ConsoleOptions(servers, **{"client_options": {"request_timeout_ms": 10_000}, **options})
    listening = listen("127.0.0.1", 0)
    started = threading.Event()
    servers_: list[ConsoleServer] = []

    def run() -> None:
        async def serve() -> None:
            server = ConsoleServer(given)
            servers_.append(server)
            await server.serve(listening, started.set)

        asyncio.run(serve())

    thread = threading.Thread(target=run, name="console", daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield Visitor(listening.getsockname()[1])
    finally:
        servers_[0].stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
