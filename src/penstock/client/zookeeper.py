"""What clients do in ZooKeeper: find brokers by their registrations, and watch brokers and topics.

kazoo is imported on first use. `broker_addresses` reads the registrations once. `RegistryWatcher` then keeps a session
and reports when brokers or topics come, go or change, so that a client need not wait for an error or for the age of
its metadata. Nothing depends on it: while ZooKeeper is away, metadata is refreshed as with other bootstrap addresses.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from penstock.client.addresses import Address, ZooKeeperAddress, parse_address
from penstock.client.connection_pool import UnusableAddress, run_in_daemon_thread
from penstock.client.errors import BootstrapError, Cause, ConfigError, MissingDependency

BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
SESSION_TIMEOUT_MS: Final = 6_000  # as in Kafka's consumers
_CONNECTION_RETRY: Final = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}


def kazoo(module: str) -> Any:
    """A module of kazoo, imported on first use; raises MissingDependency."""
    try:
        return importlib.import_module(f"kazoo.{module}")
    except ImportError:
        raise MissingDependency("kazoo", "ZooKeeper") from None


def new_client(where: ZooKeeperAddress, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> Any:
    """A KazooClient that reconnects forever and opens another session when one expires. Paths start at the chroot."""
    quiet = logging.getLogger(f"{__name__}.kazoo")
    if quiet.level == logging.NOTSET:
        quiet.setLevel(logging.CRITICAL)  # it logs every attempt, which is for debugging
    return kazoo("client").KazooClient(
        hosts=f"{where.hosts}{where.chroot}",
        timeout=session_timeout_ms / 1000,
        connection_retry=_CONNECTION_RETRY,
        logger=quiet,
    )


def start_client(client: Any, where: ZooKeeperAddress, timeout_ms: float) -> None:
    """Connect; raises BootstrapError if no server answers in time."""
    try:
        client.start(timeout=timeout_ms / 1000)
    except kazoo("handlers.threading").KazooTimeoutError:
        client.close()
        reason = f"no ZooKeeper answered within {timeout_ms:.0f} ms"
        raise BootstrapError([UnusableAddress(str(where), Cause.ZOOKEEPER, reason).attempt]) from None


# --------------------------------------------------------------------------------------------------- registrations


async def broker_addresses(where: ZooKeeperAddress, timeout_ms: float, protocol: str) -> tuple[Address, ...]:
    """The addresses in the brokers' registrations. Raises UnusableAddress if ZooKeeper fails or has none."""
    documents = await run_in_daemon_thread(lambda: _registrations(where, timeout_ms), "penstock-zookeeper")
    found = [address for document in documents if (address := endpoint_of(document, protocol)) is not None]
    if not found:
        known = f"{len(documents)} brokers, none with a {protocol} listener" if documents else "no broker"
        raise UnusableAddress(str(where), Cause.ZOOKEEPER, f"{where.chroot}{BROKER_IDS} has {known}")
    return tuple(dict.fromkeys(found))


def _registrations(where: ZooKeeperAddress, timeout_ms: float) -> list[bytes]:
    library, errors, waiting = kazoo("client"), kazoo("exceptions"), kazoo("handlers.threading")
    client = library.KazooClient(hosts=where.hosts, read_only=True)
    try:
        client.start(timeout=timeout_ms / 1000)
        documents = []
        # Not kazoo's own chroot: kazoo logs a warning if it is missing, and that is reported as an error here.
        folder = where.chroot + BROKER_IDS
        for child in client.get_children(folder):
            with suppress(errors.NoNodeError):  # it left between the two calls
                documents.append(client.get(f"{folder}/{child}")[0])
        return documents
    except errors.NoNodeError:
        return []
    except waiting.KazooTimeoutError:
        raise UnusableAddress(
            str(where), Cause.ZOOKEEPER, f"no ZooKeeper answered within {timeout_ms:.0f} ms"
        ) from None
    except errors.KazooException as error:
        raise UnusableAddress(
            str(where), Cause.ZOOKEEPER, f"ZooKeeper returned {type(error).__name__} {error}".rstrip()
        ) from None
    finally:
        client.stop()
        client.close()


def endpoint_of(document: bytes, wanted: str) -> Address | None:
    """The address with this security protocol in a broker's registration; None if it has none or cannot be parsed."""
    try:
        fields: Any = json.loads(document)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    protocols = fields.get("listener_security_protocol_map")
    for endpoint in fields.get("endpoints") or ():
        listener, found, rest = str(endpoint).partition("://")
        protocol = protocols.get(listener, listener) if isinstance(protocols, dict) else listener
        if found and protocol == wanted:
            with suppress(ConfigError):
                return parse_address(rest)
    host, port = fields.get("host"), fields.get("port")
    if wanted == "PLAINTEXT" and isinstance(host, str) and host and isinstance(port, int) and 0 < port < 65536:
        return Address(host, port)
    return None


# --------------------------------------------------------------------------------------------------- watches


class RegistryWatcher:
    """Calls `on_change`, in one of kazoo's threads, after a change of the registered brokers, of the set of topics, or
    of a topic that was named to `watch_topics`; after an interruption also without one.
    """

    def __init__(self, where: ZooKeeperAddress, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._topics: set[str] = set()
        self._client = new_client(where)
        self._states = kazoo("protocol.states")
        self._client.add_listener(self._state_changed)

    def start(self) -> None:
        """Connect in the background."""
        self._client.start_async()

    def watch_topics(self, topics: Iterable[str]) -> None:
        """Report changes of these topics, too: new partitions, and their creation."""
        for name in set(topics) - self._topics:
            self._topics.add(name)
            self._watch_topic(name)

    def close(self) -> None:
        """It waits for kazoo's threads."""
        self._client.remove_listener(self._state_changed)
        self._client.stop()
        self._client.close()

    def _state_changed(self, state: str) -> None:
        if state == self._states.KazooState.CONNECTED:
            for path in (BROKER_IDS, TOPICS):
                self._watch_children(path)
            for name in list(self._topics):
                self._watch_topic(name)
            self._on_change()

    def _watch_children(self, path: str) -> None:
        if self._client.connected:
            self._client.get_children_async(path, watch=self._children_changed)

    def _watch_topic(self, name: str) -> None:
        if self._client.connected:
            self._client.exists_async(f"{TOPICS}/{name}", watch=self._topic_changed)

    def _children_changed(self, event: Any) -> None:
        if event.type == self._states.EventType.CHILD:
            self._watch_children(event.path)
            self._on_change()

    def _topic_changed(self, event: Any) -> None:
        if event.type != self._states.EventType.NONE:
            self._watch_topic(event.path.rpartition("/")[2])
            self._on_change()
