"""A driver that is killed at a step, or lives: `python -m tests.spark.tables.crash_driver ADDRESS WAREHOUSE STEP`.

It loads, loads a range again, tries dead letters again and joins files. Every effect on files and brokers is a step,
and before the one with the given number it kills itself, as `kill -9` would. It prints how many steps there were.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from penstock.client.admin import Admin
from penstock.spark.tables import Limits, Loader, Warehouse
from penstock.spark.tables.delta import PartWriter, Storage, Store
from penstock.spark.tables.load_plan import Span
from penstock.spark.tables.loader import replay_dead
from penstock.spark.tables.maintenance import compact
from penstock.spark.tables.runner import LocalRunner
from penstock.spark.tables.warehouse import redeclare


class Steps:
    """Counts, and ends it all."""

    def __init__(self, fatal: int) -> None:
        self.count = 0
        self._fatal = fatal

    def step(self) -> None:
        self.count += 1
        if self.count == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def stepped(*args: Any, **kwargs: Any) -> Any:
            self.step()
            answer = real(*args, **kwargs)
            self.step()
            return answer

        setattr(owner, name, stepped)


def run(address: str, uri: str, steps: Steps) -> None:
    from deltalake import DeltaTable

    steps.around(PartWriter, "close")
    steps.around(Storage, "remove_files")
    steps.around(DeltaTable, "create_write_transaction")
    steps.around(Store, "refresh")
    steps.around(Store, "attempt")
    warehouse = Warehouse(uri)
    opened = warehouse.open("views")
    with Admin(address) as admin:
        runner = LocalRunner(1)
        loader = Loader(opened, admin, address, runner, limits=Limits(commit_records=60, task_records=40))
        loader.load_new()
        loader.load_range([Span(0, 10, 35)], bounded=True)
        redeclare(opened, opened.table)
        replay_dead(loader)
        compact(opened, runner, least=2)


def main() -> None:
    address, uri, fatal = sys.argv[1:]
    steps = Steps(int(fatal))
    run(address, uri, steps)
    sys.stdout.write(f"{steps.count}\n")


if __name__ == "__main__":
    main()
