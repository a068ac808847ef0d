"""What `penstock log verify` prints.

One line per partition or file, then its findings: where, what, and what to do; at the end a summary. `--format json`
is the same as one document. Above 256 MB a progress bar is shown on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.cli.output import EXIT_DAMAGE, EXIT_SOUND, JSON, Output, printable
from penstock.log.inspection.log_files import PathKind, log_bytes
from penstock.log.inspection.segment_check import Finding, Options, Report, Severity
from penstock.log.inspection.verification import verify
from penstock.runtime.files import Files
from penstock.runtime.quantities import counted, human_bytes

# Less is read before a bar would have been seen.
PROGRESS_FROM_BYTES = 256 * 1024 * 1024

_COLOURS = {Severity.DAMAGE: "red", Severity.FORMAT: "yellow", Severity.NOTE: "cyan"}
_INDENT = " " * 10


def run(
    files: Files,
    targets: Sequence[tuple[str, PathKind]],
    output: Output,
    output_format: str,
    *,
    deep: bool,
    pause: Callable[[], None],
) -> int:
    """Verify everything. Returns the exit code."""
    total = sum(log_bytes(files, path, kind) for path, kind in targets)
    is_json = output_format == JSON
    reports: list[Report] = []
    with _progress(total) as on_bytes:
        for path, kind in targets:
            for report in verify(files, path, kind, Options(deep=deep, on_bytes=on_bytes, pause=pause)):
                if report.path == path and kind is PathKind.LOG_DIRECTORY and not report.findings:
                    continue
                reports.append(report)
                if not is_json and on_bytes is None:
                    _show(output, report)
    if is_json:
        output.json(_document(reports), indent=2)
    else:
        if on_bytes is not None:
            for report in reports:
                _show(output, report)
        _show_sum(output, reports)
    return EXIT_SOUND if all(report.is_sound for report in reports) else EXIT_DAMAGE


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on standard error, if that is a terminal and there is enough to verify."""
    if total < PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


# --- text


def _show(output: Output, report: Report) -> None:
    mark, colour = ("sound", "green") if report.is_sound else ("damaged", "red")
    if not report.is_sound and not report.count(Severity.DAMAGE):
        mark, colour = "format", "yellow"
    output.line(f"{output.style(f'{mark:<8}', colour, bold=True)}{printable(report.path)}")
    summary = _summary(report)
    if summary:
        output.paragraph(summary, "        ")
    for finding in report.findings:
        _show_finding(output, report, finding)


def _summary(report: Report) -> str:
    tally = report.tally
    if not tally.segments and not tally.bytes:
        return ""
    parts = [
        counted(tally.segments, "segment"),
        counted(tally.batches, "batch"),
        counted(tally.records, "record"),
        human_bytes(tally.bytes),
    ]
    if tally.first_offset is not None and tally.next_offset is not None and tally.next_offset > tally.first_offset:
        parts.append(f"offsets {tally.first_offset} to {tally.next_offset - 1}")
    if tally.sound_bytes < tally.bytes:
        parts.append(f"{human_bytes(tally.sound_bytes)} sound ({_percent(tally.sound_bytes, tally.bytes)})")
    return ", ".join(parts)


def _percent(part: int, whole: int) -> str:
    # Rounded down: a damaged log is never 100 % sound.
    return f"{part * 10_000 // whole / 100:.2f} %"


def _show_finding(output: Output, report: Report, finding: Finding) -> None:
    label = output.style(f"  {finding.severity:<8}", _COLOURS[finding.severity])
    name = finding.path.removeprefix(report.path + "/") if finding.path != report.path else ""
    where = [printable(name)] if name else []
    if finding.position is not None:
        where.append(f"byte {finding.position}")
    if finding.offset is not None:
        where.append(f"offset {finding.offset}")
    text = ", ".join(where)
    what = printable(finding.reason)
    if finding.severity is Severity.DAMAGE and finding.size is not None:
        follows = f"sound again from offset {finding.resumes}" if finding.resumes is not None else ""
        what += f" ({', '.join(filter(None, [f'{finding.size} bytes', follows]))})"
    output.paragraph(f"{text}: {what}" if text else what, _INDENT, first=label)
    if finding.advice:
        output.paragraph(finding.advice, _INDENT + "  ", first=_INDENT + output.style("> ", dim=True))


def _show_sum(output: Output, reports: Sequence[Report]) -> None:
    damaged = [report for report in reports if not report.is_sound]
    if not damaged:
        if not reports:
            output.line("No partitions to verify.")
        if len(reports) > 1:
            size = human_bytes(sum(report.tally.bytes for report in reports))
            output.line(output.style(f"{size} in {counted(len(reports), 'place')}, all sound.", "green"))
        return
    findings = sum(len(report.findings) - report.count(Severity.NOTE) for report in damaged)
    where = f" in {len(damaged)} of {len(reports)} places" if len(reports) > 1 else ""
    output.line(output.style(f"{counted(findings, 'finding')}{where}.", "red"))


# --- JSON


def _document(reports: Sequence[Report]) -> dict[str, object]:
    return {
        "sound": all(report.is_sound for report in reports),
        "bytes": sum(report.tally.bytes for report in reports),
        "soundBytes": sum(report.tally.sound_bytes for report in reports),
        "reports": [_report(report) for report in reports],
    }


def _report(report: Report) -> dict[str, object]:
    tally = report.tally
    return {
        "path": report.path,
        "sound": report.is_sound,
        "segments": tally.segments,
        "batches": tally.batches,
        "records": tally.records,
        "bytes": tally.bytes,
        "soundBytes": tally.sound_bytes,
        "firstOffset": tally.first_offset,
        "nextOffset": tally.next_offset,
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity,
        "kind": finding.kind,
        "file": finding.path,
        "position": finding.position,
        "size": finding.size,
        "offset": finding.offset,
        "resumes": finding.resumes,
        "reason": finding.reason,
        "advice": finding.advice,
    }
