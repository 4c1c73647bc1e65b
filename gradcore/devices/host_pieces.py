"""Runs of elementwise calls over large arrays, piece by piece: what one call leaves in a core's cache the next finds there.

Calls come in and go out as (function, arguments); each element is computed as before, so its bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from gradcore.devices.calls import Call
from gradcore.spec import PIECE

Region = tuple[int, int]


def region(array: np.ndarray[Any, Any]) -> Region:
    """The first byte of a contiguous array, and the one behind its last."""
    start = array.__array_interface__["data"][0]
    return start, start + array.nbytes


@dataclass(frozen=True)
class _Elementwise:
    """A ufunc's call on contiguous arrays. ``even`` says that all of them are as large as the result, or have one element."""

    call: Call
    operands: list[Any]
    out: np.ndarray[Any, Any]
    even: bool

    def part(self, start: int, stop: int) -> Call:
        """The call on elements ``start`` to ``stop``."""
        *operands, out = [x.reshape(-1)[start:stop] if isinstance(x, np.ndarray) and x.ndim else x
                          for x in (*self.operands, self.out)]
        function = self.call[0]
        if isinstance(function, partial):
            return partial(function.func, out=out), operands
        return function, [*operands, out]


def elementwise(call: Call) -> _Elementwise | None:
    """What is known of a call that computes each element of one array from elements of others; None for any other."""
    function, args = call
    if isinstance(function, partial) and isinstance(function.func, np.ufunc) and function.keywords.keys() == {"out"}:
        ufunc, operands, out = function.func, args, function.keywords["out"]
    elif isinstance(function, np.ufunc) and len(args) == function.nargs:
        ufunc, operands, out = function, args[:-1], args[-1]
    else:
        return None
    arrays = [x for x in (*operands, out) if isinstance(x, np.ndarray)]
    if ufunc.signature is not None or ufunc.nout != 1 or not isinstance(out, np.ndarray) or not out.ndim:
        return None
    # A number that a run brings is looked for in this very list of arguments.
    if any(type(x) not in (int, float, np.ndarray) for x in operands) or not all(a.flags.c_contiguous for a in arrays):
        return None
    return _Elementwise(call, operands, out, all(not a.ndim or a.shape == out.shape for a in arrays))


@dataclass
class _Run:
    """Calls in order: those that already go block by block over one array, then those that go over whole arrays of its size."""

    blocks: list[list[_Elementwise]] = field(default_factory=list)
    whole: list[_Elementwise] = field(default_factory=list)

    def takes(self, found: _Elementwise) -> bool:
        """Take a call if it goes on with this run."""
        if found.even:
            if not self.blocks and not self.whole:
                fits = found.out.size > PIECE
            else:
                fits = found.out.size == (self.whole[0].out.size if self.whole else sum(b[0].out.size for b in self.blocks))
            if fits and self._apart([*self.whole, found]):
                self.whole.append(found)
                return True
            return False
        if self.whole:
            return False
        if self.blocks and region(self.blocks[-1][0].out) == region(found.out):
            self.blocks[-1].append(found)
        elif not self.blocks or region(self.blocks[-1][0].out)[1] == region(found.out)[0]:
            self.blocks.append([found])
        else:
            return False
        return True

    def _apart(self, whole: Sequence[_Elementwise]) -> bool:
        """Is each array that is written to either the same as another one or somewhere else?"""
        read: set[Region] = set()
        written = {region(x.out) for x in whole}
        for x in whole:
            read |= {region(a) for a in x.operands if isinstance(a, np.ndarray)}
        # What the blocks go over is one array after the other.
        for same in zip(*self.blocks, strict=False):
            for arrays in zip(*[(x.out, *x.operands) for x in same], strict=True):
                places = [region(a) for a in arrays if isinstance(a, np.ndarray)]
                if places:
                    (written if arrays[0] is same[0].out else read).add((min(places)[0], max(b for _, b in places)))
        return all(a == w or a[1] <= w[0] or w[1] <= a[0] for w in written for a in read | written)

    def calls(self) -> list[Call]:
        """The run's calls, piece by piece where there is something to gain."""
        if len(self.whole) + bool(self.blocks) < 2 or not self.whole:
            return [x.call for x in (*chain(*self.blocks), *self.whole)]
        size = self.whole[0].out.size
        blocks = self.blocks or [[] for _ in range(0, size, PIECE)]
        made, start = [], 0
        for block in blocks:
            stop = start + (block[0].out.size if block else min(PIECE, size - start))
            made += [x.call for x in block] + [x.part(start, stop) for x in self.whole]
            start = stop
        return made


def in_pieces(calls: Sequence[Call]) -> list[Call]:
    """The same calls, those of elementwise runs cut into pieces and put in order of the pieces."""
    made: list[Call] = []
    run = _Run()
    for call in calls:
        found = elementwise(call)
        if found is not None and run.takes(found):
            continue
        made += run.calls()
        run = _Run()
        if found is None or not run.takes(found):
            made.append(call)
    return made + run.calls()
