"""A broker behind TLS: it rejects plain text, and advertises no other address."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.activity.pipelines.engine_stories import KEPT
from tests.client.tls import PEM, server_context
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock.testing import Broker


class Proxy:
    """Takes TLS off what comes, on a separate thread."""

    def __init__(self, folder: Path) -> None:
        self._context = server_context(folder)
        self._target = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls-proxy", daemon=True)
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(PATIENCE_S)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.connections = 0

    def leads_to(self, port: int) -> None:
        self._target = port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
            ways = [
                asyncio.ensure_future(self._pass(reader, inner_writer)),
                asyncio.ensure_future(self._pass(inner_reader, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            inner_writer.close()
        writer.close()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


class TlsBroker:
    """Where it is, and the file of the authority to be trusted."""

    def __init__(self, proxy: Proxy, folder: Path) -> None:
        self.proxy = proxy
        self.address = f"127.0.0.1:{proxy.port}"
        self.authority = folder / "authority.pem"
        self.authority.write_text(PEM[PEM.index("-----BEGIN CERTIFICATE") :])

    @property
    def options(self) -> dict[str, str]:
        """As readers have them."""
        return {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": str(self.authority)}

    def config(self, folder: Path) -> Path:
        """As a file for --command-config."""
        place = folder / "tls.properties"
        place.write_text(f"security.protocol=SSL\nssl.truststore.location={self.authority}\nssl.truststore.type=PEM\n")
        return place


@contextlib.contextmanager
def tls_broker(folder: Path) -> Iterator[TlsBroker]:
    folder.mkdir(exist_ok=True)
    proxy = Proxy(folder)
    try:
        proxy.leads_to(port := free_port())
        settings = {**KEPT, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        with Broker(str(folder / "data"), port=port, settings=settings):
            yield TlsBroker(proxy, folder)
    finally:
        proxy.close()
