"""`penstock mirror`: run a mirror between clusters, and show how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.connection import Rejected, client_errors_reported
from penstock.cli.log_format import LEVELS, log_to_stderr
from penstock.cli.options import watch_option
from penstock.cli.output import JSON, CommandError, Output, format_option, printable, show_table
from penstock.cli.values import Assignment, ByteCount
from penstock.runtime.quantities import counted, duration_text

if TYPE_CHECKING:
    from penstock.mirror import MirrorSettings, MirrorStatus

_EXIT_STOPPED = 1
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def mirror() -> None:
    """Mirror topics of one or many clusters into another, and show the lag.

    Sources and target can be any Kafka. A topic that only the mirror writes has the same partitions, offsets,
    timestamps and records as its source. If a mirror is killed at any moment, no record is lost or duplicated. A topic
    that was truncated or recreated stops and is reported.
    """


def _mirror_options(command: _Command) -> _Command:
    for option in (
        click.option(
            "-c", "--set", "assignments", type=Assignment(), multiple=True, metavar="NAME=VALUE",
            help="A setting, such as max.gap.offsets=50000 or source.live.security.protocol=SSL. Can be repeated.",
        ),
        click.option("--name", help="Name of the mirror. Processes with the same name share its work."),
        click.option(
            "--target", metavar="HOST:PORT", help="Addresses of the target cluster (target.bootstrap.servers)."
        ),
        click.option(
            "--source", "sources", multiple=True, metavar="[NAME=]HOST:PORT",
            help="Addresses of a source cluster, and its name (`source` if omitted). Can be repeated.",
        ),
        click.option("--config", metavar="FILE", help="File of settings: TOML (.toml) or properties."),
    ):  # fmt: skip
        command = option(command)
    return command


@mirror.command(short_help="Mirror until Ctrl-C.")
@_mirror_options
@click.option(
    "-t", "--topics", multiple=True, metavar="REGEX", help="Topics to mirror. Can be repeated.  [default: all]"
)
@click.option("--exclude", multiple=True, metavar="REGEX", help="Topics to leave out. Can be repeated.")
@click.option(
    "--mode", type=click.Choice(("own", "same", "mapped", "shared")),
    help="Offsets and topics: the same, mapped, or a topic shared by several sources.  [default: own]",
)  # fmt: skip
@click.option("--max-rate", type=ByteCount(), help="Bytes per second that this process may read: 50MB.")
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True,
    help="Level of the log on standard error.",
)  # fmt: skip
def run(
    config: str | None,
    sources: tuple[str, ...],
    target: str | None,
    name: str | None,
    assignments: tuple[tuple[str, str], ...],
    topics: tuple[str, ...],
    exclude: tuple[str, ...],
    mode: str | None,
    max_rate: int | None,
    log_level: str,
) -> None:
    """Mirror topics until Ctrl-C or SIGTERM. Start it on several machines to share the work.

    Mode `own` keeps offsets, except those of compacted topics, which are mapped. `same` keeps them in all topics.
    `shared` lets several sources write to one topic, with the origin of each record in the header mirror.origin.

    \b
    penstock mirror run --source live=live:9092 --target offline:9092 -t 'views.*'
    penstock mirror run --config mirror.toml

    \b
    Exit code: 2  invalid options or settings
               3  a cluster could not be reached at the start
    """
    log_to_stderr(log_level)
    more = {
        "topics": list(topics) or None,
        "exclude.topics": list(exclude) or None,
        "mode": mode,
        "max.bytes.per.second": max_rate,
    }
    settings = _settings(config, sources, target, name, assignments, more)
    import asyncio

    from penstock.client.background import new_event_loop

    with client_errors_reported(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(settings))


async def _run(settings: MirrorSettings) -> None:
    """Mirror until a signal."""
    import asyncio
    import signal

    from penstock.mirror import Mirror
    from penstock.mirror.errors import StateUnreadable

    loop = asyncio.get_running_loop()
    async with Mirror(settings) as running:
        task = asyncio.ensure_future(running.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as group:
            found = _first_of(group)
            if isinstance(found, StateUnreadable):
                raise Rejected(f"The mirror's state cannot be read: {found}.", "Choose another --name.") from None
            raise found from None


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


@mirror.command(short_help="Show position and lag of every partition.")
@_mirror_options
@click.option("--stopped", "only_stopped", is_flag=True, help="Show only partitions that have stopped.")
@watch_option
@format_option
def status(
    config: str | None,
    sources: tuple[str, ...],
    target: str | None,
    name: str | None,
    assignments: tuple[tuple[str, str], ...],
    only_stopped: bool,
    output_format: str,
) -> None:
    """Show how far a mirror is: lag in records and in time of every partition, and what has stopped, and why.

    The clusters are asked, not the mirror, so this works while it does not run.

    \b
    Exit code: 1  a partition or topic has stopped
               3  a cluster could not be reached
               4  the target has no such mirror
    """
    import asyncio

    from penstock.mirror import mirror_status

    settings = _settings(config, sources, target, name, assignments, {})

    with client_errors_reported():
        found = asyncio.run(mirror_status(settings))
    output = Output()
    if output_format == JSON:
        output.json(_document(found, only_stopped), indent=2)
    else:
        _show(output, found, only_stopped)
    output.flush()
    if found.stopped:
        click.get_current_context().exit(_EXIT_STOPPED)


def _show(output: Output, found: MirrorStatus, only_stopped: bool) -> None:
    shown = found.stopped if only_stopped else found.partitions
    rows = [
        (
            each.source,
            each.topic,
            each.partition,
            each.target,
            each.mode,
            each.state if not each.reason else f"{each.state}: {each.reason}",
            each.position,
            each.end,
            each.lag_records,
            duration_text(each.lag_seconds),
        )
        for each in shown
    ]
    titles = ("SOURCE", "TOPIC", "PARTITION", "TARGET", "MODE", "STATE", "POSITION", "END", "LAG", "LAG TIME")
    show_table(output, titles, rows)
    if not rows:
        output.nothing("Nothing has stopped." if only_stopped else "No topics are mirrored.")
    output.line()
    output.line(
        f"Mirror {printable(found.name)}: {counted(len(found.partitions), 'partition')}, "
        f"lag {counted(found.lag_records, 'record')}, {duration_text(found.lag_seconds)}; "
        f"{found.processes} process{'' if found.processes == 1 else 'es'} running."
    )
    for each in found.stopped:
        output.line()
        output.paragraph(printable(f"{each.source}:{each.topic}-{each.partition} has stopped: {each.detail}."))


def _document(found: MirrorStatus, only_stopped: bool) -> dict[str, object]:
    shown = found.stopped if only_stopped else found.partitions
    return {
        "mirror": found.name,
        "processes": found.processes,
        "lagRecords": found.lag_records,
        "lagSeconds": found.lag_seconds,
        "partitions": [
            {
                "source": each.source,
                "topic": each.topic,
                "partition": each.partition,
                "target": each.target,
                "targetPartition": each.target_partition,
                "mode": each.mode,
                "state": each.state,
                "position": each.position,
                "end": each.end,
                "lagRecords": each.lag_records,
                "lagSeconds": each.lag_seconds,
                "reason": each.reason or None,
                "detail": each.detail or None,
            }
            for each in shown
        ],
    }


def _settings(
    config: str | None,
    sources: tuple[str, ...],
    target: str | None,
    name: str | None,
    assignments: tuple[tuple[str, str], ...],
    more: dict[str, Any],
) -> MirrorSettings:
    """The settings of a file and of the command line, which wins."""
    from penstock.mirror import MirrorSettings

    given: dict[str, Any] = dict(assignments)
    for text in sources:
        alias, separator, servers = text.rpartition("=")
        key = f"source.{alias if separator else 'source'}.bootstrap.servers"
        if key in given:
            raise CommandError(f"--source {text}: that source is given twice.", "Write NAME=HOST:PORT for each.")
        given[key] = servers
    given |= {key: value for key, value in (("target.bootstrap.servers", target), ("name", name)) if value is not None}
    given |= {key: value for key, value in more.items() if value is not None}
    with client_errors_reported():
        return MirrorSettings.load(config, given) if config else MirrorSettings.of(given)
