"""Cuts runs of elementwise calls over large arrays into pieces, so that a call finds the last one's results in cache.

Calls are pairs (function, arguments); each element is computed as before, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from gradcore.devices.calls import KernelCall
from gradcore.spec import PIECE

Region = tuple[int, int]


def region(array: np.ndarray[Any, Any]) -> Region:
    """The addresses of the first byte of a contiguous array and of the one past its last."""
    start = array.__array_interface__["data"][0]
    return start, start + array.nbytes


@dataclass(frozen=True)
class _Elementwise:
    """A ufunc's call on contiguous arrays. ``even``: each has the size of the result, or one element."""

    call: KernelCall
    operands: list[Any]
    out: np.ndarray[Any, Any]
    even: bool

    def part(self, start: int, stop: int) -> KernelCall:
        """The call on elements ``start`` to ``stop``."""
        *operands, out = [x.reshape(-1)[start:stop] if isinstance(x, np.ndarray) and x.ndim else x
                          for x in (*self.operands, self.out)]
        function = self.call[0]
        if isinstance(function, partial):
            return partial(function.func, out=out), operands
        return function, [*operands, out]


def elementwise(call: KernelCall) -> _Elementwise | None:
    """The description of a call that computes each element of an array from elements of others; None for other calls."""
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
    # A number that each run writes is expected in this list of arguments.
    if any(type(x) not in (int, float, np.ndarray) for x in operands) or not all(a.flags.c_contiguous for a in arrays):
        return None
    return _Elementwise(call, operands, out, all(not a.ndim or a.shape == out.shape for a in arrays))


@dataclass
class _Run:
    """Consecutive calls: first those that already go over one array in blocks, then those over whole arrays of its size."""

    blocks: list[list[_Elementwise]] = field(default_factory=list)
    whole: list[_Elementwise] = field(default_factory=list)

    def takes(self, found: _Elementwise) -> bool:
        """Append a call if it continues this run; False if it does not."""
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
        """Is each array that is written to either equal to each other array or disjoint from it?"""
        read: set[Region] = set()
        written = {region(x.out) for x in whole}
        for x in whole:
            read |= {region(a) for a in x.operands if isinstance(a, np.ndarray)}
        # The blocks go over an array in sequence.
        for same in zip(*self.blocks, strict=False):
            for arrays in zip(*[(x.out, *x.operands) for x in same], strict=True):
                places = [region(a) for a in arrays if isinstance(a, np.ndarray)]
                if places:
                    (written if arrays[0] is same[0].out else read).add((min(places)[0], max(b for _, b in places)))
        return all(a == w or a[1] <= w[0] or w[1] <= a[0] for w in written for a in read | written)

    def calls(self) -> list[KernelCall]:
        """The run's calls, in pieces if that is faster."""
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


def in_pieces(calls: Sequence[KernelCall]) -> list[KernelCall]:
    """The same calls, with elementwise runs cut into pieces and ordered by piece."""
    made: list[KernelCall] = []
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
