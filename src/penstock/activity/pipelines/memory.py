"""Memory of the process that runs pipelines for weeks: what is free goes back to the system.

Rule: loads, tables and queries are many threads that come and go, and every allocator here keeps something for each
thread that ever asked it: Arrow's default what that thread has let go of, Delta's and the C library's a pool for every
few threads. So Arrow gets another of its allocators, which gives back what is not used after a moment, and the two
others few pools. This must be said before they are loaded. Whoever has chosen by the variables named here keeps that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Final

_ARROWS_CHOICE: Final = "ARROW_DEFAULT_MEMORY_POOL"
_FRUGAL: Final = "jemalloc"
_DELTAS_CHOICE: Final = "_RJEM_MALLOC_CONF"
_FEW_POOLS: Final = "narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0,background_thread:true"
_C_CHOICE: Final = "MALLOC_ARENA_MAX"
_M_ARENA_MAX: Final = -8
_C_POOLS: Final = 2


def give_back() -> None:
    """From now on, for all of this process: best before Arrow and Delta are imported, and again after that.

    What an allocator does not know is left out.
    """
    is_linux = sys.platform == "linux"
    if is_linux:
        _have_few_pools()
    if _ARROWS_CHOICE in os.environ:
        return
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and _FRUGAL in arrow.supported_memory_backends():
        # Not for all of it: Arrow's own functions ask for what the variable said when it was loaded.
        arrow.set_memory_pool(arrow.jemalloc_memory_pool())
    elif arrow is None and is_linux:
        os.environ[_ARROWS_CHOICE] = _FRUGAL


def _have_few_pools() -> None:
    os.environ.setdefault(_DELTAS_CHOICE, _FEW_POOLS)
    if _C_CHOICE not in os.environ:
        with contextlib.suppress(AttributeError, OSError):  # a C library without
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _C_POOLS)
