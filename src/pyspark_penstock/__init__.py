"""Registers the data source `penstock`: Spark looks for modules of this name's form, and for this class in them."""

from __future__ import annotations

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
