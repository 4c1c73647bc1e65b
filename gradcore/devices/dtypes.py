"""Dtypes that NumPy's functions do not take as PyTorch's do: what a kernel is called on is converted before, and back.

NumPy adds up, multiplies matrices and evaluates functions in float16 and bfloat16 step by step, rounding each time, or not
at all: kernels compute in float32 on copies, and their results are rounded once. The copies are no part of the device's
account, which a GPU that computes in registers must agree with: they stand beside it, with what libraries allocate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gradcore.devices.device import Operands
from gradcore.spec import TensorSpec, is_floating

Kernel = Callable[..., Any]

#: Ops that move values and compute nothing: NumPy runs them on any dtype.
MOVES = frozenset("""cast cat cleared clone copy_ empty eye fill_ full masked_fill_ put_ put_along_ roll slice_grad take tril
    triu where write_part""".split())
#: A number beside a tensor is compared as what the tensor's dtype makes of it.
_COMPARED = frozenset("eq ne lt le gt ge eq_ ne_ lt_ le_ gt_ ge_".split())
#: Elementwise ops whose kernels are no ufuncs but made of one or two.
_CHOICES = frozenset("maximum minimum fmax fmin clamp".split())
#: Ops that take an integer beside a tensor modulo the number of its dtype's values; the others refuse one that does not fit.
_WRAPPING = frozenset("""add sub mul floor_divide remainder fmod bitwise_and bitwise_or bitwise_xor bitwise_left_shift
    bitwise_right_shift""".split())
#: Ops that write a number, of whatever type it is.
_FILLING = frozenset("full fill_ masked_fill_".split())
#: Ops that have no result where an integer is divided by 0.
_DIVISIONS = frozenset("floor_divide remainder fmod floor_divide_ remainder_ fmod_".split())
_FLOAT, _BYTE = np.dtype(np.float32), np.dtype(np.uint8)


def suited(kernel: Kernel, operands: Operands) -> tuple[Kernel, int]:
    """The kernel as it takes the dtypes of its operands, and how many bytes it makes for that at most."""
    made, nbytes = _suited(kernel, operands)
    if operands.op in _DIVISIONS and not any(s is float or (isinstance(s, TensorSpec) and s.floating) for s in operands.inputs):
        made = _checked(made)
    return made, nbytes


def _suited(kernel: Kernel, operands: Operands) -> tuple[Kernel, int]:
    specs = [s for s in (*operands.inputs, *operands.outputs) if isinstance(s, TensorSpec)]
    if any(s.narrow for s in specs) and operands.op not in MOVES:
        return _widened(kernel, operands)
    signed = [k for k, s in enumerate(operands.inputs) if isinstance(s, TensorSpec) and not s.ndim and s.dtype.kind == "i"]
    whole = isinstance(kernel, np.ufunc) or operands.op in _CHOICES
    if signed and whole and [s.dtype for s in operands.outputs] == [_BYTE]:
        return _as_bytes(kernel, signed), 0
    if isinstance(kernel, np.ufunc) and all(is_floating(s.dtype) for s in operands.outputs) and not any(
            is_floating(s.dtype) for s in operands.inputs if isinstance(s, TensorSpec)):
        # By itself NumPy takes float16 for bytes, and divides integers as integers.
        return partial(kernel, dtype=operands.outputs[0].dtype), 0
    return numbers_fitted(kernel, operands), 0


def numbers_fitted(kernel: Kernel, operands: Operands) -> Kernel:
    """The kernel, with Python integers beside tensors of small integers as PyTorch takes them.

    They wrap around in arithmetic and as the base of a power. Elsewhere negative ones wrap around in uint8, and the kernel
    raises RuntimeError for those that the dtype does not hold, floats to be filled in too, as for a negative exponent.
    """
    results = operands.outputs or tuple(operands.inputs[k] for k in operands.writes)
    dtype = results[0].dtype if len(results) == 1 else None
    filling = operands.op in _FILLING
    given = [k for k, s in enumerate(operands.inputs) if s is int or (s is float and filling)]
    power = operands.op.rstrip("_") == "pow"
    if dtype is None or dtype.kind not in "iu" or not given or operands.op in _COMPARED:
        return kernel
    if dtype.itemsize == 8 and not power and not filling:
        return kernel
    limits, wraps = np.iinfo(dtype), operands.op.rstrip("_") in _WRAPPING
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
    """The kernel on float32 copies of what is narrower."""
    count = len(operands.inputs)
    given = [isinstance(s, TensorSpec) and s.narrow for s in operands.inputs]
    made = [s.narrow for s in operands.outputs]
    rounded = next((s.dtype for s in operands.inputs if isinstance(s, TensorSpec) and s.narrow), None)
    written = [k for k in operands.writes if given[k]]
    workspace = operands.wide_workspace()

    def run(*arrays: Any, **attrs: Any) -> None:
        inputs = [a.astype(_FLOAT) if n else a for a, n in zip(arrays, given, strict=False)]
        if operands.op in _COMPARED and rounded is not None:
            inputs = [a if isinstance(a, np.ndarray) else float(rounded.type(a)) for a in inputs]
        results = arrays[count:count + len(made)]
        outputs = [np.empty(a.shape, _FLOAT) if n else a for a, n in zip(results, made, strict=True)]
        room = () if workspace is None else (np.empty(workspace, np.uint8),)
        kernel(*inputs, *outputs, *room, **attrs)
        for k in written:
            arrays[k][...] = inputs[k]
        for a, value in zip(results, outputs, strict=True):
            if a is not value:
                a[...] = value

    wide = [s for s, n in zip((*operands.inputs, *operands.outputs), (*given, *made), strict=True) if n]
    return run, sum(4 * s.numel for s in wide) + (workspace or 0)


def _as_bytes(kernel: Kernel, signed: list[int]) -> Kernel:
    """A 0-d integer does not widen the uint8 beside it, which NumPy would have it do: it is taken modulo 256."""

    def run(*arrays: Any) -> None:
        kernel(*[a.astype(_BYTE) if k in signed else a for k, a in enumerate(arrays)])

    return run


def _checked(kernel: Kernel) -> Kernel:
    """NumPy makes 0 of an integer over 0; this raises RuntimeError in PyTorch's words."""

    def run(*arrays: Any) -> None:
        if np.size(arrays[0]) and not np.all(arrays[1]):
            raise RuntimeError("ZeroDivisionError: an integer is divided by 0")
        kernel(*arrays)

    return run
