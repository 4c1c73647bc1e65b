"""Writes GPU kernels out as the launches that they make, which are repeated on other arrays without the kernels' Python code.

Kernels read shapes, layouts and alignment, never values, so an op on given specs makes the same launches each time except for
addresses. These are found by two dry runs on arrays with made-up addresses, different in each run: what differs between the
runs is an address. It reduces some 10 microseconds of host time to two; docs/cuda.md has the figures.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np
from cupy.cuda import memory

from gradcore.devices.gpu import launch as gl
from gradcore.devices.precision import rounded
from gradcore.events import WRITTEN

#: The most combinations of numbers and alignments that a kernel remembers, and the most operands of a kernel to write out.
_MOST, _WIDEST = 64, 32
#: The bits of an address that decide how kernels read it: blocks of the pool begin at multiples of 512.
_PLACE = 511
#: Bytes between the made-up addresses of neighboring arrays in the first dry run, and the increase of that in the second: both
#: are larger than an array.
_APART, _FARTHER = 1 << 48, 1 << 32
_ndarray = cupy.ndarray


def again(kernel: Callable[..., Any], any_strides: bool = False) -> Callable[..., Any]:
    """The kernel of a call, with its launches written out when the same numbers and alignments occur for the second time.

    The arrays, or None in place of one, must have the same shapes, strides and dtypes at each call; with ``any_strides``, as of
    an op that may write its results into that of a ``cat``, the same shapes and dtypes.
    """
    known: dict[tuple[Any, ...], Callable[..., None] | bool] = {}

    @functools.wraps(kernel, updated=())
    def launch(*operands: Any) -> None:
        key: list[Any] = [rounded()]
        for x in operands:
            if type(x) is _ndarray:
                key.append((x.data.ptr & _PLACE, x.strides) if any_strides else x.data.ptr & _PLACE)
            elif type(x) in (int, float, bool):
                # 1, 1.0 and True are equal, and so are 0.0 and -0.0.
                key.append(repr(x))
            elif x is None:
                # A fused kernel of a replay has optional arguments.
                key.append(None)
            else:
                # Other types may change between calls.
                kernel(*operands)
                return
        which = tuple(key)
        found = known.get(which)
        if found is True:
            found = known[which] = (len(operands) <= _WIDEST and _written_out(kernel, operands)) or False
        if found:
            found(*operands)
            return
        if found is None:
            if len(known) >= _MOST:
                known.clear()
            known[which] = True
        kernel(*operands)

    return launch


def _written_out(kernel: Callable[..., Any], operands: Sequence[Any]) -> Callable[..., None] | None:
    """A function of the operands that makes the kernel's launches; None if they cannot be recorded."""
    try:
        first, second = (_noted(kernel, operands, shift) for shift in (0, _FARTHER))
        names: dict[str, Any] = {"gl": gl, "address": np.uint64, "patched": _patched}
        places = [x.data.ptr & _PLACE if isinstance(x, cupy.ndarray) else 0 for x in operands]
        lines = [_Part(*both, names, places).text() for both in zip(first, second, strict=True)]
    except gl.Unnoted:
        return None
    head = f"def launches({', '.join(f'x{k}' for k in range(len(operands)))}):"
    exec(compile("\n    ".join((head, *(lines or ["pass"]))), WRITTEN, "exec"), names)
    made: Callable[..., None] = names.pop("launches")
    return made


def _noted(kernel: Callable[..., Any], operands: Sequence[Any], shift: int) -> list[Any]:
    """The launches of a dry run of the kernel on made-up addresses, which lie ``shift`` bytes farther apart."""
    given = []
    for k, x in enumerate(operands):
        if isinstance(x, cupy.ndarray):
            at = (k + 1) * (_APART + shift) + (x.data.ptr & _PLACE)
            nowhere = memory.UnownedMemory(at, max(x.nbytes, 1), None, x.data.device_id)
            x = cupy.ndarray(x.shape, x.dtype, memory.MemoryPointer(nowhere, 0), x.strides)
        given.append(x)
    tape: list[Any] = []
    gl.noted.tape = tape
    try:
        kernel(*given)
    finally:
        gl.noted.tape = None
    return tape


class _Part:
    """One launch, as recorded in both dry runs."""

    def __init__(self, first: Any, second: Any, names: dict[str, Any], places: list[int]) -> None:
        self.function, self.head, self.values = first
        self.others = second[2]
        self._names = names
        self._places = places
        if self.function is not second[0] or self.head != second[1] or len(self.values) != len(self.others):
            raise gl.Unnoted

    def text(self) -> str:
        """The line of Python that makes the launch."""
        both = zip(self.values, self.others, strict=True)
        if self.function is gl.launch:
            family, instance, blocks, threads = self.head
            values = "".join(f"{self._value(a, b)}, " for a, b in both)
            return f"gl.launch({family!r}, {instance!r}, {blocks}, {threads}, ({values}))"
        if self.function is gl.clear:
            k, off = self._origin(self.values[0].data.ptr, self.others[0].data.ptr)
            return f"gl.clear(x{k}.data + {off}, {self.head[0]})"
        if self.function is gl.multiply:
            library, plan = map(self._name, self.head)
            return f"{library}.run({plan}, {', '.join(str(a) if a == b else self._at(a, b) for a, b in both)})"
        whole = [self._value(a, b) for a, b in both]
        if not all(isinstance(a, cupy.ndarray) is text.startswith("x") for a, text in zip(self.values, whole, strict=True)):
            raise gl.Unnoted
        return f"{self._name(self.function)}({', '.join(whole)})"

    def _name(self, x: Any) -> str:
        name = f"c{len(self._names)}"
        self._names[name] = x
        return name

    def _value(self, a: Any, b: Any) -> str:
        """An argument as Python code: an operand, an address within one, a structure with addresses, or a constant."""
        if isinstance(a, cupy.ndarray):
            k, off = self._origin(a.data.ptr, b.data.ptr)
            return f"address(x{k}.data.ptr + {off})" if off else f"x{k}"
        if not isinstance(a, (np.ndarray, np.generic)):
            return self._name(a)
        words, others = _words(a), _words(b)
        changed = np.flatnonzero(words != others).tolist()
        if not changed:
            return self._name(a)
        if a.dtype != b.dtype or a.nbytes % 8:
            raise gl.Unnoted
        addresses = ", ".join(self._at(int(words[at]), int(others[at])) for at in changed)
        return f"patched({self._name(words)}, {self._name(a.dtype)}, {self._name(changed)}, ({addresses},))"

    def _at(self, first: int, second: int) -> str:
        k, off = self._origin(first, second)
        return f"x{k}.data.ptr + {off}"

    def _origin(self, first: int, second: int) -> tuple[int, int]:
        """The operand that an address of both runs points into, and the offset in bytes from its first element."""
        operand, rest = divmod(second - first, _FARTHER)
        if rest or not 1 <= operand <= len(self._places):
            raise gl.Unnoted
        off = first - operand * _APART - self._places[operand - 1]
        if not -_APART // 2 < off < _APART // 2:
            raise gl.Unnoted
        return operand - 1, off


def _words(x: Any) -> np.ndarray[Any, Any]:
    """A structure's bytes as 64-bit words."""
    held = np.zeros(-(-x.nbytes // 8), np.uint64)
    held.view(np.uint8)[:x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)
    return held


def _patched(words: np.ndarray[Any, Any], dtype: Any, places: list[int], addresses: tuple[int, ...]) -> Any:
    """A structure with the addresses of this call."""
    made = words.copy()
    made[places] = addresses
    return made.view(dtype).reshape(())
