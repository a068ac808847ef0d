"""Spark: topics as DataFrames, DataFrames as topics, topics as tables.

Rule: nothing here imports pyspark before it is used, but for the modules that Spark itself loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.decoding import decode

__all__ = ["decode"]


def __getattr__(name: str) -> Any:
    if name != "decode":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.spark.decoding import decode

    return decode
