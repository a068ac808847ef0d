"""The server of the console: sockets, and an end when nobody visits."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S

from penstock.console.accounts import ConsoleOptions
from penstock.console.server import ConsoleServer, listen, listen_at


def test_a_socket_is_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "console"
    with listen_at(str(path)):
        assert os.stat(path).st_mode & 0o177 == 0
        with pytest.raises(OSError, match="in use"):
            listen_at(str(path))


def test_a_port_in_use_is_an_error() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_it_ends_when_nobody_visits_but_not_while_somebody_does() -> None:
    async def story() -> None:
        server = ConsoleServer(ConsoleOptions("127.0.0.1:1"), idle_s=0.3)
        listening = listen("127.0.0.1", 0)
        started = asyncio.Event()
        serving = asyncio.create_task(server.serve(listening, started.set))
        await started.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
        writer.write(b"GET /overview.events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(3):  # one event a second: longer than the time of idleness
            assert await reader.readuntil(b"\n\n")
        assert not serving.done()
        writer.close()
        async with asyncio.timeout(PATIENCE_S):
            await serving

    asyncio.run(story())


def test_an_ipv6_address_can_be_used() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with listen("::1", 0) as found:
        assert found.family == socket.AF_INET6
