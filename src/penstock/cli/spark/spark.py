"""`penstock spark`: start Spark with everything set for topics: a shell, a job, a program.

The command replaces itself by Spark's own program (exec), so signals, exit codes and the terminal are Spark's.
`penstock spark environment` shows what is added; settings of the user take precedence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import click

from penstock.cli.output import JSON, CommandError, Output, format_option
from penstock.spark.environment import settings_from_arguments, settings_from_environment, value_of

if TYPE_CHECKING:
    from penstock.spark.session import Java

_SPARK_FOLDER: Final = Path(__file__).parents[2] / "spark"
# Options of spark-submit without a value.
_FLAGS: Final = frozenset({"--supervise", "--verbose", "-v", "--version", "--help", "-h", "--usage-error"})
_PASS_ON: Final[dict[str, Any]] = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": ["--help"],
}
_ELSEWHERE: Final = click.option(
    "--deliver/--no-deliver", default=None,
    help="Send this package to the executors.  [default: if the master is not local]",
)  # fmt: skip


@click.group()
def spark() -> None:
    """Start Spark configured for topics: Java, this package on the executors, lag as consumer groups."""


@spark.command(short_help="Start Spark's Python shell.", context_settings=_PASS_ON)
@_ELSEWHERE
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF PYSPARK]...")
def shell(arguments: tuple[str, ...], deliver: bool | None) -> None:
    """Start Spark's Python shell; `spark` is its session.

    \b
    penstock spark shell
    penstock spark shell --master spark://host:7077 --conf spark.executor.memory=4g
    """
    from penstock.spark.session import arguments as as_arguments

    variables, settings, _ = _ready(arguments, deliver)
    startup = _SPARK_FOLDER / "shell_startup.py"
    if "PYTHONSTARTUP" in variables:
        variables["PENSTOCK_PYTHONSTARTUP"] = variables["PYTHONSTARTUP"]
    variables["PYTHONSTARTUP"] = str(startup)
    _become(_program("pyspark"), [*as_arguments(settings), *arguments], variables)


@spark.command(short_help="Run a job with spark-submit.", context_settings=_PASS_ON)
@_ELSEWHERE
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF SPARK-SUBMIT]... FILE [ARGS]...")
def submit(arguments: tuple[str, ...], deliver: bool | None) -> None:
    """Run a job with spark-submit and its options.

    \b
    penstock spark submit views.py --day 2024-05-01
    penstock spark submit --master spark://host:7077 --executor-memory 4g views.py
    """
    from penstock.spark.session import arguments as as_arguments

    place = job_place(arguments)
    if place is None and not _FLAGS.intersection(arguments):
        raise CommandError("No job was given.", "Usage: penstock spark submit [OPTIONS] FILE [ARGS]")
    variables, settings, _ = _ready(arguments[:place], deliver)
    _become(_program("spark-submit"), [*as_arguments(settings), *wrapped(arguments, place)], variables)


@spark.command(short_help="Run a Python program with Spark configured.", context_settings=_PASS_ON)
@_ELSEWHERE
@click.option("--master", metavar="URL", help="Spark master, unless the program sets it: local[4], spark://host:7077.")
@click.option("--conf", "given", multiple=True, metavar="NAME=VALUE", help="A Spark setting. Can be repeated.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[FILE | -m MODULE | -c CODE] [ARGS]...")
def python(arguments: tuple[str, ...], deliver: bool | None, master: str | None, given: tuple[str, ...]) -> None:
    """Run a Python program whose Spark sessions are configured for topics; without FILE, Python itself.

    \b
    penstock spark python views.py
    penstock spark python --master 'local[4]' -m myproject.report
    penstock spark python --master sc://host:15002 views.py
    """
    from penstock.spark.session import submit_variable

    through = ["-m", "penstock.spark.run"] if arguments and _is_program(arguments[0]) else []
    if master is not None and master.startswith("sc://"):
        _become(sys.executable, [*through, *arguments], _client_variables(master, given, deliver))
    asked = [part for each in given for part in ("--conf", each)] + (["--master", master] if master else [])
    variables, settings, _ = _ready(asked, deliver)
    settings |= settings_from_arguments(asked)
    variables["PYSPARK_SUBMIT_ARGS"] = submit_variable(settings, variables)
    _become(sys.executable, [*through, *arguments], variables)


@spark.command(short_help="Show the environment for Spark.")
@format_option
def environment(output_format: str) -> None:
    """Show which Java is used, and the environment and settings for Spark.

    \b
    Exit code: 2  Spark cannot run here; the message says what to do
    """
    variables, settings, java = _ready((), None)
    output = Output()
    names = ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    shown = {name: variables[name] for name in names if name in variables}
    if output_format == JSON:
        found = {"version": java.version, "origin": java.origin}
        output.json({"java": found, "environment": shown, "settings": settings}, indent=2)
        return
    output.line(f"Java {java.version}, by {java.origin}")
    for name, value in {**shown, **settings}.items():
        output.line(f"{name}={value}")


def _is_program(first: str) -> bool:
    return first in ("-m", "-c") or not first.startswith("-")


def _client_variables(remote: str, given: Sequence[str], deliver: bool | None) -> dict[str, str]:
    """Variables for a client of Spark Connect, which needs no Java."""
    from penstock.client.errors import MissingDependency
    from penstock.spark.session import check_connect

    if given or deliver:
        raise CommandError("A Spark Connect server has its own settings and packages.", "Omit --conf and --deliver.")
    try:
        check_connect()
    except MissingDependency as error:
        raise CommandError(f"{error.message[0].upper()}{error.message[1:]}.", f"{error.hint}.") from None
    return {**os.environ, "SPARK_REMOTE": remote}


class _Ready(NamedTuple):
    """Variables and settings for Spark, and the Java that it runs on."""

    variables: dict[str, str]
    settings: dict[str, str]
    java: Java


def _ready(arguments: Sequence[str], deliver: bool | None) -> _Ready:
    """Environment and settings, except those that the arguments set."""
    from penstock.client.errors import PenstockError
    from penstock.spark.session import prepare, settings, spark_home

    variables = dict(os.environ)
    try:
        home = spark_home()
        if not (home / "bin" / "spark-submit").exists():
            raise CommandError(f"No Spark found in {home}.", "Unset or correct SPARK_HOME.")
        java = prepare(variables)
        given = {**settings_from_environment(variables, home), **settings_from_arguments(arguments)}
        master = given.get("spark.master")
        if master is not None and master.startswith("sc://"):
            raise CommandError(
                f"{master} is a Spark Connect server, which does not take submitted jobs.",
                f"Use penstock spark python --master {master} FILE, or penstock spark shell --remote {master}.",
            )
        chosen = settings(given, master=master, deliver=deliver)
    except PenstockError as error:
        raise CommandError(f"{error.message[0].upper()}{error.message[1:]}.", f"{error.hint}.") from None
    variables["SPARK_HOME"] = str(home)
    return _Ready(variables, {name: value for name, value in chosen.items() if given.get(name) != value}, java)


def job_place(arguments: Sequence[str]) -> int | None:
    """The index of the job's file among arguments of spark-submit."""
    number = 0
    while number < len(arguments):
        argument = arguments[number]
        if not argument.startswith("-"):
            return number
        number += 1 if argument in _FLAGS or "=" in argument else 2
    return None


def wrapped(arguments: Sequence[str], place: int | None) -> list[str]:
    """The arguments with a local Python job run by `penstock.spark.run`, which publishes the lag of its queries."""
    if place is None or not arguments[place].endswith(".py"):
        return list(arguments)
    options = list(arguments[:place])
    is_remote = value_of(options, "--deploy-mode") == "cluster" or (
        settings_from_arguments(options).get("spark.submit.deployMode") == "cluster"
    )
    if is_remote:
        return list(arguments)
    name = [] if value_of(options, "--name") else ["--name", Path(arguments[place]).name]
    runner = _SPARK_FOLDER / "run.py"
    return [*options, *name, str(runner), *arguments[place:]]


def _program(name: str) -> str:
    from penstock.spark.session import spark_home

    return str(spark_home() / "bin" / name)


def _become(program: str, arguments: Sequence[str], variables: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    try:
        os.execve(program, [program, *arguments], variables)
    except OSError as error:
        raise CommandError(f"Cannot run {program}: {error.strerror}.", "Reinstall pyspark.") from None
