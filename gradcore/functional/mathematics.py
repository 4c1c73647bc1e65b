"""Elementary functions, reductions and matrix products, with PyTorch's signatures."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gradcore.arguments import by_numpy, into
from gradcore.blame import blame
from gradcore.engine.autocast import joining
from gradcore.engine.value import Value
from gradcore.errors import DimError, SpecError
from gradcore.functional.arithmetic import add, div, elementwise_function, floor_divide, mul, sub
from gradcore.functional.shape import dim_of, reshape, squeeze, unsqueeze
from gradcore.ops import activation, elementwise, linalg, movement, normalizers, reduce
from gradcore.spec import normalize_dims

Tensor = Any
Dim = int | Sequence[int] | None


neg, remainder, maximum, minimum = map(elementwise_function, (
    elementwise.neg, elementwise.remainder, elementwise.maximum, elementwise.minimum))
eq, ne, lt = map(elementwise_function, (elementwise.eq, elementwise.ne, elementwise.lt))
le, gt, ge = map(elementwise_function, (elementwise.le, elementwise.gt, elementwise.ge))
logical_and, logical_or = map(elementwise_function, (elementwise.logical_and, elementwise.logical_or))
logical_xor, logical_not = map(elementwise_function, (elementwise.logical_xor, elementwise.logical_not))
isnan, isinf, isfinite = map(elementwise_function, (elementwise.isnan, elementwise.isinf, elementwise.isfinite))
abs, floor, ceil = map(elementwise_function, (elementwise.abs, elementwise.floor, elementwise.ceil))
sign, square = map(elementwise_function, (elementwise.sign, elementwise.square))
exp, expm1, log = map(elementwise_function, (elementwise.exp, elementwise.expm1, elementwise.log))
log1p, log2, log10 = map(elementwise_function, (elementwise.log1p, elementwise.log2, elementwise.log10))
sqrt, rsqrt, reciprocal = map(elementwise_function, (elementwise.sqrt, elementwise.rsqrt, elementwise.reciprocal))
sin, cos, tan = map(elementwise_function, (elementwise.sin, elementwise.cos, elementwise.tan))
sinh, cosh, arctan, relu = map(elementwise_function, (elementwise.sinh, elementwise.cosh, elementwise.arctan, activation.relu))


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent; integers are converted to floats."""
    return activation.tanh(movement.as_float(input))


def pow(input: Any, exponent: Any, *, out: Any = None) -> Tensor:
    """``input`` to the power of ``exponent``; one of them may be a number."""
    if out is not None:
        return into("pow", out, pow(input, exponent))
    return elementwise.pow(input, exponent)


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Rounded to ``decimals`` places (0 by default), halves to even."""
    if not decimals:
        return movement.clone(input) if input.spec.dtype.kind in "iu" else elementwise.round(input)
    if not input.spec.floating:
        raise NotImplementedError(f"round with decimals={decimals} is not implemented for {input.spec.dtype.name}: expected a "
                                  "tensor of a floating type")
    # In 16 bits the scaled number may be infinite.
    x, scale = movement.cast_to(input, input.spec.widened()), 10.0 ** builtins.abs(decimals)
    x = elementwise.round(x * scale) / scale if decimals > 0 else elementwise.round(x / scale) * scale
    return movement.cast_to(x, input.spec)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input)); integers are converted to floats."""
    return activation.sigmoid(movement.as_float(input))


def erf(input: Tensor) -> Tensor:
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to ``input``; integers are converted to floats."""
    return activation.erf(movement.as_float(input))


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """``input`` limited to [min, max], which are numbers or tensors that broadcast; one of them may be None."""
    return elementwise.clamp(input, min, max)


# -- reductions --------------------------------------------------------------------------------------------------------


def sum(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None, axis: Dim = None,
        keepdims: bool = False, out: Any = None) -> Tensor:
    """The sum over ``dim``, or of all elements. Integers and bools give int64 unless ``dtype`` is given."""
    if axis is not None or keepdims or out is not None:
        return by_numpy(sum, input, dim, keepdim, dtype, axis, keepdims, out)
    try:
        input = input if dtype is None else input.to(dtype)
        made = reduce.sum(input, dims=normalize_dims(dim, input.spec.ndim), keepdim=keepdim)
    except Exception as error:
        blame(sum, error, (input, dim, keepdim), {})
        raise
    return made if dtype is None else made.to(dtype)


def mean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None, axis: Dim = None,
         keepdims: bool = False, out: Any = None) -> Tensor:
    """The mean over ``dim``, or of all elements."""
    if axis is not None or keepdims or out is not None:
        return by_numpy(mean, input, dim, keepdim, dtype, axis, keepdims, out)
    try:
        input = input if dtype is None else input.to(dtype)
        made = reduce.mean(input, dims=normalize_dims(dim, input.spec.ndim), keepdim=keepdim)
    except Exception as error:
        blame(mean, error, (input, dim, keepdim), {})
        raise
    # Under autocast the op runs in float32.
    return made if dtype is None else made.to(dtype)


def amax(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The largest element over ``dim``, a dimension or several, or of all. Equal elements share the gradient."""
    return reduce.amax(input, dims=normalize_dims(dim, input.spec.ndim), keepdim=keepdim)


def amin(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The smallest element, as :func:`amax`."""
    return reduce.amin(input, dims=normalize_dims(dim, input.spec.ndim), keepdim=keepdim)


def need_dim(name: str, keepdim: bool) -> None:
    """Raises TypeError for ``keepdim`` without ``dim``."""
    if keepdim:
        raise TypeError(f"{name}() takes keepdim with a dim only, but got keepdim={keepdim} without one")


class Ranked(NamedTuple):
    """Values and their indices, int64."""

    values: Any
    indices: Any


def max(input: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Any:
    """The largest element; with ``dim`` a pair of values and indices; of two tensors, the elementwise maximum."""
    return _extreme(input, dim, keepdim, amax, reduce.max_with_index, elementwise.maximum)


def min(input: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Any:
    """The smallest element; see :func:`max`."""
    return _extreme(input, dim, keepdim, amin, reduce.min_with_index, elementwise.minimum)


def _extreme(x: Tensor, dim: Any, keepdim: bool, whole: Any, indexed: Any, pairwise: Any) -> Any:
    if isinstance(dim, Value) or dim is None:
        need_dim(whole.__name__.removeprefix("a"), keepdim)
        return whole(x) if dim is None else pairwise(x, dim)
    d = dim_of(dim, x)
    return Ranked(*(indexed(x, dim=d, keepdim=keepdim) if x.spec.ndim else indexed(reshape(x, 1), dim=0, keepdim=False)))


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the largest element along ``dim``, or in the flattened tensor, int64."""
    return _arg(reduce.argmax, input, dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the smallest element; see :func:`argmax`."""
    return _arg(reduce.argmin, input, dim, keepdim)


def _arg(op: Any, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is not None and (dim_of(dim, x) or x.spec.ndim):
        return op(x, dim=dim_of(dim, x), keepdim=keepdim)
    if x.spec.numel == 0:
        raise DimError(f"{op.name}(): Expected reduction dim to be specified for an empty tensor")
    found = op(reshape(x, -1), dim=0, keepdim=False)
    return reshape(found, (1,) * x.spec.ndim) if keepdim else found


def any(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether any element is nonzero, over ``dim`` or of all; for ``dim=()``, each element by itself. Of uint8 as uint8."""
    return _found(reduce.any, input, dim, keepdim)


def all(input: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether all elements are nonzero, over ``dim`` or of all; for ``dim=()``, each element by itself. Of uint8 as uint8."""
    return _found(reduce.all, input, dim, keepdim)


def _found(op: Any, input: Tensor, dim: Dim, keepdim: bool) -> Tensor:
    spec, each = input.spec, isinstance(dim, Sequence) and not dim
    found = elementwise.ne(input, 0) if each else op(input, dims=normalize_dims(dim, spec.ndim), keepdim=keepdim)
    return movement.cast_to(found, spec) if spec.dtype == np.uint8 else found


def logsumexp(input: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    """log(sum(exp(input))) over ``dim``, without overflow; integers are converted to floats."""
    return reduce.logsumexp(movement.as_float(input), dims=normalize_dims(dim, input.spec.ndim), keepdim=keepdim)


def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(input) / sum(exp(input)) along ``dim``."""
    if dtype is None:
        return normalizers.softmax(input, dim=dim_of(dim, input))
    # Under autocast the op runs in float32.
    return normalizers.softmax(input.to(dtype), dim=dim_of(dim, input)).to(dtype)


def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """The logarithm of the softmax along ``dim``."""
    if dtype is None:
        return normalizers.log_softmax(input, dim=dim_of(dim, input))
    return normalizers.log_softmax(input.to(dtype), dim=dim_of(dim, input)).to(dtype)


# -- matrix products ---------------------------------------------------------------------------------------------------


def matmul(input: Tensor, other: Tensor, *, out: Any = None) -> Tensor:
    """The matrix product, as NumPy's ``@``: 1-d tensors are rows or columns, leading dimensions broadcast."""
    if out is not None:
        return into("matmul", out, matmul(input, other))
    if not isinstance(other, Value):
        raise TypeError(f"matmul takes two tensors, but got {type(other).__name__}")
    try:
        a, b = input.spec.ndim, other.spec.ndim
    except AttributeError as error:
        blame(matmul, error, (input,), {})
        raise
    if not a or not b:
        raise SpecError(f"both arguments to matmul need to be at least 1D, but they are {a}D and {b}D")
    made = linalg.matmul(unsqueeze(input, 0) if a == 1 else input, unsqueeze(other, 1) if b == 1 else other)
    made = squeeze(made, -1) if b == 1 else made
    return squeeze(made, -1 if b == 1 else -2) if a == 1 else made


def _checked(name: str, x: Tensor, y: Tensor, ndims: tuple[int, int]) -> Tensor:
    if (x.spec.ndim, y.spec.ndim) != ndims or (ndims == (3, 3) and x.spec.shape[0] != y.spec.shape[0]):
        alike = " and equal length" * (ndims[0] == 3)
        raise SpecError(f"{name}: expected tensors of {ndims[0]} and {ndims[1]} dimensions{alike}, but got "
                        f"{list(x.spec.shape)} and {list(y.spec.shape)}")
    return matmul(x, y)


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of matrices [n, k] and [k, m]. Raises :class:`SpecError` for other shapes."""
    return _checked("mm", input, mat2, (2, 2))


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of matrices [b, n, k] and [b, k, m]. Raises :class:`SpecError` for other shapes."""
    return _checked("bmm", input, mat2, (3, 3))


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix [n, k] and a vector [k]. Raises :class:`SpecError` for other shapes."""
    return _checked("mv", input, vec, (2, 1))


@joining
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The dot product of two vectors [n], 0-d. Raises :class:`SpecError` for other shapes."""
    return _checked("dot", input, tensor, (1, 1))


__all__ = [
    "abs", "add", "all", "amax", "amin", "any", "arctan", "argmax", "argmin", "bmm", "ceil", "clamp", "cos", "cosh", "div",
    "dot", "eq", "erf", "exp", "expm1", "floor", "floor_divide", "ge", "gt", "isfinite", "isinf", "isnan", "le", "log", "log1p",
    "log2", "log10", "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp", "lt", "matmul",
    "max", "maximum", "mean", "min", "minimum", "mm", "mul", "mv", "ne", "neg", "pow", "reciprocal", "relu", "remainder",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "softmax", "sqrt", "square", "sub", "sum", "tan", "tanh"]
METHODS = __all__
