"""Safeguards that can be switched off by name, to show that the simulator would miss them.

Noun: a `Mutation`, a broker with one safeguard less.

Rule: each takes away one thing that this project promises, by replacing one function, and for each a test shows that
some seeds fail. A mutation that no seed catches is a hole in the simulator, not a safe broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

from penstock.cluster.journal import Journal
from penstock.log import segment_recovery
from penstock.log.flush import Flush, GroupCommit
from penstock.log.producers.state import NEW, ProducerStates
from penstock.log.walk import walk
from penstock.testing.simulated_files import SimulatedFile


class UnknownMutation(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no mutation {name!r}: there are {', '.join(MUTATIONS)}")


class Mutation(NamedTuple):
    """`target.attribute` becomes `replacement`."""

    what: str
    target: Any
    attribute: str
    replacement: Any


def _durable_at_once(self: GroupCommit, log: Any, offset: int, done: Callable[[None], None]) -> None:
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


_REAL_RUN = Flush.run
_REAL_APPEND = Journal.append

MUTATIONS: dict[str, Mutation] = {
    "acknowledge-without-sync": Mutation(
        "acks=all is answered before the disk has the records", GroupCommit, "when_durable", _durable_at_once
    ),
    "recovery-without-checksum": Mutation(
        "recovery believes every batch whose header looks sound", segment_recovery, "walk", partial(walk, verify=False)
    ),
    "retries-are-appended": Mutation(
        "a batch that was stored before is stored again when it is sent again", ProducerStates, "check", _always_new
    ),
    "failed-syncs-count": Mutation(
        "a sync that failed is taken for one that did not", Flush, "run", _run_whatever_happens
    ),
    "segments-without-names": Mutation(
        "new segments are synced, their names in the folder are not", Flush, "run", _run_without_names
    ),
    "tree-without-sync": Mutation(
        "changes of the metadata are answered before the disk has them", Journal, "append", _append_without_sync
    ),
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """A project without that safeguard; UnknownMutation."""
    mutation = MUTATIONS.get(name)
    if mutation is None:
        raise UnknownMutation(name)
    with mock.patch.object(mutation.target, mutation.attribute, mutation.replacement):
        yield
