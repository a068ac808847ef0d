"""Reads a loaded table with Polars: a lazy query that reads only the columns and files it needs.

    python examples/read_tables_polars.py warehouse views

Needs `pip install polars deltalake`; the table is plain Delta.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import polars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("warehouse", help="folder that penstock load writes to")
    parser.add_argument("table")
    options = parser.parse_args()

    views = polars.scan_delta(str(Path(options.warehouse, options.table)))
    by_partition = (
        views.filter(polars.col("_offset") >= 0)
        .group_by("_partition")
        .agg(polars.len().alias("rows"), polars.col("_offset").max().alias("last"))
        .sort("_partition")
    )
    for partition, rows, last in by_partition.collect().iter_rows():
        sys.stdout.write(f"partition {partition}: {rows} rows, up to offset {last}\n")


if __name__ == "__main__":
    main()
