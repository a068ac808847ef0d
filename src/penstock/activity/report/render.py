"""A report as plain text and as one HTML page.

Goals come first, then the tables they rest on. The page fetches nothing and follows the reader's light or dark scheme;
every chart has a table with the same figures, and everything that comes from data is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from penstock.activity.report import charts
from penstock.activity.report.charts import Bar, Line, Mark, Part
from penstock.activity.report.document import Document
from penstock.activity.report.scores import Detection

_MARKS: Final = {True: "ok", False: "MISSED", None: "-"}
_GAP: Final = "  "


def text_of(document: Document) -> str:
    """All of it but the drawings."""
    parts = ["Report of a run: " + ", ".join(f"{name} {value}" for name, value in document.facts.items()), ""]
    parts += text_table(
        ("GOAL", "", "FOUND"), [(goal.name, _MARKS[goal.is_met], goal.said) for goal in document.goals]
    )  # fmt: skip
    parts += ["", *_happenings(document)]
    parts += _section("Tables of events: what the log has, and where it is", _event_tables(document))
    parts += _section("Tables of pipelines: what they have counted, and what there is", _counts(document))
    parts += _section("Pipelines: a batch takes, and events wait for one (records waiting by records coming)",
                      _latencies(document))  # fmt: skip
    parts += _section("Events to the warehouse: from the event to the commit of its table", _landings(document))
    parts += _section(f"Visits by hour (complete until {utc_clock(document.complete_until_ms)})", _visits(document))
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


def _event_tables(document: Document) -> list[str]:
    return text_table(
        ("TABLE", "LOG", "LANDED", "DEAD", "WAITING", "MISSING", "TWICE", "COMPLETE UNTIL"),
        [
            (one.table, one.logged, one.landed, one.dead, one.waiting, one.missing, one.surplus,
             utc_clock(one.complete_until_ms))
            for one in document.tables
        ],
    )  # fmt: skip


def _counts(document: Document) -> list[str]:
    return text_table(
        ("TABLE", "COUNTED", "THERE ARE", "OF"),
        [(one.table, one.counted, one.events, one.what) for one in document.counts],
    )


def _latencies(document: Document) -> list[str]:
    return text_table(
        ("PIPELINE", "BATCH P50 MS", "P99", "WAIT P50 MS", "P99", "MOST WAITING"),
        [
            (one.pipeline, one.batch_p50_ms, one.batch_p99_ms, one.delay_p50_ms, one.delay_p99_ms, one.most_lag)
            for one in document.latencies
        ],
    )


def _landings(document: Document) -> list[str]:
    return text_table(
        ("TABLE", "P50 MS", "P99", "MOST"),
        [(one.table, one.delay_p50_ms, one.delay_p99_ms, one.delay_most_ms) for one in document.landings],
    )


def _visits(document: Document) -> list[str]:
    return text_table(
        ("HOUR", "VISITS", "MEMBERS", "VIEWS", "CLICKS", "BOUNCED"),
        [
            (utc_clock(row["start"]), row["visits"], row["members"], row["views"], row["clicks"], row["bounced"])
            for row in document.visits
        ],
    )


def text_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns of numbers to the right, others to the left; nothing for no rows."""
    values = [list(row) for row in rows]
    if not values:
        return []
    right = [all(isinstance(cell, int | float) or cell is None for cell in column) for column in zip(*values)]  # noqa: B905 - rows are of one length
    cells = [[number_text(cell) for cell in row] for row in values]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    return [
        _GAP.join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [list(titles), *cells]
    ]


def number_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float):
        return f"{value:,.0f}"
    return str(value)


def utc_clock(time_ms: int | None) -> str:
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%H:%M:%SZ")


_LIGHT: Final = (
    "--paper:#fff;--card:#f6f7f9;--ink:#1d2127;--dim:#5a6370;--grid:#e1e5ea;--mark:#9a3b00;"
    "--good:#24804a;--bad:#b3352b;--warn:#b07a12;--none:#8c96a3"
)
_DARK: Final = (
    "--paper:#14171c;--card:#1d2229;--ink:#e6e9ee;--dim:#9aa5b4;--grid:#333b46;--mark:#ffab70;"
    "--good:#5cc98a;--bad:#f0776c;--warn:#e0b050;--none:#78838f"
)
_STYLE: Final = """
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.45 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:16px}h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.1rem;margin:0 0 .4em}
.dim{color:var(--dim)}.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:14px}
section{background:var(--card);border-radius:10px;padding:14px;min-width:0;margin:0 0 14px}.cards section{margin:0}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{padding:4px 8px;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}
th{color:var(--dim);font-weight:600;white-space:nowrap}.n{text-align:right;font-variant-numeric:tabular-nums;
white-space:nowrap}
.goal{display:flex;gap:10px;padding:6px 0;border-bottom:1px solid var(--grid)}.goal b{display:block}
.sign{flex:0 0 1.4em;font-weight:700}.met .sign{color:var(--good)}.missed .sign{color:var(--bad)}
.none .sign{color:var(--none)}
svg .good{fill:var(--good)}svg .bad{fill:var(--bad)}svg .warn{fill:var(--warn)}svg .none{fill:var(--none)}
"""
_SIGNS: Final = {True: ("met", "✓"), False: ("missed", "✗"), None: ("none", "-")}


def html_of(document: Document) -> str:
    """The page."""
    failures = document.failures
    verdict = "All goals are met" if not failures else f"{len(failures)} of {len(document.goals)} goals missed"
    facts = " · ".join(f"{escape(name)} {escape(value)}" for name, value in document.facts.items())
    style = (
        f":root{{color-scheme:light dark;{_LIGHT}}}{charts.palette(charts.PALETTE_LIGHT)}"
        f"@media(prefers-color-scheme:dark){{:root{{{_DARK}}}{charts.palette(charts.PALETTE_DARK)}}}"
    )
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(verdict)} - a run's report</title>",
            f"<style>{style}{charts.STYLE}{_STYLE}</style></head><body><main>",
            f'<h1>{escape(verdict)}</h1><p class="dim">{facts}</p>',
            _goals(document),
            '<div class="cards">',
            *_drawings(document),
            "</div><p></p>",
            *_html_tables(document),
            "</main></body></html>",
            "",
        ]
    )


def _goals(document: Document) -> str:
    rows = []
    for goal in document.goals:
        kind, sign = _SIGNS[goal.is_met]
        rows.append(
            f'<div class="goal {kind}"><span class="sign">{sign}</span><span><b>{escape(goal.name)}</b>'
            f'<span class="dim">{escape(goal.said)}</span></span></div>'
        )
    return f"<section>{''.join(rows)}</section>"


# ---------------------------------------------------------------------------------------------- drawings


def _drawings(document: Document) -> list[str]:
    drawn = (
        ("Found against planted", _verdicts(document)),
        ("The incident: 95th percentile of request times", _incident(document)),
        ("The trending item: its share of views to what it was", _trend(document)),
        ("Events a second, by topic", _rates(document)),
        ("Completeness: landed and dead letters", _completeness(document)),
        ("Records waiting for each pipeline", _samples(document, "lag", "records")),
        ("A batch of each pipeline", _samples(document, "batch_ms", "ms")),
        ("Memory of each process", _samples(document, "memory_bytes", "MB", 1 / 1_000_000)),
    )
    return [f"<section><h2>{escape(title)}</h2>{svg}</section>" for title, svg in drawn if svg]


def _verdicts(document: Document) -> str:
    rows = [
        Bar(
            f"{one.verdict}s",
            (
                Part(one.right, "good", "found"),
                Part(one.planted - one.right, "none", "missed"),
                Part(one.found - one.right, "bad", "wrong"),
            ),
            f"P {one.precision:.2f}, R {one.recall:.2f}",
        )
        for one in document.scores
    ]
    return charts.bars("found against planted", rows, is_scaled=True)


def _marks(document: Document) -> list[Mark]:
    marks = []
    for one in document.incidents:
        marks.append(Mark(one.start_ms, "incident"))
        if one.after_ms is not None:
            marks.append(Mark(one.start_ms + one.after_ms, f"alert +{one.after_ms / 1000:.1f} s"))
    return marks


def _incident(document: Document) -> str:
    by_server: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(document.windows, key=lambda one: (one["server"], one["start_ms"])):
        if row["p95_ms"] is not None:
            by_server.setdefault(row["server"], []).append((row["start_ms"], row["p95_ms"]))
    lines = [Line(server, points) for server, points in by_server.items()]
    # Names of two marks that are near each other would lie over each other.
    marks = [mark._replace(name="") if mark.name == "incident" else mark for mark in _marks(document)]
    return charts.over_time("request times by server", lines, marks, unit="ms")


def _trend(document: Document) -> str:
    if not document.trends:
        return ""
    one = document.trends[0]
    marks = [] if one.after_ms is None else [Mark(one.start_ms + one.after_ms, f"rising +{one.after_ms / 1000:.0f} s")]
    marks.append(Mark(one.start_ms, "start"))
    drawn = charts.over_time("trend", [Line(f"item {one.subject}", document.trend_line)], marks, unit="times")
    return drawn and f'{drawn}<p class="dim">{escape(trend_text(one))}</p>'


def _rates(document: Document) -> str:
    lines = []
    for one in document.landings:
        seconds = sorted(one.by_second)[1:-1]  # The first and the last are not whole.
        lines.append(Line(one.table, [(second, one.by_second[second]) for second in seconds]))
    marks = [mark for mark in _marks(document) if mark.name == "incident"]
    return charts.over_time("events a second", lines, marks, unit="events/s, by the events' own time")


def _completeness(document: Document) -> str:
    rows = [
        Bar(
            one.table,
            (
                Part(one.landed, "good", "landed"),
                Part(one.dead, "warn", "dead letters"),
                Part(one.waiting, "none", "waiting"),
                Part(one.missing + one.surplus, "bad", "missing or twice"),
            ),
            f"{one.landed + one.dead:,} of {one.logged:,}",
        )
        for one in document.tables
    ]
    return charts.bars("completeness", rows)


def _samples(document: Document, name: str, unit: str, factor: float = 1.0) -> str:
    points: dict[str, list[tuple[float, float]]] = {}
    for sample in document.samples:
        for key, value in (sample.get(name) or {}).items():
            if value is not None and value >= 0:
                points.setdefault(key, []).append((sample["time_ms"], value * factor))
    return charts.over_time(name, [Line(key, of) for key, of in points.items()], unit=unit)


# ---------------------------------------------------------------------------------------------- tables


def _html_tables(document: Document) -> list[str]:
    until = utc_clock(document.complete_until_ms)
    return [
        _html_table(
            "Tables of events: what the log has, and where it is",
            ("table", "log", "landed", "dead", "waiting", "missing", "twice", "complete until"),
            [
                (one.table, one.logged, one.landed, one.dead, one.waiting, one.missing, one.surplus,
                 utc_clock(one.complete_until_ms))
                for one in document.tables
            ],
        ),
        _html_table(
            "Tables of pipelines: what they have counted, and what there is", ("table", "counted", "there are", "of"),
            [(one.table, one.counted, one.events, one.what) for one in document.counts],
        ),
        _html_table(
            "Pipelines: how long a batch takes, and how long events wait (records waiting by records coming)",
            ("pipeline", "batch p50 ms", "p99", "wait p50 ms", "p99", "most waiting"),
            [
                (one.pipeline, one.batch_p50_ms, one.batch_p99_ms, one.delay_p50_ms, one.delay_p99_ms, one.most_lag)
                for one in document.latencies
            ],
        ),
        _html_table(
            "Events to the warehouse: from the event to the commit of its table", ("table", "p50 ms", "p99", "most"),
            [(one.table, one.delay_p50_ms, one.delay_p99_ms, one.delay_most_ms) for one in document.landings],
        ),
        _html_table(
            f"Visits by hour (complete until {until})",
            ("hour", "visits", "members", "views", "clicks", "bounced"),
            [
                (utc_clock(row["start"]), row["visits"], row["members"], row["views"], row["clicks"], row["bounced"])
                for row in document.visits
            ],
        ),
        _html_table(
            f"Funnel by hour (complete until {until})", ("hour", "step", "members", "share"),
            [(utc_clock(row["hour"]), row["name"], row["members"], f"{row['share']:.1%}") for row in document.funnel],
        ),
    ]  # fmt: skip


def _html_table(title: str, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [list(row) for row in rows]
    if not cells:
        return ""

    def cell(value: object, tag: str = "td") -> str:
        is_number = isinstance(value, int | float) or value is None
        return f"<{tag}{' class=n' if is_number else ''}>{escape(number_text(value))}</{tag}>"

    numbers = [all(isinstance(row[place], int | float | None) for row in cells) for place in range(len(titles))]
    head = "".join(
        f"<th{' class=n' if is_number else ''}>{escape(name)}</th>"
        for name, is_number in zip(titles, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in cells)
    return (
        f'<section><h2>{escape(title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )
