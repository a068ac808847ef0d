"""News feeds, computed event by event in plain Python: the graph as it is, walked through in the order of time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Events = Mapping[str, Sequence[Mapping[str, Any]]]


class Seen(NamedTuple):
    """What a member sees of an author."""

    time: int
    member: int
    author: int
    kind: str
    id: int
    item: int


def seen(events: Events) -> set[Seen]:
    """Everything that members see of those whom they follow at that time."""
    line: list[tuple[int, int, int, str, Mapping[str, Any]]] = []
    line += [(row["time"], 0, row["id"], "follow", row) for row in events["follows"]]
    line += [(row["time"], 1, row["id"], "post", row) for row in events["posts"]]
    line += [(row["time"], 1, row["id"], "vote", row) for row in events["votes"] if row["vote"] > 0]
    followers: dict[int, set[int]] = defaultdict(set)
    found = set()
    for time, _, number, kind, row in sorted(line, key=lambda entry: entry[:3]):
        if kind != "follow":
            found |= {Seen(time, one, row["member"], kind, number, row["item"]) for one in followers[row["member"]]}
        elif row["action"] == "follow":
            followers[row["followed"]].add(row["member"])
        else:
            followers[row["followed"]].discard(row["member"])
    return found


def best(entries: set[Seen], member: int, *, half_life_ms: int, horizon_ms: int, most: int) -> list[tuple[str, int]]:
    """The feed of a member: kinds and ids, best first."""
    newest = max(entry.time for entry in entries)
    entries = {entry for entry in entries if entry.time > newest - horizon_ms}
    mine = [entry for entry in entries if entry.member == member]
    events_of: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for entry in entries:
        events_of[entry.item].add((entry.kind, entry.id))
    circle: dict[int, set[int]] = defaultdict(set)
    for entry in mine:
        circle[entry.item].add(entry.author)

    def score(entry: Seen) -> float:
        of_author = [one for one in mine if one.author == entry.author]
        affinity = sum(len(circle[one.item]) > 1 for one in of_author) / len(of_author)
        weight = 2.0 if entry.kind == "post" else 1.0
        relevance = weight * len(circle[entry.item]) * (1 + affinity) * (1 + math.log2(len(events_of[entry.item])))
        return relevance * math.exp2((entry.time - newest) / half_life_ms)

    ranked = sorted(mine, key=lambda entry: (-round(score(entry), 9), entry.id))
    return [(entry.kind, entry.id) for entry in ranked[:most]]
