"""Options that are spelled the same in all commands.

    TOPIC... or -t/--topic        GROUP... or -g/--group        ID... or --transactional-id
    -c/--set NAME=VALUE           --unset NAME
    --dry-run                     show what would be done, change nothing
    --execute                     do it without asking; -y/--yes is the same
    --watch, --interval           repeat a listing

A command that destroys something, or moves a group, asks for confirmation at a terminal. Commands that plan first
(`groups seek`, `topics trim`) only print the plan if there is no terminal and --execute is not given.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from penstock.cli.completion import group_names, setting_assignments, setting_names, topic_names, transactional_ids
from penstock.cli.output import JSON, WATCH, CommandError, Declined, show_error
from penstock.cli.values import Assignment, Duration, TopicPartitions

_Command = TypeVar("_Command", bound=Callable[..., Any])

_INTERVAL_MS: Final = 2_000
_CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"


# --- topics and groups


def topic_arguments(
    *, required: bool, partitions: bool = False, only_one: bool = False
) -> Callable[[_Command], _Command]:
    """TOPIC... as arguments or with --topic, under the name `names`; with `partitions`, each as TOPIC[:P,...]."""
    kind = TopicPartitions() if partitions else None
    word = "TOPIC[:P,...]" if partitions else "TOPIC"
    metavar = word if only_one else f"{word}..." if required else f"[{word}]..."
    return _named(metavar, ("-t", "--topic"), word, kind, topic_names, required=required)


def group_arguments(*, required: bool, only_one: bool = False) -> Callable[[_Command], _Command]:
    """GROUP... as arguments or with --group, under the name `names`."""
    metavar = "GROUP" if only_one else "GROUP..." if required else "[GROUP]..."
    return _named(metavar, ("-g", "--group"), "GROUP", None, group_names, required=required)


def transactional_id_arguments(command: _Command) -> _Command:
    """ID... as arguments or with --transactional-id, under the name `names`."""
    return _named("ID...", ("--transactional-id",), "ID", None, transactional_ids, required=True)(command)


def _named(
    metavar: str, spellings: tuple[str, ...], word: str, kind: Any, complete: Any, *, required: bool
) -> Callable[[_Command], _Command]:
    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def run(*args: Any, names: tuple[Any, ...], names_by_option: tuple[Any, ...], **params: Any) -> Any:
            found = tuple(dict.fromkeys((*names, *names_by_option)))
            if required and not found:
                raise click.MissingParameter(param_type="argument", param_hint=f"'{metavar}'")
            return command(*args, names=found, **params)

        option = click.option(
            *spellings, "names_by_option", type=kind, multiple=True, metavar=word, shell_complete=complete,
            help=f"Same as the argument {word}.",
        )  # fmt: skip
        argument = click.argument("names", nargs=-1, type=kind, metavar=metavar, shell_complete=complete)
        return argument(option(run))  # type: ignore[return-value]

    return decorate


# --- settings


def set_option(command: _Command) -> _Command:
    """--set NAME=VALUE, under the name `assignments`; Kafka's tool calls it --config."""
    return click.option(
        "-c", "--set", "--config", "assignments", type=Assignment(), multiple=True, shell_complete=setting_assignments,
        help="Set a setting. Can be repeated.",
    )(command)  # fmt: skip


def unset_option(command: _Command) -> _Command:
    """--unset NAME, under the name `unset`."""
    return click.option(
        "--unset", "--delete-config", "unset", multiple=True, metavar="NAME", shell_complete=setting_names,
        help="Reset a setting to its default. Can be repeated.",
    )(command)  # fmt: skip


# --- dry run and confirmation


def dry_run_option(command: _Command) -> _Command:
    """--dry-run, for a command that makes changes without confirmation; --execute is accepted too."""
    return _dry_run(command, click.option("--execute", "--yes", "-y", "execute", is_flag=True, hidden=True))


def confirmation_options(command: _Command) -> _Command:
    """--dry-run, and --execute or -y/--yes, for a command that asks for confirmation at a terminal."""
    return _dry_run(
        command, click.option("-y", "--yes", "--execute", "execute", is_flag=True, help="Do not ask for confirmation.")
    )


def _dry_run(command: _Command, execute_option: Any) -> _Command:
    @functools.wraps(command)
    def run(*args: Any, dry_run: bool, execute: bool, **params: Any) -> Any:
        if dry_run and execute:
            raise CommandError("--dry-run and --execute contradict each other.", "Use one of them.")
        return command(*args, dry_run=dry_run, execute=execute, **params)

    option = click.option("--dry-run", is_flag=True, help="Show what would be done without changing anything.")
    return option(execute_option(run))  # type: ignore[no-any-return]


def confirmed_plan(question: str, *, dry_run: bool, execute: bool) -> bool:
    """Whether to carry out a plan that was shown. Raises Declined."""
    if dry_run or execute or not sys.stdin.isatty():
        return execute
    if not click.confirm(question, err=True):
        raise Declined
    return True


# --- watch


def watch_option(command: _Command) -> _Command:
    """--watch: repeat the command until Ctrl-C. Only an error of the first run ends it."""

    @functools.wraps(command)
    def run(*args: Any, watch: bool, interval_ms: int, **params: Any) -> Any:
        if not watch:
            return command(*args, **params)
        as_json = params.get("output_format") == JSON
        context = click.get_current_context()
        is_first = True
        try:
            while True:
                context.meta[WATCH] = functools.partial(_print_watch_header, as_json, is_first)
                try:
                    command(*args, **params)
                except click.exceptions.Exit:
                    pass  # the exit code of one repetition
                except click.ClickException as error:
                    if is_first:
                        raise
                    show_error(error, as_json=as_json)
                sys.stdout.flush()
                is_first = False
                time.sleep(interval_ms / 1000)
        except KeyboardInterrupt:
            return None
        finally:
            context.meta.pop(WATCH, None)

    for option in (
        click.option(
            "--interval", "interval_ms", type=Duration(), default=f"{_INTERVAL_MS}ms", metavar="DURATION",
            help="Interval of --watch.  [default: 2s]",
        ),
        click.option("--watch", is_flag=True, help="Repeat until Ctrl-C."),
    ):  # fmt: skip
        run = option(run)
    return run  # type: ignore[return-value]


def _print_watch_header(as_json: bool, is_first: bool) -> None:
    """The line before each repetition; at a terminal it clears the screen."""
    if as_json:
        return
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if sys.stdout.isatty():
        click.echo(f"{_CLEAR}{now}   Ctrl-C to stop\n")
    else:
        click.echo(("" if is_first else "\n") + now)
