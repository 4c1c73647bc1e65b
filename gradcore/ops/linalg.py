"""Matrix products."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.movement import expand, permute, reshape, sum_to
from gradcore.ops.op import Inferred, joint, op, spending
from gradcore.ops.shapes import need_float, need_number, need_one_dtype
from gradcore.spec import TensorSpec, broadcast_shapes, view_strides

#: Elements that are summed in less time than it takes to reshape the operands so that no sum is needed.
_FEW = 2**13


def _copied(*operands: TensorSpec) -> int:
    """Bytes of the operands that NumPy copies for BLAS: matrices with neither adjacent rows nor adjacent columns, as in
    ``x[:, ::2]`` or an expanded row. CUDA's kernels take any strides, so these bytes are no workspace."""

    def adjacent(x: TensorSpec) -> bool:
        (rows, columns), (down, across) = x.shape[-2:], x.strides[-2:]
        return (across == 1 and down >= columns) or (down == 1 and across >= rows)

    return sum(x.nbytes for x in operands if x.ndim >= 2 and x.floating and not adjacent(x))


def _matmul_spec(a: TensorSpec, b: TensorSpec, *, transpose_a: bool = False, transpose_b: bool = False) -> Inferred:
    if not isinstance(a, TensorSpec) or not isinstance(b, TensorSpec):
        raise TypeError("matmul takes two tensors")
    if a.ndim < 2 or b.ndim < 2:
        raise SpecError(f"matmul: both operands need two dimensions here, but got {list(a.shape)} and {list(b.shape)}")
    if a.dtype != b.dtype:
        raise SpecError(f"expected m1 and m2 to have the same dtype, but got: {a.dtype.name} != {b.dtype.name}")
    rows, inner = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    inner_b, columns = b.shape[-2:][::-1] if transpose_b else b.shape[-2:]
    if inner != inner_b:
        raise SpecError(f"mat1 and mat2 shapes cannot be multiplied ({list(a.shape)}{' transposed' * transpose_a} and "
                        f"{list(b.shape)}{' transposed' * transpose_b})")
    out = TensorSpec.of((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), rows, columns), a.dtype)
    return Inferred((need_number("matmul", out, a, b),), library=_copied(a, b))


def _summed(x: Any, y: Any, to: TensorSpec, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """The product of x and y, summed over the leading dimensions that ``to`` lacks.

    With these before the inner dimension it is one product without a sum, for which operands may have to be copied. That is
    done if the products to be summed, one for each matrix, would be larger.
    """
    n = x.spec.ndim
    lead, own = range(n - to.ndim), range(n - to.ndim, n - 2)
    products = math.prod(x.spec.shape[:-2]) * x.spec.shape[-1 if transpose_a else -2] * y.spec.shape[-2 if transpose_b else -1]
    if lead and products > _FEW and x.spec.shape[:-2] == y.spec.shape[:-2]:
        joined, copied = [], 0
        for v, columns_inside in ((x, not transpose_a), (y, transpose_b)):
            inner, outer = (n - 1, n - 2) if columns_inside else (n - 2, n - 1)
            order, sizes = (*own, *lead, inner, outer), v.spec.shape
            turned = v if order == tuple(range(n)) else permute(v, dims=order)
            shape = (*(sizes[d] for d in own), math.prod(sizes[d] for d in (*lead, inner)), sizes[outer])
            joined.append((turned, shape))
            copied += v.spec.numel * (view_strides(turned.spec, shape) is None)
        if copied < products:
            x, y = (reshape(turned, shape) for turned, shape in joined)
            transpose_a, transpose_b = True, False
    return sum_to(matmul(x, y, transpose_a=transpose_a, transpose_b=transpose_b), to=to)


def _matmul_a(g: Any, b: Any, a_spec: TensorSpec, transpose_a: bool, transpose_b: bool) -> Any:
    if transpose_a:
        return _summed(b, g, a_spec, transpose_b, True)
    return _summed(g, b, a_spec, transpose_b=not transpose_b)


def _matmul_b(g: Any, a: Any, b_spec: TensorSpec, transpose_a: bool, transpose_b: bool) -> Any:
    if transpose_b:
        return _summed(g, a, b_spec, True, transpose_a)
    return _summed(a, g, b_spec, not transpose_a)


matmul = op("matmul", _matmul_spec, b=_matmul_b, a=_matmul_a,
            flops=lambda a, out, transpose_a: 2 * out.numel * a.shape[-2 if transpose_a else -1])


def _linear_spec(x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None) -> Inferred:
    need_float("linear", input=x, weight=weight, bias=bias)
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise SpecError(f"mat1 and mat2 shapes cannot be multiplied: linear got input {list(x.shape)} and weight "
                        f"{list(weight.shape)}, and expected the input's last dimension to be "
                        f"{weight.shape[1] if weight.ndim == 2 else 'the second of a weight of two'}")
    if bias is not None and bias.shape != (weight.shape[0],):
        raise SpecError(f"linear: bias must have shape [{weight.shape[0]}], but got {list(bias.shape)}")
    need_one_dtype("linear", input=x, weight=weight, bias=bias)
    return Inferred((TensorSpec.of((*x.shape[:-1], weight.shape[0]), x.dtype),), library=_copied(x, weight))


def _linear_grad_spec(dy: TensorSpec, x: TensorSpec | None = None, weight: TensorSpec | None = None, *,
                      needs: tuple[bool, bool, bool]) -> tuple[TensorSpec, ...]:
    if (x is not None and (x.shape[:-1], x.dtype) != (dy.shape[:-1], dy.dtype)) or (
            weight is not None and (weight.ndim != 2 or (weight.shape[0], weight.dtype) != (dy.shape[-1], dy.dtype))):
        raise SpecError(f"linear makes no {dy} of input {x} and weight {weight}")
    shapes = []
    if needs[0]:
        assert weight is not None
        shapes.append((*dy.shape[:-1], weight.shape[1]))
    if needs[1]:
        assert x is not None
        shapes.append((dy.shape[-1], x.shape[-1]))
    if needs[2]:
        shapes.append(dy.shape[-1:])
    return tuple(TensorSpec.of(shape, dy.dtype) for shape in shapes)


def _linear_rule(g: Any, x: Any, weight: Any, needs: tuple[bool, bool, bool]) -> Any:
    grads = linear_grad(g, x, weight, needs=needs)
    found = iter(grads)
    return grads if all(needs) else tuple(next(found) if wanted else None for wanted in needs)


def _linear_second(gs: tuple[Any, ...], dy: Any, x: Any, weight: Any, needs: tuple[bool, bool, bool]) -> Any:
    """The cotangents of dy, x and weight: each output of linear_grad is a product of two of them."""
    found = iter(gs)
    g_x, g_weight, g_bias = (next(found) if wanted else None for wanted in needs)
    rows = dy.spec.shape
    to_dy = [linear(g_x, weight)] if g_x is not None else []
    to_x = to_weight = None
    if g_weight is not None:
        to_dy.append(linear(x, g_weight))
        to_x = linear(dy, permute(g_weight, dims=(1, 0)))
    if g_bias is not None:
        to_dy.append(expand(g_bias, shape=rows))
    if g_x is not None:
        count = math.prod(rows[:-1])
        to_weight = matmul(reshape(dy, (count, rows[-1])), reshape(g_x, (count, g_x.spec.shape[-1])), transpose_a=True)
    return functools.reduce(operator.add, to_dy) if to_dy else None, to_x, to_weight


linear = op("linear", _linear_spec, joint("x", "weight", "bias", x=("weight",), weight=("x",))(spending(_linear_rule)),
            again=lambda x, weight, bias: linear(x, weight, bias),
            flops=lambda weight, out: 2 * out.numel * weight.shape[1], doc="x W^T + b over the last dimension.")
linear_grad = op("linear_grad", _linear_grad_spec, joint("dy", "x", "weight")(_linear_second), contiguous=True,
                 may_alias=("x",),
                 flops=lambda dy, x, weight, needs: 2 * dy.numel * (needs[0] and weight.shape[1]) + 2 * dy.numel * (
                     needs[1] and x.shape[-1]),
                 doc="The gradients of linear that ``needs`` asks for, in one launch: dy W, dy^T x, and dy summed.")
