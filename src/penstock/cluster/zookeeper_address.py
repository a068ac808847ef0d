"""Where a ZooKeeper is: `zookeeper.connect`. Pure.

zk1:2181,zk2:2181,[::1]:2181/kafka    three servers of one ensemble; the cluster's tree begins at /kafka
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.cluster.errors import InvalidPath
from penstock.cluster.tree import check_path
from penstock.cluster.zookeeper_errors import InvalidConnect

DEFAULT_PORT: Final = 2181


class ServerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ZooKeeperConnect(NamedTuple):
    servers: tuple[ServerAddress, ...]
    chroot: str = ""  # the path at which the tree begins, "" for the root

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
            raise InvalidConnect(text, f"{part!r} is no host")
        port = rest[1:]
    elif part.count(":") == 1:
        host, _, port = part.partition(":")
    elif ":" in part:
        raise InvalidConnect(text, f"write the IPv6 address {part!r} in brackets")
    if not host or any(character.isspace() for character in host):
        raise InvalidConnect(text, f"{part!r} is no host")
    if part.endswith(":") or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536)):
        raise InvalidConnect(text, f"{part!r} has no port from 1 to 65535")
    return ServerAddress(host, int(port) if port else DEFAULT_PORT)
