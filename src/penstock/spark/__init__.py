"""Spark: topics as DataFrames, DataFrames as topics, topics as tables.

Importing this package names the Python of the program as the one that Spark starts (see `interpreter`), so that a plain
SparkSession finds `format("penstock")`. Nothing here imports pyspark before it is used, but for the modules that Spark
itself loads.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.spark import interpreter

if TYPE_CHECKING:
    from penstock.spark.decoding import decode

__all__ = ["decode"]


def __getattr__(name: str) -> Any:
    if name != "decode":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.spark.decoding import decode

    return decode


interpreter.choose(os.environ)
interpreter.cure_active_session()
