"""Adapts kernels to dtypes that NumPy handles differently from PyTorch, by conversion of operands and results.

In float16 and bfloat16 NumPy rounds after each step of a sum, matrix product or function, or does not compute them: kernels
compute in float32 on copies, and results are rounded once. The copies are not in the device's figures, which must agree with
those of a GPU that computes in registers: they are reported with what libraries allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from gradcore.devices.calls import Operands
from gradcore.devices.host.halves import convert
from gradcore.devices.host.kernel import slices
from gradcore.dtypes import category, promote
from gradcore.overwriting import OVERWRITING
from gradcore.spec import PIECE, TensorSpec

Kernel = Callable[..., Any]

#: Ops that move values and compute nothing: NumPy runs them on any dtype.
MOVES = frozenset("""cast cat cleared clone copy_ empty eye fill_ full masked_fill_ put_ put_along_ roll slice_grad take tril
    triu where write_part""".split())
# The others by the names of functional ops, which stand for the in-place ones too.
#: Ops whose kernels compute on the bits of 16-bit floats, if all operands have the same dtype.
_BY_BITS = frozenset(("relu", "relu_grad"))
#: Ops that compare a number with a tensor after rounding to the tensor's dtype.
_COMPARED = frozenset("eq ne lt le gt ge".split())
#: Elementwise ops of several operands that have kernels which are not ufuncs but made of one or two.
_CHOICES = _COMPARED | frozenset("""maximum minimum fmax fmin clamp floor_divide remainder fmod logaddexp add sub mul div pow
    arctan2 hypot xlogy xlog1py""".split())
#: Ops that wrap an integer around in the dtype of the tensor; the others refuse an integer out of range.
_WRAPPING = frozenset("""add sub mul floor_divide remainder fmod bitwise_and bitwise_or bitwise_xor bitwise_left_shift
    bitwise_right_shift""".split())
#: Ops that write a number of any type.
_FILLING = frozenset("full fill masked_fill".split())
#: Ops without a result for integers divided by 0.
_DIVISIONS = frozenset("floor_divide remainder fmod".split())
#: Other elementwise ops, whose kernels may be given pieces.
_ELEMENTWISE = frozenset(OVERWRITING) | frozenset("""celu celu_grad elu elu_grad gelu gelu_grad hardsigmoid hardsigmoid_grad
    hardswish hardswish_grad leaky_relu leaky_relu_grad logsigmoid logsigmoid_grad mish mish_grad relu_grad selu selu_grad
    sigmoid_grad silu silu_grad softplus softplus_grad softsign softsign_grad tanh_grad""".split())
_FLOAT = np.dtype(np.float32)


#: Ops with the dtypes of operands and results that their kernels take as they are, which shapes do not change.
_as_they_are: set[Any] = set()


def suited(kernel: Kernel, operands: Operands) -> tuple[Kernel, int]:
    """The kernel adapted to the dtypes of its operands, and the most bytes that it allocates for that."""
    key = (operands.op, isinstance(kernel, np.ufunc),
           *[(s.dtype, not s.ndim) if isinstance(s, TensorSpec) else s for s in operands.inputs],
           len(operands.inputs), *[s.dtype for s in operands.outputs], operands.writes)
    if key in _as_they_are:
        return kernel, 0
    whole = operands.function in _DIVISIONS and not any(
        s is float or (isinstance(s, TensorSpec) and s.floating) for s in operands.inputs)
    made, nbytes = _suited(_checked(kernel) if whole else kernel, operands)
    if made is kernel and not nbytes and len(operands.inputs) < 8:
        # Lists of tensors may have any length, and are not noted.
        _as_they_are.add(key)
    return made, nbytes


def _suited(kernel: Kernel, operands: Operands) -> tuple[Kernel, int]:
    specs = [s for s in (*operands.inputs, *operands.outputs) if isinstance(s, TensorSpec)]
    if any(s.narrow for s in specs) and operands.op not in MOVES and not (
            operands.function in _BY_BITS and all(s.dtype == specs[0].dtype for s in specs)):
        return _widened(kernel, operands)
    if isinstance(kernel, np.ufunc) or operands.function in _CHOICES:
        result, tensors = _results(operands)[0], [k for k, s in enumerate(operands.inputs) if isinstance(s, TensorSpec)]
        dtype = promote(operands.inputs) if operands.function in _COMPARED else result.dtype
        alone = not any(operands.inputs[k].floating for k in tensors)
        whole = [k for k in tensors if result.floating and not (s := operands.inputs[k]).floating and (
            alone or np.result_type(s.dtype, dtype) != dtype)]
        if whole and isinstance(kernel, np.ufunc):
            # By default NumPy computes bytes in float16, larger integers in float64, and divides integers as integers.
            return partial(kernel, dtype=dtype), 0
        wider = [k for k in tensors if not (s := operands.inputs[k]).ndim and result.ndim
                 and category(s.dtype) == category(dtype) and np.result_type(s.dtype, dtype) != dtype]
        if wider or whole:
            return _narrowed(numbers_fitted(kernel, operands), wider + whole, dtype), dtype.itemsize * sum(
                operands.inputs[k].numel for k in whole)
    return numbers_fitted(kernel, operands), 0


def _results(operands: Operands) -> tuple[TensorSpec, ...]:
    """The specs of what the kernel writes."""
    return operands.outputs or tuple(operands.inputs[k] for k in operands.writes)


def numbers_fitted(kernel: Kernel, operands: Operands) -> Kernel:
    """The kernel, with Python integers beside tensors of small integers as PyTorch takes them.

    They wrap around in arithmetic and as the base of a power. Elsewhere negative ones wrap around in uint8, and the kernel
    raises RuntimeError for numbers that the dtype cannot hold (also floats to fill with) and for a negative exponent.
    """
    results = _results(operands)
    dtype = results[0].dtype if len(results) == 1 else None
    filling = operands.function in _FILLING
    given = [k for k, s in enumerate(operands.inputs) if s is int or (s is float and filling)]
    power = operands.function == "pow"
    if dtype is None or dtype.kind not in "iu" or not given or operands.function in _COMPARED:
        return kernel
    if dtype.itemsize == 8 and not power and not filling:
        return kernel
    limits, wraps = np.iinfo(dtype), operands.function in _WRAPPING
    lowest = limits.min or -limits.max

    def fitted(k: int, a: Any) -> Any:
        if k in given and k == 1 and power and a < 0:
            raise RuntimeError(f"Integers to negative integer powers are not allowed, but the exponent is {a}.")
        if k not in given or limits.min <= a <= limits.max:
            return a
        if not (wraps or (power and k == 0) or (isinstance(a, int) and lowest <= a <= limits.max)):
            raise RuntimeError(f"{operands.op}: value {a} cannot be converted to type {dtype.name} without overflow")
        return (a - limits.min) % (limits.max - limits.min + 1) + limits.min

    return lambda *arrays, **attrs: kernel(*[fitted(k, a) for k, a in enumerate(arrays)], **attrs)


def _widened(kernel: Kernel, operands: Operands) -> tuple[Kernel, int]:
    """The kernel on float32 copies of operands with 16-bit floats."""
    count = len(operands.inputs)
    # NumPy would compute in float64 with larger integers beside those copies.
    elementwise = isinstance(kernel, np.ufunc) or operands.function in _CHOICES - _COMPARED
    given = [isinstance(s, TensorSpec) and (s.narrow or (
        elementwise and not s.floating and np.result_type(s.dtype, _FLOAT) != _FLOAT)) for s in operands.inputs]
    made = [s.narrow for s in operands.outputs]
    rounded = next((s.dtype for s in operands.inputs if isinstance(s, TensorSpec) and s.narrow),
                   None) if operands.function in _COMPARED else None
    written = [k for k in operands.writes if given[k]]
    workspace = operands.wide_workspace()
    narrow = [*given, *made]
    specs = [s for s in (*operands.inputs, *operands.outputs) if isinstance(s, TensorSpec)]
    by_pieces = specs[0].numel > PIECE and (elementwise or operands.function in _ELEMENTWISE) and all(
        s.contiguous and s.shape == specs[0].shape for s in specs)

    def run(*arrays: Any, **attrs: Any) -> None:
        arrays = arrays[:len(narrow)]
        room = () if workspace is None else (np.empty(workspace, np.uint8),)
        if not by_pieces or _shifted([a for a in arrays if isinstance(a, np.ndarray)]):
            whole = [np.empty(a.shape, _FLOAT) if n else None for a, n in zip(arrays, narrow, strict=True)]
            compute(arrays, whole, room, attrs)
            return
        wide = [np.empty(PIECE, _FLOAT) if n else None for n in narrow]
        flat = [a.reshape(-1) if isinstance(a, np.ndarray) else a for a in arrays]
        for some in slices(specs[0].numel, PIECE):
            parts = [a[some] if isinstance(a, np.ndarray) else a for a in flat]
            compute(parts, [w if w is None else w[:p.size] for w, p in zip(wide, parts, strict=True)], room, attrs)

    def compute(arrays: Sequence[Any], wide: list[Any], room: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        for k, w in enumerate(wide):
            if w is None:
                wide[k] = arrays[k] if rounded is None or isinstance(arrays[k], np.ndarray) else float(rounded.type(arrays[k]))
            elif k < count:
                convert(arrays[k], w)
        kernel(*wide, *room, **attrs)
        for k, n in enumerate(narrow):
            if k in written or (n and k >= count):
                convert(wide[k], arrays[k])

    if by_pieces:
        return run, 4 * PIECE * sum(narrow) + (workspace or 0)
    return run, sum(4 * s.numel for s, n in zip((*operands.inputs, *operands.outputs), narrow, strict=True) if n) + (
        workspace or 0)


def _shifted(arrays: list[Any]) -> bool:
    """Do some of the arrays share memory, but not element by element?"""
    return any(np.may_share_memory(a, b) and a.ctypes.data != b.ctypes.data for a, b in combinations(arrays, 2))


def _narrowed(kernel: Kernel, wider: list[int], dtype: np.dtype[Any]) -> Kernel:
    """The kernel with some operands in the dtype of the computation, where NumPy would widen it: 0-d ones beside ones with
    dimensions, of which integers wrap around, and integers beside floats."""

    def run(*arrays: Any) -> None:
        kernel(*[a.astype(dtype) if k in wider else a for k, a in enumerate(arrays)])

    return run


def _checked(kernel: Kernel) -> Kernel:
    """The kernel with RuntimeError, as in PyTorch, for an integer divided by 0, for which NumPy gives 0."""

    def run(*arrays: Any) -> None:
        if np.size(arrays[0]) and not np.all(arrays[1]):
            raise RuntimeError("ZeroDivisionError: an integer is divided by 0")
        kernel(*arrays)

    return run
