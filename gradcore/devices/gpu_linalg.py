"""Matrix products on the GPU, through cuBLAS's own calls: CuPy's would copy what they think they must.

What no leading dimension describes (expanded operands, integers) goes to a plain kernel instead of being copied.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.gpu_elementwise import apply, copy, wide
from gradcore.devices.gpu_folds import fold
from gradcore.spec import broadcast_shapes

LINALG: dict[str, Any] = {}

PRODUCT = np.dtype([("batch", gl.AXES), *[(name, "i8") for name in (
    "rows", "columns", "inner", "a_row", "a_inner", "b_inner", "b_column", "out_row")]])

# cuBLAS reads its factors from host memory, so they live as long as the process. Halves are multiplied in float.
_FACTORS = {np.dtype(stored): (np.array(1, computed), np.array(0, computed)) for stored, computed in (
    (np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64))}
_HALF, _COMPUTE_FLOAT, _DEFAULT = 2, 68, -1  # CUDA_R_16F, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT


def blas() -> tuple[Any, int]:
    """cuBLAS's calls, and the handle of this thread and device, which CuPy keeps."""
    from cupy_backends.cuda.libs import cublas

    return cublas, cupy.cuda.device.get_cublas_handle()


def leading(rows: int, columns: int, row: int, column: int) -> tuple[int, int] | None:
    """How cuBLAS reads a matrix with these strides: (transposed?, leading dimension), None if it cannot.

    Its matrices lie column by column, so one of ours that lies row by row is the transpose of what it sees.
    """
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return 0, max(row if rows > 1 else columns, 1)
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return 1, max(column if columns > 1 else rows, 1)
    return None


def product(a: Any, b: Any, out: Any, add: bool = False) -> None:
    """``out``, whose rows are contiguous, is a @ b with leading dimensions broadcast, or has it added; nothing is copied."""
    rows, inner = a.shape[-2:]
    columns = b.shape[-1]
    if not out.size or (not inner and add):
        return
    if not inner:
        copy(0, out)
        return
    shape = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    batch = gl.axes(shape, _broadcast(a, shape), _broadcast(b, shape), _broadcast(out, shape))
    *_, a_row, a_inner = gl.elements(a)
    *_, b_inner, b_column = gl.elements(b)
    out_row = gl.elements(out)[-2] if rows > 1 else columns
    first, second = leading(rows, inner, a_row, a_inner), leading(inner, columns, b_inner, b_column)
    if a.dtype in _FACTORS and first and second:
        if batch["count"] == 1:
            _by_cublas(a, b, out, first, second, (columns, rows, inner), max(out_row, columns), batch, add)
        else:
            # cuBLAS steps through one dimension of matrices: the others are gone through here.
            for k in range(shape[0]):
                x, y, z = (t[k % t.shape[0]] if t.ndim == len(shape) + 2 else t for t in (a, b, out))
                product(x, y, z, add)
        return
    assert not add, "the plain kernel writes"
    how = np.zeros((), PRODUCT)
    how["batch"] = batch
    for name, value in (("rows", rows), ("columns", columns), ("inner", inner), ("a_row", a_row), ("a_inner", a_inner),
                        ("b_inner", b_inner), ("b_column", b_column), ("out_row", out_row)):
        how[name] = value
    gl.run("linalg", "matmul", (a.dtype,), out.size, a, b, out, how, np.int64(out.size))


def _by_cublas(a: Any, b: Any, out: Any, first: tuple[int, int], second: tuple[int, int], sizes: tuple[int, int, int],
               out_row: int, batch: Any, add: bool) -> None:
    """The transpose of the product, out^T = b^T a^T, which cuBLAS writes column by column."""
    calls, handle = blas()
    one, nothing = (factor.ctypes.data for factor in _FACTORS[a.dtype])
    count, steps = int(batch["shape"][0]), batch["strides"][:, 0].tolist()
    head = (handle, second[0], first[0], *sizes, one)
    then = one if add else nothing
    x, y, z = (b.data.ptr, second[1]), (a.data.ptr, first[1]), (out.data.ptr, out_row)
    if a.dtype.itemsize == 2:
        if count == 1:
            calls.gemmEx(*head, x[0], _HALF, x[1], y[0], _HALF, y[1], then, z[0], _HALF, z[1], _COMPUTE_FLOAT, _DEFAULT)
        else:
            calls.gemmStridedBatchedEx(*head, x[0], _HALF, x[1], steps[1], y[0], _HALF, y[1], steps[0], then, z[0], _HALF,
                                       z[1], steps[2], count, _COMPUTE_FLOAT, _DEFAULT)
        return
    kind = "s" if a.dtype == np.float32 else "d"
    if count == 1:
        getattr(calls, f"{kind}gemm")(*head, *x, *y, then, *z)
    else:
        getattr(calls, f"{kind}gemmStridedBatched")(*head, *x, steps[1], *y, steps[0], then, *z, steps[2], count)


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


def linear(x: Any, weight: Any, bias: Any, out: Any) -> None:
    flat = _flat(x)
    product(flat, weight.T, out.reshape((*flat.shape[:-1], weight.shape[0])))
    if bias is not None:
        apply("Add", wide(out.dtype), out, out, bias)


def linear_grad(dy: Any, x: Any, weight: Any, *outputs: Any, needs: tuple[bool, bool, bool]) -> None:
    found = iter(outputs)
    rows = math.prod(dy.shape[:-1])
    dy = dy.reshape(rows, dy.shape[-1])
    if needs[0]:
        product(dy, weight, next(found).reshape(rows, weight.shape[1]))
    if needs[1]:
        product(dy.T, x.reshape(rows, x.shape[-1]), next(found))
    if needs[2]:
        fold("Sum", dy, next(found), (0,))


LINALG |= {"matmul": matmul, "linear": linear, "linear_grad": linear_grad}
