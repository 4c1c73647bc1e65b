"""Numbers that each run of a program computes again, such as learning rates, in device memory for captured launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.errors import CaptureError

#: Computes the fields of a kernel's argument from an op's numbers.
How = Callable[..., tuple[Any, ...]]
#: Bytes for the fields of one op.
ROOM = 128


class Moving:
    """An operand whose value differs in each run. A kernel that reads the value in a capture would make it constant."""

    __slots__ = ("block", "at")

    def __init__(self, block: Numbers, at: int) -> None:
        self.block = block
        self.at = at

    def __float__(self) -> float:
        if self.block.frozen:
            raise CaptureError("the kernel reads a number that changes from run to run: a captured launch would always use the "
                               "captured value")
        return float(self.block.values[self.at])


class Numbers:
    """The fields of up to ``count`` ops, ``ROOM`` bytes each from ``address`` on.

    A run writes to :attr:`values`, and copies what :meth:`computed` returns there, on the stream of the launch. The first time,
    an op's fields are copied by ``send(target, source, nbytes)``, which must have read the source when it returns, as CUDA does
    for up to 64 KiB of pageable memory.
    """

    def __init__(self, count: int, address: int, send: Callable[[int, int, int], None]) -> None:
        self.values: list[Any] = []
        #: True during a capture, when nothing can be added any more.
        self.frozen = False
        self.address = address
        self.nbytes = count * ROOM
        self._send = send
        self._staged = np.zeros(count * ROOM, np.uint8)
        self._bytes = self._staged.data
        #: The values that the staged fields were computed from.
        self._computed: list[Any] = []
        #: For each op: the staging array of its fields, the function that computes them, and the slice of values that it takes.
        self._held: list[tuple[Any, How, slice]] = []
        #: The index of an op by that of its first number.
        self._places: dict[int, int] = {}

    def number(self) -> Moving:
        self.values.append(0.0)
        return Moving(self, len(self.values) - 1)

    def hold(self, dtype: Any, how: How, numbers: tuple[Any, ...]) -> np.uint64:
        """The address of the fields ``how(*numbers)``, updated at each run; the numbers must be consecutive in the table."""
        first = numbers[0].at
        place = self._places.get(first)
        if place is None:
            if self.frozen:
                raise CaptureError("a number that changes from run to run was first used during the capture")
            place = self._places[first] = len(self._held)
            fields = self._staged[place * ROOM:place * ROOM + dtype.itemsize].view(dtype)
            self._held.append((fields, how, slice(first, first + len(numbers))))
            self._compute(*self._held[place])
            self._send(self.address + place * ROOM, fields.ctypes.data, dtype.itemsize)
        return np.uint64(self.address + place * ROOM)

    def computed(self) -> memoryview:
        """The bytes of all fields, from :attr:`values`."""
        if self.values != self._computed:
            # If one cannot be computed, others have been.
            self._computed = []
            for held in self._held:
                self._compute(*held)
            self._computed = [*self.values]
        return self._bytes

    def _compute(self, fields: Any, how: How, numbers: slice) -> None:
        fields[0] = how(*map(float, self.values[numbers]))
