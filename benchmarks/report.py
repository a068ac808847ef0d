"""Tables that benchmarks print, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any


def table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A plain table: the first column to the left, numbers to the right."""
    print(f"\n{title}")
    if not rows:
        print("  (nothing was measured)")
        return
    columns = list(rows[0])
    cells = [columns] + [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for number, line in enumerate(cells):
        text = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        print("  " + "  ".join(text))
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
