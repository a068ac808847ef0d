"""PYTHONSTARTUP of Spark's Python shell: registers the data source, then runs the user's own startup file."""

from __future__ import annotations

import os
from pathlib import Path


def begin(spark: object) -> str | None:
    """Registers the data source; returns the text of the user's PYTHONSTARTUP, if any."""
    from typing import Any, cast

    from penstock.spark.session import finish

    finish(cast(Any, spark))
    theirs = os.environ.get("PENSTOCK_PYTHONSTARTUP")
    if not theirs or not Path(theirs).is_file():
        return None
    return Path(theirs).read_text()


# Spark runs this file in the namespace of the shell, which has the session.
if "spark" in globals():
    _theirs = begin(globals()["spark"])
    if _theirs is not None:
        exec(_theirs)
    del _theirs
