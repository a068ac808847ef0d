"""The group coordinators of this broker: a shard per partition of `__consumer_offsets` that it leads.

Loading, writing and timers are those of every coordinator (`coordinator_runtime`). Offsets of a transaction become
visible when its marker is committed in the same partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from penstock.coordination.coordinator_runtime import CallLater, Coordinator
from penstock.coordination.groups.group import GroupSettings, MemberMemory
from penstock.coordination.offsets import CommittedOffsets
from penstock.coordination.responses import Outcome, RequestContext
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random
from penstock.wire.protocol import OFFSETS_TOPIC, ErrorCode
from penstock.wire.types import Message

Answer = Callable[[Message], None]
Handle = Callable[[GroupCoordinatorShard, RequestContext, int], Outcome]


class GroupCoordinator(Coordinator[GroupCoordinatorShard]):
    """The shards of this broker."""

    topic = OFFSETS_TOPIC

    def __init__(self, settings: GroupSettings, random: Random, clock: Clock, call_later: CallLater) -> None:
        super().__init__(clock, call_later, settings.commit_timeout_ms)
        self._settings = settings
        self._random = random
        self.memory = MemberMemory()

    def make_machine(self, partition: Partition) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(self._settings, self._random, self.memory)

    def offsets_of(self, group_id: str) -> CommittedOffsets | None:
        """The offsets of a group's shard; None if its coordinator is not here, or not loaded."""
        shard = self.find(group_id)
        return None if isinstance(shard, ErrorCode) else shard.machine.offsets

    def count_by_state(self) -> dict[str, int]:
        """The number of groups in each state."""
        return dict(Counter(state for shard in self._shards.values() for state in shard.machine.states()))

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of all offsets committed on this broker."""
        for machine in self.shards:
            for (group_id, topic, partition), stored in machine.offsets.each():
                yield group_id, topic, partition, stored.offset

    def handle(self, group_id: str, context: RequestContext, handle: Handle) -> ErrorCode:
        """Handle a request for a group; returns an error if its coordinator is not here, or not loaded."""
        shard = self.find(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        shard.carry_out(handle(shard.machine, context, self.now_ms()))
        return ErrorCode.NONE

    def partition_of(self, group_id: str) -> Partition | ErrorCode:
        """The partition of `__consumer_offsets` that holds a group, if this broker coordinates it."""
        shard = self.find(group_id)
        return shard if isinstance(shard, ErrorCode) else shard.partition

    def end_of_transaction(self, index: int, producer_id: int, *, committed: bool) -> Callable[[], None]:
        """What to call when the marker that is being appended to a partition is committed.

        A shard that is loaded later replays the marker, and perhaps offsets of the producer's next transaction behind
        it: they are not to be ended by this one.
        """
        shard = self.shard_at(index)

        def end() -> None:
            if shard is not None and not shard.is_closed:
                shard.machine.end_transaction(producer_id, committed=committed)

        return end
