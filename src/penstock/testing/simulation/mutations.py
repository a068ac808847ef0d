"""Safeguards that can be switched off by name, to show that the simulator would miss them.

Noun: a `Mutation`, a broker with one safeguard less.

Rule: each takes away one thing that this project promises, by replacing a function or two, and for each a test shows
that some seeds fail that do not fail with it. A mutation that no seed catches is a hole in the simulator, not a safe
broker. Those of a single broker are here, those of a cluster in `cluster_mutations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any
from unittest import mock

from penstock.cluster.journal import Journal
from penstock.log import opening, segment_recovery
from penstock.log.flush import Flush, GroupCommit
from penstock.log.producers.state import NEW, ProducerStates
from penstock.log.walk import walk
from penstock.replication.partition import Partition
from penstock.testing.simulated_files import SimulatedFile
from penstock.testing.simulation.cluster_mutations import CLUSTER_MUTATIONS
from penstock.testing.simulation.mutation import Mutation


class UnknownMutation(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no mutation {name!r}: there are {', '.join(MUTATIONS)}")


def _durable_at_once(self: GroupCommit, log: Any, offset: int, done: Callable[[None], None], **given: Any) -> None:
    log.durability.flushed_offset = max(log.flushed_offset, offset)
    done(None)


def _always_new(self: ProducerStates, *args: Any, **options: Any) -> Any:
    return NEW


def _run_whatever_happens(self: Flush) -> None:
    with suppress(OSError):
        _REAL_RUN(self)


def _run_without_names(self: Flush) -> None:
    self.folder = None
    _REAL_RUN(self)


def _append_without_sync(self: Journal, entries: Any) -> None:
    with mock.patch.object(SimulatedFile, "sync", _no_sync):
        _REAL_APPEND(self, entries)


def _no_sync(self: SimulatedFile) -> None:
    """The disk is not asked."""


def _advance_over_unsynced(self: Partition) -> None:
    log = self.log
    synced, log.durability.flushed_offset = log.flushed_offset, log.log_end_offset
    try:
        _REAL_ADVANCE(self)
    finally:
        log.durability.flushed_offset = synced


_REAL_RUN = Flush.run
_REAL_APPEND = Journal.append
_REAL_ADVANCE = Partition._advance

_ROT = "2 rotten-cache broker-0 for 0.3 | 2.6 power broker-0 for 0.2 | 6 rotten-cache broker-0 for 0.3 | "
_ROT += "6.6 power broker-0 for 0.2 | 9 rotten-cache broker-0 for 0.3 | 9.5 power broker-0 for 0.2"

MUTATIONS: dict[str, Mutation] = {
    "acknowledge-without-sync": Mutation(
        "acks=all is answered before the disk has the records", ((GroupCommit, "when_durable", _durable_at_once),)
    ),
    "recovery-without-checksum": Mutation(
        "recovery believes every batch whose header looks sound",
        ((segment_recovery, "walk", partial(walk, verify=False)),),
    ),
    "retries-are-appended": Mutation(
        "a batch that was stored before is stored again when it is sent again",
        ((ProducerStates, "check", _always_new),),
    ),
    "failed-syncs-count": Mutation(
        "a sync that failed is taken for one that did not", ((Flush, "run", _run_whatever_happens),)
    ),
    "rotten-cache-believed": Mutation(
        "after a sync that failed, a restart believes what it finds in the page cache",
        ((opening, "has_failed_sync", lambda files, folder: False),),
        schedule=_ROT,
    ),
    "segments-without-names": Mutation(
        "new segments are synced, their names in the folder are not", ((Flush, "run", _run_without_names),)
    ),
    "tree-without-sync": Mutation(
        "changes of the metadata are answered before the disk has them", ((Journal, "append", _append_without_sync),)
    ),
    "watermark-over-unsynced": Mutation(
        "consumers are given what a power loss can take back", ((Partition, "_advance", _advance_over_unsynced),)
    ),
    **CLUSTER_MUTATIONS,
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """A project without that safeguard; UnknownMutation."""
    mutation = MUTATIONS.get(name)
    if mutation is None:
        raise UnknownMutation(name)
    with ExitStack() as stack:
        for target, attribute, replacement in mutation.replaced:
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield
