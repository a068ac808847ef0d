"""How many records the queries of a run are behind, as their cluster sees it.

Noun: `LagWatch`, the ends of the partitions that they read, asked for all at once; and what each has read, committed
for a group of its name, so that `penstock groups describe` shows the same to everybody.

Rule: nothing depends on it. A cluster that does not answer leaves the lag unknown until it does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.activity.clusters import Cluster
from penstock.client.admin import Admin
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import PenstockError
from penstock.spark.lag import Committer, standings

_TIMEOUT_MS: Final = 3_000
_CLIENT: Final = "penstock-pipelines-lag"


class LagWatch:
    """One for a run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin: Admin | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._committer = Committer(lambda _: cluster.admin(_CLIENT))

    def look(self, positions: Iterable[Mapping[TopicPartition, int]]) -> None:
        """Ask for the ends of these partitions."""
        wanted = {one for each in positions for one in each}
        if not wanted:
            return
        try:
            if self._admin is None:
                self._admin = self._cluster.admin(
                    _CLIENT, request_timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS
                )
            answers = self._admin.list_offsets(dict.fromkeys(wanted, "latest"), timeout_ms=_TIMEOUT_MS)
        except PenstockError:
            self._let_go()
            return
        self._ends = {one: answer.offset for one, answer in answers.items() if not isinstance(answer, PenstockError)}

    def show(self, name: str, query_id: str, end_offsets: Iterable[str | None]) -> None:
        """Let everybody see how far a query is; returns at once."""
        for standing in standings(name, query_id, end_offsets):
            self._committer.note(standing)

    def behind(self, positions: Mapping[TopicPartition, int]) -> int:
        """Records between these positions and the ends; -1 while that is not known."""
        if not positions or any(one not in self._ends for one in positions):
            return -1
        return sum(max(0, self._ends[one] - offset) for one, offset in positions.items())

    def close(self) -> None:
        """Commits what waits, for a moment."""
        self._committer.close(1.0)
        self._let_go()

    def _let_go(self) -> None:
        self._ends = {}
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(PenstockError):
                admin.close(1.0)
