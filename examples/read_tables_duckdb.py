"""Reads a loaded table with DuckDB, without DuckDB's delta extension, which it would have to download.

    python examples/read_tables_duckdb.py warehouse views

`deltalake` lists the files of the table; DuckDB reads from them, as an Arrow dataset, only what the query needs. With
the extension, `SELECT ... FROM delta_scan('warehouse/views')` does the same. Needs duckdb, deltalake and pyarrow.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import duckdb
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

QUERY = """
    SELECT _partition, count(*) AS rows, max(_offset) AS last
    FROM views WHERE _offset >= 0 GROUP BY _partition ORDER BY _partition
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("warehouse", help="folder that penstock load writes to")
    parser.add_argument("table")
    options = parser.parse_args()

    path = Path(options.warehouse, options.table).resolve()
    # Without `filesystem`, Arrow's threads read through Python, and may abort a program that ends meanwhile.
    files = SubTreeFileSystem(str(path), LocalFileSystem())
    dataset = DeltaTable(path).to_pyarrow_dataset(filesystem=files)
    with duckdb.connect() as database:
        database.register("views", dataset)
        for partition, rows, last in database.execute(QUERY).fetchall():
            sys.stdout.write(f"partition {partition}: {rows} rows, up to offset {last}\n")


if __name__ == "__main__":
    main()
