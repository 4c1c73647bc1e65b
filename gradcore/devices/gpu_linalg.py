"""Matrix products on the GPU: how operands lie is read from their strides, so that none is copied for its layout.

What no leading dimension describes (expanded operands, integers) goes to a plain kernel instead of being copied.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from gradcore.devices import gpu_gemm
from gradcore.devices import gpu_launch as gl
from gradcore.devices.gpu_elementwise import apply, copy, wide
from gradcore.devices.gpu_folds import fold
from gradcore.devices.gpu_gemm import DATA, Matrix, Problem, alignment
from gradcore.spec import broadcast_shapes

LINALG: dict[str, Any] = {}

PRODUCT = np.dtype([("batch", gl.AXES), *[(name, "i8") for name in (
    "rows", "columns", "inner", "a_row", "a_inner", "b_inner", "b_column", "out_row")]])

def leading(rows: int, columns: int, row: int, column: int) -> tuple[int, int] | None:
    """How cuBLAS reads a matrix with these strides: (transposed?, leading dimension), None if it cannot.

    Its matrices lie column by column, so one of ours that lies row by row is the transpose of what it sees.
    """
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return 0, max(row if rows > 1 else columns, 1)
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return 1, max(column if columns > 1 else rows, 1)
    return None


def product(a: Any, b: Any, out: Any, then: str = "", vector: Any = None) -> bool:
    """``out``, whose rows or columns are contiguous, is a @ b with leading dimensions broadcast; nothing is copied.

    ``then`` is a key of :data:`~gradcore.devices.gpu_gemm.EPILOGUES` for the operands in the order b, a. True if it was done
    with ``vector`` in the same launch; otherwise it is the caller's to do.
    """
    rows, inner = a.shape[-2:]
    columns = b.shape[-1]
    if not out.size:
        return False
    if not inner:
        copy(0, out)
        return False
    *_, a_row, a_inner = gl.elements(a)
    *_, b_inner, b_column = gl.elements(b)
    *_, out_row, out_column = gl.elements(out)
    if columns > 1 and out_column != 1:
        assert rows == 1 or out_row == 1, "neither the rows nor the columns of a product's result are contiguous"
        product(b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2))
        return False
    shape = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    strides = [_broadcast(t, shape) for t in (a, b, out)]
    sizes, steps = gl.merged(shape, *strides)
    first, second = leading(rows, inner, a_row, a_inner), leading(inner, columns, b_inner, b_column)
    out_row = max(out_row, columns) if rows > 1 else columns
    if a.dtype.name in DATA and first and second:
        if len(sizes) > 1:
            # A library steps through one dimension of matrices: the others are gone through here.
            for k in range(shape[0]):
                product(*(t[k % t.shape[0]] if t.ndim == len(shape) + 2 else t for t in (a, b, out)))
            return False
        count, (a_step, b_step, out_step) = (sizes[0], steps[0]) if sizes else (1, (0, 0, 0))
        if count > 1 and not b_step and (rows == 1 or (a_step == rows * a_row and out_step == rows * out_row)):
            # One matrix for all of them: their rows are those of one product.
            together = leading(rows * count, inner, a_row if rows > 1 else a_step, a_inner)
            if together:
                first, out_row = together, out_row if rows > 1 else out_step
                rows, count, a_step, out_step = rows * count, 1, 0, 0
        size = a.itemsize
        x, y, z = (Matrix(*how, step, alignment(t.data.ptr, step * size)) for how, step, t in (
            (second, b_step, b), (first, a_step, a), ((0, out_row), out_step, out)))
        problem = Problem(a.dtype.name, columns, rows, inner, count, x, y, z, then)
        library = gpu_gemm.library()
        plan = library.plan(problem)
        if plan is None and then:
            then = ""
            plan = library.plan(problem._replace(then=""))
        if plan is not None:
            library.run(plan, b.data.ptr, a.data.ptr, out.data.ptr, vector.data.ptr if then else 0)
            return bool(then)
    how = np.zeros((), PRODUCT)
    how["batch"] = gl.axes(shape, *strides)
    for name, value in (("rows", a.shape[-2]), ("columns", columns), ("inner", inner), ("a_row", a_row), ("a_inner", a_inner),
                        ("b_inner", b_inner), ("b_column", b_column), ("out_row", out_row)):
        how[name] = value
    gl.run("linalg", "matmul", (a.dtype,), out.size, a, b, out, how, np.int64(out.size))
    return False


def _broadcast(array: Any, shape: tuple[int, ...]) -> list[int]:
    """Strides in elements of an array's leading dimensions, broadcast to ``shape``."""
    lead = array.shape[:-2]
    return [0] * (len(shape) - len(lead)) + [
        s if n != 1 else 0 for s, n in zip(gl.elements(array), lead, strict=False)]


def matmul(a: Any, b: Any, out: Any, *, transpose_a: bool = False, transpose_b: bool = False) -> None:
    product(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b, out)


def _flat(x: Any) -> Any:
    """All leading dimensions as one, where that takes no copy; at least two dimensions."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) if x.flags.c_contiguous or x.ndim < 2 else x


def _whole(vector: Any) -> bool:
    """May a library read or write this vector while it multiplies? It wants the elements side by side, and in their place."""
    return bool(vector.flags.c_contiguous and not vector.data.ptr % 16)


def linear(x: Any, weight: Any, bias: Any, out: Any) -> None:
    flat = _flat(x)
    then = "bias" if bias is not None and _whole(bias) else ""
    if not product(flat, weight.T, out.reshape((*flat.shape[:-1], weight.shape[0])), then, bias) and bias is not None:
        apply("Add", wide(out.dtype), out, out, bias)


def linear_grad(dy: Any, x: Any, weight: Any, *outputs: Any, needs: tuple[bool, bool, bool]) -> None:
    found = iter(outputs)
    rows = math.prod(dy.shape[:-1])
    dy = dy.reshape(rows, dy.shape[-1])
    if needs[0]:
        product(dy, weight, next(found).reshape(rows, weight.shape[1]))
    dweight, dbias = next(found) if needs[1] else None, next(found) if needs[2] else None
    then = "bias_gradient" if needs[1] and needs[2] and _whole(dbias) else ""
    summed = needs[1] and product(dy.T, x.reshape(rows, x.shape[-1]), dweight, then, dbias)
    if needs[2] and not summed:
        fold("Sum", dy, dbias, (0,))


class CupyWithProducts:
    """CuPy's functions, for kernels that are written over an array library, with the matrix products of this file."""

    def __getattr__(self, name: str) -> Any:
        return getattr(cupy, name)

    @staticmethod
    def matmul(a: Any, b: Any, out: Any) -> None:
        """As NumPy's: a first operand of one dimension is a row."""
        if a.ndim == 1:
            a, out = a[None], out[..., None, :]
        product(a, b, out)


LINALG |= {"matmul": matmul, "linear": linear, "linear_grad": linear_grad}
