"""Numbers that every run of a program computes anew, kept in device memory, where captured launches read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.errors import CaptureError

#: From an op's numbers what its kernel is told, field by field.
How = Callable[..., tuple[Any, ...]]
#: Bytes for what one op computes of its numbers.
ROOM = 128


class Moving:
    """An operand that is another number at every run. A kernel that asks for its value would freeze it in a capture."""

    __slots__ = ("block", "at")

    def __init__(self, block: Numbers, at: int) -> None:
        self.block = block
        self.at = at

    def __float__(self) -> float:
        if self.block.frozen:
            raise CaptureError("the kernel asks for the value of a number that changes from run to run, with which a captured "
                               "launch would go on")
        return float(self.block.values[self.at])


class Numbers:
    """What up to ``count`` ops compute of their numbers, ``ROOM`` bytes each from ``address`` on.

    A run writes to :attr:`values` and then calls :meth:`fill`, which makes one copy: ``send(target, source, nbytes)`` puts it
    on the stream of the launch, and has read its source when it returns, as CUDA does with 64 KiB of pageable memory.
    """

    def __init__(self, count: int, address: int, send: Callable[[int, int, int], None]) -> None:
        self.values: list[Any] = []
        #: During a capture: what is not here by now comes too late.
        self.frozen = False
        self._address = address
        self._send = send
        self._staged = np.zeros(count * ROOM, np.uint8)
        #: An op each: where its fields are staged, what computes them, and from which values.
        self._held: list[tuple[Any, How, slice]] = []
        #: Its place, by its first number.
        self._places: dict[int, int] = {}

    def number(self) -> Moving:
        self.values.append(0.0)
        return Moving(self, len(self.values) - 1)

    def hold(self, dtype: Any, how: How, numbers: tuple[Any, ...]) -> np.uint64:
        """The address of ``how(*numbers)``, in which the numbers follow each other, now and at each run."""
        first = numbers[0].at
        place = self._places.get(first)
        if place is None:
            if self.frozen:
                raise CaptureError("a number that changes from run to run was first asked for during the capture")
            place = self._places[first] = len(self._held)
            fields = self._staged[place * ROOM:place * ROOM + dtype.itemsize].view(dtype)
            self._held.append((fields, how, slice(first, first + len(numbers))))
            self._compute(*self._held[place])
            self._send(self._address + place * ROOM, fields.ctypes.data, dtype.itemsize)
        return np.uint64(self._address + place * ROOM)

    def fill(self) -> None:
        """Compute and copy what the next launch will find."""
        if self._held:
            for held in self._held:
                self._compute(*held)
            self._send(self._address, self._staged.ctypes.data, len(self._held) * ROOM)

    def _compute(self, fields: Any, how: How, numbers: slice) -> None:
        fields[0] = how(*map(float, self.values[numbers]))
