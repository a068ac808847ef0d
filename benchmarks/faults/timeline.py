"""A run as a picture: acknowledgements per second, one panel for each client, over the faults that were going on.

All panels share one axis of time. A fault is a band from its beginning to its end, paler until the cluster was whole
again, in the colour of its kind, with a letter for the server that was hit. A legend says so in the picture.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.faults.injecting import Happened
from benchmarks.faults.schedule import Kind, Target

_LEFT, _RIGHT, _TOP, _PANEL, _SPACE = 70, 20, 100, 110, 38
_S_PIXELS: Final = 4.0
_NARROWEST, _WIDEST = 800.0, 1500.0
# What is caught up after a fault comes at once: the axis ends at so many times the usual rate, and peaks are cut there.
_HIGHEST: Final = 3
_INK, _GREY, _LINE = "#222", "#767676", "#1b5582"
_LETTERS: Final = {
    Target.LEADER: "L",
    Target.FOLLOWER: "F",
    Target.CONTROLLER: "C",
    Target.KEEPER: "Z",
    Target.ALL: "A",
}
_LETTER_PIXELS: Final = 8.0
_COLOURS: Final = {
    Kind.KILL: "#b5483a",
    Kind.PAUSE: "#d9a441",
    Kind.CUT: "#6b4c9a",
    Kind.CUT_PEERS: "#9a7cc4",
    Kind.CUT_KEEPERS: "#4c9a8f",
    Kind.MUTE: "#c47ca8",
    Kind.STOP: "#5b8fb9",
}


def per_second(acked_s: Sequence[float], began_s: float, ended_s: float) -> list[int]:
    """How many acknowledgements there were in each whole second."""
    counts = [0] * max(1, int(ended_s - began_s))
    for moment in acked_s:
        if 0 <= moment - began_s < len(counts):
            counts[int(moment - began_s)] += 1
    return counts


class _Axis:
    def __init__(self, length_s: float) -> None:
        self.length_s = max(length_s, 1.0)
        self.plot = min(_WIDEST, max(_NARROWEST, self.length_s * _S_PIXELS))
        self.width = _LEFT + self.plot + _RIGHT

    def x(self, after_s: float) -> float:
        return round(_LEFT + self.plot * min(after_s, self.length_s) / self.length_s, 1)


def svg(title: str, clients: Mapping[str, Sequence[int]], happened: Sequence[Happened], length_s: float) -> str:
    """`clients` has the acknowledgements of each second; the moments of faults are counted from the beginning."""
    axis = _Axis(length_s)
    height = _TOP + len(clients) * (_PANEL + _SPACE) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {axis.width:.0f} {height}" width="{axis.width:.0f}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{axis.width:.0f}" height="{height}" fill="#fff"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
        *_legend({each.fault.kind for each in happened}),
        *_reading(happened),
    ]
    for number, (client, counts) in enumerate(clients.items()):
        top = _TOP + number * (_PANEL + _SPACE)
        lines += _bands(axis, happened, top)
        lines += _panel(axis, client, counts, top)
    lines += _letters(axis, happened)
    return "\n".join([*lines, "</svg>", ""])


def _reading(happened: Sequence[Happened]) -> list[str]:
    """How to read it."""
    targets = {each.fault.target for each in happened}
    letters = ", ".join(f"{letter} {target.value}" for target, letter in _LETTERS.items() if target in targets)
    texts = [
        f"dark: while a fault lasts; pale: until all replicas are in sync again; who was hit: {letters}",
        f"dashed: the usual rate; what waited during a fault comes at once after it, cut at {_HIGHEST} times that",
    ]
    return [f'<text x="10" y="{60 + 16 * at}" fill="{_GREY}">{escape(text)}</text>' for at, text in enumerate(texts)]


def _letters(axis: _Axis, happened: Sequence[Happened]) -> list[str]:
    """In the first panel, where there is room for one."""
    lines = []
    for each in happened:
        begin, whole = (axis.x(moment) for moment in (each.began_s, each.whole_s))
        if whole - begin >= _LETTER_PIXELS:
            lines.append(
                f'<text x="{begin + 2:.1f}" y="{_TOP + 10}" font-size="10">{_LETTERS[each.fault.target]}</text>'
            )
    return lines


def _legend(kinds: set[Kind]) -> list[str]:
    lines, x = [], 10.0
    for kind in (each for each in Kind if each in kinds):
        lines.append(f'<rect x="{x}" y="31" width="12" height="12" fill="{_COLOURS[kind]}" fill-opacity="0.6"/>')
        lines.append(f'<text x="{x + 17}" y="41">{escape(kind.value)}</text>')
        x += 40 + 6.5 * len(kind.value)
    return lines


def _bands(axis: _Axis, happened: Sequence[Happened], top: int) -> list[str]:
    lines = []
    for each in happened:
        marks = [each.began_s, each.undone_s, each.whole_s]
        begin, undone, whole = (axis.x(moment) for moment in marks)
        about = escape(f"{each.fault.number}: {each.fault}, {each.victim}")
        for start, end, opacity in ((begin, undone, 0.55), (undone, whole, 0.16)):
            lines.append(
                f'<rect x="{start}" y="{top}" width="{max(1.0, end - start):.1f}" height="{_PANEL}" '
                f'fill="{_COLOURS[each.fault.kind]}" fill-opacity="{opacity}"><title>{about}</title></rect>'
            )
    return lines


def _panel(axis: _Axis, client: str, counts: Sequence[int], top: int) -> list[str]:
    usual = statistics.median([count for count in counts if count] or [1])
    most = max(1, min(max(counts, default=1), round(_HIGHEST * usual)))
    bottom = top + _PANEL
    points = " ".join(
        f"{axis.x(second + 0.5)},{bottom - _PANEL * min(count, most) / most:.1f}" for second, count in enumerate(counts)
    )
    level = bottom - _PANEL * min(usual, most) / most
    lines = [
        f'<line x1="{_LEFT}" x2="{axis.width - _RIGHT:.0f}" y1="{level:.1f}" y2="{level:.1f}" stroke="{_GREY}" '
        f'stroke-dasharray="2 4"/>',
        f'<text x="{_LEFT - 8}" y="{level + 4:.1f}" text-anchor="end" fill="{_GREY}">{usual:.0f}/s</text>',
        f'<text x="{_LEFT - 8}" y="{top + 10}" text-anchor="end" fill="{_GREY}">{most}/s</text>',
        f'<text x="{_LEFT - 8}" y="{bottom}" text-anchor="end" fill="{_GREY}">0</text>',
        f'<line x1="{_LEFT}" x2="{axis.width - _RIGHT:.0f}" y1="{bottom}" y2="{bottom}" stroke="{_GREY}"/>',
        f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="1.2"/>',
        f'<text x="{_LEFT + 4}" y="{top - 4}">{escape(client)}: acknowledgements per second</text>',
    ]
    step = next(each for each in (10, 30, 60, 120, 300, 600, 3600) if axis.length_s / each <= 20 or each == 3600)
    ticks = [
        f'<text x="{axis.x(second)}" y="{bottom + 13}" text-anchor="middle" fill="{_GREY}">{second} s</text>'
        for second in range(0, int(axis.length_s) + 1, step)
    ]
    return lines + ticks
