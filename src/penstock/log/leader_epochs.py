"""Which leader wrote which offsets (KIP-101, KIP-279).

The leader epochs of a partition are a list of (epoch, start offset), both strictly ascending: the leader of `epoch`
wrote from `start offset` to the next entry's start. A later assignment wins over entries that contradict it. Replicas
compare these lists, not their high watermarks, to find where their logs diverge. All of it is in memory; `save` and
`load` use the checkpoint file, and an old file is harmless, because recovery assigns the epochs again from the batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.log.checkpoints import read_epochs, write_epochs
from penstock.runtime.files import Files

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
_NO_LIMIT: Final = 2**63


class Written(Protocol):
    """What this module needs from a batch."""

    @property
    def base_offset(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...


class EpochEntry(NamedTuple):
    """The leader of `epoch` wrote its first record at `start_offset`."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """The offset after the last record of `epoch`; both -1 if unknown."""

    epoch: int
    end_offset: int


UNKNOWN_END: Final = EpochEnd(NO_EPOCH, NO_OFFSET)


class LeaderEpochs:
    """The (epoch, start offset) list of one partition."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._dirty = False
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @classmethod
    def load(cls, files: Files, path: str) -> LeaderEpochs:
        """The list from the file at `path`; empty if there is none. CheckpointError if it is damaged."""
        try:
            loaded = cls(read_epochs(files, path))
        except FileNotFoundError:
            return cls()
        loaded._dirty = False
        return loaded

    def save(self, files: Files, path: str) -> bool:
        """Write the list to `path`, durably; False if it has not changed since the last time."""
        if not self._dirty:
            return False
        write_epochs(files, path, self.entries)
        self._dirty = False
        return True

    @property
    def dirty(self) -> bool:
        """Whether it changed since it was loaded or saved."""
        return self._dirty

    @property
    def entries(self) -> list[EpochEntry]:
        return [EpochEntry(epoch, start) for epoch, start in zip(self._epochs, self._starts, strict=True)]

    @property
    def latest_epoch(self) -> int:
        """The last epoch; -1 if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def latest_start_offset(self) -> int:
        """Where the last epoch starts; -1 if there is none."""
        return self._starts[-1] if self._starts else NO_OFFSET

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` writes from `start_offset` on; False if that was known.

        [(1, 0), (2, 10)]  assign(3, 20)  ->  [(1, 0), (2, 10), (3, 20)]
        [(1, 0), (2, 10)]  assign(2, 15)  ->  unchanged, epoch 2 started before
        [(1, 0), (2, 10)]  assign(3, 10)  ->  [(1, 0), (3, 10)]           epoch 2 wrote nothing
        [(1, 0), (2, 10)]  assign(2, 7)   ->  [(1, 0), (2, 7)]
        [(1, 0), (3, 10)]  assign(2, 12)  ->  [(1, 0), (2, 12)]           the log was truncated in between
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} at offset {start_offset}: neither may be negative")
        epochs, starts = self._epochs, self._starts
        if epochs and epoch == epochs[-1] and start_offset >= starts[-1]:
            return False
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self._dirty = True
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The answer to OffsetsForLeaderEpoch: the largest epoch not above `epoch`, and where it ended.

        With [(2, 10), (4, 25)] and a log that ends at 40:
        epoch 4 -> (4, 40)     the last epoch ends where the log ends
        epoch 3 -> (2, 25)     nothing was written in 3; 2 ended where 4 starts
        epoch 1 -> (1, 10)     its records were deleted; the log starts at 10
        epoch 5 -> (-1, -1)    unknown, like every epoch if the list is empty, and like epoch -1
        """
        if epoch < 0 or not self._epochs or epoch > self._epochs[-1]:
            return UNKNOWN_END
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return EpochEnd(epoch, log_end_offset)
        if above == 0:
            return EpochEnd(epoch, self._starts[0])
        return EpochEnd(self._epochs[above - 1], self._starts[above])

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote, or would write, `offset`; -1 below the first entry.

        With [(2, 10), (4, 25)]: offset 9 -> -1, 10 -> 2, 24 -> 2, 25 -> 4, 1000 -> 4.
        """
        after = bisect_right(self._starts, offset)
        return self._epochs[after - 1] if after else NO_EPOCH

    def first_foreign(self, batches: Sequence[Written]) -> int:
        """The index of the first batch that does not have the epoch of its offset; len(batches) if all do.

        With [(2, 10), (4, 25)], batches at 12 of epoch 2 and at 30 of epoch 5: 1. Batches below the first entry may
        have any epoch.
        """
        epochs, starts = self._epochs, self._starts
        epoch, low, high = NO_EPOCH, 0, starts[0] if starts else 0
        for number, batch in enumerate(batches):
            offset = batch.base_offset
            if not low <= offset < high:
                after = bisect_right(starts, offset)
                epoch, low = (epochs[after - 1], starts[after - 1]) if after else (NO_EPOCH, 0)
                high = starts[after] if after < len(starts) else _NO_LIMIT
            if epoch not in (NO_EPOCH, batch.leader_epoch):
                return number
        return len(batches)

    def truncate_from_end(self, offset: int) -> None:
        """The log now ends at `offset`: forget epochs that start there or later.

        [(1, 0), (2, 10), (3, 20)]  truncate_from_end(20)  ->  [(1, 0), (2, 10)]
        [(1, 0), (2, 10), (3, 20)]  truncate_from_end(21)  ->  unchanged
        """
        keep = bisect_left(self._starts, offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self._dirty = True

    def save_truncated(self, files: Files, path: str, offset: int) -> None:
        """Like truncate_from_end, on disk first: on OSError both list and file are unchanged."""
        keep = bisect_left(self._starts, offset)
        if keep < len(self._starts) or self._dirty:
            write_epochs(files, path, self.entries[:keep])
            del self._epochs[keep:], self._starts[keep:]
            self._dirty = False

    def truncate_from_start(self, offset: int) -> None:
        """The log now starts at `offset`, and so does its epoch; forget those before.

        [(1, 0), (2, 10), (3, 20)]  truncate_from_start(15)  ->  [(2, 15), (3, 20)]
        [(1, 0), (2, 10), (3, 20)]  truncate_from_start(20)  ->  [(3, 20)]
        [(1, 5), (2, 10)]           truncate_from_start(3)   ->  unchanged
        """
        covering = bisect_right(self._starts, offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == offset):
            return
        del self._epochs[:covering], self._starts[:covering]
        self._starts[0] = offset
        self._dirty = True

    def clear(self) -> None:
        """Forget all: the log was emptied."""
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self._dirty = True
