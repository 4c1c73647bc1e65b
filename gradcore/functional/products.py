"""Products of vectors, matrices and tensors, composed of matrix and elementwise products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gradcore.arguments import with_name
from gradcore.dtypes import promote
from gradcore.engine.autocast import joining
from gradcore.errors import SpecError
from gradcore.functional import mathematics as m
from gradcore.functional import shape as sh
from gradcore.functional.arithmetic import factor
from gradcore.functional.arranging import roll
from gradcore.functional.types import fitted
from gradcore.ops import elementwise, in_place, linalg, movement, reduce
from gradcore.ops.shapes import need_one_dtype

Tensor = Any


def _vectors(name: str, *tensors: Tensor) -> None:
    if any(x.spec.ndim != 1 for x in tensors):
        raise SpecError(f"{name}: Expected 1-D arguments, but got " + " and ".join(str(list(x.spec.shape)) for x in tensors))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The outer product [n, m] of vectors [n] and [m]."""
    _vectors("outer", input, vec2)
    return elementwise.mul(sh.unsqueeze(input, 1), sh.unsqueeze(vec2, 0))


@joining
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The dot product of two vectors [n], 0-d."""
    _vectors("vdot", input, other)
    return m.dot(input, other)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Dot products over the last dimensions of both tensors; if one is 0-d, their product."""
    if not input.spec.ndim or not other.spec.ndim:
        return elementwise.mul(input, other)
    if input.spec.shape[-1] != other.spec.shape[-1]:
        raise SpecError("inner() the last dimension must match on both input tensors but got shapes "
                        f"{list(input.spec.shape)} and {list(other.spec.shape)}")
    return tensordot(input, other, ((-1,), (-1,)))


# -- a sum and a product -------------------------------------------------------------------------------------------------


def _factors(name: str, product: Tensor, beta: float, alpha: float) -> tuple[float, float]:
    """``beta`` and ``alpha`` in the kind of numbers that the product has; ``addr`` takes no other kind, as ``add``."""
    dtype = product.spec.dtype
    if name.startswith("addr"):
        return factor("beta", beta, dtype), factor("alpha", alpha, dtype)
    return fitted(beta, dtype), fitted(alpha, dtype)


def _fitting(name: str, input: Tensor, product: Tensor) -> Tensor:
    """The product in the dtype in which it is added to ``input``: ``addr`` promotes the two.

    The others raise :class:`SpecError` for two dtypes, unless both are floats, which autocast makes differ.
    """
    if name.startswith("addr"):
        # An input of no dimensions counts as a matrix does.
        return movement.cast_to(product, product.spec.like(promote([product.spec, product.spec.like(input.spec.dtype)])))
    if not (input.spec.floating and product.spec.floating):
        need_one_dtype(name, input=input.spec, product=product.spec)
    return product


def _plus(name: str, input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """beta * input + alpha * product; with a ``beta`` of 0, ``input`` is not read, so its NaNs do not reach the result."""
    if not movement.broadcasts(input.spec.shape, product.spec.shape):
        raise SpecError(f"{name}: The expanded size of the tensor {list(product.spec.shape)} must match the existing size "
                        f"{list(input.spec.shape)}")
    product = _fitting(name, input, product)
    beta, alpha = _factors(name, product, beta, alpha)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    input = input if input.spec.floating else movement.cast_to(input, product.spec)
    return elementwise.add(input if beta == 1 else input * beta, product)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * mat1 @ mat2: matrices [n, k] and [k, m]."""
    return _plus("addmm", input, m.mm(mat1, mat2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * mat @ vec: a matrix [n, k] and a vector [k]."""
    return _plus("addmv", input, m.mv(mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2): vectors [n] and [m]."""
    return _plus("addr", input, outer(vec1, vec2), beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * batch1 @ batch2: batches of matrices [b, n, k] and [b, k, m]."""
    return _plus("baddbmm", input, m.bmm(batch1, batch2), beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * sum(batch1 @ batch2), summed over the batch of matrices [b, n, k] and [b, k, m]."""
    return _plus("addbmm", input, _contracted(batch1, batch2, ((0, 2), (0, 1))), beta, alpha)


# -- tensors -------------------------------------------------------------------------------------------------------------


@joining
def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Any] = 2) -> Tensor:
    """Sums of products over the last ``dims`` dimensions of ``a`` and the first of ``b``, or over two lists of dimensions."""
    return _contracted(a, b, dims)


def _contracted(a: Tensor, b: Tensor, dims: int | Sequence[Any]) -> Tensor:
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.spec.ndim, b.spec.ndim):
            raise SpecError(f"tensordot expects dims >= 0 and at most {min(a.spec.ndim, b.spec.ndim)}, but got dims={dims}")
        dims = (range(a.spec.ndim - dims, a.spec.ndim), range(dims))
    first, second = ([sh.dim_of(d, x) for d in ((ds,) if isinstance(ds, int) else ds)]
                     for x, ds in zip((a, b), dims, strict=True))
    for d, e in zip(first, second, strict=False):
        # A size of 1 broadcasts, so the other operand is summed over the dimension.
        if a.spec.shape[d] == 1:
            b = movement.cast_to(reduce.sum(b, dims=(e,), keepdim=True), b.spec) if b.spec.shape[e] != 1 else b
        elif b.spec.shape[e] == 1:
            a = movement.cast_to(reduce.sum(a, dims=(d,), keepdim=True), a.spec)
    if [a.spec.shape[d] for d in first] != [b.spec.shape[d] for d in second]:
        raise SpecError(f"contracted dimensions need to match, but first has sizes {[a.spec.shape[d] for d in first]} in dims "
                        f"{first} and second has sizes {[b.spec.shape[d] for d in second]} in dims {second}")
    rows, columns = ([d for d in range(x.spec.ndim) if d not in gone] for x, gone in ((a, first), (b, second)))
    inner_size = math.prod(a.spec.shape[d] for d in first)
    kept = [*(a.spec.shape[d] for d in rows), *(b.spec.shape[d] for d in columns)]
    left = movement.reshape(movement.permute(a, dims=(*rows, *first)), (math.prod(a.spec.shape[d] for d in rows), inner_size))
    right = movement.reshape(movement.permute(b, dims=(*second, *columns)),
                             (inner_size, math.prod(b.spec.shape[d] for d in columns)))
    return movement.reshape(linalg.matmul(left, right), kept)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product, with a block input[i, j] * other for each element, by one elementwise product."""
    n = max(input.spec.ndim, other.spec.ndim)
    one, two = ((1,) * (n - x.spec.ndim) + x.spec.shape for x in (input, other))
    a = movement.reshape(input, [k for size in one for k in (size, 1)])
    b = movement.reshape(other, [k for size in two for k in (1, size)])
    return movement.reshape(elementwise.mul(a, b), [i * j for i, j in zip(one, two, strict=True)])


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product along ``dim``, by default the first dimension of size 3; the other dimensions broadcast.

    Raises :class:`SpecError` for different numbers of dimensions, and for a ``dim`` of another size.
    """
    given = input.spec.shape, other.spec.shape
    if input.spec.ndim != other.spec.ndim:
        raise SpecError(f"linalg.cross: inputs must have the same number of dimensions, but got {list(given[0])} and "
                        f"{list(given[1])}")
    input, other = sh.broadcast_tensors(input, other)
    if dim is None:
        if 3 not in input.spec.shape:
            raise SpecError(f"no dimension of size 3 in input: got {list(given[0])} and {list(given[1])}")
        dim = input.spec.shape.index(3)
    d = sh.dim_of(dim, input)
    if any(shape[d] != 3 for shape in given):
        raise SpecError(f"linalg.cross: inputs dimension {dim} must have length 3. Got {given[0][d]} and {given[1][d]}")
    return roll(input, -1, d) * roll(other, -2, d) - roll(input, -2, d) * roll(other, -1, d)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of matrices in the order with the fewest multiplications; the first and the last may be vectors."""
    if len(tensors) < 2:
        raise SpecError(f"multi_dot(): expected at least 2 tensors but got {len(tensors)}")
    whole = list(tensors)
    for k, x in enumerate(whole):
        if x.spec.ndim != 2 and not (x.spec.ndim == 1 and k in (0, len(whole) - 1)):
            raise SpecError(f"multi_dot(): tensor {k} must be 2D{' or 1D' * (k in (0, len(whole) - 1))} but got "
                            f"{x.spec.ndim}D")
    row, column = whole[0].spec.ndim == 1, whole[-1].spec.ndim == 1
    whole[0] = sh.unsqueeze(whole[0], 0) if row else whole[0]
    whole[-1] = sh.unsqueeze(whole[-1], 1) if column else whole[-1]
    sizes = [x.spec.shape[0] for x in whole] + [whole[-1].spec.shape[1]]
    out = _chain(whole, sizes, _orders(sizes), 0, len(whole) - 1)
    out = sh.squeeze(out, 1) if column else out
    return sh.squeeze(out, 0) if row else out


def _orders(sizes: list[int]) -> dict[tuple[int, int], int]:
    """The best split of each run of matrices. Cormen et al., Introduction to Algorithms, section 14.2."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    found = {}
    for length in range(2, count + 1):
        for i in range(count - length + 1):
            j = i + length - 1
            cost[i, j], found[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j))
    return found


def _chain(whole: list[Tensor], sizes: list[int], order: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return whole[i]
    k = order[i, j]
    return linalg.matmul(_chain(whole, sizes, order, i, k), _chain(whole, sizes, order, k + 1, j))


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of matrices, in the order that takes the fewest multiplications."""
    return multi_dot(matrices)


def total(x: Tensor, dims: Sequence[int]) -> Tensor:
    """The sum over ``dims``; ``x`` itself if there are none."""
    return reduce.sum(x, dims=tuple(sorted(dims)), keepdim=False) if dims else x


@joining
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1^T W_k x2 + b_k: inputs [..., in1] and [..., in2], weight [out, in1, in2], bias [out], result [..., out]."""
    lead, (out, one, two) = input1.spec.shape[:-1], weight.spec.shape if weight.spec.ndim == 3 else (0, -1, -1)
    if input1.spec.shape != (*lead, one) or input2.spec.shape != (*lead, two):
        raise SpecError(f"bilinear(): input sizes {list(input1.spec.shape)} and {list(input2.spec.shape)} do not fit a weight "
                        f"of {list(weight.spec.shape)}, [out, in1, in2]")
    # One matrix product with the larger input computes all outputs; with the second, it reads the weight as it lies.
    if one > two:
        input1, input2, weight, one, two = input2, input1, movement.permute(weight, dims=(0, 2, 1)), two, one
    table = movement.reshape(weight, (out * one, two))
    half = movement.reshape(linalg.linear(movement.reshape(input2, (-1, two)), table, None), (-1, out, one))
    made = linalg.matmul(half, movement.reshape(input1, (-1, one, 1)))
    found = movement.reshape(made, (*lead, out))
    return found if bias is None else elementwise.add(found, bias)


# -- in place ------------------------------------------------------------------------------------------------------------


def _added(name: str, product: Callable[..., Tensor], operands: str) -> Callable[..., Tensor]:
    names = tuple(operands.split())

    def function(input: Tensor, *tensors: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
        if len(tensors) != len(names):
            raise TypeError(f"{name}() takes {len(names)} tensors, {' and '.join(names)}, but got {len(tensors)}")
        made = _fitting(name, input, product(*tensors))
        beta, alpha = _factors(name, made, beta, alpha)
        if beta == 0:
            return movement.copy_(input, made if alpha == 1 else made * alpha)
        scaled = input if beta == 1 else in_place.mul_(input, beta)
        return in_place.add_(scaled, made if alpha == 1 else made * alpha)

    function.operands = names  # type: ignore[attr-defined]
    return with_name(function, name, f"``{name[:-1]}``, written over the tensor; returns it.")


#: Methods of a tensor that are not functions.
TENSOR_METHODS = {name: _added(name, product, operands) for name, product, operands in (
    ("addmm_", m.mm, "mat1 mat2"), ("addmv_", m.mv, "mat vec"), ("addr_", outer, "vec1 vec2"),
    ("baddbmm_", m.bmm, "batch1 batch2"),
    ("addbmm_", lambda a, b: tensordot(a, b, ((0, 2), (0, 1))), "batch1 batch2"))}

ger = outer

METHODS = ("outer ger vdot inner addmm addmv addr baddbmm addbmm kron cross").split()

__all__ = [*METHODS, "chain_matmul", "tensordot"]  # noqa: PLE0604 - strings all
