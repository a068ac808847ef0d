"""The outcome of a run as rows of a result, as its details, and as a verdict in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.faults.checking import Verdict
from benchmarks.faults.gaps import Gap, summary
from benchmarks.faults.injecting import Happened
from benchmarks.faults.running import Outcome
from benchmarks.faults.schedule import Fault, Kind, Target
from benchmarks.faults.timeline import per_second, svg
from benchmarks.results import Better, Figure, Result, Row

# A leader's death, as users are promised it.
GOAL_S: Final = 2.0
ALL: Final = "all clients"
PAGE_CACHE: Final = (
    "A killed process (SIGKILL) leaves the page cache intact: what it wrote is there when it returns, synced or not. "
    "What a loss of power does is tested by the simulator (`make simulate`), not by this run."
)
_GAPS: Final = "Longest gap in acknowledgements, by fault"
_SEEN: Final = "What the clients saw"
_MOST_TEXTS: Final = 8


# --- rows


def rows(outcome: Outcome) -> list[Row]:
    return [*gap_rows(outcome), *client_rows(outcome)]


def gap_rows(outcome: Outcome) -> list[Row]:
    """The median and the worst gap of each kind of fault; a leader's death has its 99th percentile and its goal too."""
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
    columns: tuple[tuple[str, Any, float | None], ...] = (
        ("records handed over", lambda each: each.handed_over, some),
        ("acknowledged", lambda each: each.acked, some),
        ("failed", lambda each: each.failed, none if outcome.plan.rolling_rounds else some),
        ("never resolved", lambda each: each.unresolved, none),
        ("records read", lambda each: each.read, some),
        ("read again after a rebalance", lambda each: each.read_again, some),
        ("commits acknowledged", lambda each: each.commits, some),
        ("starts compared with the commits before them", lambda each: each.starts, some),
        ("errors told to readers", lambda each: sum(each.told.values()), none if outcome.plan.rolling_rounds else some),
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


# --- the verdict


def verdict(outcome: Outcome) -> str:
    if outcome.is_good:
        what = "restarts" if outcome.plan.rolling_rounds else "faults"
        clean = "; no send failed, no reader was told of an error" if outcome.plan.rolling_rounds else ""
        acked = sum(each.acked for each in outcome.clients.values())
        commits = sum(each.commits for each in outcome.clients.values())
        starts = sum(each.starts for each in outcome.clients.values())
        return (
            f"PASSED: {len(outcome.happened)} {what}, {acked:,} acknowledged records, none lost, none twice, order "
            f"kept, every send resolved, replicas alike; {commits:,} acknowledged commits, none of {starts:,} starts "
            f"below one{clean}"
        )
    found: Counter[str] = Counter(outcome.contents.wrong)
    for each in outcome.clients.values():
        found.update(each.wrong)
        if outcome.plan.rolling_rounds:
            found.update({"failed sends": each.failed, "errors told to readers": sum(each.told.values())})
    found["findings in the replicas' files"] = len(outcome.replica_findings)
    return "FAILED: " + ", ".join(f"{count} {kind}" for kind, count in found.items() if count)


def notes(outcome: Outcome) -> list[str]:
    return [verdict(outcome), PAGE_CACHE, *differences(outcome.settings)]


def differences(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each kind of server, the topic and each client: as shipped but for what the code sets, all of it."""
    return [
        f"{who}: as shipped"
        + (f" but for {', '.join(f'{name}={value}' for name, value in given.items())}" if given else "")
        for who, given in settings.items()
    ]


def show(outcome: Outcome) -> None:
    """Findings with examples, and the texts of errors."""
    verdicts: tuple[tuple[str, Verdict], ...] = (("the log", outcome.contents), *outcome.clients.items())
    for who, found in verdicts:
        for kind, examples in found.examples.items():
            print(f"  WRONG, {who}: {found.wrong[kind]} {kind}: {'; '.join(examples)}")
        for title, texts in (("failed sends", found.failures), ("told to readers", found.told)):
            for text, count in texts.most_common(_MOST_TEXTS):
                print(f"  {who}, {title}: {count} x {text[:200]}")
    for finding in outcome.replica_findings:
        print(f"  WRONG, replicas: {finding}")
    print(verdict(outcome))


# --- details, and the picture that is drawn from them


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
        "told": {client: dict(found.told) for client, found in outcome.clients.items()},
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
    """The run as a timeline."""
    found = result.details
    happened = [
        Happened(
            Fault(each["number"], Kind(each["kind"]), Target(each["target"]), each["hold_s"]), each["victim"],
            tuple(each["led"]), each["began_s"], each["undone_s"], each["whole_s"],
        )
        for each in found["faults"]
    ]  # fmt: skip
    what = "restarts" if result.variant and "rolling" in result.variant else "faults"
    title = f"{found['kind']}, three brokers, three replicas, acks=all: {len(happened)} {what}"
    return {f"{result.name}.svg": svg(title, found["acknowledged_per_second"], happened, found["seconds"])}
