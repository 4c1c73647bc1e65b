"""Placeholder memory for the tensors of a run, used while a program's calls are written out.

It is never read or written. The arrays over it that end up among the calls' arguments are found by their addresses, and each
run puts arrays of the same layout over its own tensors in their places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from gradcore.devices.calls import KernelCall
from gradcore.devices.device import Device
from gradcore.memory.resource import Block
from gradcore.program.program import Operand, Program
from gradcore.spec import TensorSpec

#: The argument list of a call, a position in it, and the spec by which the argument views its buffer.
Patch = tuple[list[Any], int, TensorSpec]


class StandIns:
    """The placeholders of one binding of a program, by buffer."""

    def __init__(self, device: Device, program: Program) -> None:
        self._device = device
        self._blocks: dict[int, Block] = {}
        #: By buffer: the bytes up to the last that an instruction reads; the buffer may be much larger.
        self._sizes: Counter[int] = Counter()
        for x in chain(*(i.tensors() for i in program.instructions)):
            self._sizes[x.buffer] = max(self._sizes[x.buffer], x.spec.span[1])

    def array(self, x: Operand) -> Any:
        """A placeholder array for an operand, or None on a device whose calls are not written out."""
        block = self._blocks.get(x.buffer)
        if block is None:
            block = self._device.stand_in(self._sizes[x.buffer])
            if block is None:
                return None
            self._blocks[x.buffer] = block
        return self._device.array(block, x.spec)

    def hidden(self, calls: Sequence[KernelCall]) -> bool:
        """Does any function of the calls hold a placeholder itself, where no run could replace it?"""
        return any(self._spec(x) is not None for function, _ in calls for x in _within(function))

    def patches(self, calls: Sequence[KernelCall]) -> dict[int, list[Patch]]:
        """By buffer, the places among the calls' arguments that a run has to fill."""
        found: dict[int, list[Patch]] = {}
        for _, args in calls if self._blocks else ():
            for at, x in enumerate(args):
                place = self._spec(x)
                if place is not None:
                    buffer, spec = place
                    found.setdefault(buffer, []).append((args, at, spec))
        return found

    def _spec(self, x: Any) -> tuple[int, TensorSpec] | None:
        """The buffer that a placeholder array stands for, and its spec; None for any other object."""
        if not isinstance(x, np.ndarray) or not x.size:
            return None
        address, size = x.__array_interface__["data"][0], x.itemsize
        for buffer, block in self._blocks.items():
            if block.address <= address < block.address + block.size:
                strides = tuple(s // size for s in x.strides)
                return buffer, TensorSpec.strided(x.shape, x.dtype, strides, (address - block.address) // size)
        return None


def _within(function: Any) -> tuple[Any, ...]:
    """The objects that a function is bound to."""
    if isinstance(function, partial):
        return (*function.args, *function.keywords.values(), *_within(function.func))
    return (getattr(function, "__self__", None),)
