"""Who of several queries gets Spark's next free task slot.

Rule: two pools. Queries that are asked often are urgent: one slot is theirs whenever they want it, and they are asked
first for the others, so that an alert does not wait for the batch of a ranking. Inside a pool all take turns.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Final

PROPERTY: Final = "spark.scheduler.pool"
URGENT: Final = "urgent"
USUAL: Final = "usual"
_URGENT_UP_TO: Final = timedelta(seconds=2)
_ALLOCATIONS: Final = f"""\
<?xml version="1.0"?>
<allocations>
  <pool name="{URGENT}"><schedulingMode>FAIR</schedulingMode><weight>4</weight><minShare>1</minShare></pool>
  <pool name="{USUAL}"><schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""


def pool_of(trigger: timedelta) -> str:
    return URGENT if trigger <= _URGENT_UP_TO else USUAL


def settings() -> dict[str, str]:
    """For a session. The driver reads the pools from a file, which is made if it is not there."""
    return {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": Path(_file()).as_uri()}


def _file() -> Path:
    place = Path(tempfile.gettempdir(), f"penstock-pools-{os.getuid()}.xml")
    try:
        if place.read_text() == _ALLOCATIONS and place.stat().st_uid == os.getuid():
            return place
    except OSError:
        pass
    number, temporary = tempfile.mkstemp(suffix=".xml")
    with os.fdopen(number, "w") as file:
        file.write(_ALLOCATIONS)
    try:
        os.replace(temporary, place)
    except OSError:
        return Path(temporary)  # Somebody else has a file of that name.
    return place
