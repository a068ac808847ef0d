"""`penstock activity run` (`make run`): a broker, a site, the Spark pipelines, a terminal view and a web page.

What would keep it from working is reported before anything starts. One Ctrl-C stops it cleanly, process by process, a
second one kills it; the next run continues with the same data.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.output import CommandError, printable
from penstock.cli.server.server import DataFolder
from penstock.cli.values import Assignment

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.activity.live.preflight import RunFolder
    from penstock.activity.live.progress import StartProgress
    from penstock.activity.live.run import Plan
    from penstock.activity.live.terminal import PlainDisplay
    from penstock.activity.live.watch import Watch

_FAILED: Final = 1
_REQUEST_TIMEOUT_MS: Final = 30_000
_KILLED: Final = 130


class RunError(CommandError):
    """A run that cannot start or continue."""

    exit_code = _FAILED


@click.command(short_help="Run everything: broker, site, pipelines, terminal view, web page.")
@click.option(
    "-m",
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop after this many minutes.  [default: Ctrl-C]",
)
@click.option(
    "--report", "has_report", is_flag=True, help="End with a report that compares the results with what was planted."
)
@click.option(
    "-r", "--rate", type=click.FloatRange(min=1), default=2_000, show_default=True, metavar="N",
    help="Mean events per second.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the site.  [default: the folder's, or 1]")
@click.option(
    "--malformed", type=click.FloatRange(0, 1), default=0.0, show_default=True, metavar="SHARE",
    help="Share of malformed values.",
)  # fmt: skip
@click.option(
    "--rhythm", type=click.Choice(["daily", "flat"]), default="daily", show_default=True,
    help="Whether the rate varies with the time of day (UTC) and the weekday.",
)  # fmt: skip
@click.option(
    "--data-dir", type=DataFolder(), default="penstock-activity", show_default=True, metavar="FOLDER",
    help="Folder of the broker's data, tables, logs and reports.",
)  # fmt: skip
@click.option(
    "--warehouse",
    "warehouse",
    metavar="URI",
    help="Folder or URI of the tables, shared with the Spark cluster.  [default: in the data folder]",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=9092, show_default=True,
    help="Port of the broker; 0 is any free port.",
)  # fmt: skip
@click.option(
    "--http-port", type=click.IntRange(0, 65_535), default=8092, show_default=True,
    help="Port of the web page; 0 is any free port.",
)  # fmt: skip
@click.option(
    "-b", "--bootstrap-server", "bootstrap", metavar="HOST:PORT,...",
    help="Use an existing cluster instead of starting a broker.",
)  # fmt: skip
@click.option(
    "--command-config", metavar="FILE",
    help="File of client properties for that cluster, by Kafka's names: security.protocol, ssl.truststore.location.",
)  # fmt: skip
@click.option(
    "--command-property", "given", type=Assignment(), multiple=True, help="A client property. Can be repeated."
)
@click.option(
    "--value-format", type=click.Choice(["json", "avro"]), default="json", show_default=True,
    help="Encoding of the events' values.",
)  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master.  [default: Spark's own, else local[*]]")
@click.option("--pipelines", metavar="NAME,...", help="Pipelines to run.  [default: all]")
def run(
    pipelines: str | None, data_dir: str, has_report: bool, seed: int | None, command_config: str | None,
    given: tuple[tuple[str, str], ...], **options: Any,
) -> None:  # fmt: skip
    """Run the live example until Ctrl-C or for --minutes: a broker, the Spark pipelines, a site that generates events.

    Each is a process of its own that ends with this command. The terminal shows their state; a web page also shows the
    results. A second run continues with the data of the first.

    \b
    penstock activity run
    penstock activity run --minutes 2 --report
    penstock activity run --rate 5000 --malformed 0.01
    penstock activity run -b kafka-1:9092 --master spark://host:7077 --warehouse s3://bucket/tables
    penstock activity run -b kafka-1:9093 --command-config tls.properties

    \b
    Exit code: 0  ended normally, and the report meets all goals
               1  could not start or continue, or the report misses a goal
    """
    from rich.console import Console

    from penstock.activity.live import preflight as checks
    from penstock.activity.live.preflight import CannotRun, RunFolder
    from penstock.activity.live.run import RunFailed

    with ExitStack() as held:
        try:
            checks.check_packages()  # before anything below imports them
            options |= _connection_options(options["bootstrap"], command_config, given)
            console = Console(highlight=False)
            folder = RunFolder(Path(data_dir))
            plan, listener = _checked_plan(held, folder, _names(pipelines), seed, has_report, options)
            code = _run(held, console, plan, listener)
        except CannotRun as error:
            raise RunError(error.problem, error.advice) from None
        except RunFailed as error:
            for line in error.lines:
                click.echo(f"  | {printable(line)}", err=True)
            raise RunError(error.problem, error.advice) from None
        except KeyboardInterrupt:
            click.echo("Killed. Nothing acknowledged is lost; the next run continues.", err=True)
            code = _KILLED
    click.get_current_context().exit(code)


def _names(pipelines: str | None) -> tuple[str, ...]:
    from penstock.activity.pipelines import definition
    from penstock.cli.connection import client_errors_reported

    wanted = tuple(name.strip() for name in (pipelines or "").split(",") if name.strip())
    with client_errors_reported():
        return tuple(one.name for one in definition.selected_pipelines(wanted))


def _connection_options(
    bootstrap: str | None, command_config: str | None, given: tuple[tuple[str, str], ...]
) -> dict[str, Any]:  # fmt: skip
    """The options of a plan for an existing cluster."""
    from penstock.cli.connection import Cluster, client_errors_reported, client_properties
    from penstock.cli.spark.warehouse import event_cluster

    if command_config is None and not given:
        return {}
    properties = client_properties(command_config, dict(given))
    servers = bootstrap or properties.get("bootstrap.servers")
    if servers is None:
        raise CommandError(
            "--command-config and --command-property need an existing cluster.",
            "Add --bootstrap-server, or omit them.",
        )
    with client_errors_reported():
        cluster = event_cluster(Cluster(servers, properties, _REQUEST_TIMEOUT_MS))
    return {
        "bootstrap": servers, "command_config": command_config, "connecting": cluster.options,
        "command_properties": tuple(f"{name}={value}" for name, value in given),
    }  # fmt: skip


def _checked_plan(
    held: ExitStack, folder: RunFolder, pipelines: tuple[str, ...], seed: int | None, has_report: bool,
    options: Mapping[str, Any],
) -> tuple[Plan, socket.socket]:  # fmt: skip
    """Check everything that can be checked before the start. Raises CannotRun."""
    from dataclasses import replace

    from penstock.activity.live import preflight as checks
    from penstock.activity.live.preflight import OWN_BROKER
    from penstock.activity.live.run import Plan

    plan = Plan(folder.path, pipelines, has_report=has_report, **options)
    checks.check_java(plan.master)
    listener = held.enter_context(checks.bound_page(plan.http_port))
    if plan.has_broker:
        plan = replace(plan, port=checks.check_broker_port(plan.port), broker_http_port=checks.free_port())
    folder.take()
    held.callback(folder.release)
    made = folder.check(seed, OWN_BROKER if plan.has_broker else checks.cluster_id(plan), plan.value_format)
    folder.remember(made)
    return replace(plan, seed=made.seed, http_port=listener.getsockname()[1]), listener


def _run(held: ExitStack, console: Console, plan: Plan, listener: socket.socket) -> int:
    from penstock.activity.live import progress
    from penstock.activity.live.page.server import PageServer, page_app
    from penstock.activity.live.preflight import StartTimes, start_times_path
    from penstock.activity.live.run import Run
    from penstock.activity.live.terminal import PlainDisplay, TerminalDisplay

    display: PlainDisplay = TerminalDisplay(console) if console.is_terminal else PlainDisplay(console)
    starts = StartTimes(start_times_path(os.environ), plan.pipelines)
    steps = [step for step in progress.TITLES if plan.has_broker or step != progress.BROKER]
    start = progress.StartProgress(steps, starts.read())
    watch = _watch(plan, start, lambda: live_run.pids)
    server = PageServer(listener, page_app(watch, plan.broker_url))
    stop = threading.Event()
    live_run = Run(plan, watch, display, stop, report=_reporter(plan, watch, display) if plan.has_report else None)
    watch.set(facts=_facts(plan, server.url))
    _print_summary(console, plan, server.url)
    # Ends in the order of run, display, watch, page.
    server.start()
    held.callback(server.close)
    watch.start()
    held.callback(watch.close)
    held.enter_context(display)
    with _stopped_by_signals(stop):
        code = live_run.run()
    if start.is_done:
        starts.write(start.ended_ms)
    display.__exit__(None, None, None)
    console.print(
        f"Stopped. `penstock activity run --data-dir {printable(str(plan.folder))}` continues with the same data.",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    return code


def _watch(plan: Plan, start: StartProgress, pids: Callable[[], Mapping[str, int | None]]) -> Watch:
    from penstock.activity.live.state import Board
    from penstock.activity.live.watch import Watch
    from penstock.activity.pipelines import definition

    topics = [topic for one in definition.selected_pipelines(plan.pipelines) for topic in one.output_topics]
    board = Board(time.time_ns() // 1_000_000, start=start, queries=sum(plan.queries.values()))
    return Watch(board, plan.cluster, plan.warehouse_uri, plan.pipelines, topics, pids=pids)


def _facts(plan: Plan, url: str) -> dict[str, str]:
    return {
        "page": url,
        "cluster": plan.servers,
        "data": str(plan.folder),
        "warehouse": plan.warehouse_uri,
        "seed": str(plan.seed),
        "rate": f"{plan.rate:,.0f} events/s",
        "has_metrics": "yes" if plan.has_broker else "",
    }


def _print_summary(console: Console, plan: Plan, url: str) -> None:
    from rich.text import Text

    from penstock import __version__

    until = "until Ctrl-C" if plan.minutes is None else f"for {plan.minutes:g} minutes"
    cluster = f"a broker on {plan.servers}" if plan.has_broker else f"the cluster {plan.servers}"
    lines = [
        Text.assemble(("Penstock", "bold cyan"), f" {__version__}: live example, {until}."),
        Text(),
        *(
            Text.assemble((f"  {name:<10}", "dim"), value)
            for name, value in (
                ("cluster", cluster),
                ("site", f"seed {plan.seed}, {plan.rate:,.0f} events/s"),
                ("pipelines", ", ".join(plan.pipelines)),
                ("data", f"{printable(str(plan.folder))} (output of the processes in logs/)"),
                ("page", url),
                *([("console", f"{plan.broker_url}/tables")] if plan.broker_url is not None else []),
                ("try", f"penstock groups list -b {plan.servers}"),
                ("", f"penstock pipeline status -w {printable(plan.warehouse_uri)}"),
            )
        ),
        Text(),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)
    console.file.flush()


def _reporter(plan: Plan, watch: Watch, display: PlainDisplay) -> Callable[[Mapping[str, Any]], int]:
    def report(summary: Mapping[str, Any]) -> int:
        from penstock.activity.report.writer import write_report
        from penstock.client.errors import PenstockError

        try:
            outcome = write_report(
                plan.cluster, plan.warehouse_uri, str(plan.report_folder), summary=dict(summary),
                samples=watch.samples(), notify=display.line,
            )  # fmt: skip
        except PenstockError as error:
            display.line(f"No report was written: {error.message}")
            return _FAILED
        display.__exit__(None, None, None)
        click.echo(outcome.text)
        click.echo(f"Report: {outcome.html_path}")
        return outcome.exit_code

    return report


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP stops the run, the second kills it."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
