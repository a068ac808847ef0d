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

_ARROW_VARIABLE: Final = "ARROW_DEFAULT_MEMORY_POOL"
_JEMALLOC: Final = "jemalloc"
_DELTA_VARIABLE: Final = "_RJEM_MALLOC_CONF"
_FEW_ARENAS: Final = "narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0,background_thread:true"
_C_VARIABLE: Final = "MALLOC_ARENA_MAX"
_M_ARENA_MAX: Final = -8
_C_ARENAS: Final = 2


def limit_allocators() -> None:
    """Applies the settings to this process. Loads Arrow and Delta, if they are installed and not loaded yet.

    Settings that an allocator does not know are skipped. Child processes are not affected.
    """
    if sys.platform == "linux":
        _limit_c_library()
        with _set_variables({_ARROW_VARIABLE: _JEMALLOC, _DELTA_VARIABLE: _FEW_ARENAS}):
            _load()
    else:
        _load()
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and _ARROW_VARIABLE not in os.environ and _JEMALLOC in arrow.supported_memory_backends():
        # If Arrow was loaded before, its own functions keep the pool of that time.
        arrow.set_memory_pool(arrow.jemalloc_memory_pool())


def _load() -> None:
    for name in ("pyarrow", "deltalake"):
        with contextlib.suppress(ImportError):  # reported where it is needed
            importlib.import_module(name)


def _limit_c_library() -> None:
    if _C_VARIABLE not in os.environ:
        with contextlib.suppress(AttributeError, OSError):  # a C library without mallopt
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _C_ARENAS)


@contextlib.contextmanager
def _set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables while libraries are loaded; existing values are kept.

    For C libraries only, not in os.environ: another thread may copy that for a JVM meanwhile.
    """
    new = {name: value for name, value in variables.items() if name not in os.environ}
    for name, value in new.items():
        os.putenv(name, value)
    try:
        yield
    finally:
        for name in new:
            os.unsetenv(name)
