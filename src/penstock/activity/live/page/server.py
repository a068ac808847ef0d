"""The web page of a run: the application, and its server in a thread of this process.

    /                 the page                    /api/state           the snapshot with its sections, as JSON
    /api/events       snapshots as a stream       /api/feed/MEMBER     a member's feed
    /metrics, /health                             the broker's, forwarded

The page only reads. Its content security policy allows nothing from elsewhere, and only requests that name this
machine are answered, so that no other site can read it through a name of its own. The socket is bound to the loopback
before anything is started, so a port in use is known at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Final, Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.activity.live.state import Feed, Snapshot
from penstock.activity.report.sections import section_json

HOST: Final = "127.0.0.1"
STREAMS: Final = 32
_LOOK_S: Final = 0.2
_BEAT_S: Final = 10.0
_BROKER_TIMEOUT_S: Final = 3.0
_MOST_BYTES: Final = 16 << 20
_CLOSE_S: Final = 3.0
_BACKLOG: Final = 64
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_HOSTS: Final = ["localhost", "127.0.0.1", "[::1]"]


class Source(Protocol):
    """The run that is shown."""

    @property
    def snapshot(self) -> Snapshot: ...

    @property
    def is_closed(self) -> bool: ...

    def feed(self, member: int) -> Feed: ...


class _Pages:
    """The request handlers."""

    def __init__(self, source: Source, broker_url: str | None) -> None:
        self._source = source
        self._broker_url = broker_url
        self._encoded: tuple[int, bytes] = (-1, b"")
        self._streams = 0

    async def state(self, request: Request) -> Response:
        return _json(self._state())

    async def feed(self, request: Request) -> Response:
        text = request.path_params["member"]
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise HTTPException(404, f"Member ids are numbers, for example /api/feed/17; got {text[:40]!r}.")
        return _json(msgspec.json.encode(self._source.feed(int(text))))

    async def events(self, request: Request) -> Response:
        if self._streams >= STREAMS:
            raise HTTPException(503, f"Too many open streams ({STREAMS}); poll /api/state instead.")
        return StreamingResponse(
            self._snapshots(request), media_type="text/event-stream", headers={"content-encoding": "identity"}
        )

    async def _snapshots(self, request: Request) -> AsyncIterator[bytes]:
        self._streams += 1
        shown, silent_s = -1, 0.0
        try:
            yield b"retry: 1000\n\n"
            while not self._source.is_closed and not await request.is_disconnected():
                number = self._source.snapshot.number
                if number != shown:
                    shown, silent_s = number, 0.0
                    yield b"data: " + self._state() + b"\n\n"
                elif silent_s >= _BEAT_S:
                    silent_s = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(_LOOK_S)
                silent_s += _LOOK_S
        finally:
            self._streams -= 1

    async def broker(self, request: Request) -> Response:
        """Forwards /metrics and /health to the broker."""
        if self._broker_url is None:
            raise HTTPException(404, "This run does not manage the cluster; query its brokers for metrics and health.")
        return await run_in_threadpool(_forwarded, self._broker_url + request.url.path)

    def _state(self) -> bytes:
        """The snapshot as JSON, encoded once for all requests."""
        snapshot = self._source.snapshot
        if self._encoded[0] != snapshot.number:
            document = msgspec.structs.asdict(snapshot)
            document["waiting_text"] = snapshot.waiting_text
            if snapshot.start is not None:
                document["start"] = {**msgspec.to_builtins(snapshot.start), "time_text": snapshot.start.time_text()}
            document["figures"] = [figure._asdict() for figure in snapshot.figures()]
            document["sections"] = [section_json(section) for section in snapshot.sections()]
            self._encoded = snapshot.number, msgspec.json.encode(document)
        return self._encoded[1]


def page_app(source: Source, broker_url: str | None = None) -> Starlette:
    """The application. `broker_url` is the HTTP address of the broker, if this run manages it."""
    pages = _Pages(source, broker_url)
    routes = [
        *(Route(path, _file(name, kind)) for path, (name, kind) in _FILES.items()),
        Route("/api/state", pages.state),
        Route("/api/events", pages.events),
        Route("/api/feed/{member}", pages.feed),
        Route("/metrics", pages.broker),
        Route("/health", pages.broker),
    ]
    middleware = [
        Middleware(_Headers),
        Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS, www_redirect=False),
        Middleware(GZipMiddleware, minimum_size=1000, compresslevel=1),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _error_response})


class _Headers:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    body = (resources.files(__package__) / "static" / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(body, headers={"content-type": kind})

    return answer


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _error_response(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return PlainTextResponse(f"{error.detail}\n", error.status_code)


def _forwarded(url: str) -> Response:
    try:
        with urllib.request.urlopen(url, timeout=_BROKER_TIMEOUT_S) as answer:
            return Response(answer.read(_MOST_BYTES), answer.status, {"content-type": answer.headers["content-type"]})
    except urllib.error.HTTPError as error:
        with error:
            return Response(error.read(_MOST_BYTES), error.code, {"content-type": error.headers["content-type"]})
    except OSError as error:
        reason = getattr(error, "reason", error)
        return PlainTextResponse(f"The broker is not reachable: {reason}\n", 503)


# ---------------------------------------------------------------------------------------------- the server


class PageServer:
    """Serves an application in a thread until it is closed."""

    def __init__(self, listener: socket.socket, app: Starlette) -> None:
        self._listener = listener
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=1,
            ws="none", loop="asyncio",
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="activity-page", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._listener.getsockname()[1]}"

    def start(self) -> None:
        self._listener.listen(_BACKLOG)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        with contextlib.suppress(OSError):
            self._listener.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._listener])


def bound(port: int) -> socket.socket:
    """A socket bound to this port of the loopback; 0 is any free port. Raises OSError."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
    except BaseException:
        listener.close()
        raise
    return listener
