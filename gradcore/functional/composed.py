"""Functions composed of other ops: elementwise ones, such as ``xlogy``, ``copysign`` and ``ldexp``, ``renorm``
and ``sum_to_size``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from gradcore.arguments import with_name
from gradcore.blame import type_of
from gradcore.dtypes import default_float, is_floating, limits, promote
from gradcore.engine.autocast import raised, raising
from gradcore.engine.operands import number, real
from gradcore.engine.value import Value, tensors_in
from gradcore.errors import SpecError
from gradcore.functional import types
from gradcore.functional.arithmetic import scaled
from gradcore.functional.pointwise import logaddexp
from gradcore.functional.shape import dim_of, size_of
from gradcore.ops import creation, elementwise, movement, pointwise, reduce
from gradcore.spec import TensorSpec

Tensor = Any

_LN2 = 0.6931471805599453


def _need_one(input: Any, other: Any) -> None:
    if not isinstance(input, Value) and not isinstance(other, Value):
        raise TypeError(f"expected a tensor and a number, or two tensors, but got {input!r} and {other!r}")


def _promoted_floats(input: Any, other: Any) -> tuple[Tensor, Tensor]:
    """Two operands, at most one of them a number, as tensors of the floating dtype that they promote to."""
    _need_one(input, other)
    dtype = types.result_type(input, other)
    dtype = dtype if is_floating(dtype) else default_float()
    device = (input if isinstance(input, Value) else other).storage.device
    one, two = (movement.cast(v, dtype=dtype) if isinstance(v, Value) else
                creation.full(v, shape=(), dtype=dtype, device=device) for v in (input, other))
    return one, two


def xlogy(input: Any, other: Any) -> Tensor:
    """input * log(other), but 0 where ``input`` is 0, unless ``other`` is NaN; one of the two may be a number.

    The gradient with respect to ``other`` is 0 where both are 0.
    """
    _need_one(input, other)
    return pointwise.xlogy(input, other)


def xlog1py(input: Any, other: Any) -> Tensor:
    """input * log(1 + other), but 0 where ``input`` is 0, unless ``other`` is NaN; one of the two may be a number.

    The gradient with respect to ``other`` is 0 where ``input`` is 0 and ``other`` is -1.
    """
    _need_one(input, other)
    return pointwise.xlog1py(input, other)


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)); NaN outside [0, 1]. If ``eps`` is given, x is first clamped to [eps, 1 - eps]."""
    x = movement.as_float(input)
    if eps is not None:
        eps = number("logit", "eps", eps)
        x = elementwise.clamp(x, eps, 1.0 - eps)
    return pointwise.logit(x)


def signbit(input: Tensor) -> Tensor:
    """True where the sign bit is set, -0.0 included, and False for every NaN."""
    if not input.spec.floating:
        return elementwise.lt(input, 0)
    # arctan2(x, -1) has the sign of x, also for zeros.
    return elementwise.lt(pointwise.arctan2(input.detach(), -1.0), 0)


def copysign(input: Tensor, other: Any) -> Tensor:
    """|input| with the sign of ``other``, a tensor or a number; -0.0 counts as negative. Integers are converted to floats."""
    x, y = _promoted_floats(input, other)
    return elementwise.abs(x) * elementwise.where(signbit(y), -1.0, creation.new_full(x, (), 1))


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 where x < 0, 1 where x > 0, ``values`` where x is 0; not differentiable. Raises :class:`SpecError` for two dtypes."""
    if input.spec.dtype != values.spec.dtype:
        raise SpecError(f"heaviside is not yet implemented for tensors with different dtypes: {input.spec.dtype.name} and "
                        f"{values.spec.dtype.name}")
    x = input.detach()
    return elementwise.where(elementwise.eq(x, 0), values.detach(), movement.cast(elementwise.gt(x, 0), dtype=x.spec.dtype))


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """log2(2^input + 2^other), without overflow. Raises :class:`SpecError` if both are integers."""
    made = types.promoted(input, other)
    if not made.floating:
        raise SpecError(f"logaddexp2: expected a floating dtype, but got {input.spec.dtype.name} and {other.spec.dtype.name}")
    x, y = (movement.cast_to(v, made.widened()) * _LN2 for v in (input, other))
    return movement.cast_to(logaddexp(x, y) * (1 / _LN2), made)


def float_power(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """``input`` to the power of ``exponent``, computed in float64; one of them may be a number."""
    x, y = (movement.cast(v, dtype=np.dtype(np.float64)) if isinstance(v, Value) else float(v) for v in (input, exponent))
    return elementwise.pow(x, y)


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input * 2^other. Integers are converted to floats. The product may be finite where 2^other alone overflows."""
    if not isinstance(other, Value):
        raise TypeError(f"ldexp(): argument 'other' must be a tensor, but got {other!r}")
    dtype = promote([input.spec, other.spec])
    made = TensorSpec.of((), dtype if is_floating(dtype) else default_float())
    x, power = (movement.cast_to(v, made.widened()) for v in (input, other))
    # Beyond the limit every product is 0 or infinite; within it, each of the three factors is finite and nonzero.
    limit = 2.25 * np.finfo(made.widened().dtype).maxexp
    power = elementwise.clamp(power, -limit, limit)
    for parts in (3, 2):
        part = elementwise.floor(power / parts)
        x, power = x * pointwise.exp2(part), power - part
    return movement.cast_to(x * pointwise.exp2(power), made)


class Parts(NamedTuple):
    """Mantissas and exponents."""

    mantissa: Any
    exponent: Any


def frexp(input: Tensor) -> Parts:
    """Mantissas of a magnitude in [0.5, 1), and exponents of 2 as int32, whose products are the elements: what
    :func:`ldexp` takes. Of zeros, infinities and NaN, themselves and 0.

    Only the mantissa has a gradient, at a fixed exponent. Raises :class:`SpecError` for integers.
    """
    spec = input.spec
    if not spec.floating:
        raise SpecError(f"torch.frexp() only supports floating-point dtypes, but got {spec.dtype.name}")
    x = movement.cast_to(input, spec.widened())
    usual = elementwise.logical_and(elementwise.isfinite(x), elementwise.ne(x, 0))
    size = elementwise.where(usual, elementwise.abs(x.detach()), 1.0)
    power = elementwise.floor(elementwise.log2(size)) + 1
    # Near a power of 2 the logarithm may be rounded across it.
    found = ldexp(size, -power)
    power = power + movement.cast_to(elementwise.ge(found, 1), x.spec) - movement.cast_to(elementwise.lt(found, 0.5), x.spec)
    power = elementwise.where(usual, power, 0.0)
    return Parts(movement.cast_to(ldexp(x, -power), spec), movement.cast(power, dtype=np.dtype(np.int32)))


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The number next to each element in the direction of ``other``, in the dtype that both promote to; ``other`` where both
    are equal. The gradient passes to finite elements that are not equal. Raises :class:`SpecError` for integers."""
    if not isinstance(other, Value):
        raise TypeError(f"nextafter(): argument 'other' (position 2) must be Tensor, not {type_of(other)}")
    made = types.promoted(input, other)
    if not made.floating:
        raise SpecError(f"nextafter: expected a floating dtype, but got {made.dtype.name}")
    info = limits(made.dtype)
    # Numbers of 16 bits, and the steps between them, are exact in float32.
    given: tuple[Tensor, Tensor] = input, other
    x, y = (movement.cast_to(movement.cast_to(v.detach(), made), made.widened()) for v in given)
    mantissa, exponent = frexp(x)
    rises = elementwise.gt(y, x)
    # From a power of 2 towards 0 the step is half as long.
    halved = elementwise.eq(mantissa, elementwise.where(rises, -0.5, 0.5))
    lowest = int(info.minexp) - int(info.nmant)
    power = movement.cast_to(exponent, x.spec) - (int(info.nmant) + 1) - movement.cast_to(halved, x.spec)
    power = elementwise.where(elementwise.eq(x, 0), lowest, elementwise.clamp(power, lowest, None))
    step = ldexp(creation.new_full(x, (), 1), power)
    found = x + elementwise.where(rises, step, -step)
    found = elementwise.where(elementwise.eq(found, 0), x * 0, found)
    found = elementwise.where(elementwise.isinf(x), elementwise.clamp(x, float(info.min), float(info.max)), found)
    # NaN is neither less nor more than any number.
    apart = elementwise.logical_or(rises, elementwise.lt(y, x))
    equal = elementwise.eq(x, y)
    found = elementwise.where(apart, found, elementwise.where(equal, y, math.nan))
    if input.requires_grad:
        # Less 0.0, which -0.0 stays itself under.
        passing = elementwise.logical_and(elementwise.isfinite(x), elementwise.logical_not(equal))
        found = found - elementwise.where(passing, x - movement.cast_to(movement.cast_to(input, made), x.spec), 0.0)
    return movement.cast_to(found, made)


def sum_to_size(input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """The sum over the dimensions that broadcasting a tensor of this size to the input's would add; without any, the input.

    Integers are added up in int64. Raises :class:`SpecError` for a size that does not broadcast.
    """
    shape = size_of("sum_to_size", sizes if size is None else (size,))
    if not movement.broadcasts(shape, input.spec.shape):
        raise SpecError(f"size {{{list(shape)}}} is not expandable to size {{{list(input.spec.shape)}}}.")
    if shape and shape == input.spec.shape:
        return input
    summed = raised(input) if input.spec.floating else movement.cast(input, dtype=np.dtype(np.int64))
    return movement.sum_to_shape(summed, shape=shape)


def rsub(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """other - alpha * input."""
    return elementwise.sub(other, scaled(other, input, alpha))


@raising
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """The input, whose slices of ``dim`` are scaled down to the p-norm ``maxnorm`` where theirs is larger."""
    spec = input.spec
    if not spec.floating:
        raise SpecError(f"renorm: expected a tensor of a floating dtype, but got {spec.dtype.name}")
    maxnorm = number("renorm", "maxnorm", maxnorm)
    if not (p > 0 and maxnorm >= 0 and spec.ndim > 1):
        raise SpecError("renorm: expected a positive p, a maxnorm that is not negative, and at least 2 dimensions, but got "
                        f"{p}, {maxnorm} and {spec.ndim}")
    kept = dim_of(dim, input)
    # A norm may be beyond the numbers of 16 bits.
    x = movement.cast_to(input, spec.widened())
    size = reduce.vector_norm(x, p=real(p), dims=tuple(d for d in range(spec.ndim) if d != kept), keepdim=True)
    large = elementwise.gt(size, maxnorm)
    # The same number as PyTorch's against a division by 0. Where nothing is scaled, the slope of the quotient may be infinite.
    factor = maxnorm / (elementwise.where(large, size, 1.0) + 1e-7)
    return movement.cast_to(x * elementwise.where(large, factor, 1.0), spec)


# -- in place --------------------------------------------------------------------------------------------------------------


def _written(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    name = function.__name__

    @wraps(function)
    def written(input: Tensor, *args: Any, **options: Any) -> Tensor:
        # A gradient reads the overwritten values, so a copy of them is kept.
        read = any(x.requires_grad for x in tensors_in((input, args, options)))
        made = function(movement.clone(input) if read else input, *args, **options)
        if not types.can_cast(made.spec.dtype, input.spec.dtype) or (
                name == "float_power" and input.spec.dtype != made.spec.dtype):
            raise SpecError(f"{name}_: result type {made.spec.dtype.name} can't be cast to the desired output type "
                            f"{input.spec.dtype.name}")
        return movement.copy_(input, made)

    return with_name(written, f"{name}_", f"``{name}``, written over the tensor; returns it.")


#: Methods of a tensor that are not functions.
TENSOR_METHODS: dict[str, Callable[..., Any]] = {f"{fn.__name__}_": _written(fn) for fn in (
    xlogy, logit, copysign, heaviside, float_power, ldexp, nextafter, renorm)}
TENSOR_METHODS["sum_to_size"] = sum_to_size

METHODS = "xlogy logit signbit copysign heaviside logaddexp2 float_power frexp ldexp nextafter renorm".split()

__all__ = [*METHODS, "rsub"]  # noqa: PLE0604 - strings all
