"""Draws a memory plan, address against time, as an SVG or as text for a terminal.

Time is counted in instructions. A buffer is a rectangle from the instruction that makes it to the last that reads it, as high
as its bytes; if a result of that last instruction takes its place, it ends one instruction earlier.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from rich.text import Text

from gradcore.program.planning.plan import Plan
from gradcore.program.program import Buffer, Program
from gradcore.reading import short_path
from gradcore.report.files import write_whole
from gradcore.report.text import axis
from gradcore.report.timeline import COLORS
from gradcore.spec import round_up
from gradcore.units import count_of, format_bytes

#: The character for a role; roles that live longest are the darkest.
_MARKS = {"residual": "█", "gradient": "▓", "temporary": "▒", "workspace": "░"}
_OTHER = "▪"
#: Pixels: the whole picture, and the margins around its plot.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000, 560, 90, 20, 64, 46
#: Characters that XML does not allow, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Box:
    """A buffer in the picture: alive from the beginning of instruction ``first`` to the beginning of ``end``.

    ``heir`` names the buffer that takes its place at ``end``, "" for none.
    """

    buffer: Buffer
    role: str
    first: int
    end: int
    offset: int
    nbytes: int
    heir: str = ""


def boxes(program: Program, found: Plan) -> list[Box]:
    """The buffers that a program makes and that live during its run. One made in forward and read in backward is a residual."""
    count = len(program.instructions)
    heirs = {place: program.buffers[b].name for b, places in found.overwritten.items() for place in places}
    result = []
    for b in program.made():
        first, last = max(b.first, 0), min(b.last, count - 1)
        heir = heirs.get(b.index, "") if b.last < count else ""
        end = last if heir else last + 1
        if first < end:
            kept = b.tag.phase != "backward" and b.last < count and program.instructions[last].tag.phase == "backward"
            role = "residual" if kept and b.tag.role in ("output", "temporary") else b.tag.role
            result.append(Box(b, role, first, end, found.offsets[b.index], round_up(b.nbytes), heir))
    return result


def phases(program: Program) -> list[tuple[str, int, int]]:
    """Runs of instructions of one phase: its name, the first of them, and where the next run begins."""
    names = [i.tag.phase for i in program.instructions]
    starts = [k for k in range(len(names)) if k == 0 or names[k] != names[k - 1]]
    return [(names[a], a, b) for a, b in pairwise([*starts, len(names)])]


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)


def _safe(text: str) -> str:
    return escape(_clean(text), {'"': "&quot;"})


def _words(box: Box) -> str:
    tag = box.buffer.tag
    heir = f"; {box.heir} takes its place" if box.heir else ""
    spec = f"{tag.spec}, " if tag.spec is not None else ""
    return (f"{box.buffer.name}: {box.role} of {tag.op} in {tag.layer or '(root)'}, {tag.phase}\n{short_path(str(tag.site))}\n"
            f"{spec}{box.buffer.nbytes:,} bytes at {box.offset:,}\ninstructions {box.first} to {box.end - 1}{heir}")


def drawn(program: Program, found: Plan, path: str | os.PathLike[str] | None = None) -> Text:
    """A plan as text; with a ``path`` the SVG is also written there. Raises OSError, and ValueError if it is no SVG's."""
    if path is not None:
        if Path(path).suffix.lower() not in ("", ".svg"):
            raise ValueError(f"a plan is drawn as SVG: expected a path that ends with .svg, but got {os.fspath(path)!r}")
        write_whole(path, draw(program, found).encode())
    return sketch(program, found)


# -- the SVG -----------------------------------------------------------------------------------------------------------


def draw(program: Program, found: Plan) -> str:
    """The plan ``found`` of a program as a self-contained SVG: a rectangle for each buffer.

    Addresses (bytes) go up, time (instructions) goes right; a dashed line marks the lower bound. Hovering names a buffer.
    """
    count, top = max(len(program.instructions), 1), max(found.nbytes, found.bound, 1)

    def x(moment: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * moment / count

    def y(address: int) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * address / top

    there = boxes(program, found)
    over = f", {found.nbytes / found.bound - 1:.1%} above the lower bound" if found.bound else ""
    title = f"{count_of(len(there), 'buffer')} in {found.nbytes:,} bytes{over}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<path d="M0 0H{_WIDTH}V{_HEIGHT}H0Z" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{_safe(title)}</text>']
    for name, start, stop in phases(program):
        lines.append(f'<path d="M{x(start):.1f} {_TOP}V{y(0):.1f}" stroke="#ccc"/>')
        if x(stop) - x(start) > 60:
            lines.append(f'<text x="{x(start) + 4:.1f}" y="{_TOP - 6}" fill="#555">{_safe(name)}</text>')
    for box in there:
        lines.append(
            f'<rect x="{x(box.first):.1f}" y="{y(box.offset + box.nbytes):.1f}" width="{x(box.end) - x(box.first):.1f}" '
            f'height="{y(box.offset) - y(box.offset + box.nbytes):.1f}" fill="{_color(box.role)}" '
            f'stroke="#fff" stroke-width="0.5"><title>{_safe(_words(box))}</title></rect>')
    lines += [
        *_axes(count, top, x, y), *_legend(there),
        f'<path d="M{_LEFT} {y(found.bound):.1f}H{_WIDTH - _RIGHT}" stroke="#000" stroke-dasharray="6 4"/>',
        f'<text x="{_WIDTH - _RIGHT}" y="18" text-anchor="end">lower bound {found.bound:,} bytes (dashed)</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def _steps(most: int, wanted: int, base: int) -> range:
    """About ``wanted`` round numbers from 0 to ``most``: 1, 2 or 5 times a power of ``base`` apart, or powers of 2."""
    return range(0, most + 1, next(step for step in _factors(base) if most / step <= wanted))


def _factors(base: int) -> Iterator[int]:
    power = 1
    while True:
        yield from ((power,) if base == 2 else (power, 2 * power, 5 * power))
        power *= base


def _axes(count: int, top: int, x: Callable[[int], float], y: Callable[[int], float]) -> Iterator[str]:
    yield f'<path d="M{_LEFT} {_TOP}V{y(0):.1f}H{_WIDTH - _RIGHT}" fill="none" stroke="#000"/>'
    for address in _steps(top, 8, 2):
        yield f'<path d="M{_LEFT - 4} {y(address):.1f}h4" stroke="#000"/>'
        yield f'<text x="{_LEFT - 8}" y="{y(address) + 4:.1f}" text-anchor="end">{format_bytes(address)}</text>'
    for moment in _steps(count, 12, 10):
        yield f'<path d="M{x(moment):.1f} {y(0):.1f}v4" stroke="#000"/>'
        yield f'<text x="{x(moment):.1f}" y="{y(0) + 17:.1f}" text-anchor="middle">{moment}</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">time, in instructions</text>'
    yield f'<text x="14" y="{(_TOP + y(0)) / 2:.1f}" text-anchor="middle" transform="rotate(-90 14 {(_TOP + y(0)) / 2:.1f})">' \
          "address in the arena</text>"


def _color(role: str) -> str:
    return COLORS.get(role, "#999999")


def _roles(there: list[Box]) -> list[str]:
    roles = {box.role for box in there}
    return [role for role in COLORS if role in roles] + sorted(roles - COLORS.keys())


def _legend(there: list[Box]) -> Iterator[str]:
    at = _LEFT
    for role in _roles(there):
        yield f'<path d="M{at} 30h12v12h-12z" fill="{_color(role)}"/>'
        yield f'<text x="{at + 17}" y="40">{_safe(role)}</text>'
        at += 40 + 7 * len(role)


# -- a terminal --------------------------------------------------------------------------------------------------------


def sketch(program: Program, found: Plan, *, width: int = 80, height: int = 20) -> Text:
    """The same picture as text, for ``rich`` or for ``print``.

    A cell that is at least half covered shows the role that covers most of it. Lines are at most ``width`` columns. Raises
    ValueError for fewer than 64 columns or 4 lines.
    """
    if width < 64 or height < 4:
        raise ValueError(f"a plan is drawn in at least 64 columns and 4 lines, but got {width} and {height}")
    count, top = max(len(program.instructions), 1), max(found.nbytes, found.bound, 1)
    there = boxes(program, found)
    columns = width - 12
    cells = _covered(there, columns / count, columns, height / top, height)
    bound = min(int(found.bound * height / top), height - 1)
    text = Text(no_wrap=True)
    for row in reversed(range(height)):
        # Rows with a label: an address at the top, in the middle and at the bottom, and the bound unless it is at the top.
        named = {height - 1: top, height // 2: top * (height // 2) // height, 0: 0}
        label = "bound" if row == bound < height - 1 else format_bytes(named[row]) if row in named else ""
        text.append(f"{label:>10} ┤" if label else f"{'':11}│")
        for column in range(columns):
            shares = cells.get((column, row), {})
            if sum(shares.values()) < 0.5:
                text.append(" ")
            else:
                role = max(shares, key=lambda role: shares[role])
                text.append(_MARKS.get(role, _OTHER), style=_color(role))
        text.append("\n")
    below, names = axis(_along(program, columns, count), columns, "─", "┬")
    text.append(f"{'':11}└{below}\n{'':12}{names}\n")
    end = count_of(count, "instruction")
    text.append(f"{'':12}0{end:>{columns - 1}}\n")
    room = width
    for role in _roles(there):
        entry = f"{_MARKS.get(role, _OTHER)} {_clean(role)}  "
        text.append("\n" if room < len(entry) <= width else "")
        room = (width if room < len(entry) else room) - len(entry)
        text.append(entry, style=_color(role))
    given = sum(bool(box.heir) for box in there)
    places = f" ({len(there) - given} places)" if given else ""
    text.append(f"\n{count_of(len(there), 'buffer')}{places}, arena {found.nbytes:,} bytes, lower bound {found.bound:,}")
    lines = text.split("\n")
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


def _covered(there: list[Box], wide: float, columns: int, high: float, rows: int) -> dict[tuple[int, int], dict[str, float]]:
    """By cell (column, row): the share of its area that each role covers."""
    cells: dict[tuple[int, int], dict[str, float]] = {}
    for box in there:
        left, right, low, above = box.first * wide, box.end * wide, box.offset * high, (box.offset + box.nbytes) * high
        for column in range(int(left), min(int(right) + 1, columns)):
            for row in range(int(low), min(int(above) + 1, rows)):
                share = (min(right, column + 1) - max(left, column)) * (min(above, row + 1) - max(low, row))
                if share > 0:
                    cell = cells.setdefault((column, row), {})
                    cell[box.role] = cell.get(box.role, 0.0) + share
    return cells


def _along(program: Program, columns: int, count: int) -> Iterator[tuple[str, int]]:
    """The names of phases that are as wide as their names, and of the last, and the columns where they begin."""
    for name, start, stop in phases(program):
        if len(name) < ((stop - start) * columns // count if stop < count else columns):
            yield _clean(name), start * columns // count
