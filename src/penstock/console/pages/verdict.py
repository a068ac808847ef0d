"""The verdict: what is wrong with the cluster, its tables and its pipelines, as far as the visitor may see them.

Tables are files of the console's user, so where visitors log in, their rights decide: a table is there for
those who may describe its topic. Pipelines, and messages, may be about any topic: they are for those who may describe
the cluster. Each function judges a snapshot that its caller has, and makes nobody read the cluster or the warehouse.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.client.diagnosis import NOTE, PROBLEM, Finding
from penstock.console.app import Visit
from penstock.console.cluster.state import Snapshot
from penstock.console.warehouse import TableRow, View, Warehouse

_PLAIN: Final = re.compile(r"[\w./:-]*[\w/]")


def visible(visit: Visit, view: View, snapshot: Snapshot) -> dict[str, TableRow]:
    """The tables of topics that the visitor may describe; all of them where nobody logs in."""
    if not visit.console.options.login:
        return dict(view.tables)
    return {name: row for name, row in view.tables.items() if row.topic in snapshot.topics}


def may_see_all(visit: Visit, snapshot: Snapshot) -> bool:
    """Whether the visitor sees pipelines and messages, which may be about any topic."""
    return not visit.console.options.login or snapshot.may_describe_cluster


def findings(visit: Visit, snapshot: Snapshot) -> list[Finding]:
    """What is wrong with the cluster, and then with tables and pipelines."""
    warehouse = visit.account.warehouse
    if warehouse is None:
        return list(snapshot.findings)
    view = warehouse.view
    found = list(snapshot.findings)
    found += [
        Finding(
            PROBLEM, "tables", row.name, row.trouble, _advice("See the hours", warehouse, "table", "audit", row.name)
        )
        if not row.error
        else Finding(NOTE, "tables", row.name, row.error, row.hint or "")
        for row in visible(visit, view, snapshot).values()
        if row.trouble
    ]
    if not may_see_all(visit, snapshot):
        return found
    found += [
        Finding(PROBLEM, "pipelines", each.name, f"is {each.shown_state}{': ' if each.message else ''}{each.message}",
                _advice("Start it again", warehouse, "pipeline", "run", each.name))
        for each in view.pipelines if each.is_failed
    ]  # fmt: skip
    return found + [Finding(NOTE, "tables", "the warehouse", text, hint) for text, hint in view.errors]


def problems(visit: Visit, snapshot: Snapshot) -> list[Finding]:
    return [each for each in findings(visit, snapshot) if each.level == PROBLEM]


def _advice(words: str, warehouse: Warehouse, *command: str) -> str:
    """An advice with a command; without it, if a name is not one that can be found in a text again."""
    given = [*command, "-w", warehouse.options.uri]
    return f"{words}: penstock {' '.join(given)}" if all(_PLAIN.fullmatch(each) for each in given) else f"{words}."
