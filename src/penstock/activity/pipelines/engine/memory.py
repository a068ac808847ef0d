"""Allocator settings for a process that runs pipelines for weeks: free memory goes back to the system.

Loads, tables and queries use many short-lived threads, and every allocator keeps memory per thread. So Arrow gets
jemalloc, and Delta and the C library get few arenas. This must run before pyarrow and deltalake are loaded: nothing
here may import them. Variables that the user has set are respected.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Final

_ARROWS_CHOICE: Final = "ARROW_DEFAULT_MEMORY_POOL"
_FRUGAL: Final = "jemalloc"
_DELTAS_CHOICE: Final = "_RJEM_MALLOC_CONF"
_FEW_POOLS: Final = "narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0,background_thread:true"
_C_CHOICE: Final = "MALLOC_ARENA_MAX"
_M_ARENA_MAX: Final = -8
_C_POOLS: Final = 2


def give_back() -> None:
    """From now on, for all of this process. Loads Arrow and Delta, if they are installed and were not loaded before.

    What an allocator does not know is left out. Processes that are started later are not concerned.
    """
    if sys.platform == "linux":
        _limit_c_library()
        with _said({_ARROWS_CHOICE: _FRUGAL, _DELTAS_CHOICE: _FEW_POOLS}):
            _load()
    else:
        _load()
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and _ARROWS_CHOICE not in os.environ and _FRUGAL in arrow.supported_memory_backends():
        # If it was loaded before, this is not all of it: its own functions ask for what the variable said then.
        arrow.set_memory_pool(arrow.jemalloc_memory_pool())


def _load() -> None:
    for name in ("pyarrow", "deltalake"):
        with contextlib.suppress(ImportError):  # whoever needs it says so, and what to install
            importlib.import_module(name)


def _limit_c_library() -> None:
    if _C_CHOICE not in os.environ:
        with contextlib.suppress(AttributeError, OSError):  # a C library without
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _C_POOLS)


@contextlib.contextmanager
def _said(variables: Mapping[str, str]) -> Iterator[None]:
    """For the time of loading; what somebody else has said stays."""
    new = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
