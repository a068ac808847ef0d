"""Memory of the process that runs pipelines for weeks: what is free goes back to the system.

Rule: Arrow's own default keeps, for each thread that ever had some, what that thread has let go of; and loads, tables
and queries are many threads that come and go. Another of its allocators gives back what is not used after a moment.
Whoever has chosen one by ARROW_DEFAULT_MEMORY_POOL keeps it.
"""

from __future__ import annotations

import os
from typing import Final

_CHOSEN: Final = "ARROW_DEFAULT_MEMORY_POOL"
_FRUGAL: Final = "jemalloc"


def give_back() -> None:
    """From now on, for all of this process; where Arrow was built without such an allocator nothing is changed."""
    import pyarrow as pa

    if _CHOSEN not in os.environ and _FRUGAL in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
