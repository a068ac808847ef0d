"""`penstock activity report`: what the pipelines have found against what the site has planted.

Rule: it reads the log and the warehouse and changes neither, so it can be asked again at any time; the exit code says
whether all goals are met.
"""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.cluster import Cluster, cluster_command
from penstock.cli.output import JSON, Output, format_option
from penstock.cli.warehouses import warehouse_option


@click.command(short_help="Compare what pipelines found with what was planted.")
@click.option(
    "-o", "--output", "place", default="report.html", show_default=True, metavar="FILE.html",
    help="Where the page goes, or a folder for it; the same as JSON is written beside it.",
)  # fmt: skip
@click.option(
    "--summary", "summary_path", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="What `penstock activity generate --format json` has printed: what it sent is compared too.",
)  # fmt: skip
@warehouse_option
@format_option
@cluster_command
def report(
    cluster: Cluster, place: str, summary_path: str | None, warehouse_uri: str, output_format: str
) -> None:  # fmt: skip
    """Compare what the pipelines of a warehouse have found with what the site has planted, and all that was produced
    with all that has landed. A page with plots is written, and the figures are printed.

    It is about the site that opened last; the pipelines should have read to the end.

    \b
    penstock activity report --warehouse penstock-activity/warehouse
    penstock activity report --summary generated.json --output run.html

    \b
    Exit code: 1  a goal is missed: something is not complete, precision or recall is below 0.9, an incident was
                  alerted later than 15 s after its start
               3  no broker could be reached
               4  there is nothing to report on
    """
    from penstock.activity.live.report import read_summary, write_report
    from penstock.cli.activity_clusters import event_cluster

    summary = None if summary_path is None else read_summary(summary_path)
    outcome = write_report(
        event_cluster(cluster),
        warehouse_uri,
        Path(place),
        summary=summary,
        told=lambda line: click.echo(line, err=True),
    )
    output = Output()
    if output_format == JSON:
        output.json(outcome.document.to_json(), indent=2)
    else:
        output.line(outcome.text)
        output.line(f"The report: {outcome.html_path}")
    output.flush()
    click.get_current_context().exit(outcome.exit_code)
