"""The command line tools of Apache Kafka 4.3 on brokers whose files `penstock security init` made.

They log in with the file that `init` wrote, as the admin, or with one like it as another user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cli.commands import Shell
from tests.peers.java_process import JavaProcess

from penstock.security.credentials import format_jaas

HOST: Final = "127.0.0.1"
ACLS, CONFIGS, TRANSACTIONS = "AclCommand", "kafka.admin.ConfigCommand", "TransactionsCommand"
_RESOURCE = re.compile(r"ResourcePattern\(resourceType=(\w+), name=(.*), patternType=(\w+)\)`")
_ENTRY = re.compile(r"\(principal=(.*), host=(.*), operation=(\w+), permissionType=(\w+)\)")


def initialise(home: Path, port: int) -> Path:
    """Make the files, and have ACLs decide as the file for brokers itself proposes; the path of that file."""
    Shell("").done("security", "init", "--folder", home, "--host", HOST, "--port", port)
    server = home / "server.properties"
    text = server.read_text().replace("# super.users=", "super.users=")
    server.write_text(f"{text}authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n")
    return server


@dataclass(frozen=True)
class Guarded:
    """The files of `init`, and the address of its broker."""

    home: Path
    address: str

    @property
    def admin(self) -> Path:
        return self.home / "admin.properties"

    def login_of(self, user: str, password: str) -> Path:
        """The file of another user."""
        lines = [line for line in self.admin.read_text().splitlines() if not line.startswith("sasl.jaas")]
        jaas = format_jaas("SCRAM", {"username": user, "password": password})
        path = self.home / f"{user}.properties"
        path.write_text("\n".join([*lines, f"sasl.jaas.config={jaas}"]))
        return path

    def settings(self, file: Path) -> dict[str, str]:
        lines = (line for line in file.read_text().splitlines() if not line.startswith("#"))
        return dict(line.partition("=")[::2] for line in lines)

    def shown(self, *command: str) -> Any:
        """What our own command says."""
        shell = Shell("")
        shell.environment = {}
        login = ("--bootstrap-server", self.address, "--command-config", self.admin)
        return json.loads(shell.done(*command, *login, "--format", "json"))


class Tools:
    """Kafka's tools. kafka-configs is in the jars of the broker."""

    def __init__(self, start_java: Callable[..., JavaProcess], guarded: Guarded) -> None:
        self._start = start_java
        self._guarded = guarded

    def _run(self, tool: str, arguments: tuple[str, ...], login: Path | None) -> Any:
        program = self._start("kafka-broker-4.3" if tool == CONFIGS else "java-clients-4.3", "NewClients")
        at = ("--bootstrap-server", self._guarded.address, "--command-config", str(login or self._guarded.admin))
        return program.ask("tool", tool=tool, arguments=[*at, *arguments])

    def done(self, tool: str, *arguments: str, login: Path | None = None) -> str:
        answer = self._run(tool, arguments, login)
        assert answer["status"] == 0, answer
        output: str = answer["output"]
        return output

    def is_denied(self, tool: str, *arguments: str, login: Path) -> None:
        """It ends with an error that says so."""
        answer = self._run(tool, arguments, login)
        assert answer["status"] == 1, answer
        assert re.search(
            "AuthorizationException|not authorized|authorization error", answer["output"] + answer["errors"]
        ), answer

    def clients(self, about: str, login: Path, **question: Any) -> Any:
        """What the Java clients answer."""
        settings = self._guarded.settings(login) | {"bootstrap.servers": self._guarded.address}
        more = question.pop("settings", {})
        program = self._start("java-clients-4.3", "NewClients")
        return program.ask(about, address=self._guarded.address, settings=settings | more, **question)


Rule = tuple[str, str, str, str, str, str, str]


def listed(output: str) -> set[Rule]:
    """The ACLs that kafka-acls prints."""
    rules: set[Rule] = set()
    resource: tuple[str, str, str] | None = None
    for line in output.splitlines():
        if (found := _RESOURCE.search(line)) is not None:
            resource = (found[1], found[2], found[3])
        elif (entry := _ENTRY.search(line)) is not None and resource is not None:
            rules.add((*resource, entry[1], entry[2], entry[3], entry[4]))
    return rules


def ours(guarded: Guarded) -> set[Rule]:
    """The ACLs that `penstock acls list` shows, in Kafka's spelling."""

    def upper(title: str) -> str:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", title).upper()

    return {
        (upper(each["resourceType"]), each["resource"], upper(each["patternType"]), each["principal"], each["host"],
         upper(each["operation"]), upper(each["permission"]))
        for each in guarded.shown("acls", "list")["acls"]
    }  # fmt: skip
