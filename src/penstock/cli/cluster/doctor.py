"""`penstock doctor`: diagnose connection and cluster problems.

All checks run even if the first one fails, and each finding says what to do. A problem makes the exit code 1; a note,
such as a missing Spark, does not.
"""

from __future__ import annotations

from typing import Final

import click

from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.output import JSON, Output, format_option, printable
from penstock.runtime.quantities import counted

_EXIT_PROBLEMS: Final = 1


@click.command(short_help="Diagnose connection and cluster problems.")
@click.option("--http-port", type=click.IntRange(0, 65_535), default=8092, show_default=True,
              help="HTTP port of Penstock brokers, for /health; 0 skips this check.")  # fmt: skip
@click.option("--probe", is_flag=True, help="Also create a topic, write and read a record, and delete the topic.")
@format_option
@cluster_command
def doctor(cluster: Cluster, http_port: int, probe: bool, output_format: str) -> None:
    """Check the connection, the brokers, partitions, disks and clocks of a cluster, and this machine.

    Finds closed ports, wrong advertised addresses, old brokers, clocks that differ, full disks, partitions without a
    leader, min.insync.replicas above the number of replicas, transactions that block readers, missing Java or Spark.

    \b
    Exit code: 0  no problems
               1  problems found; each one says what to do
    """
    from penstock.cli.cluster.doctor_checks import examine_cluster, examine_machine
    from penstock.client.diagnosis import PROBLEM, Finding

    findings: list[Finding] = []
    findings += examine_cluster(cluster, http_port, probe=probe)
    findings += examine_machine()
    output = Output()
    problems = sum(finding.level == PROBLEM for finding in findings)
    if output_format == JSON:
        output.json({"healthy": not problems, "findings": [finding._asdict() for finding in findings]}, indent=2)
    else:
        for finding in findings:
            mark = output.style(f"{finding.level:<8}", _COLOURS[finding.level], bold=finding.level == PROBLEM)
            output.paragraph(printable(f"{finding.subject}: {finding.text}"), "        ", first=mark)
            if finding.advice:
                output.paragraph(
                    printable(finding.advice), "          ", first="        " + output.style("> ", dim=True)
                )
        summary = f"{counted(problems, 'problem')} found." if problems else "No problems found."
        output.line(output.style(summary, "red" if problems else "green", bold=True))
    output.flush()
    click.get_current_context().exit(_EXIT_PROBLEMS if problems else 0)


_COLOURS: Final = {"ok": "green", "note": "yellow", "problem": "red"}
