"""Spark: topics as DataFrames, DataFrames as topics, topics as tables.

Importing this package sets PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to the Python of the program (see `environment`),
so that a plain SparkSession finds `format("penstock")`. pyspark itself is imported only where it is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.spark import environment

if TYPE_CHECKING:
    from penstock.spark.formats.decoder import decode

__all__ = ["decode"]


def __getattr__(name: str) -> Any:
    if name != "decode":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.spark.formats.decoder import decode

    return decode


environment.set_python_variables(os.environ)
environment.fix_active_session()
