"""Groups bytes by what made them: by role, layer, op or line of source, and in rows that equal blocks of a network share."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from gradcore import folds
from gradcore.events import Tag

T = TypeVar("T", bound=Hashable)
#: A function from a tag and a role to the name of an owner.
Key = Callable[[Tag, str], str]
#: Tells by serial what in the program holds buffers.
Who = Callable[[Iterable[int]], Mapping[int, str]]
#: A buffer in words: its layer, what it is (as ``output of relu in``), where it was made, its bytes and its serial.
Buffer = tuple[str, str, str, int, int]

#: The groupings of bytes.
BY: dict[str, Key] = {"role": lambda tag, role: role, "layer": lambda tag, role: tag.layer, "op": lambda tag, role: tag.op,
                      "line": lambda tag, role: tag.site.full}


def by_owner(holders: Iterable[folds.Holder], shown: Callable[[str], str] = str) -> dict[str, dict[str, int]]:
    """Allocated bytes of ``holders`` in each grouping of :data:`BY`, the most first; ``shown`` shortens the path of a line."""
    found, sums = list(holders), {}
    for group, key in BY.items():
        name = (lambda h: shown(h.tag.site.full)) if group == "line" else (lambda h, key=key: key(h.tag, h.role))
        sums[group] = folds.total(found, name)
    return sums


def largest(buffers: Iterable[Buffer], most: int, who: Who | None) -> tuple[int, list[str]]:
    """How many owners hold most bytes, ``most`` at most, and lines for them, with what ``who`` says of the largest buffer of
    each, and one for the rest.

    Layers of more than ``most`` share a line if they hold as much alike.
    """
    held: dict[tuple[str, tuple[str, str]], tuple[int, int]] = {}
    first: dict[tuple[str, tuple[str, str]], tuple[int, int]] = {}
    for layer, what, where, nbytes, serial in buffers:
        key = layer or "(root)", (what, where)
        total, count = held.get(key, (0, 0))
        held[key] = total + nbytes, count + 1
        first[key] = min((-nbytes, serial), first.get(key, (1, 0)))
    serials = [serial for _, serial in first.values()]
    rows = sorted(((nbytes * len(places), said, layer, count * len(places), serials[places[0]])
                   for layer, (said, (nbytes, count)), places in
                   alike([(layer, (said, sums)) for (layer, said), sums in held.items()], most)),
                  key=lambda row: (-row[0], str(row[1]), row[2]))
    names = {} if who is None else who([serial for *_, serial in rows[:most]])
    lines = []
    for nbytes, (what, where), layer, count, serial in rows[:most]:
        several = f" ({count:,} buffers)" if count > 1 else ""
        lines.append(f"  {nbytes:>15,} bytes  {what} {layer}, {where}{several}")
        if serial in names:
            lines.append(f"{'':25}held by {names[serial]}")
    if len(rows) > most:
        lines.append(f"  {sum(nbytes for nbytes, *_ in rows[most:]):>15,} bytes  in {len(rows) - most} more")
    return min(len(rows), most), lines


# -- rows of equal blocks ----------------------------------------------------------------------------------------------


def together(rows: Iterable[tuple[str, T]]) -> list[tuple[str, T, list[str]]]:
    """Layers whose paths differ in one number, and whose values are equal, as one row, with the paths of all of them.

    ``h.0.mlp`` to ``h.5.mlp`` are ``h.0-5.mlp``: a network of many equal blocks takes as many rows as one block. So do equal
    networks: ``Head#1`` to ``Head#8`` are ``Head#1-8``.
    """
    # Every second part is what stands between two of them.
    merged = [(re.split(r"([.#])", name), value, [name]) for name, value in rows]
    for at in range(max((len(path) for path, _, _ in merged), default=0)):
        alike: dict[object, list[tuple[list[str], T, list[str]]]] = {}
        for row in merged:
            path, value, _ = row
            # A path of numbers alone, as in a plain Sequential, says nothing without them.
            numbered = at < len(path) and path[at].isdecimal() and not all(part.isdecimal() for part in path[::2])
            alike.setdefault((*path[:at], None, *path[at + 1:], value) if numbered else id(row), []).append(row)
        merged = [group[0] if len(group) == 1 else (
            [*group[0][0][:at], _ranges(int(path[at]) for path, _, _ in group), *group[0][0][at + 1:]], group[0][1],
            [name for _, _, names in group for name in names]) for group in alike.values()]
    return [("".join(path), value, names) for path, value, names in merged]


def alike(rows: Sequence[tuple[str, T]], most: int) -> list[tuple[str, T, list[int]]]:
    """Rows of a layer and a value, with their places.

    Where there are more than ``most``, those that are equal, or equal in equal blocks as in :func:`together`, are one row.
    """
    if len(rows) <= most:
        return [(layer, value, [place]) for place, (layer, value) in enumerate(rows)]
    places: dict[tuple[str, T], list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row, []).append(place)
    merged = together((layer, (value, len(found))) for (layer, value), found in places.items())
    return [(name, value, [place for layer in layers for place in places[layer, value]]) for name, (value, _), layers in merged]


def _ranges(numbers: Iterable[int]) -> str:
    """``0-2,5`` for 0, 1, 2 and 5."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][-1] == n - 1:
            runs[-1][1:] = [n]
        else:
            runs.append([n])
    return ",".join("-".join(map(str, run)) for run in runs)
