"""The files in `deploy/` use commands, options and settings that exist, and addresses that fit each other."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from tests.deploy.block_yaml import documents

from penstock.broker.settings import settings_from
from penstock.cli.main import cli
from penstock.cluster.tree.zookeeper.server import parse_members
from penstock.properties_file import read_properties

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = DEPLOY / "systemd"
PROPERTIES = UNITS / "server.properties"


class Command(NamedTuple):
    """A command line of `penstock`, as click understands it."""

    name: str
    options: dict[str, Any]

    @property
    def settings(self) -> dict[str, str]:
        return dict(each.split("=", 1) for each in self.options.get("assignments") or ())


def parsed(words: list[str]) -> Command:
    """click.UsageError if there is no such command or option."""
    command: click.Command = cli
    context = click.Context(cli, info_name="penstock")
    names = []
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]}"
        names.append(words[0])
        command, words = found, words[1:]
    options = command.make_context(" ".join(names), list(words), resilient_parsing=False).params
    return Command(" ".join(names), options)


def unit(name: str) -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNITS / name)
    return parser["Service"]


def compose() -> dict[str, Any]:
    (document,) = documents((DEPLOY / "compose" / "compose.yaml").read_text())
    return document  # type: ignore[no-any-return]


def objects() -> dict[tuple[str, str], dict[str, Any]]:
    found = documents((DEPLOY / "kubernetes" / "penstock.yaml").read_text())
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(named) == len(found)
    return named


def pod_command(name: str, number: int) -> list[str]:
    """What the shell of a pod runs."""
    (container,) = objects()["StatefulSet", name]["spec"]["template"]["spec"]["containers"]
    shell, flag, script = container["command"]
    assert (shell, flag) == ("/bin/sh", "-c")
    script = script.replace("$((${HOSTNAME##*-} + 1))", str(number + 1)).replace("${HOSTNAME##*-}", str(number))
    script = script.replace("${HOSTNAME}", f"{name}-{number}")
    assert "$" not in script
    words = shlex.split(script)
    assert words[:2] == ["exec", "penstock"]
    return words[2:]


def commands() -> Iterator[tuple[str, list[str]]]:
    for name in ("penstock.service", "penstock-zookeeper.service"):
        program, *words = shlex.split(unit(name)["ExecStart"])
        assert program == "/opt/penstock/bin/penstock"
        yield name, words
    for name, service in compose()["services"].items():
        yield f"compose {name}", service["command"]
    for name in ("zookeeper", "penstock"):
        for number in range(3):
            yield f"kubernetes {name}-{number}", pod_command(name, number)
    entry, command = re.findall(r"^(?:ENTRYPOINT|CMD) \[(.*)\]$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert entry == '"penstock"'
    yield "Containerfile", [word.strip().strip('"') for word in command.split(",")]


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_and_options_exist(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(PROPERTIES) if word == "/etc/penstock/server.properties" else word for word in COMMANDS[name]]
    command = parsed(words)
    assert command.name in ("server start", "zookeeper start")
    if command.settings:
        assert settings_from(command.settings).zookeeper_connect  # an unknown name is an error


def test_a_wrong_option_is_noticed() -> None:
    with pytest.raises(click.UsageError):
        parsed(["server", "start", "--data-directory", "/data"])


def test_the_properties_are_valid_and_every_name_is_known() -> None:
    read = read_properties(PROPERTIES)
    assert not read.problems
    settings = settings_from({each.name: each.value for each in read.properties})
    assert settings.penstock_proxy_listeners == {"BALANCED"}
    assert settings.inter_broker_listener.name == "BROKERS"


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_brokers_differ_and_know_every_zookeeper(where: str) -> None:
    own = [parsed(words) for name, words in COMMANDS.items() if name.startswith(where)]
    brokers = [each.settings for each in own if each.name == "server start"]
    keepers = [each.options for each in own if each.name == "zookeeper start"]
    assert len(brokers) == len(keepers) == 3
    assert len({each["broker.id"] for each in brokers}) == 3
    assert len({each["advertised.listeners"] for each in brokers}) == 3
    (connect,) = {each["zookeeper.connect"] for each in brokers}
    (servers,) = {str(each["servers"]) for each in keepers}
    members = parse_members(servers)
    assert {address.partition(":")[0] for address in connect.split(",")} == {each.host for each in members}
    assert sorted(each["server_id"] for each in keepers) == [each.server_id for each in members]


def test_the_names_of_compose_are_services_and_their_volumes_are_declared() -> None:
    document = compose()
    services = document["services"]
    for name, service in services.items():
        words = " ".join(service["command"])
        for host in re.findall(r"(?:zookeeper|broker)\d", words):
            assert host in services, f"{name} names {host}"
        for volume in service["volumes"]:
            assert volume.partition(":")[0] in document["volumes"]


def test_the_names_of_pods_are_those_of_their_services() -> None:
    found = objects()
    for name in ("zookeeper", "penstock"):
        spec = found["StatefulSet", name]["spec"]
        service = found["Service", spec["serviceName"]]["spec"]
        assert service["clusterIP"] == "None"
        assert service["selector"] == spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        (container,) = spec["template"]["spec"]["containers"]
        open_ports = {each["containerPort"] for each in container["ports"]}
        assert {each["port"] for each in service["ports"]} <= open_ports
        words = " ".join(pod_command(name, 0))
        for host in re.findall(r"(?:zookeeper|penstock)-\d\.([a-z]+)", words):
            assert ("Service", host) in found
    balanced = found["Service", "penstock-balanced"]["spec"]
    listeners = parsed(pod_command("penstock", 0)).settings["listeners"]
    assert f"BALANCED://0.0.0.0:{balanced['ports'][0]['port']}" in listeners


def test_services_restart_what_failed_but_not_what_is_misconfigured() -> None:
    for name in ("penstock.service", "penstock-zookeeper.service"):
        service = unit(name)
        assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")


def test_the_parser_rejects_what_it_does_not_know() -> None:
    for text in ("a: [1]", "a: 'b'", "a: b: c", "a: 1\na: 2", "a: |\n  b", "a:\n    b: 1\n  c: 2"):
        with pytest.raises(ValueError, match="line"):
            documents(text)
