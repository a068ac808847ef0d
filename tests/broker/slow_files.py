"""A real file system on which chosen partitions cannot be opened before it is allowed."""

from __future__ import annotations

import os
import threading

from tests.broker.faulty_files import FaultyFiles
from tests.timeouts import PATIENCE_S

from penstock.runtime.files import File


class SlowFiles(FaultyFiles):
    """Opening a file in a folder named `slow` waits for `goes_on`; `is_waiting` is set meanwhile."""

    def __init__(self, slow: set[str]) -> None:
        super().__init__()
        self.slow = slow
        self.is_waiting = threading.Event()
        self.goes_on = threading.Event()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if os.path.basename(os.path.dirname(path)) in self.slow:
            self.is_waiting.set()
            self.goes_on.wait(PATIENCE_S)
        return super().open(path, create=create, writable=writable)
