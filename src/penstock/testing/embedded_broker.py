"""A real broker inside the test process, on its own thread and event loop.

    with EmbeddedBroker() as broker:
        producer = AnyKafkaClient(broker.address)

Its public name is `penstock.Broker`, also `penstock.testing.Broker`. It listens on a free loopback port and keeps its
data in a temporary folder unless it is given one. Leaving the block stops it cleanly and removes the temporary folder.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Mapping
from types import TracebackType

from penstock.broker.broker import Broker
from penstock.broker.settings import settings_from
from penstock.cluster.controller.topics import NewTopic

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 120.0
_DAY_MS = 86_400_000


class EmbeddedBroker:
    """A broker for tests. `settings` have Kafka's names, as in server.properties."""

    def __init__(
        self,
        data_dir: str | None = None,
        *,
        port: int = 0,
        http_port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir or tempfile.mkdtemp(prefix="penstock-")
        self._is_temporary = data_dir is None
        self._http_port = http_port
        self._settings = {
            "group.initial.rebalance.delay.ms": "0",
            # The broker shares the interpreter with the clients under test; busy polling would take their CPU time.
            "socket.busy.poll.us": "0",
            # Tests write old timestamps; retention would delete their records at a random moment.
            "log.retention.check.interval.ms": str(_DAY_MS),
            **(settings or {}),
            "log.dirs": (settings or {}).get("log.dirs", self.data_dir),
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        }
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-broker", daemon=True)

    def start(self) -> EmbeddedBroker:
        """Start the broker and wait until it serves."""
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT_S):
            raise TimeoutError("the broker did not start in time")
        if self._failure is not None:
            raise self._failure
        return self

    @property
    def address(self) -> str:
        """The address for clients: host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self.broker.advertised[0].port

    @property
    def http_port(self) -> int | None:
        """The port of /metrics and /health; None if they are disabled."""
        return self.broker.http_port

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic without a client. It exists when this returns. Raises the broker's error."""
        topic = NewTopic(name, partitions, configs=dict(config or {}))
        creation = self.broker.cluster.require_controller().create_topics([topic])
        (outcome,) = asyncio.run_coroutine_threadsafe(creation, self._loop).result(_START_TIMEOUT_S)
        if outcome.error is not None:
            raise outcome.error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that called start
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.broker = Broker(settings_from(self._settings), http_port=self._http_port)
        await self.broker.start()
        self._started.set()
        await self._stopping.wait()
        await self.broker.stop()

    def stop(self) -> None:
        """Stop the broker and remove temporary data."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_STOP_TIMEOUT_S)
            if self._thread.is_alive():
                raise TimeoutError("the broker did not stop in time")
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> EmbeddedBroker:
        try:
            return self.start()
        except BaseException:
            self._remove_temporary_data()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._remove_temporary_data()

    def _remove_temporary_data(self) -> None:
        if self._is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
