"""A broker inside a program, on its own thread and event loop. Its public name is `penstock.Broker`.

    with Broker.from_properties("server.properties") as broker:
        broker.wait()

    with Broker("/var/lib/app/log", settings={"log.retention.hours": "24"}) as broker:
        producer = AnyKafkaClient(broker.address)

`from_properties` runs what a settings file, or a mapping, describes. The constructor needs neither: the broker listens
on a free loopback port, and keeps its data in a temporary folder unless it is given one. Leaving the block stops the
broker cleanly and removes the temporary folder. Settings have Kafka's names, and Kafka's defaults with one exception:
the broker shares the interpreter with the program, so it does not poll for requests (`socket.busy.poll.us` is 0).
`penstock.testing.Broker` is the same with settings for tests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings, Listener, load_settings, settings_from
from penstock.cluster.controller.topics import NewTopic

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 120.0
_BUSY_POLL = "socket.busy.poll.us"
CONSOLE_IDLE_S = 600
"""A broker's console ends when nobody has visited it for as long."""


def console_program(broker: Broker, folder: str) -> list[str]:
    """The command line of a broker's own console, which listens on a socket in a folder; it is run in a process.

    It connects as any client does. Where a listener has logins it uses that one, so visitors name their Kafka users.
    """
    listeners = broker.advertised
    listener = next((each for each in listeners if each.protocol.startswith("SASL_")), listeners[0])
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    words = [sys.executable, "-P", "-m", "penstock", "console", "-b", f"{host}:{listener.port}"]
    words += ["--socket", f"{folder}/console", "--idle", str(CONSOLE_IDLE_S), "--log-level", "warning"]
    words += ["--http-url", f"http://127.0.0.1:{broker.http_port}", "--http-port", str(broker.http_port)]
    if broker.settings.penstock_console_warehouse:
        words += ["--warehouse", broker.settings.penstock_console_warehouse]
    if broker.settings.zookeeper_connect:
        words += ["--zookeeper-groups", broker.settings.zookeeper_connect]
    if broker.settings.penstock_audit_topic:
        words += ["--audit-topic", broker.settings.penstock_audit_topic]
    properties = _client_properties(broker.settings, listener)
    if properties:
        path = f"{folder}/client.properties"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in properties.items())
        words += ["--command-config", path]
    return words


def _client_properties(settings: BrokerSettings, listener: Listener) -> dict[str, str]:
    """What a client needs to reach a listener, besides a login: the protocol, and whom to trust."""
    if listener.protocol == "PLAINTEXT":
        return {}
    found = {"security.protocol": listener.protocol}
    security = settings.security(listener)
    if security.uses_sasl and security.mechanisms:
        found["sasl.mechanism"] = security.mechanisms[0]
    if security.uses_tls:
        texts = security.tls()
        names = ("location", "type", "password", "certificates")
        store = {f"ssl.truststore.{name}": texts.get(f"ssl.truststore.{name}") for name in names}
        if not any(store.values()) and texts.get("ssl.keystore.location"):
            # The broker's own certificates: the authority is among them, or the certificate is its own.
            store = {f"ssl.truststore.{name}": texts.get(f"ssl.keystore.{name}") for name in names[:3]}
        found.update({name: value for name, value in store.items() if value})
    return found


class EmbeddedBroker:
    """A broker in this process. `start` and `stop` it once each, or use it as a context manager."""

    broker: Broker
    data_dir: str
    """Its first data folder."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        http_port: int | None = None,
        http_host: str = "127.0.0.1",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`http_port` is that of the console, /metrics and /health; 0 takes a free one, None disables them."""
        given = dict(settings or {})
        self._temporary = tempfile.mkdtemp(prefix="penstock-") if data_dir is None else None
        folder = self._temporary or os.fspath(data_dir or "")
        values = {_BUSY_POLL: "0", "listeners": f"PLAINTEXT://127.0.0.1:{port}", "log.dirs": folder, **given}
        self._set_up(lambda: settings_from(values), folder, http_port, http_host)

    @classmethod
    def from_properties(
        cls,
        source: str | os.PathLike[str] | Mapping[str, str],
        *,
        http_port: int | None = None,
        http_host: str = "127.0.0.1",
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """The broker that a `server.properties` file, or a mapping, describes; `settings` override it.

        Names of Kafka 0.7 (`brokerid`, `port`, `log.dir`) are understood. UnreadableFile; InvalidSettings with every
        problem. Doubtful settings of a file are logged as warnings.
        """
        overrides = dict(settings or {})
        if isinstance(source, Mapping):
            loaded = settings_from({_BUSY_POLL: "0", **source, **overrides})
        else:
            loaded = _from_file(os.fspath(source), overrides)
        broker = cls.__new__(cls)
        broker._temporary = None
        broker._set_up(lambda: loaded, loaded.log_dirs[0], http_port, http_host)
        return broker

    def _set_up(self, load: Callable[[], BrokerSettings], data_dir: str, http_port: int | None, http_host: str) -> None:
        self.data_dir = data_dir
        self._load = load
        self._http_port = http_port
        self._http_host = http_host
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-broker", daemon=True)

    # --- use

    def start(self) -> Self:
        """Start the broker and wait until it serves."""
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT_S):
            raise TimeoutError("the broker did not start in time")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    @property
    def address(self) -> str:
        """The address for clients: host and port."""
        return self._address_of(0)

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self.broker.advertised[0].port

    def address_of(self, listener: str) -> str:
        """The address of one of several listeners, by its name."""
        return self._address_of([each.name for each in self.broker.advertised].index(listener))

    def _address_of(self, index: int) -> str:
        found = self.broker.advertised[index]
        return f"[{found.host}]:{found.port}" if ":" in found.host else f"{found.host}:{found.port}"

    @property
    def http_port(self) -> int | None:
        """The port of /metrics and /health; None if they are disabled."""
        return self.broker.http_port

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic without a client. It exists when this returns. Raises the broker's error.

        In a cluster only the controller can do this; use `Admin` there.
        """
        topic = NewTopic(name, partitions, configs=dict(config or {}))
        creation = self.broker.cluster.require_controller().create_topics([topic])
        (outcome,) = asyncio.run_coroutine_threadsafe(creation, self._loop).result(_START_TIMEOUT_S)
        if outcome.error is not None:
            raise outcome.error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the broker has stopped, for programs that do nothing else; whether it has.

        Ctrl-C raises KeyboardInterrupt here. Raises the error that ended the broker, if one did.
        """
        self._thread.join(timeout)
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop the broker. What it had acknowledged is on disk when this returns."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_STOP_TIMEOUT_S)
            if self._thread.is_alive():
                raise TimeoutError("the broker did not stop in time")
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
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
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    # --- the broker's thread

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
        self.broker = Broker(
            self._load(), http_port=self._http_port, http_host=self._http_host, console=console_program
        )
        await self.broker.start()
        self._started.set()
        await self._stopping.wait()
        await self.broker.stop()


def _from_file(path: str, overrides: Mapping[str, str]) -> BrokerSettings:
    assignments = [f"{name}={value}" for name, value in overrides.items()]
    loaded = load_settings(path, assignments)
    if loaded.settings.layers.deciding(_BUSY_POLL) is None:
        loaded = load_settings(path, [*assignments, f"{_BUSY_POLL}=0"])
    for notice in loaded.notices:
        logger.warning("questionable setting: name=%s where=%s reason=%s", notice.name, notice.where, notice.text)
    return loaded.settings
