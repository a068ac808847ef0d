"""Brokers as ZooKeeper knows them: the registrations under /brokers/ids.

Rule: read once, at the start and whenever all known brokers are gone; everything else comes from the brokers.
A registration names its endpoints by listener; older ones have only a host and a port.
"""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from typing import Any

from penstock.client.addresses import Address, ZooKeeperAddress, parse_address
from penstock.client.diagnosis import Unusable
from penstock.client.errors import Cause, ConfigError, MissingDependency
from penstock.client.resolving import beside_the_loop

_IDS = "/brokers/ids"


async def broker_addresses(where: ZooKeeperAddress, timeout_ms: float, *, with_tls: bool) -> tuple[Address, ...]:
    """Raises Unusable if ZooKeeper cannot be asked or knows no broker."""
    documents = await beside_the_loop(lambda: _registrations(where, timeout_ms), "penstock-zookeeper")
    found = [address for document in documents if (address := endpoint_of(document, with_tls=with_tls)) is not None]
    if not found:
        kind = "TLS" if with_tls else "plaintext"
        known = f"{len(documents)} brokers, none with a {kind} listener" if documents else "no broker"
        raise Unusable(str(where), Cause.ZOOKEEPER, f"{where.chroot}{_IDS} has {known}")
    return tuple(dict.fromkeys(found))


def _registrations(where: ZooKeeperAddress, timeout_ms: float) -> list[bytes]:
    library, errors, waiting = _kazoo("client"), _kazoo("exceptions"), _kazoo("handlers.threading")
    client = library.KazooClient(hosts=where.hosts, read_only=True)
    try:
        client.start(timeout=timeout_ms / 1000)
        documents = []
        # Not kazoo's own chroot: it warns of one that is missing, and that is an error of ours.
        folder = where.chroot + _IDS
        for child in client.get_children(folder):
            with suppress(errors.NoNodeError):  # It left between the two calls.
                documents.append(client.get(f"{folder}/{child}")[0])
        return documents
    except errors.NoNodeError:
        return []
    except waiting.KazooTimeoutError:
        raise Unusable(str(where), Cause.ZOOKEEPER, f"no ZooKeeper answered within {timeout_ms:.0f} ms") from None
    except errors.KazooException as error:
        raise Unusable(str(where), Cause.ZOOKEEPER, f"ZooKeeper said {type(error).__name__} {error}".rstrip()) from None
    finally:
        client.stop()
        client.close()


def _kazoo(module: str) -> Any:
    try:
        return importlib.import_module(f"kazoo.{module}")
    except ImportError:
        raise MissingDependency("kazoo", "a zookeeper:// address") from None


def endpoint_of(document: bytes, *, with_tls: bool) -> Address | None:
    """The address in a broker's registration that fits; None if there is none, or no sense in it."""
    try:
        fields: Any = json.loads(document)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    wanted = "SSL" if with_tls else "PLAINTEXT"
    protocols = fields.get("listener_security_protocol_map")
    for endpoint in fields.get("endpoints") or ():
        listener, found, rest = str(endpoint).partition("://")
        protocol = protocols.get(listener, listener) if isinstance(protocols, dict) else listener
        if found and protocol == wanted:
            with suppress(ConfigError):
                return parse_address(rest)
    host, port = fields.get("host"), fields.get("port")
    if not with_tls and isinstance(host, str) and host and isinstance(port, int) and 0 < port < 65536:
        return Address(host, port)
    return None
