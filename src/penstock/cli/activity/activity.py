"""`penstock activity`: generate a site's activity, print what is planted in it, and report what the pipelines found.

The same seed, sizes and start time give the same events. Counts are of acknowledged events. Ctrl-C is a normal end:
what was generated is still sent, and the counts are printed. `report` reads the log and the warehouse and changes
neither; its exit code says whether all goals are met.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.activity.run import run
from penstock.cli.connection import Cluster, client_errors_reported, cluster_command
from penstock.cli.output import JSON, CommandError, Output, format_option
from penstock.cli.spark.warehouse import warehouse_option
from penstock.cli.values import Duration, Timestamp
from penstock.runtime.quantities import counted, duration_text, time_text

if TYPE_CHECKING:
    from penstock.activity.site import Site
    from penstock.activity.site.generator import EventGenerator, Plan, Progress, Summary


@click.command(short_help="Compare the results of pipelines with what was planted.")
@click.option(
    "-o", "--output", "place", default="report.html", show_default=True, metavar="FILE.html",
    help="File or folder for the page. A JSON file is written beside it.",
)  # fmt: skip
@click.option(
    "--summary", "summary_path", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="Output of `penstock activity generate --format json`, to compare its counts too.",
)  # fmt: skip
@warehouse_option
@format_option
@cluster_command
def report(
    cluster: Cluster, place: str, summary_path: str | None, warehouse_uri: str, output_format: str
) -> None:  # fmt: skip
    """Compare the results of the pipelines with what was planted, and produced with landed events.

    Prints the report and writes a page with plots. It covers the latest site; the pipelines should have read to the end
    of the log.

    \b
    penstock activity report --warehouse penstock-activity/warehouse
    penstock activity report --summary generated.json --output run.html

    \b
    Exit code: 1  a goal is missed: data is incomplete, precision or recall is below 0.9, or an incident was alerted
                  more than 15 s after its start
               3  no broker could be reached
               4  there is nothing to report on
    """
    from penstock.activity.report.writer import read_summary, write_report
    from penstock.cli.spark.warehouse import event_cluster

    summary = None if summary_path is None else read_summary(summary_path)
    outcome = write_report(
        event_cluster(cluster),
        warehouse_uri,
        Path(place),
        summary=summary,
        notify=lambda line: click.echo(line, err=True),
    )
    output = Output()
    if output_format == JSON:
        output.json(outcome.document.to_json(), indent=2)
    else:
        output.line(outcome.text)
        output.line(f"Report: {outcome.html_path}")
    output.flush()
    click.get_current_context().exit(outcome.exit_code)


_EXIT_UNACKNOWLEDGED: Final = 1
_PROGRESS_EVERY_S: Final = 0.5
_ENDED_CLOSE_S: Final = 5.0


@click.group()
def activity() -> None:
    """Run the live example: a site with planted crawlers, spammers, abusers, trends and incidents."""


activity.add_command(run)
activity.add_command(report)


def _site_options(command: Any) -> Any:
    """The options that define a site."""
    options = (
        click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the site."),
        click.option(
            "-r", "--rate", type=click.FloatRange(min=1), default=2_000, show_default=True, metavar="N",
            help="Mean events per second, without planted ones.",
        ),
        click.option(
            "--members", type=click.IntRange(min=1), metavar="N",
            help="Number of members.  [default: 20,000, or 10 x rate]",
        ),
        click.option("--items", type=click.IntRange(min=1), metavar="N", help="Number of items.  [default: 5,000]"),
        click.option("--servers", type=click.IntRange(min=1), metavar="N", help="Number of servers.  [default: 8]"),
        click.option(
            "--origin", "origin_ms", type=Timestamp(), help="Start of the site's time.  [default: the first event]"
        ),
        click.option(
            "--incident-after", "incident_after_ms", type=Duration(), default="60s", show_default=True,
            help="Time from the origin to the first incident; others follow every 10 minutes.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@activity.command(short_help="Generate a site's events into topics.")
@_site_options
@click.option("-m", "--minutes", type=click.FloatRange(min=0, min_open=True), help="Minutes of event time to generate.")
@click.option("-n", "--events", type=click.IntRange(min=1), metavar="N", help="Number of events to generate.")
@click.option(
    "--as-fast-as-possible", "is_fast", is_flag=True, help="Do not keep to real time; needs --minutes or --events."
)
@click.option(
    "--start", "start_ms", type=Timestamp(),
    help="Time of the first event, with --as-fast-as-possible.  [default: so that the last is now]",
)  # fmt: skip
@click.option(
    "--value-format", type=click.Choice(["json", "avro"]), default="json", show_default=True, help="Encoding of values."
)
@click.option(
    "--malformed", type=click.FloatRange(0, 1), default=0.0, show_default=True, metavar="SHARE",
    help="Share of malformed values.",
)  # fmt: skip
@click.option(
    "--rhythm", type=click.Choice(["daily", "flat"]), default="daily", show_default=True,
    help="Whether the rate varies with the time of day (UTC) and the weekday.",
)  # fmt: skip
@format_option
@cluster_command
def generate(
    cluster: Cluster,
    minutes: float | None,
    events: int | None,
    is_fast: bool,
    start_ms: int | None,
    value_format: str,
    malformed: float,
    output_format: str,
    **site_options: Any,
) -> None:
    """Generate the events of a site into one topic per kind of event, in real time until Ctrl-C.

    Missing topics are created. The command waits for an offline broker, even in the middle of a run, and every event
    arrives once.

    \b
    penstock activity generate
    penstock activity generate --rate 5000 --minutes 10 --malformed 0.01
    penstock activity generate --as-fast-as-possible --minutes 60 --seed 7
    penstock activity generate --as-fast-as-possible --start 2026-11-15T00:00Z --events 1000000

    \b
    Exit code: 1  not all events were acknowledged
               2  invalid options, or a missing package
               4  rejected by a broker
    """
    plan = _plan(minutes, events, is_fast, start_ms, site_options["rate"])
    site = _site(plan.start_ms, site_options, must_be_open=True)
    stop = threading.Event()
    with _stopped_by_signals(stop):
        summary = _generate(cluster, site, plan, value_format, malformed, stop)
    if summary is None:
        raise CommandError("Stopped before a broker was found.", "Nothing was generated.")
    _show(Output(), output_format, site, summary)
    failed = summary.unacknowledged + sum(counts.failed for counts in summary.counts.values())
    if failed:
        click.echo(f"{counted(failed, 'event')} not acknowledged. Some of them may still be stored.", err=True)
        click.get_current_context().exit(_EXIT_UNACKNOWLEDGED)


@activity.command(short_help="Print what is planted, without generating events.")
@_site_options
@click.option(
    "-m", "--minutes", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True,
    help="Minutes of event time to print.",
)  # fmt: skip
@format_option
def truth(minutes: float, output_format: str, **site_options: Any) -> None:
    """Print what is planted on a site: crawlers, spammers, abusers, trending items, incidents.

    The options alone determine it: with those of `generate`, this is what `generate` plants.
    """
    site = _site(_now_ms(), {**site_options, "rhythm": "daily"}, must_be_open=False)
    found = site.truth(site.origin_ms + round(minutes * 60_000))
    output = Output()
    if output_format == JSON:
        output.json([each.value for each in found], indent=2)
        return
    for each in found:
        subject = ", ".join(f"{name} {value}" for name, value in each.subject.items())
        until = "" if each.end_ms is None else f" to {time_text(each.end_ms)}"
        output.line(f"{each.kind:9} {subject:40} {time_text(each.start_ms)}{until}")


# --- what is asked for


def _plan(minutes: float | None, events: int | None, is_fast: bool, start_ms: int | None, rate: float) -> Plan:
    if start_ms is not None and not is_fast:
        raise CommandError(
            "--start needs --as-fast-as-possible; in real time the first event is now.",
            "Add --as-fast-as-possible, or set the start of the site's time with --origin.",
        )
    if is_fast and minutes is None and events is None:
        raise CommandError("--as-fast-as-possible needs an end.", "Add --minutes or --events.")
    _check_packages()
    from penstock.activity.site.generator import Plan

    if start_ms is None:
        start_ms = _now_ms()
        if is_fast:
            spans_ms = [minutes * 60_000] if minutes is not None else []
            spans_ms += [events / rate * 1000] if events is not None else []
            start_ms -= round(min(spans_ms))
    return Plan(start_ms, not is_fast, minutes, events)


def _site(start_ms: int, options: dict[str, Any], *, must_be_open: bool) -> Site:
    _check_packages()
    from penstock.activity.site import Site, Sizes

    origin_ms = start_ms if options["origin_ms"] is None else options["origin_ms"]
    if origin_ms > start_ms and must_be_open:
        raise CommandError("--origin is after the first event.", "Choose an earlier --origin, or a later --start.")
    try:
        sizes = Sizes.for_rate(options["rate"], options["members"], options["items"], options["servers"])
        return Site(
            seed=options["seed"], rate=options["rate"], origin_ms=origin_ms, sizes=sizes, rhythm=options["rhythm"],
            incident_after_ms=options["incident_after_ms"],
        )  # fmt: skip
    except ValueError as error:
        raise CommandError(f"Invalid site: {error}.", "Change --rate, --members or --items.") from None


def _check_packages() -> None:
    from penstock.client.serializers.base import load_optional

    with client_errors_reported():
        load_optional("numpy", "numpy", "spark", "generating activity")
        load_optional("pyarrow", "pyarrow", "spark", "generating activity")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- doing it


def _generate(
    cluster: Cluster, site: Site, plan: Plan, value_format: str, malformed: float, stop: threading.Event
) -> Summary | None:
    from penstock.activity.site.encoding import Batches
    from penstock.activity.site.generator import EventGenerator, create_topics, producer_for, wait_for_broker
    from penstock.runtime.clock import SystemClock

    batches = Batches(site, value_format, malformed)
    shown = _ProgressLine()
    admin = wait_for_broker(cluster.admin, stop, shown.notify)
    if admin is None:
        return None
    with admin:
        made = create_topics(admin)
    if made:
        shown.notify(f"Created {counted(len(made), 'topic')}: {', '.join(made)}.")
    connecting = cluster.connecting("penstock-activity")
    producer = wait_for_broker(lambda: producer_for(cluster.servers, **connecting), stop, shown.notify)
    if producer is None:
        return None
    try:
        generation: EventGenerator = EventGenerator(
            site, plan, batches, producer, SystemClock(), stop=stop, notify=shown.notify, progress=shown.progress
        )
        return generation.run()
    finally:
        shown.clear()
        producer.close(_ENDED_CLOSE_S)


class _ProgressLine:
    """Progress on standard error: events line by line, a status line on a terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown_at_s = 0.0
        self._has_line = False
        self._before = (0.0, 0)

    def notify(self, text: str) -> None:
        self.clear()
        click.echo(text, err=True)

    def progress(self, progress: Progress) -> None:
        if not self._is_terminal or time.monotonic() - self._shown_at_s < _PROGRESS_EVERY_S:
            return
        self._shown_at_s = time.monotonic()
        seconds, count = self._before
        rate = (progress.acknowledged - count) / max(progress.seconds - seconds, 0.001)
        self._before = (progress.seconds, progress.acknowledged)
        behind = f", {progress.behind_ms / 1000:.1f} s behind" if progress.behind_ms >= 1000 else ""
        click.echo(
            f"\r\x1b[K{progress.acknowledged:,} events, {rate:,.0f}/s, at {time_text(progress.event_time_ms)}{behind}",
            nl=False, err=True,
        )  # fmt: skip
        self._has_line = True

    def clear(self) -> None:
        if self._has_line:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._has_line = False


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM stops after everything generated is sent, the second at once."""

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before: dict[signal.Signals, Callable[..., Any] | int | None] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- what came of it


def _show(output: Output, output_format: str, site: Site, summary: Summary) -> None:
    from penstock.activity.events import KINDS

    counts = {kind.topic: summary.counts[kind.topic] for kind in KINDS if kind.topic in summary.counts}
    good = {topic: each.good for topic, each in counts.items()}
    malformed = {topic: each.malformed for topic, each in counts.items()}
    events = sum(good.values()) + sum(malformed.values())
    rate = events / summary.seconds if summary.seconds else 0.0
    if output_format == JSON:
        output.json(
            {
                "events": events, "good": good, "malformed": malformed,
                "failed": {topic: each.failed for topic, each in counts.items()},
                "unacknowledged": summary.unacknowledged, "seconds": round(summary.seconds, 3),
                "events_per_second": round(rate, 1), "start_ms": summary.start_ms, "end_ms": summary.end_ms,
                "most_behind_ms": round(summary.most_behind_ms), "seed": site.population.seed,
                "rate": site.rate, "origin_ms": site.origin_ms,
            },
            indent=2,
        )  # fmt: skip
        return
    for topic in counts:
        spoilt = f", {malformed[topic]:,} malformed" if malformed[topic] else ""
        output.line(f"{topic:12} {good[topic]:>12,}{spoilt}")
    times = f"{time_text(summary.start_ms)} to {time_text(summary.end_ms)}"
    output.line(f"{counted(events, 'event')} of {times} in {duration_text(summary.seconds)}, {rate:,.0f}/s")
