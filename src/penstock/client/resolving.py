"""Work that blocks and cannot be cancelled (looking up a name, talking to ZooKeeper), beside the loop.

Rule: a thread of its own, a daemon, for each piece: an executor's threads would be waited for at the end of the process
and of the loop, for as long as a dead name server takes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, TypeVar

from penstock.client.errors import ClosedError

T = TypeVar("T")


async def beside_the_loop(work: Callable[[], T], name: str) -> T:
    """The result of `work`; cancelling leaves the thread to finish by itself, unheard."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            failure = error
        with suppress(RuntimeError):  # The loop has ended meanwhile.
            loop.call_soon_threadsafe(settle, result, failure)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # Threads cannot be started while the interpreter ends.
        raise ClosedError(f"cannot start a thread: {error}") from error
    return await future


async def resolve(host: str, port: int) -> list[str]:
    """The numeric addresses of a host, in the order in which to try them; raises socket.gaierror."""
    with suppress(ValueError):
        return [str(ip_address(host.partition("%")[0])) if "%" not in host else host]
    found = await beside_the_loop(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP), "penstock-dns"
    )
    return list(dict.fromkeys(_numeric(item) for item in found))


def _numeric(item: tuple[Any, ...]) -> str:
    address = item[4]
    host = str(address[0])
    # A link-local address means nothing without its interface.
    scope = address[3] if item[0] == socket.AF_INET6 and len(address) > 3 else 0
    return f"{host}%{scope}" if scope and "%" not in host else host
