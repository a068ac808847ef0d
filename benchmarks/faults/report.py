"""The outcome of a run as rows, details, one sentence, and a timeline.

The timeline has a panel per client with acknowledgements per second. A fault is a band in the colour of its kind, with
a letter for the server, paler until the cluster was whole again.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from benchmarks.faults.checks import Verdict
from benchmarks.faults.injector import Fault, InjectedFault, Kind, Target
from benchmarks.faults.run import Gap, Outcome, summary
from benchmarks.results import Better, Figure, Result, Row

# The promised bound for the death of a leader.
GOAL_S: Final = 2.0
ALL: Final = "all clients"
PAGE_CACHE: Final = (
    "A killed process (SIGKILL) leaves the page cache intact: what it wrote is there when it returns, synced or not. "
    "What a loss of power does is tested by the simulator (`make simulate`), not by this run."
)
DISKS: Final = (
    "A disk fails: its folder is taken away, and a file is in its place. After the fault, the broker is killed and "
    "started with an empty folder there. The gaps of a leader are those of partitions that it led on that disk; the "
    "others contain the restart."
)
_GAPS: Final = "Longest gap in acknowledgements, by fault"
_SEEN: Final = "What the clients saw"
_MOST_TEXTS: Final = 8
_LEFT, _RIGHT, _TOP, _PANEL, _SPACE = 70, 20, 100, 110, 38
_S_PIXELS: Final = 4.0
_NARROWEST, _WIDEST = 800.0, 1500.0
# Records that waited come at once after a fault: the axis ends at this multiple of the usual rate.
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
    Kind.DISK: "#7a8c3c",
}

# ---------------------------------------------------------------------------------------------- rows


# --- rows
def rows(outcome: Outcome) -> list[Row]:
    return [*gap_rows(outcome), *client_rows(outcome)]


def gap_rows(outcome: Outcome) -> list[Row]:
    """Median and worst gap by kind of fault; a leader's death also has p99 and a goal."""
    found: list[Row] = []
    for kind in Kind:
        for target in Target:
            of_both = [
                each
                for each in outcome.gaps
                if (each.happened.fault.kind, each.happened.fault.target) == (kind, target)
            ]
            if not of_both:
                continue
            name = "each broker" if kind is Kind.STOP else target.value
            found.append(_gap_row(f"{name} {kind.value}, median", "p50_s", of_both, outcome))
            if (kind, target) == (Kind.KILL, Target.LEADER):
                goal = GOAL_S if outcome.kind == "penstock" else None
                found.append(_gap_row(f"{name} {kind.value}, p99", "p99_s", of_both, outcome, goal))
            found.append(_gap_row(f"{name} {kind.value}, worst", "max_s", of_both, outcome))
    return found


def _gap_row(work: str, statistic: str, of_both: Sequence[Gap], outcome: Outcome, goal: float | None = None) -> Row:
    by_client = {ALL: [gap.gap_s for gap in of_both]}
    for client in outcome.clients:
        by_client[client] = [gap.gap_s for gap in of_both if gap.client == client]
    figures = {
        name: Figure(getattr(summary(gaps_s), statistic), tuple(gaps_s)) for name, gaps_s in by_client.items() if gaps_s
    }
    return Row(work, "s", Better.LOWER, figures, ALL, goal=goal, table=_GAPS)


def client_rows(outcome: Outcome) -> list[Row]:
    """Sends are accounted for: handed over = acknowledged + failed + never resolved."""
    none, some = 0.0, None
    strict = none if outcome.plan.rolling_rounds else some
    columns: tuple[tuple[str, Any, float | None], ...] = (
        ("records handed over", lambda each: each.handed_over, some),
        ("acknowledged", lambda each: each.acked, some),
        ("failed", lambda each: each.failed, strict),
        ("never resolved", lambda each: each.unresolved, none),
        ("records read", lambda each: each.read, some),
        ("read again after a rebalance", lambda each: each.read_again, some),
        ("commits acknowledged", lambda each: each.commits, some),
        ("of them below an earlier one of the same member", lambda each: each.taken_back, some),
        ("starts compared with the commits before them", lambda each: each.starts, some),
        ("errors told to readers", lambda each: sum(each.errors.values()), strict),
        ("findings", lambda each: sum(each.wrong.values()), none),
    )
    found = []
    for work, count, goal in columns:
        by_client = {client: float(count(each)) for client, each in outcome.clients.items()}
        figures = {ALL: Figure(sum(by_client.values())), **{client: Figure(n) for client, n in by_client.items()}}
        found.append(Row(work, "", None if goal is None else Better.LOWER, figures, ALL, goal=goal, table=_SEEN))
    others = (
        ("findings in the log", sum(outcome.contents.wrong.values())),
        ("findings in the replicas' files", len(outcome.replica_findings)),
    )
    found += [Row(work, "", Better.LOWER, {ALL: Figure(n)}, ALL, goal=0.0, table=_SEEN) for work, n in others]
    return found


# ---------------------------------------------------------------------------------------------- the verdict


# --- the verdict
def verdict(outcome: Outcome) -> str:
    if outcome.is_good:
        what = "restarts" if outcome.plan.rolling_rounds else "faults"
        clean = "; no send failed and no reader got an error" if outcome.plan.rolling_rounds else ""
        acked = sum(each.acked for each in outcome.clients.values())
        commits = sum(each.commits for each in outcome.clients.values())
        starts = sum(each.starts for each in outcome.clients.values())
        return (
            f"PASSED: {len(outcome.happened)} {what}, {acked:,} acknowledged records, none lost, none twice, order "
            f"kept, every send resolved, replicas identical; {commits:,} acknowledged commits, none of {starts:,} "
            f"starts below one{clean}"
        )
    found: Counter[str] = Counter(outcome.contents.wrong)
    for each in outcome.clients.values():
        found.update(each.wrong)
        if outcome.plan.rolling_rounds:
            found.update({"failed sends": each.failed, "errors told to readers": sum(each.errors.values())})
    found["findings in the replicas' files"] = len(outcome.replica_findings)
    return "FAILED: " + ", ".join(f"{count} {kind}" for kind, count in found.items() if count)


def notes(outcome: Outcome) -> list[str]:
    disks = [DISKS] if any(each.fault.kind is Kind.DISK for each in outcome.happened) else []
    return [verdict(outcome), PAGE_CACHE, *disks, *differences(outcome.settings)]


def differences(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line per kind of server, topic and client: the settings that differ from the defaults."""
    return [
        f"{who}: as shipped"
        + (f" but for {', '.join(f'{name}={value}' for name, value in given.items())}" if given else "")
        for who, given in settings.items()
    ]


def show(outcome: Outcome) -> None:
    """Prints findings with examples, and the texts of errors."""
    verdicts: tuple[tuple[str, Verdict], ...] = (("the log", outcome.contents), *outcome.clients.items())
    for who, found in verdicts:
        for kind, examples in found.examples.items():
            print(f"  WRONG, {who}: {found.wrong[kind]} {kind}: {'; '.join(examples)}")
        for title, texts in (("failed sends", found.failures), ("errors of readers", found.errors)):
            for text, count in texts.most_common(_MOST_TEXTS):
                print(f"  {who}, {title}: {count} x {text[:200]}")
    for finding in outcome.replica_findings:
        print(f"  WRONG, replicas: {finding}")
    print(verdict(outcome))


# ---------------------------------------------------------------------------- details, and the timeline drawn from them


# --- details, and the chart drawn from them
def details(outcome: Outcome) -> dict[str, Any]:
    began_s = outcome.began_s
    return {
        "kind": outcome.kind,
        "verdict": verdict(outcome),
        "settings": {who: dict(given) for who, given in outcome.settings.items()},
        "seconds": round(outcome.ended_s - began_s, 1),
        "records": outcome.records,
        "findings": {who: found.examples for who, found in (("log", outcome.contents), *outcome.clients.items())},
        "replica_findings": list(outcome.replica_findings),
        "failures": {client: dict(found.failures) for client, found in outcome.clients.items()},
        "told": {client: dict(found.errors) for client, found in outcome.clients.items()},
        "acknowledged_per_second": {
            client: per_second(acked_s, began_s, outcome.ended_s) for client, acked_s in outcome.acked_s.items()
        },
        "faults": [
            {
                "number": each.fault.number, "kind": each.fault.kind.value, "target": each.fault.target.value,
                "hold_s": each.fault.hold_s, "victim": each.victim, "led": each.led,
                "began_s": round(each.began_s - began_s, 2), "undone_s": round(each.undone_s - began_s, 2),
                "whole_s": round(each.whole_s - began_s, 2),
                "gaps_s": {gap.client: round(gap.gap_s, 3) for gap in outcome.gaps if gap.happened is each},
            }
            for each in outcome.happened
        ],
    }  # fmt: skip


def pictures(result: Result) -> dict[str, str]:
    """The timeline of a kept result."""
    found = result.details
    happened = [
        InjectedFault(
            Fault(each["number"], Kind(each["kind"]), Target(each["target"]), each["hold_s"]), each["victim"],
            tuple(each["led"]), each["began_s"], each["undone_s"], each["whole_s"],
        )
        for each in found["faults"]
    ]  # fmt: skip
    what = "restarts" if result.variant and "rolling" in result.variant else "faults"
    title = f"{found['kind']}, three brokers, three replicas, acks=all: {len(happened)} {what}"
    return {f"{result.name}.svg": svg(title, found["acknowledged_per_second"], happened, found["seconds"])}


def per_second(acked_s: Sequence[float], began_s: float, ended_s: float) -> list[int]:
    """Acknowledgements in each whole second."""
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


def svg(title: str, clients: Mapping[str, Sequence[int]], happened: Sequence[InjectedFault], length_s: float) -> str:
    """The timeline. `clients` has acknowledgements per second; times of faults are relative to the start."""
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


def _reading(happened: Sequence[InjectedFault]) -> list[str]:
    """The explanation of the chart."""
    targets = {each.fault.target for each in happened}
    letters = ", ".join(f"{letter} {target.value}" for target, letter in _LETTERS.items() if target in targets)
    texts = [
        f"dark: while a fault lasts; pale: until all replicas are in sync again; who was hit: {letters}",
        f"dashed: the usual rate; what waited during a fault comes at once after it, cut at {_HIGHEST} times that",
    ]
    return [f'<text x="10" y="{60 + 16 * at}" fill="{_GREY}">{escape(text)}</text>' for at, text in enumerate(texts)]


def _letters(axis: _Axis, happened: Sequence[InjectedFault]) -> list[str]:
    """Letters of targets in the first panel, where there is room."""
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


def _bands(axis: _Axis, happened: Sequence[InjectedFault], top: int) -> list[str]:
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
