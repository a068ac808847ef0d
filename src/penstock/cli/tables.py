"""Tables for people: columns as wide as what is in them, a space between, numbers to the right.

Rule: a table is lines of text like any other output: not wrapped, no frames, so that `grep` and `awk` work on it. Cells
never pass control characters on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.cli.output import Output, printable

_GAP = "  "


def show_table(output: Output, titles: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> None:
    """Rows under titles; a column whose cells are all numbers, or "-", is set to the right. No rows, no output."""
    cells = [[_text(cell) for cell in row] for row in rows]
    if not cells:
        return
    values = [[_is_number(cell) for cell in column] for column in zip(*cells, strict=True)]
    numeric = [all(number is not False for number in column) and any(column) for column in values]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    output.line(indent + output.style(_line(titles, widths, numeric), bold=True))
    for row in cells:
        output.line(indent + _line(row, widths, numeric))


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    )
    return _GAP.join(parts).rstrip()


def _text(cell: object) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, list | tuple):
        return ",".join(map(str, cell)) or "-"
    return printable(str(cell))


def _is_number(cell: str) -> bool | None:
    """None for a cell that says nothing."""
    if cell == "-":
        return None
    return cell.lstrip("+-").replace(",", "").replace(".", "", 1).isdigit() and not cell.startswith(",")
