"""Prints tables that fit the terminal."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

#: The most columns of a table in a file or a pipe, which may be read in a window of any width.
_WIDE = 132


def in_color(console: Console) -> bool:
    """Are roles to be told apart by colors? Eight are too few for ten roles, and with ``NO_COLOR`` there are none."""
    return not console.no_color and console.color_system in ("256", "truecolor")


def print_folded(console: Console, names: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[str] = ()) -> None:
    """Print a table, the first column of which is repeated where the others go on below, for lack of width.

    It fits the terminal, or :data:`_WIDE` columns elsewhere, if any two columns do: truncated figures and paths are of no use.
    Columns are aligned to the right, except for those named in ``left``.
    """
    given = console.width
    width = given if console.is_terminal or "COLUMNS" in os.environ else max(given, _WIDE)
    first, count = 1, len(names) - 1
    while first < len(names):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in (names[0], *names[first:first + count]):
            # Longer names than most figures are in two lines.
            head = name.replace(" ", "\n") if len(name) > 12 else name
            table.add_column(head, justify="left" if name in left else "right", vertical="bottom", no_wrap=True)
        for row in rows:
            table.add_row(row[0], *row[first:first + count])
        needed = Measurement.get(console, console.options.update(width=1000), table).maximum
        if count > 1 and needed > width:
            count -= 1
        else:
            console.width = max(given, needed)
            console.print(table)
            console.width = given
            first, count = first + count, len(names) - first - count
