"""Kernels written once over ``xp``, which is NumPy or CuPy: the part of their interface that both keep alike.

A kernel takes its inputs, then the arrays to fill, then its workspace (one array of bytes) where the op declares any;
attributes by keyword. It allocates nothing that grows with its operands: tests hold every one of them to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Kernel = Callable[..., Any]


def split_workspace(workspace: Any, *pieces: tuple[int, Any]) -> list[Any]:
    """One-dimensional arrays of (length, dtype) carved out of a workspace, in order, each 16-byte aligned."""
    arrays, at = [], 0
    for length, dtype in pieces:
        nbytes = length * dtype.itemsize
        arrays.append(workspace[at:at + nbytes].view(dtype))
        at += (nbytes + 15) // 16 * 16
    return arrays


def build_kernels(xp: Any, column_sums: Kernel | None = None) -> dict[str, Kernel]:
    """The kernel table over one array library, which may have a faster way to add up the rows of a matrix."""
    table: dict[str, Kernel] = {
        "add": xp.add, "sub": xp.subtract, "mul": xp.multiply, "div": xp.true_divide, "neg": xp.negative,
        "floor_divide": xp.floor_divide, "remainder": xp.remainder, "pow": xp.power,
        "reciprocal": xp.reciprocal,
        "eq": xp.equal, "ne": xp.not_equal, "lt": xp.less, "le": xp.less_equal, "gt": xp.greater,
        "ge": xp.greater_equal, "logical_and": xp.logical_and, "logical_or": xp.logical_or,
        "logical_xor": xp.logical_xor, "logical_not": xp.logical_not,
        "isnan": xp.isnan, "isinf": xp.isinf, "isfinite": xp.isfinite,
        "abs": xp.absolute, "sign": xp.sign, "floor": xp.floor, "ceil": xp.ceil, "round": xp.rint,
        "exp": xp.exp, "expm1": xp.expm1, "log": xp.log, "log1p": xp.log1p, "log2": xp.log2, "log10": xp.log10,
        "sqrt": xp.sqrt, "square": xp.square, "sin": xp.sin, "cos": xp.cos, "tan": xp.tan, "sinh": xp.sinh,
        "cosh": xp.cosh, "arctan": xp.arctan, "tanh": xp.tanh,
    }
    own: list[Kernel] = []
    kernel = own.append

    @kernel
    def rsqrt(x: Any, out: Any) -> None:
        xp.sqrt(x, out, dtype=out.dtype)
        xp.reciprocal(out, out)

    # NumPy means to give a third positional operand of these two another meaning.
    @kernel
    def maximum(x: Any, y: Any, out: Any) -> None:
        xp.maximum(x, y, out=out)

    @kernel
    def minimum(x: Any, y: Any, out: Any) -> None:
        xp.minimum(x, y, out=out)

    @kernel
    def where(condition: Any, x: Any, y: Any, out: Any) -> None:
        out[...] = y
        xp.copyto(out, x, where=condition, casting="unsafe")

    @kernel
    def clamp(x: Any, low: Any, high: Any, out: Any) -> None:
        if low is None or high is None:
            (xp.maximum if high is None else xp.minimum)(x, low if high is None else high, out=out)
        else:
            xp.maximum(x, low, out=out)
            xp.minimum(out, high, out=out)

    # -- in place --

    @kernel
    def add_(x: Any, y: Any) -> None:
        xp.add(x, y, x, casting="unsafe")

    @kernel
    def sub_(x: Any, y: Any) -> None:
        xp.subtract(x, y, x, casting="unsafe")

    @kernel
    def mul_(x: Any, y: Any) -> None:
        xp.multiply(x, y, x, casting="unsafe")

    @kernel
    def div_(x: Any, y: Any) -> None:
        xp.true_divide(x, y, x, casting="unsafe")

    @kernel
    def fill_(x: Any, value: Any) -> None:
        x.fill(value)

    @kernel
    def copy_(x: Any, source: Any) -> None:
        x[...] = source

    # -- creation and movement --

    @kernel
    def full(value: Any, out: Any, *, shape: Any, dtype: Any) -> None:
        out.fill(value)

    @kernel
    def empty(out: Any, *, shape: Any, dtype: Any) -> None:
        pass

    @kernel
    def eye(out: Any, *, rows: int, columns: int, dtype: Any) -> None:
        out.fill(0)
        out.reshape(-1)[:rows * columns:columns + 1][:min(rows, columns)].fill(1)

    @kernel
    def clone(x: Any, out: Any) -> None:
        out[...] = x

    @kernel
    def cast(x: Any, out: Any, *, dtype: Any) -> None:
        xp.copyto(out, x, casting="unsafe")

    @kernel
    def slice_grad(dy: Any, out: Any, *, shape: Any, index: Any) -> None:
        out.fill(0)
        basic_view(out, index)[...] = dy

    def strided(flat: Any, shape: Any, strides: Any, offset: int) -> Any:
        size = flat.itemsize
        return xp.lib.stride_tricks.as_strided(flat[offset:], shape, [n * size for n in strides])

    @kernel
    def as_strided_grad(dy: Any, out: Any, *, like: Any, strides: Any, offset: int) -> None:
        out.fill(0)
        # A dimension of stride 0 shows one element many times: each of them adds to it, one after the other.
        same = [d for d, (n, s) in enumerate(zip(dy.shape, strides)) if n > 1 and s == 0]
        for index in xp.ndindex(*[dy.shape[d] for d in same]) if dy.size else ():
            key: list[Any] = [slice(None)] * dy.ndim
            for d, i in zip(same, index):
                key[d] = slice(i, i + 1)
            part = dy[tuple(key)]
            target = strided(out.reshape(-1), part.shape, strides, offset)
            xp.add(target, part, target)

    @kernel
    def cleared(x: Any, out: Any, *, shape: Any, strides: Any, offset: int) -> None:
        out[...] = x
        if 0 not in shape:
            strided(out.reshape(-1), shape, strides, offset)[...] = 0

    def triangle(lower: bool) -> Kernel:
        def keep(x: Any, out: Any, *, diagonal: int) -> None:
            out.fill(0)
            width = x.shape[-1]
            for i in range(x.shape[-2]):
                at = min(max(i + diagonal + lower, 0), width)
                part = (..., i, slice(0, at) if lower else slice(at, width))
                out[part] = x[part]
        return keep

    table["tril"], table["triu"] = triangle(True), triangle(False)

    @kernel
    def cat(tensors: list[Any], out: Any, *, dim: int) -> None:
        start = 0
        lead = (slice(None),) * dim
        for t in tensors:
            out[(*lead, slice(start, start + t.shape[dim]))] = t
            start += t.shape[dim]

    # -- reductions --

    @kernel
    def sum_to_shape(x: Any, out: Any, *, shape: tuple[int, ...]) -> None:
        lead = x.ndim - len(shape)
        dims = tuple(range(lead)) + tuple(
            lead + i for i, n in enumerate(shape) if n == 1 and x.shape[lead + i] != 1)
        xp.sum(x, axis=dims, out=out.reshape([n for d, n in enumerate(x.shape) if d not in dims]))

    def reduction(fold: Kernel) -> Kernel:
        def reduce(x: Any, out: Any, *, dims: tuple[int, ...], keepdim: bool) -> None:
            fold(x, axis=dims, out=out, keepdims=keepdim)
        return reduce

    @kernel
    def mean(x: Any, out: Any, *, dims: tuple[int, ...], keepdim: bool) -> None:
        if x.size:
            xp.mean(x, axis=dims, out=out, keepdims=keepdim)
        else:
            out.fill(xp.nan)

    for name in ("sum", "amax", "amin", "any", "all"):
        table[name] = reduction(getattr(xp, name))

    def arg(fold: Kernel) -> Kernel:
        def find(x: Any, out: Any, *, dim: int, keepdim: bool) -> None:
            fold(x, axis=dim if x.ndim else None, out=out.reshape(x.shape[:dim] + x.shape[dim + 1:]))
        return find

    table["argmax"], table["argmin"] = arg(xp.argmax), arg(xp.argmin)

    def with_index(fold: Kernel, find: Kernel) -> Kernel:
        def both(x: Any, values: Any, indices: Any, *, dim: int, keepdim: bool) -> None:
            fold(x, axis=dim if x.ndim else None, out=values, keepdims=keepdim)
            find(x, indices, dim=dim, keepdim=keepdim)
        return both

    table["max_with_index"] = with_index(xp.amax, table["argmax"])
    table["min_with_index"] = with_index(xp.amin, table["argmin"])

    @kernel
    def logsumexp(x: Any, out: Any, workspace: Any, *, dims: tuple[int, ...], keepdim: bool) -> None:
        if not x.size:
            out.fill(-math.inf)
            return
        flat, top = split_workspace(workspace, (x.size, x.dtype), (out.size, x.dtype))
        shifted = flat.reshape(x.shape)
        folded = out.reshape([1 if d in dims else n for d, n in enumerate(x.shape)])
        xp.amax(x, axis=dims, out=folded, keepdims=True)
        # Rows of infinities: shifting by them would make NaN.
        xp.copyto(folded, 0, where=xp.isinf(folded))
        xp.subtract(x, folded, shifted)
        xp.exp(shifted, shifted)
        top = top.reshape(folded.shape)
        top[...] = folded
        xp.sum(shifted, axis=dims, out=folded, keepdims=True)
        xp.log(folded, folded)
        xp.add(folded, top, folded)

    # -- matrix products --

    @kernel
    def matmul(a: Any, b: Any, out: Any, *, transpose_a: bool = False, transpose_b: bool = False) -> None:
        xp.matmul(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b, out)

    @kernel
    def linear(x: Any, weight: Any, bias: Any, out: Any) -> None:
        if x.ndim > 2 and x.flags.c_contiguous:
            # One product of all rows, instead of one for each matrix.
            xp.matmul(x.reshape(-1, x.shape[-1]), weight.T, out.reshape(-1, out.shape[-1]))
        else:
            xp.matmul(x, weight.T, out)
        if bias is not None:
            xp.add(out, bias, out)

    @kernel
    def linear_grad(dy: Any, x: Any, weight: Any, *outputs: Any, needs: tuple[bool, bool, bool]) -> None:
        found = iter(outputs)
        rows = math.prod(dy.shape[:-1])
        dy = dy.reshape(rows, dy.shape[-1])
        if needs[0]:
            xp.matmul(dy, weight, next(found).reshape(rows, weight.shape[1]))
        if needs[1]:
            xp.matmul(dy.T, x.reshape(rows, x.shape[-1]), next(found))
        if needs[2]:
            if column_sums is None:
                xp.add.reduce(dy, axis=0, out=next(found))
            else:
                column_sums(dy, next(found))

    # -- activations --

    @kernel
    def relu(x: Any, out: Any) -> None:
        xp.maximum(x, 0, out=out)

    @kernel
    def relu_grad(dy: Any, x: Any, out: Any) -> None:
        xp.greater(x, 0, out)
        xp.multiply(out, dy, out)

    @kernel
    def tanh_grad(dy: Any, x: Any, out: Any) -> None:
        xp.multiply(x, x, out)
        xp.subtract(1, out, out)
        xp.multiply(out, dy, out)

    @kernel
    def sigmoid(x: Any, out: Any) -> None:
        # Where exp(-x) overflows the result is 0, as it should be; by tanh it would be 0 from -17 on.
        xp.negative(x, out)
        xp.exp(out, out)
        xp.add(out, 1, out)
        xp.reciprocal(out, out)

    @kernel
    def sigmoid_grad(dy: Any, x: Any, out: Any) -> None:
        xp.subtract(1, x, out)
        xp.multiply(out, x, out)
        xp.multiply(out, dy, out)

    # -- softmax --

    @kernel
    def softmax(x: Any, out: Any, workspace: Any, *, dim: int) -> None:
        if not x.size:
            return
        fold = workspace.view(x.dtype).reshape(folded_shape(x.shape, dim))
        xp.amax(x, axis=dim if x.ndim else None, out=fold, keepdims=True)
        xp.subtract(x, fold, out)
        xp.exp(out, out)
        xp.sum(out, axis=dim if x.ndim else None, out=fold, keepdims=True)
        xp.true_divide(out, fold, out)

    @kernel
    def softmax_grad(dy: Any, x: Any, out: Any, workspace: Any, *, dim: int) -> None:
        if not x.size:
            return
        fold = workspace.view(x.dtype).reshape(folded_shape(x.shape, dim))
        xp.multiply(dy, x, out)
        xp.sum(out, axis=dim if x.ndim else None, out=fold, keepdims=True)
        xp.subtract(dy, fold, out)
        xp.multiply(out, x, out)

    @kernel
    def log_softmax_grad(dy: Any, x: Any, out: Any, workspace: Any, *, dim: int) -> None:
        if not x.size:
            return
        fold = workspace.view(x.dtype).reshape(folded_shape(x.shape, dim))
        xp.sum(dy, axis=dim if x.ndim else None, out=fold, keepdims=True)
        xp.exp(x, out)
        xp.multiply(out, fold, out)
        xp.subtract(dy, out, out)

    @kernel
    def mse_grad(dy: Any, x: Any, target: Any, out: Any, *, reduction: str) -> None:
        xp.subtract(x, target, out)
        xp.multiply(out, 2.0 / max(x.size, 1) if reduction == "mean" else 2.0, out)
        xp.multiply(out, dy, out)

    table.update({fn.__name__: fn for fn in own})
    return table


def folded_shape(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """``shape`` with one dimension folded to 1."""
    return tuple(1 if d == dim else n for d, n in enumerate(shape)) if shape else ()


def basic_view(array: Any, index: tuple[tuple[int, ...], ...]) -> Any:
    """The part of an array that a normalised basic index shows; see ``ops.movement``."""
    key: list[Any] = []
    for part in index:
        if not part:
            key.append(None)
        elif len(part) == 1:
            key.append(part[0])
        else:
            start, length, step = part
            stop = start + length * step
            key.append(slice(start, stop if stop >= 0 else None, step) if length else slice(0, 0))
    # The ellipsis keeps it an array where every dimension is taken away.
    return array[(*key, ...)]
