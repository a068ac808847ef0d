"""A report as plain text, for a terminal or a file: the goals first, then what they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from penstock.activity.live.report_document import Document
from penstock.activity.live.truth import Detection

_MARKS: Final = {True: "ok", False: "MISSED", None: "-"}
_GAP: Final = "  "


def text_of(document: Document) -> str:
    """All of it but the drawings."""
    parts = ["Report of a run: " + ", ".join(f"{name} {value}" for name, value in document.facts.items()), ""]
    parts += table(
        ("GOAL", "", "FOUND"), [(goal.name, _MARKS[goal.is_met], goal.said) for goal in document.goals]
    )  # fmt: skip
    parts += ["", *_happenings(document)]
    parts += _section("Tables of events: what the log has, and where it is", _tables(document))
    parts += _section("Tables of pipelines: what they have counted, and what there is", _counts(document))
    parts += _section("Pipelines: a batch takes, and events wait for one (records waiting by records coming)",
                      _latencies(document))  # fmt: skip
    parts += _section("Events to the warehouse: from the event to the commit of its table", _landings(document))
    parts += _section(f"Visits by hour (complete until {clock(document.complete_until_ms)})", _visits(document))
    failures = document.failures
    parts += ["", "All goals are met." if not failures else f"Missed: {'; '.join(failures)}"]
    return "\n".join(parts)


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *lines] if lines else []


def _happenings(document: Document) -> list[str]:
    lines = [f"Trending item {one.subject} ({one.said}): {trend_text(one)}" for one in document.trends]
    alarms = ", ".join(document.false_alarms[:5])
    lines.append(f"Alerts without an incident: {f'{len(document.false_alarms)} ({alarms})' if alarms else 'none'}")
    return lines


def trend_text(one: Detection) -> str:
    if one.after_ms is None:
        return "not seen to rise" if one.is_judged else "began too late to be seen"
    return f"rising {one.after_ms / 1000:.0f} s after its start, best rank {one.rank}"


def _tables(document: Document) -> list[str]:
    return table(
        ("TABLE", "LOG", "LANDED", "DEAD", "WAITING", "MISSING", "TWICE", "COMPLETE UNTIL"),
        [
            (one.table, one.logged, one.landed, one.dead, one.waiting, one.missing, one.surplus,
             clock(one.complete_until_ms))
            for one in document.tables
        ],
    )  # fmt: skip


def _counts(document: Document) -> list[str]:
    return table(
        ("TABLE", "COUNTED", "THERE ARE", "OF"),
        [(one.table, one.counted, one.events, one.what) for one in document.counts],
    )


def _latencies(document: Document) -> list[str]:
    return table(
        ("PIPELINE", "BATCH P50 MS", "P99", "WAIT P50 MS", "P99", "MOST WAITING"),
        [
            (one.pipeline, one.batch_p50_ms, one.batch_p99_ms, one.delay_p50_ms, one.delay_p99_ms, one.most_lag)
            for one in document.latencies
        ],
    )


def _landings(document: Document) -> list[str]:
    return table(
        ("TABLE", "P50 MS", "P99", "MOST"),
        [(one.table, one.delay_p50_ms, one.delay_p99_ms, one.delay_most_ms) for one in document.landings],
    )


def _visits(document: Document) -> list[str]:
    return table(
        ("HOUR", "VISITS", "MEMBERS", "VIEWS", "CLICKS", "BOUNCED"),
        [
            (clock(row["start"]), row["visits"], row["members"], row["views"], row["clicks"], row["bounced"])
            for row in document.visits
        ],
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns of numbers to the right, others to the left; nothing for no rows."""
    values = [list(row) for row in rows]
    if not values:
        return []
    right = [all(isinstance(cell, int | float) or cell is None for cell in column) for column in zip(*values)]  # noqa: B905 - rows are of one length
    cells = [[figure(cell) for cell in row] for row in values]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    return [
        _GAP.join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [list(titles), *cells]
    ]


def figure(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float):
        return f"{value:,.0f}"
    return str(value)


def clock(time_ms: int | None) -> str:
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%SZ")
