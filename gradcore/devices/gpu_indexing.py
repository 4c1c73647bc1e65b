"""Moving elements on the GPU: ranges, triangles, joining, reads and writes by indices. No kernel allocates, and only the
one for extremes at positions uses atomics.

A read at a position out of range gives NaN (0 for integers), a write is skipped, since an error would need a wait for the
device. On the CPU it is an IndexError.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.gpu_elementwise import copy
from gradcore.devices.gpu_folds import fold
from gradcore.devices.gpu_groups import add_groups, places, put_groups
from gradcore.devices.kernels import turned
from gradcore.tiling import BUSY, groups_of


@gl.kernel
def arange(start: Any, step: Any, out: Any, *, length: int, dtype: Any) -> None:
    kind = np.int64 if isinstance(start, int) and isinstance(step, int) else np.float64
    gl.run("index", "arange", (out.dtype, np.dtype(kind)), out.size, out, kind(start), kind(step), np.int64(out.size))


@gl.kernel
def eye(out: Any, *, rows: int, columns: int, dtype: Any) -> None:
    gl.run("index", "eye", (out.dtype,), out.size, out, np.int64(out.size), np.int64(columns))


def _triangle(lower: bool) -> Any:
    def keep(x: Any, out: Any, *, diagonal: int) -> None:
        gl.run("index", "triangle", (x.dtype,), out.size, x, out, gl.axes(x.shape, gl.elements(x)), np.int64(out.size),
               np.int64(x.shape[-2]), np.int64(x.shape[-1]), np.int64(diagonal), np.int32(lower))

    return keep


gl.KERNELS |= {"tril": _triangle(True), "triu": _triangle(False)}

# -- joining, turning, windows -----------------------------------------------------------------------------------------

#: The most tensors that a launch concatenates, and the structure of kernels/index.cu that describes them.
_JOINED = 6
JOINED = np.dtype([("ends", "i8", (_JOINED,)), ("steps", "i8", (_JOINED,)), ("of", "u8", (_JOINED,))])


@gl.kernel
def cat(tensors: list[Any], out: Any, *, dim: int) -> None:
    given = [t for t in tensors if t.size]
    alike = out.flags.c_contiguous and out.itemsize <= 8 and all(t.dtype == out.dtype for t in given)
    size, at, lead = (_JOINED if alike and len(given) > 1 else 1), 0, (slice(None),) * dim
    for k in range(0, len(given), size):
        some = given[k:k + size]
        length = sum([t.shape[dim] for t in some])
        place = out[(*lead, slice(at, at + length))]
        if size == 1:
            copy(some[0], place)
        else:
            _join(some, place, out.shape[dim], dim)
        at += length


def _join(tensors: list[Any], place: Any, whole: int, dim: int) -> None:
    """Concatenate tensors of the same dtype into ``place``, a part of a contiguous tensor whose length along ``dim`` is
    ``whole``."""
    count, tail, along, whole, steps, ends, axes = _joining(dim, place.shape, whole, gl.packed(place, *tensors), place.itemsize,
                                                            *[(t.shape, t.strides) for t in tensors])
    rest = [0] * (_JOINED - len(tensors))
    joined = np.array(([*ends, *rest], [*steps, *rest], [*[t.data.ptr for t in tensors], *rest]), JOINED)
    gl.run("index", "cat", (np.dtype(f"i{place.itemsize}"), count), place.size // count, place, joined, axes,
           np.int64(place.size), np.int64(tail), np.int64(along), np.int64(whole))


@functools.lru_cache(maxsize=1024)
def _joining(dim: int, shape: tuple[int, ...], whole: int, aligned: bool, itemsize: int, *tensors: Any) -> tuple[Any, ...]:
    """Elements of an access; elements of the dimensions after ``dim``; its length here and in the whole; each tensor's stride
    and end along it; and the tensors' layouts without it."""
    strides = [tuple([s // itemsize for s in strides]) for _, strides in tensors]
    ends = np.cumsum([size[dim] for size, _ in tensors]).tolist()
    tail, steps = math.prod(shape[dim + 1:]), [step[dim] for step in strides]
    behind = [gl.merged(size[dim:], step[dim:])[1] for (size, _), step in zip(tensors, strides, strict=True)]
    if all(lie in ([], [[1]]) for lie in behind):
        # The dimensions behind are contiguous with this one in all tensors, so they are merged into it.
        ends, whole, tail, steps = [end * tail for end in ends], whole * tail, 1, [1] * len(tensors)
        shape, strides = shape[:dim], [step[:dim] for step in strides]
    else:
        shape, strides = shape[:dim] + shape[dim + 1:], [step[:dim] + step[dim + 1:] for step in strides]
    sizes, lie = gl.merged(shape, *strides)
    # The elements of an access must be adjacent in every tensor, and begin at a multiple of its length.
    beside, lengths, apart = ((steps, [*ends, whole], lie) if tail == 1 else
                              (lie[-1], [tail, sizes[-1]], [steps, *lie[:-1]]))
    count = 16 // itemsize
    if not aligned or any(s != 1 for s in beside) or any(n % count for n in (*lengths, *itertools.chain(*apart))):
        count = 1
    return count, tail, ends[-1], whole, steps, ends, gl.axes(shape, *strides)


@gl.kernel
def flip(x: Any, out: Any, *, dims: tuple[int, ...]) -> None:
    copy(x[tuple(slice(None, None, -1 if d in dims else 1) for d in range(x.ndim))], out)


@gl.kernel
def roll(x: Any, out: Any, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> None:
    for source, target in turned(x.shape, shifts, dims):
        copy(x[source], out[target])


@gl.kernel
def windows_grad(dy: Any, out: Any, *, shape: Any, dim: int, size: int, step: int, dilation: int) -> None:
    if not out.ndim:
        # One window of one element, or of none.
        fold("Sum", dy, out, (0,))
        return
    steps = gl.elements(dy)
    lead = gl.axes(out.shape, (*steps[:dim], 0, *steps[dim + 1:-1]))
    gl.run("index", "windows_grad", (dy.dtype,), out.size, dy, out, lead, *map(np.int64, (
        out.size, math.prod(out.shape[dim + 1:]), out.shape[dim], dy.shape[dim], size, step, dilation, steps[dim], steps[-1])))


# -- reading and writing -----------------------------------------------------------------------------------------------

#: Accesses of a thread of the kernel ``take`` at once, if that leaves enough blocks.
_TAKEN = 4
#: Stands for an invalid position.
NOWHERE = -(1 << 62)


def back(x: Any, dim: int, wrap: bool) -> Any:
    """What is added to a negative position: the length if it counts from the end, else 0, which leaves it out of range."""
    return np.int64(x.shape[dim] if wrap else 0)


def _taken(x: Any, index: Any, out: Any, dim: int, wrap: bool, padding: int = NOWHERE) -> None:
    tail = math.prod(x.shape[dim + 1:])
    length = 16 // x.itemsize
    if not gl.packed(x, out) or tail % length:
        length = 1
    count = out.size // length
    threads = min(count, max(-(-count // _TAKEN), BUSY * gl.BLOCK))
    gl.run("index", "take", (x.dtype, index.dtype, length), threads, x, index, out, np.int64(out.size),
           np.int64(x.shape[dim]), np.int64(index.size), np.int64(tail), np.int64(padding), back(x, dim, wrap))


def _added(dy: Any, index: Any, out: Any, workspace: Any, dim: int, wrap: bool, padding: int = NOWHERE) -> None:
    if not out.size:
        return
    length, tail = out.shape[dim], math.prod(out.shape[dim + 1:])
    groups = groups_of(index.size, length, out.size // length, out.dtype)
    if groups:
        gl.zero(out)
        where = layout_of_slices(out, index, dy, dim)
        add_groups(groups, out, dy, where, places(index, length, tail, back(out, dim, wrap), padding), workspace, fresh=True)
        return
    rows = math.prod(out.shape[:dim + 1])
    gl.run_blocks("index", "take_grad", (dy.dtype, index.dtype), min(rows, gl.GRID), dy, index, out, np.int64(length),
                  np.int64(index.size), np.int64(tail), np.int64(padding), back(out, dim, wrap), np.int64(rows))


def _padded(padding: int | None, length: int) -> int:
    return NOWHERE if padding is None else padding % length


@gl.kernel
def take(x: Any, index: Any, out: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    _taken(x, index, out, dim, wrap)


@gl.kernel
def take_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, dim: int) -> None:
    _added(dy, index, out, workspace, dim, True)


@gl.kernel
def embedding(weight: Any, index: Any, out: Any, workspace: Any, *, padding: Any) -> None:
    _taken(weight, index, out, 0, False)


@gl.kernel
def embedding_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, padding: Any) -> None:
    _added(dy, index, out, workspace, 0, False, _padded(padding, shape[0]))


@gl.kernel
def embedding_unpadded(weight: Any, index: Any, out: Any, workspace: Any, *, padding: Any) -> None:
    _taken(weight, index, out, 0, False, _padded(padding, weight.shape[0]))


def layout_of_slices(x: Any, index: Any, values: Any, dim: int) -> Any:
    """The layouts of index, broadcast values and ``x``, with the indexed dimension apart from the others."""
    size, many = x.shape, index.ndim
    value_steps, steps = gl.broadcast(values, x.ndim - 1 + many), gl.elements(x)
    kept = size[:dim] + size[dim + 1:]
    where = np.zeros((), gl.LAYOUT)
    where["rows"] = math.prod(kept)
    where["width"] = index.size
    where["kept"] = gl.axes(kept, [0] * len(kept), value_steps[:dim] + value_steps[dim + many:],
                            steps[:dim] + steps[dim + 1:])
    where["folded"] = gl.axes(index.shape, gl.elements(index), value_steps[dim:dim + many])
    return where


def layout_of_lines(dim: int, index: Any, places: tuple[int, ...], given: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    """The layouts of index, values and ``x`` for positions that have one element each, in the order of their lines."""
    # A place along the dimension is counted from the beginning of its line.
    begin = (*steps[:dim], 0, *steps[dim + 1:])
    return gl.layout_of(index.shape, (*[d for d in range(index.ndim) if d != dim], dim), places, given, begin)


@gl.kernel
def put_(x: Any, index: Any, values: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    if not (x.size and index.size):
        return
    where, length, stride = layout_of_slices(x, index, values, dim), x.shape[dim], gl.elements(x)[dim]
    groups = groups_of(index.size, length, 0, x.dtype)
    if groups:
        put_groups(groups, x, values, where, places(index, length, stride, back(x, dim, wrap), NOWHERE), workspace)
        return
    gl.run_blocks("index", "put", (x.dtype, values.dtype, index.dtype), length, x, values, index, where, np.int64(length),
                  np.int64(stride), back(x, dim, wrap))


@gl.kernel
def take_along(x: Any, index: Any, out: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    steps = list(gl.elements(x))
    stride, steps[dim] = steps[dim], 0
    gl.run("index", "take_along", (x.dtype, index.dtype), out.size, x, index, out, gl.axes(index.shape, steps),
           np.int64(out.size), np.int64(x.shape[dim]), np.int64(stride), back(x, dim, wrap))


@gl.kernel
def take_along_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, dim: int) -> None:
    gl.zero(out)
    if not dy.size:
        return
    steps, results = gl.elements(index), gl.elements(out)
    groups = groups_of(index.size, shape[dim], 1, out.dtype, blocks=False)
    if groups:
        add_groups(groups, out, dy, layout_of_lines(dim, index, steps, gl.elements(dy), results),
                   places(index, shape[dim], results[dim], back(out, dim, True), NOWHERE), workspace, fresh=True)
        return
    where = gl.layout_of(index.shape, (dim,), steps, results)
    gl.run("index", "take_along_grad", (dy.dtype, index.dtype), int(where["rows"]) * shape[dim], dy, index, out, where,
           np.int64(shape[dim]), np.int64(results[dim]), np.int64(steps[dim]), back(out, dim, True))


def _along(x: Any, index: Any, values: Any, workspace: Any, dim: int, add: bool) -> None:
    if not index.size:
        return
    steps, lie, given, length = gl.elements(x), gl.elements(index), gl.broadcast(values, index.ndim), x.shape[dim]
    groups = groups_of(index.size, length, int(add), x.dtype, blocks=False)
    if groups:
        where = layout_of_lines(dim, index, lie, given, steps)
        write = add_groups if add else put_groups
        write(groups, x, values, where, places(index, length, steps[dim], np.int64(0), NOWHERE), workspace)
        return
    where = gl.layout_of(index.shape, (dim,), lie, given, steps)
    gl.run("index", "along", (x.dtype, index.dtype, str(add).lower()), int(where["rows"]) * length, x, values, index,
           where, np.int64(length), np.int64(steps[dim]), np.int64(lie[dim]), np.int64(given[dim]))


@gl.kernel
def put_along_(x: Any, index: Any, values: Any, workspace: Any = None, *, dim: int) -> None:
    _along(x, index, values, workspace, dim, add=False)


@gl.kernel
def add_along_(x: Any, index: Any, values: Any, workspace: Any = None, *, dim: int) -> None:
    _along(x, index, values, workspace, dim, add=True)


@gl.kernel
def extreme_along_(x: Any, index: Any, values: Any, *, dim: int, largest: bool) -> None:
    steps = list(gl.elements(x))
    stride, steps[dim] = steps[dim], 0
    gl.run("index", "extreme_along", (x.dtype, index.dtype, str(largest).lower()), index.size, x, values, index,
           gl.axes(index.shape, gl.elements(index), gl.broadcast(values, index.ndim), steps), np.int64(index.size),
           np.int64(x.shape[dim]), np.int64(stride))


@gl.kernel
def add_at_(x: Any, index: Any, values: Any, workspace: Any = None, *, dim: int, wrap: bool = True) -> None:
    if not (x.size and index.size):
        return
    where, length, stride = layout_of_slices(x, index, values, dim), x.shape[dim], gl.elements(x)[dim]
    groups = groups_of(index.size, length, x.size // length, x.dtype)
    if groups:
        add_groups(groups, x, values, where, places(index, length, stride, back(x, dim, wrap), NOWHERE), workspace)
        return
    gl.run_blocks("index", "add_at", (x.dtype, index.dtype), length, x, values, index, where, np.int64(length),
                  np.int64(stride), back(x, dim, wrap))
