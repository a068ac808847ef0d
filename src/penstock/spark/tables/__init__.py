"""Topics as tables of a warehouse, loaded exactly once.

    from penstock.spark.tables import Warehouse, create, from_toml, load

    warehouse = Warehouse("warehouse")
    create(warehouse, from_toml("views.toml"), "localhost:9092")
    load(warehouse, "views", "localhost:9092", spark=spark)

Executors write Parquet files into the table's folder; the driver commits them to a Delta table together with the
offsets they hold. There is no other state. `loader` has the loads, `delta` the commits, `value_decoder` the formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.errors import MissingDependency

try:
    import pyarrow  # noqa: F401
except ImportError as error:
    raise MissingDependency("pyarrow", "loading tables", "spark") from error

from penstock.spark.tables.declaration import Table, from_mapping, from_toml
from penstock.spark.tables.loader import Limits, Loader, LoadReport
from penstock.spark.tables.warehouse import OpenTable, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Limits",
    "LoadReport",
    "Loader",
    "OpenTable",
    "Table",
    "Warehouse",
    "create",
    "from_mapping",
    "from_toml",
    "load",
]


def create(warehouse: Warehouse, table: Table, bootstrap: str) -> OpenTable:
    """Creates a table for an existing topic. Nothing is loaded yet."""
    from penstock.client.admin import Admin
    from penstock.spark.tables.load_plan import log_state
    from penstock.spark.tables.loader import reader_options
    from penstock.spark.tables.schema_evolution import sample_columns

    reader = reader_options(bootstrap, table.topic, table.options)
    with Admin(bootstrap) as admin:
        state = log_state(admin, table.topic, table.isolation)
    return warehouse.create(table, state, lambda: sample_columns(table, state, bootstrap, reader))


def load(
    warehouse: Warehouse, name: str, bootstrap: str, *, spark: SparkSession | None = None, limits: Limits | None = None
) -> LoadReport:
    """Loads what is new since the last load, on Spark's executors or, without a session, in this process."""
    from penstock.client.admin import Admin
    from penstock.spark.tables.runner import LocalRunner, SparkRunner

    runner = LocalRunner() if spark is None else SparkRunner(spark)
    with Admin(bootstrap) as admin:
        return Loader(warehouse.open(name), admin, bootstrap, runner, limits=limits).load_new()
