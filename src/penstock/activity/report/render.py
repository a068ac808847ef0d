"""A report as plain text and as one HTML page: the sections of a document, laid out.

Goals come first, then the tables they rest on. The page fetches nothing and follows the reader's light or dark scheme.
Everything that comes from data is escaped.
"""

from __future__ import annotations

from html import escape
from typing import Final

from penstock.activity.report import charts
from penstock.activity.report.document import Document
from penstock.activity.report.sections import Chart, Column, Section, Table

_GAP: Final = "  "
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
th{color:var(--dim);font-weight:600;white-space:nowrap}.strong{font-weight:600}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.good{color:var(--good);font-weight:700}td.bad{color:var(--bad);font-weight:700}td.quiet{color:var(--none)}
svg .good{fill:var(--good)}svg .bad{fill:var(--bad)}svg .warn{fill:var(--warn)}svg .none{fill:var(--none)}
"""


# ---------------------------------------------------------------------------------------------- text


def text_of(document: Document) -> str:
    """All sections except their charts."""
    parts = ["Report of a run: " + ", ".join(f"{name} {value}" for name, value in document.facts.items())]
    for section in document.sections():
        table = [] if section.table is None else text_table(section.table)
        if table or section.lines:
            parts += ["", section.title, *table, *section.lines]
    failures = document.failures
    return "\n".join([*parts, "", "All goals are met." if not failures else f"Missed: {'; '.join(failures)}"])


def text_table(table: Table) -> list[str]:
    """Lines of a table: numbers to the right, the rest to the left; nothing for no rows."""
    if not table.rows:
        return []
    titles = [column.title.upper() for column in table.columns]
    rows = [[column.text(cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.cells()]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return [
        _GAP.join(
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(row, widths, table.columns, strict=True)
        ).rstrip()
        for row in [titles, *rows]
    ]


# ---------------------------------------------------------------------------------------------- HTML


def html_of(document: Document) -> str:
    """The page: the goals, a card for each chart, then the tables."""
    failures = document.failures
    verdict = "All goals are met" if not failures else f"{len(failures)} of {len(document.goals)} goals missed"
    facts = " · ".join(f"{escape(name)} {escape(value)}" for name, value in document.facts.items())
    style = (
        f":root{{color-scheme:light dark;{_LIGHT}}}{charts.palette(charts.PALETTE_LIGHT)}"
        f"@media(prefers-color-scheme:dark){{:root{{{_DARK}}}{charts.palette(charts.PALETTE_DARK)}}}"
    )
    goals, *others = document.sections()
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(verdict)} - report of a run</title>",
            f"<style>{style}{charts.STYLE}{_STYLE}</style></head><body><main>",
            f'<h1>{escape(verdict)}</h1><p class="dim">{facts}</p>',
            _section_html(goals),
            '<div class="cards">',
            *(_chart_html(chart) for section in others for chart in section.charts),
            "</div><p></p>",
            *(_section_html(section) for section in others),
            "</main></body></html>",
            "",
        ]
    )


def _chart_html(chart: Chart) -> str:
    note = f'<p class="dim">{escape(chart.note)}</p>' if chart.note else ""
    return f"<section><h2>{escape(chart.title)}</h2>{charts.svg(chart)}{note}</section>"


def _section_html(section: Section) -> str:
    """The table and the lines of a section; its charts have cards of their own."""
    table = "" if section.table is None or not section.table.rows else _table_html(section.table)
    lines = "".join(f'<p class="dim">{escape(line)}</p>' for line in section.lines)
    return f"<section><h2>{escape(section.title)}</h2>{table}{lines}</section>" if table or lines else ""


def _table_html(table: Table) -> str:
    def cell(column: Column, value: object) -> str:
        classes = " ".join(filter(None, ("number" if column.is_number else column.kind, column.look(value))))
        return f'<td class="{classes}">{escape(column.text(value))}</td>'

    head = "".join(
        f"<th{' class=number' if column.is_number else ''}>{escape(column.title)}</th>" for column in table.columns
    )
    body = "".join(f"<tr>{''.join(map(cell, table.columns, row))}</tr>" for row in table.cells())
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
