"""Matrix products on the GPU, by a library on the strides of the operands, so that none is copied for its layout.

Operands that the library cannot take (expanded ones, integers) go to a plain kernel instead of being copied.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import cupy
import numpy as np

from gradcore.devices.gpu import gemm
from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.kernels.elementwise import apply, wide
from gradcore.devices.gpu.kernels.movement import copy
from gradcore.devices.gpu.kernels.reductions import fold
from gradcore.devices.gpu.problems import (
    DATA,
    INSTEAD,
    RELU_GRADIENT,
    VECTOR_ALIGNMENT,
    Matrix,
    Problem,
    alignment,
)

Shape = tuple[int, ...]

PRODUCT = np.dtype([("batch", gl.AXES), *[(name, "i8") for name in (
    "rows", "columns", "inner", "a_row", "a_inner", "b_inner", "b_column", "out_row")]])


def leading(rows: int, columns: int, row: int, column: int) -> tuple[int, int] | None:
    """How cuBLAS reads a matrix with these strides: (transposed?, leading dimension); None if it cannot.

    cuBLAS is column-major, so it sees the transpose of a row-major matrix.
    """
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return 0, max(row if rows > 1 else columns, 1)
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return 1, max(column if columns > 1 else rows, 1)
    return None


def product(a: Any, b: Any, out: Any, then: str = "", vector: Any = None, added: bool = False) -> str:
    """Write a @ b, with leading dimensions broadcast, to ``out``, whose rows or columns are contiguous; nothing is copied.
    ``added``: add it to what ``out`` holds.

    ``then`` is a key of :data:`~gradcore.devices.gpu.problems.EPILOGUES` for the operands in the order b, a, or
    ``RELU_GRADIENT``, which must be possible. Returns the epilogue that was done with ``vector`` in the same launch; the caller
    has to do the rest.
    """
    if not out.size:
        return ""
    if not a.shape[-1]:
        if not added:
            copy(0, out)
        return ""
    x, y, z = a.data.ptr, b.data.ptr, out.data.ptr
    how = _described(*_operands(a, b, out), then, added)
    if type(how) is Problem:
        library = gemm.library()
        plan, at = library.plan(how), vector.data.ptr if then else 0
        assert plan is not None or then != RELU_GRADIENT, "only gradcore's own kernel applies the gradient of relu"
        while then and (plan is None or not library.exact(plan, y, x, z, at)):
            then = INSTEAD[then]
            plan = library.plan(how._replace(then=then))
        if plan is not None:
            gl.multiply(library, plan, y, x, z, at if then else 0)
            return then
    elif how == _TURNED:
        product(b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2), added=added)
        return ""
    elif how == _EACH:
        for k in range(out.shape[0]):
            one, other, result = (t[k % t.shape[0]] if t.ndim == out.ndim else t for t in (a, b, out))
            product(one, other, result, added=added)
        return ""
    _plain(a, b, out, added)
    return ""


def _operands(a: Any, b: Any, out: Any) -> tuple[Any, ...]:
    return (a.dtype, a.shape, a.strides, b.shape, b.strides, out.shape, out.strides,
            (alignment(a.data.ptr, 0), alignment(b.data.ptr, 0), alignment(out.data.ptr, 0)))


# What to do if a library cannot compute a product in one call.
_TURNED, _EACH, _KERNEL = "multiply the transposes", "go through the first dimension", "launch a kernel of ours"


@functools.lru_cache(maxsize=4096)
def _described(dtype: Any, a: Shape, a_strides: Shape, b: Shape, b_strides: Shape, out: Shape, out_strides: Shape,
               aligned: tuple[int, int, int], then: str, added: bool) -> Problem | str:
    """The :class:`Problem` of a product, from shapes, strides in bytes and alignments; or what to do instead."""
    size = dtype.itemsize
    rows, inner, columns = *a[-2:], b[-1]
    a_row, a_inner, b_inner, b_column, out_row, out_column = (s // size for s in (
        *a_strides[-2:], *b_strides[-2:], *out_strides[-2:]))
    if columns > 1 and out_column != 1:
        assert rows == 1 or out_row == 1, "neither the rows nor the columns of a product's result are contiguous"
        return _TURNED
    first, second = leading(rows, inner, a_row, a_inner), leading(inner, columns, b_inner, b_column)
    if dtype.name not in DATA or not first or not second:
        return _KERNEL
    lead = out[:-2]
    sizes, steps = gl.merged(lead, *(gl.broadcast_steps(s[:-2], t[:-2], size, len(lead)) for s, t in (
        (a, a_strides), (b, b_strides), (out, out_strides))))
    if len(sizes) > 1:
        # Libraries take one batch dimension.
        return _EACH
    count, (a_step, b_step, out_step) = (sizes[0], steps[0]) if sizes else (1, (0, 0, 0))
    out_row = max(out_row, columns) if rows > 1 else columns
    if count > 1 and not b_step and (rows == 1 or (a_step == rows * a_row and out_step == rows * out_row)):
        # All share one matrix, so that their rows form a single product.
        together = leading(rows * count, inner, a_row if rows > 1 else a_step, a_inner)
        if together:
            first, out_row = together, out_row if rows > 1 else out_step
            rows, count, a_step, out_step = rows * count, 1, 0, 0
    x, y, z = (Matrix(*how, step, alignment(address, step * size)) for how, step, address in (
        (second, b_step, aligned[1]), (first, a_step, aligned[0]), ((0, out_row), out_step, aligned[2])))
    return Problem(dtype.name, columns, rows, inner, count, x, y, z, then, added)


def _plain(a: Any, b: Any, out: Any, added: bool) -> None:
    """A product by gradcore's own kernel, for operands of any dtype and layout; ``out``'s rows are contiguous."""
    batch = gl.axes(out.shape[:-2], *(gl.broadcast(t, out.ndim)[:-2] for t in (a, b, out)))
    how = np.array((batch[()], a.shape[-2], b.shape[-1], a.shape[-1], *gl.elements(a)[-2:], *gl.elements(b)[-2:],
                    gl.elements(out)[-2]), PRODUCT)
    gl.run("linalg", "matmul", (a.dtype,), out.size, a, b, out, how, np.int64(out.size), np.int32(added))


@gl.kernel
def matmul(a: Any, b: Any, out: Any, *, transpose_a: bool = False, transpose_b: bool = False) -> None:
    product(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b, out)


def _flat(x: Any) -> Any:
    """All leading dimensions merged into one, if that needs no copy; at least two dimensions."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) if x.flags.c_contiguous or x.ndim < 2 else x


def _whole(vector: Any) -> bool:
    """May a library use this vector in an epilogue? It must be contiguous and aligned."""
    return bool(vector.flags.c_contiguous and not vector.data.ptr % VECTOR_ALIGNMENT)


@gl.kernel
def linear(x: Any, weight: Any, bias: Any, out: Any) -> None:
    flat = _flat(x)
    then = "bias" if bias is not None and _whole(bias) else ""
    if not product(flat, weight.T, out.reshape((*flat.shape[:-1], weight.shape[0])), then, bias) and bias is not None:
        apply("Add", wide(out.dtype), out, out, bias)


def linear_relu(x: Any, weight: Any, bias: Any, out: Any) -> None:
    """relu of :func:`linear` with a bias, in one launch if the library's relu is exact.

    The values are those of the two ops: rounding preserves order and zero, so the order does not matter. Zeros may have another
    sign, since a maximum treats both as equal.
    """
    flat = _flat(x)
    then = "relu_bias" if _whole(bias) else ""
    done = product(flat, weight.T, out.reshape((*flat.shape[:-1], weight.shape[0])), then, bias)
    if done == "bias":
        apply("Relu", wide(out.dtype), out, out)
    elif not done:
        apply("Then<Relu, Add>", wide(out.dtype), out, out, bias)


@gl.kernel
def linear_grad(dy: Any, x: Any, weight: Any, *outputs: Any, needs: tuple[bool, bool, bool]) -> None:
    found = iter(outputs)
    rows = math.prod(dy.shape[:-1])
    dy = dy.reshape(rows, dy.shape[-1])
    dx, dweight, dbias = [next(found) if needed else None for needed in needs]
    then = "bias_gradient" if needs[1] and needs[2] and _whole(dbias) else ""
    summed = needs[1] and product(dy.T, x.reshape(rows, x.shape[-1]), dweight, then, dbias)
    if needs[2] and not summed:
        fold("Sum", dy, dbias, (0,))
    if dx is not None:
        # Last, since it may take the place of x.
        product(dy, weight, dx.reshape(rows, weight.shape[1]))


def can_show_relu(dy: Any, weight: Any, out: Any) -> bool:
    """Can :func:`input_grad_through_relu` be computed? Its arrays are contiguous."""
    how = _described(*_operands(_flat(dy), weight, _flat(out)), RELU_GRADIENT, False)
    return type(how) is Problem and gemm.library().plan(how) is not None


def input_grad_through_relu(dy: Any, weight: Any, shown: Any, out: Any) -> None:
    """The gradient of a linear layer's input that is ``shown``, the result of a relu, through that relu: in one launch."""
    product(_flat(dy), weight, _flat(out), RELU_GRADIENT, shown)


class CupyWithProducts:
    """CuPy with the matrix products of this file, as the array library of kernels such as :mod:`gradcore.devices.attention`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(cupy, name)

    @staticmethod
    def matmul(a: Any, b: Any, out: Any) -> None:
        """``numpy.matmul``: a first operand of one dimension is a row."""
        if a.ndim == 1:
            a, out = a[None], out[..., None, :]
        product(a, b, out)
