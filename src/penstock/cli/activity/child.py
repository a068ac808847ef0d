"""A `penstock` command as a child process of `penstock activity run`.

    python -m penstock.cli.activity.child server start ...

The parent stops it by a byte in the pipe that is its standard input, and by closing the pipe. If the parent is killed,
the pipe closes without the byte. Ctrl-C, a closed terminal and a service manager's SIGTERM reach the whole process
group; the child ignores them, and the parent stops its children in order.
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
_ORPHAN_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 75.0  # longer than the parent waits
_BROKER_DELAY_S: Final = 8.0
_EXIT_TIMED_OUT: Final = 75
_PARENT_SIGNALS: Final = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}


def _stop_with_parent() -> None:
    """Wait until the pipe is closed, then raise SIGTERM; exit if that does not end the process."""
    was_asked = False
    while os.read(_STDIN, 4096):
        was_asked = True
    if not was_asked and sys.argv[1:2] == ["server"]:
        # The parent was killed, so all children stop at once. Spark's tasks would hang without their broker.
        time.sleep(_BROKER_DELAY_S)
    # No child outlives the parent for long.
    timer = threading.Timer(_STOP_TIMEOUT_S if was_asked else _ORPHAN_TIMEOUT_S, os._exit, [_EXIT_TIMED_OUT])
    timer.daemon = True
    timer.start()
    # Discard a SIGTERM that came meanwhile: it would count as the second one.
    signal.sigtimedwait({signal.SIGTERM}, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    # Blocked rather than ignored, because commands set their own handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PARENT_SIGNALS)
    threading.Thread(target=_stop_with_parent, name="parent", daemon=True).start()
    main()
