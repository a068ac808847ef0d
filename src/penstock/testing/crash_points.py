"""Runs a scenario with a power loss at each of its operations.

The scenario runs once to count its operations, then once per operation with power lost as the operation begins, once
more per write with power lost in its middle, and once to the end. Each run yields several `CrashPoint`s: the disk after
each way of losing unsynced data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_disk import (
    KEEP_SIZES_ONLY,
    KEEP_UNSYNCED,
    LOSE_UNSYNCED,
    RANDOM_GARBAGE,
    RANDOM_LOSS,
    PowerLoss,
)
from penstock.testing.simulated_files import SimulatedFiles

ALL_LOSSES = (LOSE_UNSYNCED, KEEP_UNSYNCED, KEEP_SIZES_ONLY, RANDOM_LOSS, RANDOM_GARBAGE)


class CrashPoint(NamedTuple):
    """The moment of a power loss and the disk that is left. Its text identifies the moment, to reproduce a failure."""

    files: SimulatedFiles
    moment: str
    loss: PowerLoss

    def __str__(self) -> str:
        return f"power lost {self.moment}, {self.loss}"


def crash_everywhere(
    scenario: Callable[[SimulatedFiles], object],
    *,
    seed: int = 0,
    losses: Sequence[PowerLoss] = ALL_LOSSES,
    start: SimulatedFiles | None = None,
    stride: int = 1,
) -> Iterator[CrashPoint]:
    """Run `scenario` repeatedly, on new disks or copies of `start`; yield what each power loss leaves.

    In each run the scenario itself records what must survive, such as what it has synced; the caller compares that with
    each crash point. `stride` visits only every nth operation of a long scenario.
    """
    origin = SimulatedFiles() if start is None else start
    complete = origin.fork(SeededRandom(seed))
    scenario(complete)
    random = SeededRandom(seed).branch("moments")
    for operation in list(complete.operations.recent)[::stride]:
        cuts = [0]
        if operation.kind == "write" and operation.length > 1:
            cuts.append(1 + random.below(operation.length - 1))
        for applied_bytes in cuts:
            files = _run(scenario, origin.fork(SeededRandom(seed)), operation.number, applied_bytes)
            moment = f"at {operation} after {applied_bytes} bytes" if applied_bytes else f"at {operation}"
            yield from _crash_points(files, moment, seed, losses)
    files = _run(scenario, origin.fork(SeededRandom(seed)), None, 0)
    yield from _crash_points(files, "at the end", seed, losses)


def _run(
    scenario: Callable[[SimulatedFiles], object],
    files: SimulatedFiles,
    number: int | None,
    applied_bytes: int,
) -> SimulatedFiles:
    if number is not None:
        files.operations.lose_power_at(number, applied_bytes=applied_bytes)
    try:
        scenario(files)
    except Exception:
        # Upper layers may wrap PowerLost in another error. With the power on, the error is the scenario's own.
        if files.powered:
            raise
    return files


def _crash_points(files: SimulatedFiles, moment: str, seed: int, losses: Sequence[PowerLoss]) -> Iterator[CrashPoint]:
    for index, loss in enumerate(losses):
        fork = files.fork(SeededRandom(seed).branch(f"{moment}/{index}"))
        fork.crash(loss)
        yield CrashPoint(fork, moment, loss)
