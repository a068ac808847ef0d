"""A command of ours as a child of `penstock activity run`: `python -m penstock.cli.activity_child server start ...`.

Rule: it is its parent who ends it, by a byte into the pipe that is this process's standard input, and by closing it. A
parent that is killed leaves the byte out. Ctrl-C, a terminal that goes away, and a service manager's SIGTERM reach the
whole process group; they are the parent's to act upon, who ends its children one after the other.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Final

from penstock.cli.main import main

_STDIN: Final = 0
_PATIENCE_S: Final = 30.0
_ASKED_PATIENCE_S: Final = 75.0  # longer than the parent waits, whose decision it is then
_OTHERS_END_S: Final = 8.0
_ENDED_LATE: Final = 75
_OF_THE_PARENT: Final = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}


def _end_with_parent() -> None:
    """Wait until the pipe is closed, then ask this process to end; one that does not is ended."""
    was_asked = False
    while os.read(_STDIN, 4096):
        was_asked = True
    if not was_asked and sys.argv[1:2] == ["server"]:
        # The parent was killed, so all end at once. Spark's tasks would wait for a broker that is gone, and stay.
        time.sleep(_OTHERS_END_S)
    # Whatever the command waits for, nothing of it outlives the parent for long.
    timer = threading.Timer(_ASKED_PATIENCE_S if was_asked else _PATIENCE_S, os._exit, [_ENDED_LATE])
    timer.daemon = True
    timer.start()
    # One that came meanwhile is not a second one.
    signal.sigtimedwait({signal.SIGTERM}, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    # Blocked, since commands set handlers of their own.
    signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    main()
