"""Bytes in place of what a run will bring, while a program's calls are written out.

Nobody reads or writes them. The arrays over them that ended up among the calls' arguments are found by their addresses, and a
run puts arrays over its own tensors in their places, laid out alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from gradcore.devices.calls import Call
from gradcore.devices.device import Device
from gradcore.memory.resource import Block
from gradcore.program.program import Operand, Program
from gradcore.spec import TensorSpec

#: Arguments of a call, the position of one, and how it shows the bytes of a buffer.
Place = tuple[list[Any], int, TensorSpec]


class StandIns:
    """The stand-ins of one binding of a program, by buffer."""

    def __init__(self, device: Device, program: Program) -> None:
        self._device = device
        self._blocks: dict[int, Block] = {}
        #: What the program looks at. Borrowed bytes have no size in the books.
        self._sizes: Counter[int] = Counter()
        for x in chain(*(i.operands for i in program.instructions)):
            if isinstance(x, Operand):
                self._sizes[x.buffer] = max(self._sizes[x.buffer], x.spec.extent)

    def array(self, x: Operand) -> Any:
        """What a call takes for an operand meanwhile, or None on a device whose calls are not written out."""
        block = self._blocks.get(x.buffer)
        if block is None:
            block = self._device.stand_in(self._sizes[x.buffer])
            if block is None:
                return None
            self._blocks[x.buffer] = block
        return self._device.array(block, x.spec)

    def hidden(self, calls: Sequence[Call]) -> bool:
        """Does any of the calls hold a stand-in where no run could reach it, in the function itself?"""
        return any(self._spec(x) is not None for function, _ in calls for x in _within(function))

    def places(self, calls: Sequence[Call]) -> dict[int, list[Place]]:
        """By buffer, every place among the calls' arguments that a run has to fill."""
        found: dict[int, list[Place]] = {}
        for _, args in calls if self._blocks else ():
            for at, x in enumerate(args):
                place = self._spec(x)
                if place is not None:
                    buffer, spec = place
                    found.setdefault(buffer, []).append((args, at, spec))
        return found

    def _spec(self, x: Any) -> tuple[int, TensorSpec] | None:
        """The buffer that an array stands for, and how it shows it; None for anything else."""
        if not isinstance(x, np.ndarray) or not x.size:
            return None
        address, size = x.__array_interface__["data"][0], x.itemsize
        for buffer, block in self._blocks.items():
            if block.address <= address < block.address + block.size:
                strides = tuple(s // size for s in x.strides)
                return buffer, TensorSpec.strided(x.shape, x.dtype, strides, (address - block.address) // size)
        return None


def _within(function: Any) -> tuple[Any, ...]:
    """What a function is bound to."""
    if isinstance(function, partial):
        return (*function.args, *function.keywords.values(), *_within(function.func))
    return (getattr(function, "__self__", None),)
