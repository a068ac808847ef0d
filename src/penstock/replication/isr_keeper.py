"""Keeping the ISR of what this broker leads in line with who keeps up.

Noun: `IsrKeeper`, which looks at the leaderships now and then, and asks the controller for the changes that are due.

Rule: what is asked for counts as pending from the moment it is asked, and until the controller's answer, or the
partition's next state, settles it. A refusal is certain where the controller knew the very state that was asked about;
anything else, silence above all, is not, and is asked again. One question at a time, with all changes in it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from penstock.cluster.image import PartitionImage
from penstock.cluster.isr_changes import IsrRefusal, IsrRequest
from penstock.replication.leadership import Proposal
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas

logger = logging.getLogger(__name__)

Ask = Callable[[list[IsrRequest]], Awaitable[Sequence[IsrRefusal | PartitionImage]]]

_CERTAIN: Final = frozenset({IsrRefusal.INELIGIBLE_REPLICA, IsrRefusal.INVALID_REQUEST})


class IsrKeeper:
    """`tick` it a few times a second; whatever `ask` raises means that nobody knows what came of it."""

    def __init__(
        self,
        replicas: Replicas,
        me: int,
        my_epoch: Callable[[], int],
        brokers: Callable[[], Mapping[int, int]],
        ask: Ask,
        lag_max_ms: Callable[[], float],
        now_ms: Callable[[], float],
    ) -> None:
        """`lag_max_ms` is asked each time, as it may be set anew; `now_ms` is monotonic."""
        self._replicas = replicas
        self._me = me
        self._my_epoch = my_epoch
        self._brokers = brokers
        self._ask = ask
        self._lag_max_ms = lag_max_ms
        self._now_ms = now_ms
        self._looked_at_all_ms = float("-inf")
        self._is_asking = False
        self.shrinks = 0
        self.expansions = 0

    async def tick(self) -> None:
        """Ask for what is due, and note the answers; nothing while a question is not answered."""
        if self._is_asking:
            return
        due = self._due()
        if not due:
            return
        self._is_asking = True
        try:
            answers = await self._ask([self._request(partition, proposal) for partition, proposal in due])
            if len(answers) != len(due):
                raise ValueError(f"{len(answers)} answers to {len(due)} questions")
        except BaseException as error:
            for partition, proposal in due:
                _refused(partition, proposal, for_certain=False)
            if not isinstance(error, Exception):
                raise
            logger.info("%d changes of ISRs were not answered: %s", len(due), error)
            return
        finally:
            self._is_asking = False
        for (partition, proposal), answer in zip(due, answers, strict=True):
            self._note(partition, proposal, answer)

    def _due(self) -> list[tuple[Partition, Proposal]]:
        """Where somebody is missing, at every look; the others twice in the time that one may be behind."""
        now_ms, lag_max_ms, brokers = self._now_ms(), self._lag_max_ms(), self._brokers()
        look_at_all = now_ms - self._looked_at_all_ms >= lag_max_ms / 2
        if look_at_all:
            self._looked_at_all_ms = now_ms
        due: list[tuple[Partition, Proposal]] = []
        for partition in self._replicas:
            leadership = partition.leadership
            if leadership is None or leadership.is_alone or (leadership.is_complete and not look_at_all):
                continue
            proposal = leadership.propose(partition.log.log_end_offset, brokers, lag_max_ms, now_ms)
            if proposal is not None:
                due.append((partition, proposal))
        return due

    def _request(self, partition: Partition, proposal: Proposal) -> IsrRequest:
        return IsrRequest(
            partition.topic,
            partition.index,
            self._me,
            self._my_epoch(),
            proposal.leader_epoch,
            proposal.state_version,
            proposal.isr,
            proposal.broker_epochs,
        )

    def _note(self, partition: Partition, proposal: Proposal, answer: IsrRefusal | PartitionImage) -> None:
        if isinstance(answer, IsrRefusal):
            logger.info("%s-%d: ISR %s refused: %s", partition.topic, partition.index, proposal.isr, answer.value)
            _refused(partition, proposal, for_certain=answer in _CERTAIN)
            return
        if answer.state_version <= proposal.state_version:
            # An answer with the state that was known says that there was nothing to change.
            _refused(partition, proposal, for_certain=True)
            return
        # It stays pending until the image tells of it: what an ISR means depends on settings, which an image brings
        # in the order in which they were decided.
        before = proposal.isr_before
        self.shrinks += len(answer.isr) < len(before)
        self.expansions += len(answer.isr) > len(before)
        logger.info("%s-%d: ISR %s, was %s", partition.topic, partition.index, answer.isr, before)


def _refused(partition: Partition, proposal: Proposal, *, for_certain: bool) -> None:
    """Unless the partition's next state has settled it meanwhile."""
    leadership = partition.leadership
    if leadership is not None and leadership.pending is proposal:
        leadership.refused(for_certain=for_certain)
        partition.reconsider()  # whoever was to join counts no more, and nobody else may stir
