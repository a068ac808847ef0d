"""A ZooKeeper ensemble: its addresses (`zookeeper.connect`) and the health of its servers.

    zk1:2181,zk2:2181,[::1]:2181/kafka    three servers of one ensemble; the tree starts at /kafka

`srvr` is the one four-letter command that every server allows; it also tells a ZooKeeper from anything else that
listens. A problem is one line, with what to try. Health checks block, for a bounded time.
"""

from __future__ import annotations

import re
import socket
from enum import Enum
from typing import Final, NamedTuple

from penstock.cluster.errors import InvalidConnect, InvalidPath, ZooKeeperUnreachable
from penstock.cluster.tree.tree import check_path

DEFAULT_PORT: Final = 2181

_ANSWER_MAX_BYTES: Final = 64 * 1024
_MODE: Final = re.compile(r"^Mode: (\S+)$", re.MULTILINE)
_VERSION: Final = re.compile(r"^Zookeeper version: ([0-9.]+)", re.MULTILINE)
_NOT_SERVING: Final = "not currently serving requests"


# --- addresses


class ServerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ZooKeeperConnect(NamedTuple):
    servers: tuple[ServerAddress, ...]
    chroot: str = ""  # the path at which the tree starts, "" for the root

    @property
    def hosts(self) -> str:
        return ",".join(map(str, self.servers))

    def __str__(self) -> str:
        return self.hosts + self.chroot


def parse_connect(text: str) -> ZooKeeperConnect:
    """InvalidConnect."""
    servers, slash, path = text.strip().partition("/")
    chroot = f"/{path}".rstrip("/") if slash else ""
    if chroot:
        try:
            check_path(chroot)
        except InvalidPath as error:
            raise InvalidConnect(text, str(error)) from None
    found = tuple(_server(text, part.strip()) for part in servers.split(","))
    return ZooKeeperConnect(found, chroot)


def _server(text: str, part: str) -> ServerAddress:
    if not part:
        raise InvalidConnect(text, "a host is missing")
    host, port = part, ""
    if part.startswith("["):
        host, closed, rest = part[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise InvalidConnect(text, f"{part!r} is not a host")
        port = rest[1:]
    elif part.count(":") == 1:
        host, _, port = part.partition(":")
    elif ":" in part:
        raise InvalidConnect(text, f"write the IPv6 address {part!r} in brackets")
    if not host or any(character.isspace() for character in host):
        raise InvalidConnect(text, f"{part!r} is not a host")
    if part.endswith(":") or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536)):
        raise InvalidConnect(text, f"{part!r} has no port from 1 to 65535")
    return ServerAddress(host, int(port) if port else DEFAULT_PORT)


# --- health


class Condition(Enum):
    SERVING = "serving"
    NO_QUORUM = "no quorum"
    NO_ADDRESS = "no address"
    REFUSED = "refused"
    SILENT = "silent"
    NOT_ZOOKEEPER = "not zookeeper"


class Health(NamedTuple):
    """What a server reports; `mode` is standalone, leader, follower or observer."""

    condition: Condition
    mode: str = ""
    version: str = ""
    detail: str = ""


def four_letters(server: ServerAddress, word: str, timeout_s: float) -> str:
    """The answer to a four-letter command. OSError."""
    with socket.create_connection(server, timeout=timeout_s) as connection:
        connection.sendall(word.encode("ascii"))
        answer = bytearray()
        while len(answer) < _ANSWER_MAX_BYTES:
            piece = connection.recv(4096)
            if not piece:
                break
            answer += piece
    return answer.decode("utf-8", "replace")


def health_of(server: ServerAddress, timeout_s: float = 2.0) -> Health:
    try:
        answer = four_letters(server, "srvr", timeout_s)
    except (socket.gaierror, UnicodeError) as error:
        return Health(Condition.NO_ADDRESS, detail=str(error))
    except ConnectionRefusedError:
        return Health(Condition.REFUSED)
    except ConnectionResetError:
        return Health(Condition.NOT_ZOOKEEPER, detail="it closed the connection")
    except TimeoutError:
        return Health(Condition.SILENT)
    except OSError as error:
        return Health(Condition.REFUSED, detail=error.strerror or str(error))
    if _NOT_SERVING in answer:
        return Health(Condition.NO_QUORUM)
    version, mode = _VERSION.search(answer), _MODE.search(answer)
    if version is not None:
        return Health(Condition.SERVING, "" if mode is None else mode[1], version[1])
    if "srvr is not executed" in answer:
        return Health(Condition.SERVING)
    return Health(Condition.NOT_ZOOKEEPER, detail="unexpected answer" if answer else "it closed the connection")


_DESCRIPTIONS: Final = {
    Condition.SERVING: "is serving, but opened no session",
    Condition.NO_QUORUM: "has no quorum",
    Condition.NO_ADDRESS: "has no address",
    Condition.REFUSED: "refuses connections",
    Condition.SILENT: "does not answer",
    Condition.NOT_ZOOKEEPER: "is not a ZooKeeper server",
}
_ADVICE: Final = {
    Condition.SERVING: "check its log, or raise zookeeper.connection.timeout.ms",
    Condition.NO_QUORUM: "start more than half of the ensemble's servers",
    Condition.NO_ADDRESS: "correct the host in zookeeper.connect, or DNS",
    Condition.REFUSED: "start it (`penstock zookeeper start` runs one here), or correct zookeeper.connect",
    Condition.SILENT: "check that the host is up and no firewall blocks the port",
    Condition.NOT_ZOOKEEPER: "correct the port in zookeeper.connect (ZooKeeper uses 2181, brokers 9092)",
}


def why_unreachable(connect: ZooKeeperConnect, waited_ms: int, timeout_s: float = 2.0) -> ZooKeeperUnreachable:
    """The error for a session that was not opened within `waited_ms`."""
    found = [(server, health_of(server, timeout_s)) for server in connect.servers]
    reasons = [
        f"{server} {_DESCRIPTIONS[health.condition]}" + (f" ({health.detail})" if health.detail else "")
        for server, health in found
    ]
    # The advice for the server that is closest to serving.
    nearest = next(condition for condition in _ADVICE if any(health.condition is condition for _, health in found))
    return ZooKeeperUnreachable(str(connect), f"{', '.join(reasons)}, for {waited_ms} ms", _ADVICE[nearest])
