"""Creation of arrays, and movement of their elements, on the GPU: copies, ranges, triangles, joining, turning, windows."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.kernels.elementwise import apply, check_apart, wide
from gradcore.devices.gpu.kernels.reductions import fold
from gradcore.devices.kernels import basic_view, turned

# -- copies ------------------------------------------------------------------------------------------------------------

#: The least size of both dimensions for which tiles are worthwhile.
_TILE = 16


@functools.lru_cache(maxsize=1024)
def _turned(shape: tuple[int, ...], out: tuple[int, ...], x: tuple[int, ...],
            length: int) -> tuple[bool, tuple[int, int], tuple[Any, ...]] | None:
    """For a copy between tensors that are contiguous along different dimensions, as in a transposition: whether squares of
    ``length`` elements each way can be accessed in both, if the first elements can; blocks of the kernel of tiles and of that
    of squares; their arguments. Else None. Without either one of the two would cost a memory transaction for each element."""
    sizes, steps = gl.merged(shape, out, x)
    ours, theirs = ([d for d, step in enumerate(steps) if step[k] == 1 and sizes[d] >= _TILE] for k in (0, 1))
    if len(ours) != 1 or len(theirs) != 1 or ours == theirs:
        return None
    (column,), (row,) = ours, theirs
    others = [d for d in range(len(sizes)) if d not in (row, column)]
    lead = [sizes[d] for d in others]
    where = gl.axes(lead, *[[steps[d][k] for d in others] for k in (0, 1)])
    rows, columns, out_row, x_column = sizes[row], sizes[column], steps[row][0], steps[column][1]
    even = not any(n % length for n in (rows, columns, out_row, x_column, *itertools.chain(*[steps[d] for d in others])))
    tiles, squares = (math.prod(lead) * -(-rows // side) * -(-columns // side) for side in (64, 16 * length))
    return even, (tiles, squares), (where, *map(np.int64, (rows, columns, out_row, x_column)))


def copy(x: Any, out: Any) -> None:
    """Copy ``x`` to ``out``, broadcast and converted."""
    if not hasattr(x, "dtype"):
        apply("Copy", wide(out.dtype), out, x)
        return
    how, length = None, 16 // max(x.itemsize, out.itemsize)
    if x.shape == out.shape and x.size and not (x.flags.c_contiguous and out.flags.c_contiguous):
        how = _turned(x.shape, gl.elements(out), gl.elements(x), length)
    if how is None:
        apply("Copy", wide(x.dtype), out, x)
        return
    even, (tiles, squares), where = how
    # What is not converted is moved as integers of its size.
    types = (wide(x.dtype), out.dtype, x.dtype) if x.dtype != out.dtype else (np.dtype(f"i{x.itemsize}"),) * 3
    if even and gl.packed(x, out):
        gl.run_blocks("elementwise", "turn_squares", (*types, length), squares, out, x, *where)
    else:
        gl.run_blocks("elementwise", "turn", types, tiles, out, x, *where)


@gl.kernel
def fill_(x: Any, value: Any) -> None:
    copy(value, x)


@gl.kernel
def copy_(x: Any, source: Any) -> None:
    check_apart(x, source)
    copy(source, x)


gl.KERNELS |= dict.fromkeys(("full", "clone", "cast", "sampling_weights"), lambda x, out, **attrs: copy(x, out))


@gl.kernel
def slice_grad(dy: Any, out: Any, *, shape: Any, index: Any) -> None:
    gl.zero(out)
    copy(dy, basic_view(out, index))


def strided(flat: Any, shape: Any, strides: Any, offset: int) -> Any:
    """A view into a flat array; strides and offset are in elements."""
    from cupy.lib.stride_tricks import as_strided

    return as_strided(flat[offset:], shape, [n * flat.itemsize for n in strides])


@gl.kernel
def cleared(x: Any, out: Any, *, shape: Any, strides: Any, offset: int) -> None:
    copy(x, out)
    if 0 not in shape:
        copy(0, strided(out.reshape(-1), shape, strides, offset))


@gl.kernel
def as_strided_grad(dy: Any, out: Any, *, like: Any, strides: Any, offset: int) -> None:
    gl.zero(out)
    if not dy.size:
        return
    # A dimension of stride 0 repeats one element, whose gradient is the sum of all of theirs.
    same = tuple(d for d, (n, s) in enumerate(zip(dy.shape, strides, strict=True)) if n > 1 and s == 0)
    kept = [d for d in range(dy.ndim) if d not in same]
    fold("Sum", dy, strided(out.reshape(-1), [dy.shape[d] for d in kept], [strides[d] for d in kept], offset), same)


# -- creation ----------------------------------------------------------------------------------------------------------


@gl.kernel
def empty(out: Any, *, shape: Any, dtype: Any) -> None:
    pass


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
    alike = out.flags.c_contiguous and all(t.dtype == out.dtype for t in given)
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
