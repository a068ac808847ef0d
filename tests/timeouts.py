"""How tests wait: for an event, never for a time.

A test waits long enough that only an event that never happens exceeds the limit, even on a busy machine. The limit is
below pytest's for a test (300 s), so a wait that fails ends with its reason. Benchmarks measure how fast something is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 120
PATIENCE_MS: Final = PATIENCE_S * 1000
NEVER_MS: Final = 600_000  # above the limit of pytest: a test that ends has not waited for it

_LOOK_AGAIN_S: Final = 0.005


def until(is_so: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """Look again until it is so; for what happens in another thread or process."""
    deadline_s = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {within_s} s: {what}")
        time.sleep(_LOOK_AGAIN_S)


async def until_async(is_so: Callable[[], object], what: str) -> None:
    """Look again until it is so; for what happens on the same event loop, or beside it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {PATIENCE_S} s: {what}")
        await asyncio.sleep(_LOOK_AGAIN_S)
