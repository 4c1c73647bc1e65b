"""Elementwise kernels over long pieces, with temporaries in memory that each thread keeps.

A call of NumPy takes the time of thousands of elements, and a new array for each temporary that of another pass, or of many
where the allocator takes fresh pages each time. The memory is the same for all operands, so it is not the kernel's allocation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import HOST_KERNELS, Array, pieces
from gradcore.devices.host.pointwise import is_repeated, walk
from gradcore.spec import PIECE

#: Bytes that a thread keeps: half of a core's L2 cache.
KEPT = 512 << 10


class _Memory(threading.local):
    def __init__(self) -> None:
        room = np.empty(KEPT + 64, np.uint8)
        # From the start of a cache line, as the pool's tensors are: vectors across two lines take a third longer.
        start = -room.ctypes.data % 64
        self.bytes = room[start:start + KEPT]
        #: Does a kernel use it? Then one that a signal's handler or a finalizer calls meanwhile takes memory of its own.
        self.busy = False
        #: The latest temporaries.
        self.made: dict[Any, list[Array]] = {}


_memory = _Memory()
#: The integer dtype of a float's size.
_WHOLE = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}


@cache
def _dtypes(kinds: str, dtype: np.dtype[Any]) -> tuple[int, list[np.dtype[Any]]]:
    """Elements of a piece that has temporaries of these kinds, and their dtypes."""
    dtypes = [dtype if k == "x" else _WHOLE[dtype.itemsize] if k == "i" else np.dtype(k) for k in kinds]
    return min(PIECE, KEPT // max(sum(d.itemsize for d in dtypes), 1) // 64 * 64), dtypes


def _temporaries(size: int, kinds: str, dtype: np.dtype[Any], kept: bool) -> list[Array]:
    """Arrays of up to a piece's length, with anything in them, in the memory that is kept or in new memory."""
    if not kept:
        return [np.empty(size, kind) for kind in _dtypes(kinds, dtype)[1]]
    known, key = _memory.made, (size, kinds, dtype)
    found = known.get(key)
    if found is None:
        if len(known) >= 64:
            known.clear()
        found, at = [], 0
        for kind in _dtypes(kinds, dtype)[1]:
            found.append(np.frombuffer(_memory.bytes, kind, size, at))
            at += -(-size * kind.itemsize // 64) * 64
        known[key] = found
    return found


@contextmanager
def lent(size: int, dtype: np.dtype[Any]) -> Iterator[Array]:
    """An array in the memory that the thread keeps, with anything in it; of up to :data:`KEPT` bytes."""
    kept, _memory.busy = not _memory.busy, True
    try:
        yield np.frombuffer(_memory.bytes, dtype, size) if kept else np.empty(size, dtype)
    finally:
        _memory.busy = not kept


def over(function: Callable[..., Any], operands: tuple[Any, ...], out: Array, kinds: str, mask: int = -1, **attrs: Any) -> None:
    """Call ``function`` with pieces of the operands and of ``out``, and a temporary for each of the ``kinds``: "x" of the dtype
    of ``out``, "i" of the integers of this size, "?" of bools, or another dtype's character.

    Numbers are passed on; other operands are broadcast and converted, but for one at the place ``mask``, which must fit. The
    function reads no operand after it has written to ``out``, which may be in the place of one.
    """
    if not out.size:
        return
    kept, _memory.busy = not _memory.busy, True
    try:
        operands, changing, repeated = _sorted(operands, out, mask)
        if changing:
            _over(function, operands, out, kinds, changing, repeated, kept, attrs)
        else:
            _converted(function, operands, out, kinds, kept, attrs)
    finally:
        _memory.busy = not kept


def _sorted(operands: tuple[Any, ...], out: Array, mask: int) -> tuple[Any, list[int], list[int]]:
    """The operands, the places of those that can be cut into pieces with ``out``, and of those that are one number each; none
    of the former if some operand is neither. If one alone is neither, ``out`` takes its place, with a converted copy."""
    shape, dtype = out.shape, out.dtype
    changing: list[int] = []
    repeated: list[int] = []
    others: list[int] = []
    for k, a in enumerate(operands):
        if not isinstance(a, np.ndarray):
            continue
        if (k == mask or (a.shape == shape and a.dtype == dtype and a.flags.c_contiguous)) and (
                a is out or not np.may_share_memory(a, out) or a.ctypes.data == out.ctypes.data):
            changing.append(k)
        elif a.dtype == dtype and a.size and is_repeated(a):
            repeated.append(k)
        else:
            others.append(k)
    if len(others) > bool(out.flags.c_contiguous) or (others and any(
            isinstance(a, np.ndarray) and np.may_share_memory(a, out) for a in operands)):
        return operands, [], repeated
    for k in others:
        np.copyto(out, operands[k], casting="unsafe")
        operands, changing = (*operands[:k], out, *operands[k + 1:]), [*changing, k]
    return operands, changing if out.flags.c_contiguous else [], repeated


def _converted(function: Callable[..., Any], operands: tuple[Any, ...], out: Array, kinds: str, kept: bool,
               attrs: dict[str, Any]) -> None:
    """The same over short pieces of converted copies."""
    made: dict[int, list[Array]] = {}

    def room(size: int) -> list[Array]:
        found = made.get(size)
        if found is None:
            found = made[size] = _temporaries(size, kinds, out.dtype, kept)
        return found

    walk(function, operands, out, room=room, **attrs)


def _over(function: Callable[..., Any], operands: tuple[Any, ...], out: Array, kinds: str, changing: list[int],
          repeated: list[int], kept: bool, attrs: dict[str, Any]) -> None:
    """The same for operands of which some change from piece to piece, and some are one number each."""
    dtype, own = out.dtype, len(kinds)
    if repeated:
        kinds += "x" * len(repeated)
    length = min(_dtypes(kinds, dtype)[0], out.size)
    room = _temporaries(length, kinds, dtype, kept)
    some = list(operands)
    given = room
    if repeated:
        for k, row in zip(repeated, room[own:], strict=True):
            row.fill(operands[k].flat[0])
            some[k] = row
        given = room[:own]
    if length == out.size:
        # As for small tensors, for which each line counts.
        for k in changing:
            some[k] = some[k].reshape(-1)
        function(*some, out.reshape(-1), *given, **attrs)
        return
    for *parts, place in pieces(*[operands[k] for k in changing], out, length=length):
        for k, part in zip(changing, parts, strict=True):
            some[k] = part
        if place.size < length:
            given = [r[:place.size] for r in given]
            for k in repeated:
                some[k] = some[k][:place.size]
        function(*some, place, *given, **attrs)


def scratched(kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the kernel of the function's name, which goes over pieces as :func:`over` does."""
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*arrays: Any, **attrs: Any) -> None:
            over(function, arrays[:-1], arrays[-1], kinds, **attrs)

        HOST_KERNELS[function.__name__] = kernel
        return function

    return register


def spread(mask: Array, bits: Array) -> None:
    """All bits of the integers where the mask is set, none elsewhere."""
    np.copyto(bits, mask)
    np.negative(bits, bits)


def take_where(bits: Array, room: Array, x: Any, y: Any, out: Array) -> None:
    """``x`` where the bits are set, else ``y``: arrays or numbers, of which ``out`` may be one. ``room`` is of the bits' dtype.

    By bits, since NumPy's choice takes many times as long where a processor cannot foresee the mask.
    """
    x, y = np.asarray(x, out.dtype).view(bits.dtype), np.asarray(y, out.dtype).view(bits.dtype)
    np.bitwise_xor(x, y, room)
    np.bitwise_and(room, bits, room)
    np.bitwise_xor(room, y, out.view(bits.dtype))


def keep_where(bits: Array, x: Array, out: Array) -> None:
    """``x`` where the bits are set, else 0."""
    np.bitwise_and(x.view(bits.dtype), bits, out.view(bits.dtype))
