"""An instance of the schema registry in this process, on its own thread and event loop.

    with Registry("localhost:9092", port=8081) as registry:
        print(registry.url)
        registry.wait()

Its own loop keeps the work on schemas away from a broker in the same process. Several instances with one topic share
the work: each answers reads, and writes go to the one that leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from types import TracebackType
from typing import Any, Self

from penstock.client.background import new_event_loop
from penstock.client.errors import PenstockError
from penstock.registry.errors import RegistryUnavailable
from penstock.registry.forwarding import Forwarder
from penstock.registry.guard import Guard
from penstock.registry.leadership import Leadership
from penstock.registry.parser import SchemaParser
from penstock.registry.rest import Api
from penstock.registry.server import HttpServer, listening_sockets
from penstock.registry.service import RegistryService
from penstock.registry.settings import RegistrySettings
from penstock.registry.topic import TopicReader, ensure_topic

_log = logging.getLogger(__name__)
_RETRY_S = 0.5
_JOIN_S = 30.0


class Registry:
    """Start and stop it once each, or use it as a context manager."""

    def __init__(
        self,
        bootstrap_servers: str = "127.0.0.1:9092",
        *,
        port: int = 0,
        settings: RegistrySettings | None = None,
        **more: Any,
    ) -> None:
        """`more` are fields of `RegistrySettings`. Port 0 is any free port."""
        self.settings = settings or RegistrySettings(bootstrap_servers=bootstrap_servers, port=port, **more)
        self._sockets: list[socket.socket] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._server: HttpServer | None = None
        self._service: RegistryService | None = None
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-registry", daemon=True)

    # --- use

    def start(self) -> Self:
        """Listen, read the topic, and serve. RegistryUnavailable, or an error of the client."""
        self._sockets = listening_sockets(self.settings.host, self.settings.port)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1]) if self._sockets else self.settings.port

    @property
    def url(self) -> str:
        """Where clients, and other instances, find this one."""
        return self._url

    @property
    def is_leader(self) -> bool:
        return self._service is not None and self._service.is_leader

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the instance has stopped; whether it has. Raises what ended it."""
        self._thread.join(timeout)
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop serving; another instance takes over the lead."""
        if self._thread.is_alive() and self._loop is not None and self._main is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile, and the thread is ending
                self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                raise TimeoutError("the registry did not stop in time")
        for each in self._sockets:
            each.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- the instance's thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the thread that started it
            self._failure = error
        finally:
            for each in self._sockets:
                each.close()
            self._started.set()

    def _address(self) -> str:
        settings = self.settings
        if settings.advertised_url:
            return settings.advertised_url.rstrip("/")
        host = settings.host if settings.host not in ("", "0.0.0.0", "::") else socket.gethostname()
        scheme = "https" if settings.ssl_certfile else "http"
        return f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"

    async def _serve(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._url = self._address()
        settings = self.settings
        cluster_id = await self._prepare_topic()
        reader, parser = TopicReader(settings), SchemaParser()
        leadership = Leadership(settings, reader, self._url)
        self._service = RegistryService(reader, leadership, parser, cluster_id)
        forwarder = Forwarder(settings, reader, lambda: leadership.is_leader)
        forwarder.own_url = self._url
        names = {socket.gethostname(), socket.gethostname().partition(".")[0], settings.host, *settings.hosts}
        names.add(self._url.partition("://")[2].rpartition(":")[0])
        api = Api(self._service, settings, forwarder)
        server = self._server = HttpServer(Guard(api.application(), settings, names), settings)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(reader.run())
                async with asyncio.timeout(settings.start_timeout_ms / 1000):
                    await reader.is_ready.wait()
                group.create_task(leadership.run())
                serving = group.create_task(self._serve_http(server))
                _log.info("schema registry started: url=%s topic=%s", self._url, settings.topic)
                try:
                    await serving
                finally:
                    server.close()
        finally:
            parser.close()
            forwarder.close()

    async def _serve_http(self, server: HttpServer) -> None:
        serving = asyncio.create_task(server.serve(self._sockets))
        try:
            while not server.is_serving and not serving.done():
                await asyncio.sleep(0.005)
            self._started.set()
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.close()
            await serving
            raise

    async def _prepare_topic(self) -> str:
        """Create the topic, and return the cluster's id. Brokers may still be starting."""
        deadline_s = asyncio.get_running_loop().time() + self.settings.start_timeout_ms / 1000
        while True:
            try:
                return await ensure_topic(self.settings)
            except RegistryUnavailable:
                raise
            except PenstockError as error:
                if not error.retriable or asyncio.get_running_loop().time() > deadline_s:
                    raise
                await asyncio.sleep(_RETRY_S)


__all__ = ["Registry", "RegistrySettings"]
