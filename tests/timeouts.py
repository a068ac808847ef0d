"""How tests wait: for an event, never for a time.

A test that waits is patient for so long that only something that never happens uses it up, also on a busy machine. The
patience is below the limit of pytest for a test (300 s), so a wait in vain ends with its reason. How fast something is,
benchmarks measure.
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
