"""The console behind the broker's HTTP port: a child process, and the bytes that go there and back.

The broker's event loop serves produce and fetch requests, so no page is made on it. The process is started by the first
visit and ends when nobody has visited it for some minutes, or with the broker. It listens on a Unix-domain socket in a
folder that only this user can open. Here every request costs a bounded amount: its body and its time to arrive, the
number of requests at once, and the pieces that are under way. Event streams are passed on as they come.

What a request must show before it gets here is decided in `broker.http`: its Host, and a token or a password from other
machines. Those are not passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.broker.http import HttpRequest

_log = logging.getLogger(__name__)

MAX_BODY: Final = 4 * 1024 * 1024
BODY_S: Final = 20.0
# The console runs at a low priority: on a busy machine its imports alone can take half a minute.
START_S: Final = 90.0
SLOW_READER_S: Final = 30.0
_AT_ONCE: Final = 48
_PIECE: Final = 64 * 1024
_RETRY_S: Final = 0.05
_STOP_S: Final = 3.0
_METHODS: Final = frozenset({"GET", "HEAD", "POST"})
# What belongs to the connection with the browser, or proves to the broker who it is.
_NOT_PASSED: Final = frozenset(
    {
        "authorization", "connection", "expect", "keep-alive", "proxy-authorization", "proxy-connection", "te",
        "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip

Program = Callable[[str], Sequence[str]]
"""The command line of a console, given a private folder; it listens on the socket `console` there."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ConsoleError(Exception):
    """The console cannot answer; the text says why, for the browser."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Fallback(Protocol):
    """Answers what the HTTP server has no route for."""

    async def pass_on(
        self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None: ...


class ConsoleProcess:
    """The process: `connect` starts it if it is not running."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._folder: str | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = asyncio.Lock()
        self._closed = False
        self._answering = 0

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    async def connect(self) -> Connection:
        """A connection to the console. ConsoleError."""
        async with self._lock:
            if self._closed:
                raise ConsoleError(HTTPStatus.SERVICE_UNAVAILABLE, "the broker is stopping")
            if self._child is not None and self._child.poll() is None:
                with contextlib.suppress(OSError):
                    return await asyncio.open_unix_connection(f"{self._folder}/console", limit=_PIECE)
            return await self._start()

    async def _start(self) -> Connection:
        await asyncio.to_thread(self._end_child)
        folder = self._folder = tempfile.mkdtemp(prefix="penstock-console-")
        try:
            self._child = child = await asyncio.to_thread(self._spawn, folder)
        except OSError as error:
            _log.warning("console cannot be started: error=%s", error)
            raise ConsoleError(HTTPStatus.BAD_GATEWAY, f"the console cannot be started: {error}") from None
        _log.info("console started: pid=%d", child.pid)
        try:
            async with asyncio.timeout(START_S):
                while child.poll() is None:
                    with contextlib.suppress(OSError):
                        return await asyncio.open_unix_connection(f"{folder}/console", limit=_PIECE)
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            pass
        raise ConsoleError(HTTPStatus.BAD_GATEWAY, "the console did not start; see the broker's log")

    def _spawn(self, folder: str) -> subprocess.Popen[bytes]:
        # It ends when its standard input does, also if the broker is killed.
        return subprocess.Popen(self._program(folder), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    async def close(self) -> None:
        """Stop the process. It may be called twice."""
        self._closed = True
        await asyncio.to_thread(self._end_child)

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.terminate()
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdin is not None:
                child.stdin.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    # --- requests

    async def pass_on(self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a request by the console; the connection ends with it. ConsoleError before anything is written."""
        length = _length_of(request)
        if self._answering >= _AT_ONCE:
            raise ConsoleError(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open; close some")
        self._answering += 1
        try:
            there_reader, there = await self.connect()
            try:
                there.write(_head_of(request))
                await _send_body(reader, there, length)
                await _answer(reader, writer, there_reader)
            finally:
                there.transport.abort()
        finally:
            self._answering -= 1


def _length_of(request: HttpRequest) -> int:
    if request.method not in _METHODS:
        raise ConsoleError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET, HEAD and POST are supported")
    if "transfer-encoding" in request.headers:
        raise ConsoleError(HTTPStatus.LENGTH_REQUIRED, "the length of the body is needed")
    length = int(request.headers.get("content-length", "0") or "0")
    if length > MAX_BODY:
        raise ConsoleError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body can have {MAX_BODY} bytes at most")
    return length


def _head_of(request: HttpRequest) -> bytes:
    target = f"{request.path}?{request.query}" if request.query else request.path
    dropped = {each.strip().lower() for each in request.headers.get("connection", "").split(",")} | _NOT_PASSED
    lines = [f"{request.method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers.items() if name not in dropped]
    return ("\r\n".join([*lines, "connection: close"]) + "\r\n\r\n").encode("latin-1")


async def _send_body(reader: asyncio.StreamReader, there: asyncio.StreamWriter, length: int) -> None:
    left = length
    try:
        async with asyncio.timeout(BODY_S):
            while left > 0:
                piece = await reader.read(min(left, _PIECE))
                if not piece:
                    raise ConsoleError(HTTPStatus.BAD_REQUEST, "the request is incomplete")
                left -= len(piece)
                there.write(piece)
                await there.drain()
            await there.drain()
    except TimeoutError:
        raise ConsoleError(HTTPStatus.REQUEST_TIMEOUT, "the request took too long to arrive") from None
    except OSError:
        pass  # The console has answered before it had read everything.


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: asyncio.StreamReader) -> None:
    """Pass pieces on until the console has ended, or the browser has gone."""
    gone = asyncio.ensure_future(reader.read(1))
    passed = False
    try:
        while True:
            piece = asyncio.ensure_future(there.read(_PIECE))
            await asyncio.wait({piece, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not piece.done():
                piece.cancel()
                return
            with contextlib.suppress(OSError):
                data = piece.result()
                if data:
                    passed = True
                    writer.write(data)
                    async with asyncio.timeout(SLOW_READER_S):
                        await writer.drain()
                    continue
            if not passed:
                raise ConsoleError(HTTPStatus.BAD_GATEWAY, "the console gave no answer; see the broker's log")
            return
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await gone
