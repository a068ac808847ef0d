"""What a ZooKeeper server is started with: its place in an ensemble, and the files that say so. Pure.

    ServerSettings("/data/zk", 2181)                                      alone
    ServerSettings("/data/zk1", 2181, server_id=1, members=(...))         one of three

Rule: a server alone and a member of an ensemble differ in `members` only. Names in the files are ZooKeeper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.cluster.zookeeper_errors import ZooKeeperNotStarted

CONFIG_FILE: Final = "zookeeper.properties"
LOGGING_FILE: Final = "log4j2.properties"
ID_FILE: Final = "myid"
_ID_MAX: Final = 255
_FORM: Final = "write id=host:peer-port:election-port for each server, as 1=zk1:2888:3888,2=zk2:2888:3888"


class Member(NamedTuple):
    """A server of an ensemble, as the others reach it."""

    server_id: int
    host: str
    peer_port: int
    election_port: int


@dataclass(frozen=True, slots=True)
class ServerSettings:
    data_dir: str
    port: int
    host: str = "127.0.0.1"  # where clients connect; "" is every address
    server_id: int = 0
    members: tuple[Member, ...] = ()
    tick_ms: int = 2000  # sessions last from 2 to 20 of them
    heap_mb: int = 128
    log_level: str = "warning"


def parse_members(text: str) -> tuple[Member, ...]:
    """ "1=zk1:2888:3888,2=zk2:2888:3888,...". ZooKeeperNotStarted."""
    members = tuple(_member(part.strip()) for part in text.split(","))
    if len({member.server_id for member in members}) < len(members):
        raise ZooKeeperNotStarted(f"two servers of {text!r} have the same id", _FORM)
    return members


def _member(part: str) -> Member:
    number, _, address = part.partition("=")
    host, _, ports = address.rpartition(":")
    host, _, peer = host.rpartition(":")
    ports_given = [text for text in (peer, ports) if text.isascii() and text.isdigit() and 0 < int(text) < 65_536]
    if not (number.isascii() and number.isdigit() and 0 < int(number) <= _ID_MAX) or len(ports_given) < 2 or not host:
        raise ZooKeeperNotStarted(f"{part!r} is no server of an ensemble (its id is from 1 to {_ID_MAX})", _FORM)
    return Member(int(number), host, int(peer), int(ports))


def check_settings(settings: ServerSettings) -> None:
    """ZooKeeperNotStarted."""
    if not settings.members:
        return
    if settings.server_id not in [member.server_id for member in settings.members]:
        ids = ", ".join(str(member.server_id) for member in settings.members)
        raise ZooKeeperNotStarted(
            f"this server's id is {settings.server_id}, but the ensemble has {ids}", "say which one this is with --id"
        )


def main_class(settings: ServerSettings) -> str:
    if settings.members:
        return "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return "org.apache.zookeeper.server.ZooKeeperServerMain"


def config_text(settings: ServerSettings) -> str:
    lines = {
        "dataDir": settings.data_dir,
        "clientPort": str(settings.port),
        "tickTime": str(settings.tick_ms),
        "initLimit": "10",
        "syncLimit": "5",
        # All brokers of a local cluster come from one address.
        "maxClientCnxns": "0",
        "autopurge.snapRetainCount": "3",
        "autopurge.purgeInterval": "24",
        # It needs Jetty, which is not there; the four-letter commands tell the same.
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok,srvr,stat,mntr,conf,isro,cons",
    }
    if settings.host:
        lines["clientPortAddress"] = settings.host
    for member in settings.members:
        lines[f"server.{member.server_id}"] = f"{member.host}:{member.peer_port}:{member.election_port}"
    return "".join(f"{name}={_escaped(value)}\n" for name, value in lines.items())


def logging_text(level: str) -> str:
    """One event, one line, in the form of a broker's own."""
    pattern = (
        "%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %-7p{WARN=WARNING} zookeeper.%c{1}: %enc{%m}{CRLF}"
        "%notEmpty{ | %ex{8}{separator(, )}}%n"
    )
    lines = {
        "status": "error",
        "appender.lines.type": "Console",
        "appender.lines.name": "lines",
        "appender.lines.target": "SYSTEM_ERR",
        "appender.lines.layout.type": "PatternLayout",
        "appender.lines.layout.alwaysWriteExceptions": "false",
        "appender.lines.layout.pattern": pattern,
        "rootLogger.level": {"warning": "warn"}.get(level, level),
        "rootLogger.appenderRef.lines.ref": "lines",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def _escaped(value: str) -> str:
    """As Java reads a properties file, which is Latin-1."""
    return "".join(
        "\\\\" if character == "\\" else character if character.isascii() else _java_escape(character)
        for character in value
    )


def _java_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
