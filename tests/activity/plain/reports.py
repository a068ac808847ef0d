"""Sessions, visits, funnel and retention, computed event by event in plain Python: no Spark, no Arrow, no numpy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Events = Mapping[str, Sequence[Mapping[str, Any]]]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def sessions(events: Events) -> dict[tuple[int, int, int], dict[str, Any]]:
    """By start, member and session."""
    acts: dict[tuple[int, int, int], list[tuple[int, str]]] = defaultdict(list)
    for row in events["views"]:
        acts[row["time"] // DAY_MS, row["member"], row["session"]].append((row["time"], "view"))
    for row in events["impressions"]:
        acts[row["time"] // DAY_MS, row["member"], row["session"]].append((row["time"], row["action"]))
    found = {}
    for (_, member, session), done in acts.items():
        done.sort()
        kinds = Counter(kind for _, kind in done)
        found[done[0][0], member, session] = {
            "end": done[-1][0], "impressions": kinds["impression"], "clicks": kinds["click"], "views": kinds["view"],
            "bounced": kinds["view"] <= 1 and not kinds["click"],
        }  # fmt: skip
    return found


def visits(events: Events) -> dict[tuple[int, str], tuple[int, int, int, int, int]]:
    """By start and period: visits, members, views, bounced, duration in ms."""
    groups: dict[tuple[int, str], list[tuple[int, int, int, int]]] = defaultdict(list)
    for (start, member, _), one in sessions(events).items():
        for period, length_ms in (("hour", HOUR_MS), ("day", DAY_MS)):
            groups[start // length_ms * length_ms, period].append(
                (member, one["views"], one["bounced"], one["end"] - start)
            )
    return {
        key: (len(of), len({one[0] for one in of}), *(sum(one[place] for one in of) for place in (1, 2, 3)))  # type: ignore[misc]
        for key, of in groups.items()
    }


def funnel(events: Events) -> dict[int, tuple[int, int, int, int]]:
    """By hour: how many members were shown something, then clicked, then looked, then voted or wrote."""
    acts: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for topic, rows in events.items():
        for row in rows:
            step = {"views": 3, "votes": 4, "posts": 4}.get(topic)
            if topic == "impressions":
                step = 1 if row["action"] == "impression" else 2
            if step is not None:
                acts[row["time"] // HOUR_MS * HOUR_MS, row["member"]].append((row["time"], step))
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for (hour, _), done in acts.items():
        wanted = 1
        for _, step in sorted(done):
            if step == wanted:
                counts[hour][wanted - 1] += 1
                wanted += 1
    return {hour: (of[0], of[1], of[2], of[3]) for hour, of in counts.items() if of[0]}


def retention(events: Events, length_ms: int, new_after: int, followed: int) -> dict[tuple[int, int], tuple[int, int]]:
    """By the start of the hour or day and that of the cohort: who came, and of how many."""
    seen: dict[int, set[int]] = defaultdict(set)
    for row in events["views"]:
        seen[row["member"]].add(row["time"] // length_ms)
    came: Counter[tuple[int, int]] = Counter()
    for numbers in seen.values():
        cohort = last = -(10**9)
        for number in sorted(numbers):
            if number - last > new_after:
                cohort = number
            last = number
            came[number, cohort] += 1
    return {
        (number * length_ms, cohort * length_ms): (count, came[cohort, cohort])
        for (number, cohort), count in came.items()
        if number - cohort <= followed
    }
