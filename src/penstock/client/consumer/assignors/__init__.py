"""Assignors by name, as `partition_assignment_strategy` gives them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.consumer.assignors.base import Assignor, GroupMember, Shares
from penstock.client.consumer.assignors.cooperative import CooperativeStickyAssignor
from penstock.client.consumer.assignors.range import RangeAssignor
from penstock.client.consumer.assignors.round_robin import RoundRobinAssignor
from penstock.client.consumer.assignors.sticky import StickyAssignor

BUILT_IN: dict[str, type[RangeAssignor | RoundRobinAssignor | StickyAssignor]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


def assignors_from(strategies: Sequence[str | Assignor]) -> list[Assignor]:
    """Assignors in order of preference; ValueError says which name is not known, or why they do not mix."""
    chosen: list[Assignor] = []
    for strategy in strategies:
        if not isinstance(strategy, str):
            chosen.append(strategy)
        elif strategy in BUILT_IN:
            chosen.append(BUILT_IN[strategy]())
        else:
            raise ValueError(f"no assignor is named {strategy!r}; there are {', '.join(BUILT_IN)}, or one of your own")
    if not chosen:
        raise ValueError("a group needs at least one assignor")
    names = [assignor.name for assignor in chosen]
    if len(set(names)) < len(names):
        raise ValueError(f"an assignor is named twice: {', '.join(names)}")
    return chosen


__all__ = [
    "Assignor",
    "BUILT_IN",
    "CooperativeStickyAssignor",
    "GroupMember",
    "RangeAssignor",
    "RoundRobinAssignor",
    "Shares",
    "StickyAssignor",
    "assignors_from",
]
