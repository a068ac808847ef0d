"""The outcome of a run as tables, as JSON and as a verdict in one line."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.faults.gaps import Summary, summary
from benchmarks.faults.running import Outcome
from benchmarks.faults.schedule import Kind, Target
from benchmarks.report import machine, table

# A leader's death, as users are promised it.
GOAL_S: Final = 2.0
_MOST_TEXTS: Final = 8


def gap_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """By what was done to whom, and for a leader's death by client too."""
    rows = []
    for kind in Kind:
        for target in Target:
            found = [
                gap for gap in outcome.gaps if gap.happened.fault.kind is kind and gap.happened.fault.target is target
            ]
            if not found:
                continue
            name = "each broker in turn" if kind is Kind.STOP else target.value
            rows.append(_gap_row(f"{name} {kind.value}", summary(gap.gap_s for gap in found)))
            if (kind, target) == (Kind.KILL, Target.LEADER) or kind is Kind.STOP:
                rows += [
                    _gap_row(f"  as {client} sees it", summary(gap.gap_s for gap in found if gap.client == client))
                    for client in outcome.clients
                ]
    return rows


def _gap_row(name: str, found: Summary) -> dict[str, Any]:
    return {
        "gap in acknowledgements": name,
        "seen": found.count,
        "p50 s": f"{found.p50_s:.2f}",
        "p99 s": f"{found.p99_s:.2f}",
        "max s": f"{found.max_s:.2f}",
    }


def leaders_death(outcome: Outcome) -> Summary:
    return summary(
        gap.gap_s
        for gap in outcome.gaps
        if (gap.happened.fault.kind, gap.happened.fault.target) == (Kind.KILL, Target.LEADER)
    )


def client_rows(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {
            "client": client,
            "acknowledged": found.acked,
            "failed": found.failed,
            "read": found.read,
            "read again": found.read_again,
            "errors told to the reader": sum(found.told.values()),
            "wrong": sum(found.wrong.values()),
        }
        for client, found in outcome.clients.items()
    ]


def verdict(outcome: Outcome) -> str:
    if outcome.is_good:
        what = "restarts" if outcome.plan.rolling_rounds else "faults"
        clean = "; no send failed, no reader was told of an error" if outcome.plan.rolling_rounds else ""
        acked = sum(each.acked for each in outcome.clients.values())
        return (f"PASSED: {len(outcome.happened)} {what}, {acked:,} acknowledged records, none lost, none twice, "
                f"order kept, replicas alike{clean}")  # fmt: skip
    found: dict[str, int] = dict(outcome.contents.wrong)
    for each in outcome.clients.values():
        for kind, count in each.wrong.items():
            found[kind] = found.get(kind, 0) + count
        if outcome.plan.rolling_rounds:
            for kind, count in (("failed sends", each.failed), ("errors told to readers", sum(each.told.values()))):
                if count:
                    found[kind] = found.get(kind, 0) + count
    if outcome.different_replicas:
        found["replicas that differ"] = len(outcome.different_replicas)
    return "FAILED: " + ", ".join(f"{count} {kind}" for kind, count in found.items())


def show(outcome: Outcome) -> None:
    table(f"{outcome.kind}: gaps in acknowledgements, by fault", gap_rows(outcome))
    table(f"{outcome.kind}: what the clients were told", client_rows(outcome))
    for who, found in (("the log", outcome.contents), *outcome.clients.items()):
        for kind, examples in found.examples.items():
            print(f"  WRONG, {who}: {found.wrong[kind]} {kind}: {'; '.join(examples)}")
        for title, texts in (("failed sends", found.failures), ("told to readers", found.told)):
            for text, count in texts.most_common(_MOST_TEXTS):
                print(f"  {who}, {title}: {count} x {text[:200]}")
    death = leaders_death(outcome)
    if death.count:
        met = "met" if death.p99_s <= GOAL_S else "NOT met"
        goal = f" (goal {GOAL_S:.0f} s: {met})" if outcome.kind == "penstock" else ""
        print(f"\nwrites resume after a leader's death: p99 {death.p99_s:.2f} s{goal}")
    print(verdict(outcome))


def as_json(outcome: Outcome) -> dict[str, Any]:
    began_s = outcome.began_s
    return {
        "machine": machine(),
        "kind": outcome.kind,
        "plan": {
            "faults": outcome.plan.faults, "seed": outcome.plan.seed, "partitions": outcome.plan.partitions,
            "rate": outcome.plan.rate, "clients": outcome.plan.clients, "rough": outcome.plan.is_rough,
            "rolling_rounds": outcome.plan.rolling_rounds,
        },
        "verdict": verdict(outcome),
        "seconds": round(outcome.ended_s - began_s, 1),
        "records": outcome.records,
        "gaps": gap_rows(outcome),
        "clients": client_rows(outcome),
        "wrong": {who: found.examples for who, found in (("log", outcome.contents), *outcome.clients.items())},
        "failures": {client: dict(found.failures) for client, found in outcome.clients.items()},
        "told": {client: dict(found.told) for client, found in outcome.clients.items()},
        "different_replicas": list(outcome.different_replicas),
        "faults": [
            {
                "number": each.fault.number, "kind": each.fault.kind.value, "target": each.fault.target.value,
                "victim": each.victim, "led": each.led, "began_s": round(each.began_s - began_s, 2),
                "undone_s": round(each.undone_s - began_s, 2), "whole_s": round(each.whole_s - began_s, 2),
                "gaps_s": {gap.client: round(gap.gap_s, 3) for gap in outcome.gaps if gap.happened is each},
            }
            for each in outcome.happened
        ],
    }  # fmt: skip
