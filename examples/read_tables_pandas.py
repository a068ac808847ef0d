"""Reads selected columns of a loaded table with pandas and `deltalake`.

    python examples/read_tables_pandas.py warehouse views

Needs deltalake, pyarrow and pandas: the table is plain Delta.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("warehouse", help="folder that penstock load writes to")
    parser.add_argument("table")
    options = parser.parse_args()

    path = Path(options.warehouse, options.table).resolve()
    # Without `filesystem`, Arrow's threads read through Python, and may abort a program that ends meanwhile.
    files = SubTreeFileSystem(str(path), LocalFileSystem())
    frame = DeltaTable(path).to_pandas(columns=["_partition", "_offset"], filesystem=files)
    by_partition = frame.groupby("_partition")["_offset"].agg(["count", "max"])
    for partition, (rows, last) in zip(by_partition.index, by_partition.to_numpy(), strict=True):
        sys.stdout.write(f"partition {partition}: {rows} rows, up to offset {last}\n")


if __name__ == "__main__":
    main()
