"""docs/cli.md names every command and every option that has to be found there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.cli.main import AREAS, cli
from penstock.cli.records.consume import consume
from penstock.cli.records.produce import produce

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


ALL = list(commands(cli))
WITHOUT_CLUSTER = {
    ("activity", "run"),
    ("activity", "truth"),
    ("mirror", "run"),  # it has several clusters
    ("mirror", "status"),
    ("pipeline", "list"),
    ("pipeline", "status"),
    ("pipeline", "stop"),
}
WITHOUT_OPTIONS = (
    "up", "server", "zookeeper", "log", "spark", "completion", "console", "profile", "registry", "schemas", "security",
)  # fmt: skip


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_is_on_the_page(path: tuple[str, ...]) -> None:
    assert f"| `penstock {' '.join(path)}` |" in PAGE


def test_the_page_names_no_command_that_does_not_exist() -> None:
    rows = [line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `penstock ")]
    assert sorted(rows) == sorted(f"penstock {' '.join(path)}" for path in ALL)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_says_what_it_is_for(path: tuple[str, ...]) -> None:
    command: click.Command | None = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    assert command.help
    if path[0] not in WITHOUT_OPTIONS and path not in WITHOUT_CLUSTER:
        names = {option for param in command.params for option in param.opts}
        assert {"--bootstrap-server", "--command-config", "--zookeeper"} <= names
        assert "--format" in names


@pytest.mark.parametrize("command", [produce, consume])
def test_every_spelling_of_an_option_is_on_the_page(command: click.Command) -> None:
    old = [
        "--broker-list", "--compress", "--line-reader", "--message-encoder", "--timeout", "--whitelist", "--blacklist",
        "--consumer-timeout-ms", "--autocommit.interval.ms", "--fetch-size", "--formatter", "--property", "--sync",
        "--socket-buffer-size", "--skip-message-on-error", "--max-messages", "--message-send-max-retries",
    ]  # fmt: skip
    known = {option for param in command.params for option in param.opts}
    missing = [option for option in old if option in known and f"`{option}" not in PAGE]
    assert missing == []


def test_the_table_of_areas_is_complete() -> None:
    assert set(AREAS) == {path[0] for path in ALL}
