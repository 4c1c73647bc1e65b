"""Draws the timeline of a step in a terminal, as columns of block characters stacked by role."""

from __future__ import annotations

from itertools import groupby

from rich.text import Text

from gradcore.report.recording import Recording
from gradcore.report.text import axis, has_blocks
from gradcore.report.timeline import COLORS, ROLE_ORDER, Column, columns, phases, stacking
from gradcore.units import format_bytes

#: The letter for each role on terminals without colors.
LETTERS = dict(zip(ROLE_ORDER, "PBSGIROTWCH", strict=True))
_UNKNOWN = "?"


def block_plot(recording: Recording, *, width: int = 72, height: int = 12, color: bool = True) -> Text:
    """Live bytes over the step, stacked by role, with its peak marked and a legend of the peak's bytes.

    Each column shows that one of its records after which most bytes are live. Without color a cell is its role's letter.
    Raises ValueError for a recording without records.
    """
    shown = columns(recording.records, "role", width)
    if not shown:
        raise ValueError("the recording has no records to plot")
    names = stacking(shown, "role")
    at = next(i for i, c in enumerate(shown) if c.peak)
    top = shown[at].allocated
    mark, side, corner, floor, tick = "▼│└─┬" if has_blocks() else "v|+-+"
    peak = f"peak {format_bytes(top)}"
    # On the side of the mark where the plot has room: behind the last column it would be wrapped on a terminal.
    left = at + 2 + len(peak) > len(shown) and len(peak) < at + 12
    text = Text(f"{peak + ' ' + mark:>{13 + at}}\n" if left else f"{' ' * (12 + at)}{mark} {peak}\n")
    for row in range(height, 0, -1):
        label = format_bytes(top * row / height) if row in (height, (height + 1) // 2) else ""
        text.append(f"{label:>10} {side}")
        cells = [_cell(c, names, top / height * (row - 1), top / height, color) for c in shown]
        for style, run in groupby(cells, key=lambda cell: cell[1]):
            text.append("".join(character for character, _ in run), style=style)
        text.append("\n")
    begins = ((label, next((i for i, c in enumerate(shown) if c.position >= position), len(shown) - 1))
              for label, position in phases(recording.records))
    below, labels = axis(begins, len(shown), floor, tick)
    text.append(f"{'0 B':>10} {corner}{below}\n{' ' * 12}{labels}\n")
    for name in reversed(names):
        nbytes = shown[at].sums.get(name, 0)
        text.append("  ■ " if color else f"  {LETTERS.get(name, _UNKNOWN)} ", style=COLORS.get(name) if color else None)
        text.append(f"{name:16}{nbytes:>15,}{nbytes / top:8.1%}\n")
    return text


def _cell(column: Column, names: list[str], low: float, size: float, color: bool) -> tuple[str, str | None]:
    """A character, as high as the column fills the cell, and the color of the role at the middle of the filled part."""
    filled = min((column.allocated - low) / size, 1.0) if size else 0.0
    eighths = round(filled * 8)
    if eighths <= 0:
        return " ", None
    middle, reached, owner = low + filled * size / 2, 0, ""
    for owner in names:
        reached += column.sums.get(owner, 0)
        if reached > middle:
            break
    return (" ▁▂▃▄▅▆▇█"[eighths], COLORS.get(owner)) if color else (LETTERS.get(owner, _UNKNOWN), None)
