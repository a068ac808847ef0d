"""The `penstock` command: a table of commands, and one place where errors become exit codes.

A command's module is imported when the command is called. The table below has all that help needs, so `penstock
--help` and completion stay under 150 ms whatever a command depends on. Every error leaves through `main`: one sentence
about what failed, one about what to do, and an exit code that scripts can rely on (docs/cli.md).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from penstock import __version__
from penstock.cli.output import CommandError, json_errors_wanted, show_error

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, and below + SIGPIPE: what a shell shows for a command that a signal ended
EXIT_PIPE_CLOSED = 141
EXIT_INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h: a bug in the program
TRACEBACK_VARIABLE = "PENSTOCK_TRACEBACK"


class Area(NamedTuple):
    """A command or a group: its module, its name there, and a line of help."""

    module: str
    attribute: str
    summary: str


AREAS: Mapping[str, Area] = {
    "acls": Area("penstock.cli.security.acls", "acls", "Manage access rules: list, add, remove, explain."),
    "activity": Area(
        "penstock.cli.activity.activity", "activity", "Run the live example: run, generate, truth, report."
    ),
    "brokers": Area("penstock.cli.cluster.brokers", "brokers", "Show brokers, their disks and versions."),
    "completion": Area("penstock.cli.completion", "completion", "Print a shell completion script."),
    "configs": Area("penstock.cli.topics.configs", "configs", "Show and change settings: describe, alter."),
    "console": Area("penstock.cli.server.console", "console", "Run the web console of a cluster."),
    "consume": Area("penstock.cli.records.consume", "consume", "Read records from topics to standard output."),
    "doctor": Area("penstock.cli.cluster.doctor", "doctor", "Diagnose connection and cluster problems."),
    "elect": Area("penstock.cli.cluster.elect", "elect", "Elect partition leaders: preferred, unclean."),
    "groups": Area("penstock.cli.groups.groups", "groups", "Manage consumer groups: list, describe, seek, delete."),
    "import-0.7": Area(
        "penstock.cli.records.import_0_7", "import_0_7", "Import the data folder of a Kafka 0.7 broker into topics."
    ),
    "load": Area("penstock.cli.spark.load", "load", "Load a topic into its table."),
    "log": Area("penstock.cli.log.log", "log", "Inspect the files of a log: dump, verify."),
    "mirror": Area("penstock.cli.mirror.mirror", "mirror", "Mirror topics between clusters: run, status."),
    "offsets": Area("penstock.cli.topics.partitions", "offsets", "Show the first and last offsets of partitions."),
    "perf": Area("penstock.cli.records.perf", "perf", "Measure throughput and latency: produce, consume, latency."),
    "pipeline": Area(
        "penstock.cli.activity.pipeline",
        "pipeline",
        "Run the pipelines of the example: list, run, status, stop.",
    ),
    "produce": Area("penstock.cli.records.produce", "produce", "Send lines or files as records to a topic."),
    "profile": Area("penstock.cli.profile", "profile", "Manage named clusters: create, use, list, show, edit, delete."),
    "quotas": Area("penstock.cli.security.quotas", "quotas", "Manage quotas of clients: list, set, remove."),
    "reassign": Area(
        "penstock.cli.cluster.reassign", "reassign", "Move partitions between brokers: plan, start, status, cancel."
    ),
    "registry": Area("penstock.cli.registry.registry", "registry", "Run a schema registry: start."),
    "schemas": Area("penstock.cli.schemas.schemas", "schemas", "Manage schemas: list, get, register, check, delete."),
    "security": Area("penstock.cli.security.security", "security", "Set up TLS and users: init, certificate."),
    "server": Area("penstock.cli.server.server", "server", "Run a broker as a service: start."),
    "spark": Area("penstock.cli.spark.spark", "spark", "Start Spark configured for topics: shell, submit, python."),
    "table": Area("penstock.cli.spark.table", "table", "Manage tables of topics: create, list, describe, drop, audit."),
    "topics": Area(
        "penstock.cli.topics.topics", "topics", "Manage topics: create, list, describe, alter, trim, delete."
    ),
    "transactions": Area(
        "penstock.cli.transactions.transactions",
        "transactions",
        "Manage transactions: list, describe, find-hanging, abort.",
    ),
    "up": Area("penstock.cli.server.up", "up", "Run a broker or a cluster on this machine."),
    "users": Area("penstock.cli.security.users", "users", "Manage users with passwords: list, add, passwd, remove."),
    "zookeeper": Area("penstock.cli.server.zookeeper", "zookeeper", "Run a ZooKeeper server for a cluster: start."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(AREAS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        area = AREAS.get(cmd_name)
        if area is None:
            return None
        command = getattr(import_module(area.module), area.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{area.module}.{area.attribute} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in AREAS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(args[0], AREAS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Commands: {', '.join(AREAS)}."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # click would exit with 1, which means that the data has a problem.
            _discard_output()
            ctx.exit(EXIT_PIPE_CLOSED)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=AREAS[name].summary) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, AREAS[name].summary) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has --help. Commands that print results have --format json.",
)
@click.version_option(__version__, "-V", "--version", prog_name="penstock", message="%(prog)s %(version)s")
def cli() -> None:
    """A replicated, persistent log that speaks the Kafka protocol."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 done with problems, 2 and above not done (docs/cli.md)."""
    words = list(sys.argv[1:] if args is None else args)
    if words[:1] != ["spark"]:
        # As python -P, also for child processes such as Spark's Python workers. A program that `penstock spark` runs
        # belongs to the user and may import modules from its own folder.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
    as_json = json_errors_wanted(words)
    try:
        code = cli.main(words, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        show_error(error, as_json=as_json)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        show_error(_Interrupted("Interrupted.", code="INTERRUPTED"), as_json=as_json)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        code = EXIT_PIPE_CLOSED
    except OSError as error:
        if _wants_traceback():
            raise
        show_error(CommandError(f"{error.filename or 'I/O'}: {error.strerror or error}.", code="IO"), as_json=as_json)
        code = EXIT_USAGE
    except Exception as error:
        if _wants_traceback():
            raise
        shown = _missing_package(error) or _internal_error(error)
        show_error(shown, as_json=as_json)
        code = shown.exit_code
    sys.exit(code)


class _Interrupted(CommandError):
    """Ended by Ctrl-C."""

    exit_code = EXIT_INTERRUPTED

    def show(self, file: object = None) -> None:
        click.echo(self.problem, err=True)


def _missing_package(error: Exception) -> CommandError | None:
    """The error that names the extra to install, if a package of an extra is missing."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    from penstock.cli.connection import command_error_for
    from penstock.client.errors import MissingDependency

    missing = error if isinstance(error, MissingDependency) else MissingDependency.of_import(error, "this command")
    return None if missing is None else command_error_for(missing)


def _internal_error(error: Exception) -> CommandError:
    from penstock.cli.log_format import exception_text

    return _InternalError(
        f"Internal error: {exception_text(error)}.",
        f"Report this bug with the full traceback, which {TRACEBACK_VARIABLE}=1 prints.",
    )


class _InternalError(CommandError):
    """A bug in Penstock."""

    exit_code = EXIT_INTERNAL_ERROR
    code = "INTERNAL"


def _wants_traceback() -> bool:
    return bool(os.environ.get(TRACEBACK_VARIABLE))


def _discard_output() -> None:
    """The reader of standard output is gone: let the interpreter flush its last buffer to the null device."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
