"""What the observer does with logs that it meets for the first time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.log.log_stories import open_new

from penstock.testing.simulated_files import SimulatedFiles
from penstock.testing.simulation.observing import Observer


def _observer(files: SimulatedFiles) -> Observer:
    node: Any = SimpleNamespace(files=files, name="broker-0", lives=1)
    return Observer(cast("Any", SimpleNamespace(nodes=[node])))


def test_a_log_that_is_deleted_while_its_first_flush_runs_is_nobodys() -> None:
    files = SimulatedFiles()
    log, kept = open_new(files, folder="/data/t-0"), open_new(files, folder="/data/t-1")
    observer = _observer(files)
    flush = log.prepare_flush()
    assert flush is not None
    flush.run()
    files.rename("/data/t-0", "/data/t-0-delete")
    log.complete_flush(flush)
    observer.flushed(log)
    assert not observer.ledgers
    observer.flushed(kept)
    assert [key[:2] for key in observer.ledgers] == [("t", 1)]
