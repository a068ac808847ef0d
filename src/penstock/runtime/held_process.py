"""Holding a process that we began, as it is.

Rule: when it is said to be held it is: all its threads have stopped. The signal alone only asks for it, and a process
on a busy machine answers questions for some time after it.
"""

from __future__ import annotations

import os
import signal
import subprocess


def hold(process: subprocess.Popen[bytes]) -> None:
    """Until SIGCONT. One that has ended, or ends meanwhile, is left to whoever waits for it."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGSTOP)
    if process.returncode is not None:  # `send_signal` looks again before it sends
        return
    if hasattr(os, "waitid"):  # Python has it on macOS from 3.13 on.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
