"""An audit as a picture: a bar an hour, as high as what was produced, filled with what became of it. SVG.

Rule: the picture shows the same sums as the text: full green is complete, grey waits, amber is dead or dropped, red is
missing or there twice. The line is the watermark: everything to its left has landed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import Final

from penstock.spark.tables.audit import HOUR_MS, Audit, Hour

_WIDTH: Final = 960
_HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 64, 52
_PARTS: Final = (
    ("landed", "#2e8b57", "landed"),
    ("empty", "#b7d7c3", "no record"),
    ("dead", "#e0a030", "dead"),
    ("dropped", "#f0cf8a", "dropped"),
    ("waiting", "#c4c9d0", "waiting"),
    ("missing", "#c0392b", "missing"),
    ("surplus", "#7b241c", "twice"),
)
_MOST_LABELS: Final = 12


def chart(audit: Audit) -> str:
    """The SVG text."""
    most = max([hour.produced + hour.surplus for hour in audit.hours], default=0) or 1
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    slot = inner_width / max(1, len(audit.hours))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="11" role="img">',
        f"<title>{escape(_title(audit))}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold" fill="#222222">{escape(_title(audit))}</text>',
        *_legend(),
    ]
    for share in (0.0, 0.5, 1.0):
        y = _TOP + inner_height * (1 - share)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6ea"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{most * share:,.0f}</text>'
        )
    every = max(1, -(-len(audit.hours) // _MOST_LABELS))
    for number, hour in enumerate(audit.hours):
        x = _LEFT + number * slot
        parts += _bar(hour, x, slot, most, inner_height)
        if number % every == 0:
            parts.append(
                f'<text x="{x + slot / 2:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" fill="#555555">'
                f"{_time(hour.start_ms)}</text>"
            )
    parts += _watermark(audit, slot)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _title(audit: Audit) -> str:
    return f"{audit.table}: produced to topic {audit.topic} against landed, by hour (UTC)"


def _legend() -> list[str]:
    parts: list[str] = []
    for number, (_, colour, word) in enumerate(_PARTS):
        x = _LEFT + number * 92
        parts.append(f'<rect x="{x}" y="34" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="43" fill="#333333">{word}</text>')
    return parts


def _bar(hour: Hour, x: float, slot: float, most: int, inner_height: float) -> list[str]:
    parts: list[str] = []
    width = max(1.0, slot * 0.8)
    y = _TOP + inner_height
    words = ", ".join(f"{getattr(hour, name):,} {word}" for name, _, word in _PARTS if getattr(hour, name))
    for name, colour, _ in _PARTS:
        count = getattr(hour, name)
        if not count:
            continue
        height = max(1.0, inner_height * count / most)
        y -= height
        parts.append(
            f'<rect x="{x + slot * 0.1:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
            f"<title>{_time(hour.start_ms)}: {hour.produced:,} produced; {escape(words)}</title></rect>"
        )
    return parts


def _watermark(audit: Audit, slot: float) -> list[str]:
    until = audit.complete_until_ms
    if until is None or not audit.hours:
        return [f'<text x="{_LEFT}" y="{_HEIGHT - 12}" fill="#c0392b">complete until: no hour of these</text>']
    x = _LEFT + slot * (until - audit.hours[0].start_ms) / HOUR_MS
    return [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{_HEIGHT - _BOTTOM}" stroke="#1f4e79" '
        'stroke-dasharray="4 3"/>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 12}" fill="#1f4e79">complete until {_time(until, date=True)}</text>',
    ]


def _time(time_ms: int, *, date: bool = False) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ") if date else moment.strftime("%d. %H:%M")
