"""A server on the test's own loop that does exactly what a test tells it, down to the byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from tests.timeouts import PATIENCE_S

from penstock.wire.framing import RequestHeader, decode_request, encode_response
from penstock.wire.protocol import ApiKey, request_codec
from penstock.wire.schemas.api_versions import ApiVersion, ApiVersionsResponse
from penstock.wire.schemas.metadata import MetadataResponse, MetadataResponseBroker
from penstock.wire.types import Message

T = TypeVar("T")

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Answer = Callable[[RequestHeader, Any], Message | None]


def run(
    story: Coroutine[Any, Any, T],
    limit_s: float = PATIENCE_S,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """A test's coroutine, on a loop of its own; nothing may be left running on it."""

    async def bounded() -> T:
        try:
            return await asyncio.wait_for(story, None if loop_factory is SkippingLoop else limit_s)
        finally:
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            # A scripted server's connections end a moment after it.
            if left:
                await asyncio.wait(left, timeout=PATIENCE_S)
            left = [task for task in left if not task.done()]
            if left:
                raise AssertionError(f"left running: {left}")

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(bounded())


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop with real sockets whose clock can be put forward: what is due in the time that is skipped happens now."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_s

    def skip(self, ms: float) -> None:
        self._ahead_s += ms / 1000

    # As the clock of what runs on it.

    def now_ms(self) -> int:
        return int(self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return self.time() * 1000


def this_loop() -> SkippingLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    return loop


class Scripted:
    """`async with Scripted(handle) as server`: `handle` is called for each connection."""

    def __init__(self, handle: Handle, *, tls: ssl.SSLContext | None = None) -> None:
        self._handle = handle
        self._tls = tls
        self.connections = 0
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)
        # The transports' sockets are closed by callbacks.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._handle(reader, writer)
        writer.close()


async def next_request(reader: asyncio.StreamReader) -> tuple[RequestHeader, Any]:
    size = int.from_bytes(await reader.readexactly(4), "big")
    frame = await reader.readexactly(size)
    header, position = decode_request(frame)
    message, _ = request_codec(header.api.key, header.api_version).decode(frame, position)
    return header, message


def answer_bytes(header: RequestHeader, message: Message) -> bytes:
    chunks = encode_response(header.api.key, header.api_version, header.correlation_id, message)
    return b"".join(chunks)  # type: ignore[arg-type]


VERSIONS = [
    ApiVersion(api_key=ApiKey.PRODUCE, min_version=0, max_version=11),
    ApiVersion(api_key=ApiKey.FETCH, min_version=0, max_version=12),
    ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=12),
    ApiVersion(api_key=ApiKey.FIND_COORDINATOR, min_version=0, max_version=4),
    ApiVersion(api_key=ApiKey.LIST_GROUPS, min_version=0, max_version=4),
    ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=3),
]


def brokers(*nodes: tuple[int, str, int]) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=id_, host=host, port=port) for id_, host, port in nodes],
        cluster_id="scripted",
        controller_id=nodes[0][0] if nodes else -1,
    )


def speaking(answer: Answer, versions: Sequence[ApiVersion] = VERSIONS) -> Handle:
    """A broker that agrees on versions, and answers the rest by `answer`; with None, it sends nothing."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            header, message = await next_request(reader)
            if header.api.key is ApiKey.API_VERSIONS:
                reply: Message | None = ApiVersionsResponse(api_keys=list(versions))
            else:
                reply = answer(header, message)
            if reply is not None:
                writer.write(answer_bytes(header, reply))
                await writer.drain()

    return handle
