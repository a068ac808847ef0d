"""What no controller may write, as the audit of the simulated tree finds it."""

from __future__ import annotations

import pytest

from penstock.cluster.tree import layout
from penstock.cluster.tree.layout import NO_LEADER, PartitionState, encode_controller_epoch, encode_partition_state
from penstock.cluster.tree.tree import Create, Delete, Operation, Set, TreeState
from penstock.testing.simulation.cluster_checks import TreeAudit

CONTROLLER, OTHER = 7, 8
STATE = layout.partition_state_path("t", 0)
BEFORE = PartitionState(1, 5, (1, 2), 3, elr=(0,))


class Story:
    """A tree whose controller is session 7 in epoch 3."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.state = TreeState()
        self._commit(Create(layout.CONTROLLER_EPOCH, encode_controller_epoch(3)))
        self._commit(Create(layout.CONTROLLER, b"{}", ephemeral=True))
        parts = STATE.split("/")[1:]
        for level in range(1, len(parts)):
            self._commit(Create("/" + "/".join(parts[:level])))
        self.audit = TreeAudit(self.state, self.reported.append)
        self.write(Create(STATE, encode_partition_state(BEFORE)))
        assert self.reported == []

    def _commit(self, operation: Operation) -> None:
        self.state.commit(self.state.prepare((operation,), CONTROLLER))

    def write(self, operation: Operation, session: int = CONTROLLER) -> str:
        self.audit((operation,), session)
        self._commit(operation)
        return "; ".join(self.reported)

    def put(self, state: PartitionState) -> str:
        return self.write(Set(STATE, encode_partition_state(state)))


@pytest.mark.parametrize(
    "after",
    [
        BEFORE._replace(leader=2, leader_epoch=6),
        BEFORE._replace(leader=0, leader_epoch=6, isr=(0,), elr=(1, 2)),
        BEFORE._replace(isr=(1,), elr=(0, 2)),
        BEFORE._replace(leader=NO_LEADER, leader_epoch=6),
        BEFORE._replace(leader_epoch=6),
    ],
)
def test_clean_elections_and_changes_of_the_isr_are_in_order(after: PartitionState) -> None:
    assert Story().put(after) == ""


@pytest.mark.parametrize(
    ("after", "reported"),
    [
        (BEFORE._replace(leader_epoch=4), "the leader epoch falls"),
        (BEFORE._replace(leader=2), "the epoch has another leader"),
        (BEFORE._replace(leader=3, leader_epoch=6, isr=(3,)), "the new leader may lack"),
        (BEFORE._replace(leader=2, leader_epoch=6, isr=(1,)), "the leader is not in the ISR"),
        (BEFORE._replace(isr=(1, 0)), "in the ISR and in the ELR"),
        (BEFORE._replace(isr=()), "the ISR is empty"),
        (BEFORE._replace(controller_epoch=2), "controller epoch 2, which is over"),
    ],
)
def test_what_contradicts_the_state_before_is_reported(after: PartitionState, reported: str) -> None:
    assert reported in Story().put(after)


def test_only_the_holder_of_the_controllers_node_changes_topics_and_settings() -> None:
    story = Story()
    changed = encode_partition_state(BEFORE._replace(isr=(1,), elr=(0, 2)))
    assert "session 8 changes" in story.write(Set(STATE, changed), OTHER)
    story = Story()
    story.write(Delete(layout.CONTROLLER))
    assert "the controller is none" in story.write(Set(STATE, changed))
