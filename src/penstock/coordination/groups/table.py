"""The live groups of a shard, and which of them has to be looked at next.

Deadlines move with every heartbeat, nearly always later. So a group is scheduled for the earliest deadline that it had
when last looked at: coming too early costs a look, and a heartbeat costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from penstock.coordination.groups.group import NEVER, Group, GroupState
from penstock.coordination.groups.members import MemberMemory
from penstock.coordination.settings import GroupSettings


class GroupTable:
    def __init__(self, settings: GroupSettings, memory: MemberMemory) -> None:
        self._settings = settings
        self._memory = memory
        self._groups: dict[str, Group] = {}
        self._schedule: list[tuple[int, int, Group]] = []
        self._count = 0

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def ensure(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, self._settings, self._memory)
        return group

    def ids(self) -> Iterable[str]:
        return self._groups.keys()

    def forget(self, group: Group) -> None:
        group.state = GroupState.DEAD
        self._groups.pop(group.group_id, None)

    def schedule(self, group: Group) -> None:
        if group.earliest_ms < group.scheduled_ms:
            group.scheduled_ms = group.earliest_ms
            self._count += 1
            heappush(self._schedule, (group.earliest_ms, self._count, group))

    @property
    def next_deadline_ms(self) -> int:
        return self._schedule[0][0] if self._schedule else NEVER

    def take_due(self, now_ms: int) -> list[Group]:
        """The groups to look at now; each has to be scheduled again afterwards."""
        due: list[Group] = []
        while self._schedule and self._schedule[0][0] <= now_ms:
            deadline_ms, _, group = heappop(self._schedule)
            if group.state is not GroupState.DEAD and deadline_ms == group.scheduled_ms:
                group.scheduled_ms = NEVER
                due.append(group)
        return due
