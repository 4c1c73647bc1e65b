"""Arithmetic, functions, reductions, products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gradcore.engine.node import Value
from gradcore.errors import DimError, SpecError
from gradcore.functional.shape import dim_of, reshape, squeeze, unsqueeze
from gradcore.ops import activation, elementwise, linalg, movement, nn, pointwise, reduce
from gradcore.ops.op import Op
from gradcore.spec import is_floating, normalize_dims, promote

Tensor = Any
Dim = int | Sequence[int] | None


def _elementwise(op: Op) -> Any:
    def function(x: Tensor, *others: Any) -> Tensor:
        return op(x, *others)  # type: ignore[operator]

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.__doc__ or f"The op {op.name!r}, element by element."
    return function


def scaled(x: Any, y: Any, alpha: Any) -> Any:
    """alpha * y, which goes with ``x``. Raises RuntimeError for a factor that is no integer where both are."""
    if isinstance(alpha, float) and not is_floating(promote([v.spec if isinstance(v, Value) else type(v) for v in (x, y)])):
        raise RuntimeError(f"For integral input tensors, argument alpha must not be a floating point number: got {alpha}")
    return y if alpha == 1 else elementwise.mul(y, alpha) if isinstance(y, Value) else y * alpha


def add(x: Tensor, y: Any, *, alpha: Any = 1) -> Tensor:
    """x + alpha * y"""
    return elementwise.add(x, scaled(x, y, alpha))


def sub(x: Tensor, y: Any, *, alpha: Any = 1) -> Tensor:
    """x - alpha * y"""
    return elementwise.sub(x, scaled(x, y, alpha))


def div(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    """x / y; rounded down with ``"floor"``, towards 0 with ``"trunc"``. Raises RuntimeError for another mode."""
    if rounding_mode is None:
        return elementwise.div(x, y)
    if rounding_mode == "floor":
        return elementwise.floor_divide(x, y)
    if rounding_mode != "trunc":
        raise RuntimeError("div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
                           f"{rounding_mode!r}")
    if is_floating(promote([v.spec if isinstance(v, Value) else type(v) for v in (x, y)])):
        return pointwise.trunc(elementwise.div(x, y))
    # Floats would not hold large integers.
    return elementwise.floor_divide(elementwise.sub(x, pointwise.fmod(x, y)), y)


mul, neg, pow = map(_elementwise, (elementwise.mul, elementwise.neg, elementwise.pow))
maximum, minimum = map(_elementwise, (elementwise.maximum, elementwise.minimum))
floor_divide, remainder = map(_elementwise, (elementwise.floor_divide, elementwise.remainder))
eq, ne, lt = map(_elementwise, (elementwise.eq, elementwise.ne, elementwise.lt))
le, gt, ge = map(_elementwise, (elementwise.le, elementwise.gt, elementwise.ge))
logical_and, logical_or = map(_elementwise, (elementwise.logical_and, elementwise.logical_or))
logical_xor, logical_not = map(_elementwise, (elementwise.logical_xor, elementwise.logical_not))
isnan, isinf, isfinite = map(_elementwise, (elementwise.isnan, elementwise.isinf, elementwise.isfinite))
abs, sign, floor = map(_elementwise, (elementwise.abs, elementwise.sign, elementwise.floor))
ceil, round = map(_elementwise, (elementwise.ceil, elementwise.round))
exp, expm1, log = map(_elementwise, (elementwise.exp, elementwise.expm1, elementwise.log))
log1p, log2, log10 = map(_elementwise, (elementwise.log1p, elementwise.log2, elementwise.log10))
sqrt, rsqrt, reciprocal = map(_elementwise, (elementwise.sqrt, elementwise.rsqrt, elementwise.reciprocal))
sin, cos, tan = map(_elementwise, (elementwise.sin, elementwise.cos, elementwise.tan))
sinh, cosh, arctan = map(_elementwise, (elementwise.sinh, elementwise.cosh, elementwise.arctan))
relu, tanh = map(_elementwise, (activation.relu, activation.tanh))


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); of integers as floats."""
    return activation.sigmoid(movement.as_float(x))


def erf(x: Tensor) -> Tensor:
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x; of integers as floats."""
    return activation.erf(movement.as_float(x))


def square(x: Tensor) -> Tensor:
    """x * x; of bools as integers."""
    return elementwise.square(movement.cast(x, dtype=np.dtype(np.int64)) if x.spec.dtype.kind == "b" else x)


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """``x`` kept between two numbers, or two tensors that broadcast; one of them may be absent."""
    return elementwise.clamp(x, min, max)


# -- reductions --------------------------------------------------------------------------------------------------------


def sum(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum over ``dim``, or over everything. Integers and bools are summed as int64, which ``dtype`` converts to."""
    x = x if dtype is None else x.to(dtype)
    made = reduce.sum(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)
    return made if dtype is None else made.to(dtype)


def mean(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over ``dim``, or over everything."""
    x = x if dtype is None else x.to(dtype)
    return reduce.mean(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def amax(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return reduce.amax(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def amin(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return reduce.amin(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


class Ranked(NamedTuple):
    """Values and their positions, int64."""

    values: Any
    indices: Any


def max(x: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Any:
    """The largest value; with ``dim`` a pair of values and indices; of two tensors, the larger element by element."""
    return _extreme(x, dim, keepdim, amax, reduce.max_with_index, elementwise.maximum)


def min(x: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Any:
    """The smallest value; see :func:`max`."""
    return _extreme(x, dim, keepdim, amin, reduce.min_with_index, elementwise.minimum)


def _extreme(x: Tensor, dim: Any, keepdim: bool, whole: Any, indexed: Any, pairwise: Any) -> Any:
    if isinstance(dim, Value):
        return pairwise(x, dim)
    return whole(x) if dim is None else Ranked(*indexed(x, dim=dim_of(dim, x), keepdim=keepdim))


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Positions of the largest value along ``dim``, or in the flattened tensor."""
    return _arg(reduce.argmax, x, dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(reduce.argmin, x, dim, keepdim)


def _arg(op: Any, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is not None:
        return op(x, dim=dim_of(dim, x), keepdim=keepdim)
    if x.spec.numel == 0:
        raise DimError(f"{op.name}(): Expected reduction dim to be specified for an empty tensor")
    found = op(reshape(x, -1), dim=0, keepdim=False)
    return reshape(found, (1,) * x.spec.ndim) if keepdim else found


def any(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return reduce.any(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def all(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    return reduce.all(x, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def logsumexp(x: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over ``dim``, without overflow; of integers as floats."""
    return reduce.logsumexp(movement.as_float(x), dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


def allclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    return bool(np.allclose(x.detach().cpu().numpy(), y.detach().cpu().numpy(), rtol, atol, equal_nan))


def equal(x: Tensor, y: Tensor) -> bool:
    """Same shape and same values."""
    return x.spec.shape == y.spec.shape and bool(all(elementwise.eq(x, y)).item())


def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) over its sum along ``dim``."""
    return nn.softmax(x, dim=dim_of(dim, x))


def log_softmax(x: Tensor, dim: int) -> Tensor:
    return nn.log_softmax(x, dim=dim_of(dim, x))


# -- matrix products ---------------------------------------------------------------------------------------------------


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """NumPy's ``@``: vectors are rows or columns, leading dimensions broadcast."""
    if not isinstance(y, Value):
        raise TypeError(f"matmul takes two tensors, but got {type(y).__name__}")
    if not x.spec.ndim or not y.spec.ndim:
        raise SpecError(f"both arguments to matmul need to be at least 1D, but they are {x.spec.ndim}D and "
                        f"{y.spec.ndim}D")
    row, column = x.spec.ndim == 1, y.spec.ndim == 1
    out = linalg.matmul(unsqueeze(x, 0) if row else x, unsqueeze(y, 1) if column else y)
    out = squeeze(out, -1) if column else out
    return squeeze(out, -1 if column else -2) if row else out


def _product(name: str, ndims: tuple[int, int]) -> Any:
    def function(x: Tensor, y: Tensor) -> Tensor:
        if (x.spec.ndim, y.spec.ndim) != ndims:
            raise SpecError(f"{name}: expected tensors of {ndims[0]} and {ndims[1]} dimensions, but got "
                            f"{list(x.spec.shape)} and {list(y.spec.shape)}")
        return matmul(x, y)

    function.__name__ = function.__qualname__ = name
    return function


mm, bmm = _product("mm", (2, 2)), _product("bmm", (3, 3))
mv, dot = _product("mv", (2, 1)), _product("dot", (1, 1))
