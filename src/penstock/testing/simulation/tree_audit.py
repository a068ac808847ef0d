"""What the metadata tree is made to say: the rules that no controller may break.

Noun: a `TreeAudit`, shown every change of a simulated tree before it is made.

Rule (invariants 1 and 9 of a run): topics, settings and states of partitions are changed by the session that holds
/controller, in its own epoch, and by nobody else. The leader epoch of a partition never falls, and an epoch has one
leader. A leader is in sync, and was in sync or eligible before it was elected: nobody leads who may lack what was
committed, unless all who had it are lost and somebody decided so. Who is eligible is not in sync.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from penstock.cluster import paths
from penstock.cluster.layout import NO_LEADER, PartitionState, decode_controller_epoch, decode_partition_state
from penstock.cluster.tree import Check, Create, Delete, Operation, Set
from penstock.cluster.tree_state import TreeState

PARTITION_STATE: Final = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")
_GUARDED: Final = tuple(
    f"{path}/" for path in (paths.TOPICS, paths.TOPIC_CONFIGS, paths.BROKER_CONFIGS, paths.DELETE_TOPICS)
)


class TreeAudit:
    """`complain` is given a sentence for each rule that is broken."""

    def __init__(self, state: TreeState, complain: Callable[[str], None]) -> None:
        self._state = state
        self._complain = complain
        self.states = 0
        """How many states of partitions were looked at."""

    def __call__(self, operations: Sequence[Operation], session: int) -> None:
        for operation in operations:
            if isinstance(operation, Check):
                continue
            if operation.path.startswith(_GUARDED):
                self._judge_writer(operation, session)
            match = PARTITION_STATE.fullmatch(operation.path)
            if match is not None and isinstance(operation, Create | Set):
                self.states += 1
                self._judge_state(f"{match[1]}-{match[2]}", operation)

    def _judge_writer(self, operation: Create | Set | Delete, session: int) -> None:
        controller = self._state.node(paths.CONTROLLER)
        if controller is None or controller.owner != session:
            holder = "nobody" if controller is None else f"session {controller.owner or 0:x}"
            self._complain(f"session {session:x} changes {operation.path}, and the controller is {holder}")

    def _judge_state(self, name: str, operation: Create | Set) -> None:
        after = decode_partition_state(operation.path, operation.data)
        node = self._state.node(operation.path)
        before = None if node is None or isinstance(operation, Create) else decode_partition_state(name, node.data)
        epoch = self._state.node(paths.CONTROLLER_EPOCH)
        if epoch is not None and after.controller_epoch != decode_controller_epoch(epoch.data):
            self._complain(f"{name}: written in controller epoch {after.controller_epoch}, which is over")
        for problem in _contradictions(before, after):
            self._complain(f"{name}: {problem}: {before} becomes {after}")


def _contradictions(before: PartitionState | None, after: PartitionState) -> list[str]:
    found = []
    if not after.isr:
        found.append("nobody is in sync")
    if after.leader != NO_LEADER and after.leader not in after.isr:
        found.append("the leader is not in sync")
    if set(after.elr) & set(after.isr):
        found.append("somebody is in sync and eligible")
    if before is None:
        return found
    if after.leader_epoch < before.leader_epoch:
        found.append("the leader epoch falls")
    elif after.leader_epoch == before.leader_epoch and after.leader != before.leader:
        found.append("the epoch has another leader")
    is_lost = before.leader == NO_LEADER and before.recovering
    if after.leader not in (NO_LEADER, before.leader, *before.isr, *before.elr) and not is_lost:
        found.append("the new leader may lack what was committed")
    return found
