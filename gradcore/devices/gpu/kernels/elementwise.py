"""Elementwise kernels of the GPU: choice of the function, its precision, and how each operand is read.

An operand is a tensor, a Python number, a tensor of one element, or a row that repeats; the last three cost no memory traffic.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.dtypes import is_floating, limits
from gradcore.overwriting import OVERWRITING
from gradcore.sharing import share_elements
from gradcore.spec import TensorSpec

#: The kernel argument for a row that repeats.
_ROW = np.dtype([("of", "u8"), ("width", "i8")])
_INT, _FLOAT, _DOUBLE = np.dtype(np.int64), np.dtype(np.float32), np.dtype(np.float64)


def wide(dtype: Any) -> np.dtype[Any]:
    """The dtype that kernels compute in for elements stored as ``dtype``."""
    return dtype if dtype in (_FLOAT, _DOUBLE) else _INT if dtype.kind in "iub" else _FLOAT


#: Functions that compare operands in the dtype that these promote to.
_COMPARED = frozenset(("Eq", "Ne", "Lt", "Le", "Gt", "Ge"))


class _Tensor(NamedTuple):
    """What the plan of a launch depends on of an array; ``flat``: it is contiguous. Strides are in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    flat: bool


#: A tensor, or the type of a Python number.
_Operand = Any


def _tensor(x: Any) -> _Tensor:
    return _Tensor(x.shape, x.strides, x.dtype, x.flags.c_contiguous)


def _kind(x: _Operand, shape: tuple[int, ...]) -> str:
    """How an operand of a result of this shape is read."""
    if isinstance(x, type):
        return "Number"
    if math.prod(x.shape) == 1:
        return "Cell"
    if x.flat and x.shape == shape:
        return "tensor"
    # A row that repeats is whole trailing dimensions; other broadcasts are read by strides.
    lead = next((d for d, n in enumerate(x.shape) if n != 1), len(x.shape))
    row = x.shape[lead:]
    return "Row" if x.flat and row and row == shape[len(shape) - len(row):] else "strided"


@functools.lru_cache(maxsize=8192)
def _plan(function: str, compute: np.dtype[Any], aligned: bool, out: _Tensor,
          *operands: _Operand) -> tuple[str, int, Any, list[str]]:
    """The instance, its number of threads, the axes if it reads by strides (else None), and the kinds of the operands."""
    shape, dtype = out.shape, out.dtype
    kinds = [_kind(x, shape) for x in operands]
    names = [f"Number<{gl.name_of(compute)}>" if kind == "Number" else
             f"Cell<{gl.name_of(_read_as(x, function, out, operands))}>" if kind == "Cell" else
             f"Row<{gl.name_of(x.dtype)}>" if kind == "Row" else f"const {gl.name_of(x.dtype)}*"
             for x, kind in zip(operands, kinds, strict=True)]
    count = math.prod(shape)
    if out.flat and "strided" not in kinds:
        widest = max([dtype.itemsize, *[x.dtype.itemsize for x, kind in zip(operands, kinds, strict=True) if kind == "tensor"]])
        length = 16 // widest if aligned else 1
        return gl.instance("map", function, compute, length, dtype, *names), -(-count // length), None, kinds
    steps, itemsizes = [tuple([s // dtype.itemsize for s in out.strides])], [dtype.itemsize]
    for k, x in enumerate(operands):
        if kinds[k] in ("Number", "Cell"):
            steps.append((0,) * len(shape))
            itemsizes.append(0)
            continue
        steps.append(gl.broadcast_steps(x.shape, x.strides, x.dtype.itemsize, len(shape)))
        itemsizes.append(x.dtype.itemsize)
        names[k], kinds[k] = f"const {gl.name_of(x.dtype)}*", "strided"
    sizes, lie = gl.merged(shape, *steps)
    length = _access(sizes, lie, itemsizes) if aligned else 1
    if length > 1:
        names = [f"Same<{name[6:-1]}>" if kind == "strided" and step == 0 else name
                 for name, kind, step in zip(names, kinds, lie[-1][1:], strict=True)]
        sizes[-1] //= length
        lie[-1] = [step * length for step in lie[-1]]
    where = gl.axes(sizes, *[[step[k] for step in lie] for k in range(len(steps))])
    return gl.instance("map_strided", function, compute, length, dtype, *names), count // length, where, kinds


def _read_as(x: _Tensor, function: str, out: _Tensor, operands: tuple[_Operand, ...]) -> np.dtype[Any]:
    """The dtype that a tensor of one element is read as: a 0-d integer beside ones with dimensions as theirs, in which it wraps
    around. Its low bytes, which come first, are that number.
    """
    led = [y.dtype for y in operands if isinstance(y, _Tensor) and y.shape]
    if x.shape or not led or x.dtype.kind not in "iu" or any(d.kind not in "iub" for d in led):
        return x.dtype
    narrow: np.dtype[Any] = np.result_type(*led) if function in _COMPARED else out.dtype
    return narrow if narrow.kind in "iu" and np.result_type(x.dtype, narrow) != narrow else x.dtype


def _access(sizes: list[int], lie: list[list[int]], itemsizes: list[int]) -> int:
    """Elements of an access along the last dimension: 16 bytes of the widest tensor, if in each tensor the elements there are
    adjacent, or are one broadcast element; else 1. The first tensor is written."""
    if not sizes or lie[-1][0] != 1 or not set(lie[-1]) <= {0, 1}:
        return 1
    wide = [k for k, step in enumerate(lie[-1]) if step]
    length = 16 // max(itemsizes[k] for k in wide)
    return length if not sizes[-1] % length and not any(step[k] % length for step in lie[:-1] for k in wide) else 1


def apply(function: str, compute: Any, out: Any, *operands: Any) -> None:
    """Write the function of the operands, broadcast, to ``out``, which may have any strides and may be an operand."""
    if not out.size:
        return
    aligned = gl.packed(out, *[x for x in operands if hasattr(x, "dtype") and x.size > 1])
    given: list[Any] = [_tensor(x) if hasattr(x, "dtype") else type(x) for x in operands]
    name, threads, axes, kinds = _plan(function, compute, aligned, _tensor(out), *given)
    values = []
    for x, kind in zip(operands, kinds, strict=True):
        if kind == "Number":
            # In bools a fraction and NaN are True, and no integer.
            truth = isinstance(x, float) and out.dtype == np.bool_ and compute == _INT
            values.append(compute.type(bool(x) if truth else x))
        elif kind == "Row":
            values.append(np.array((x.data.ptr, x.size), _ROW))
        else:
            values.append(x)
    head = (np.int64(out.size),) if axes is None else (np.int64(threads), axes)
    gl.start("elementwise", name, gl.blocks_for(threads), gl.BLOCK, (*head, out, *values))


def _common(*operands: Any) -> np.dtype[Any]:
    """The dtype that operands are compared in; a 0-d float widens none with dimensions."""
    led = any(getattr(x, "ndim", 0) and is_floating(x.dtype) for x in operands)
    kinds = [x.dtype if hasattr(x, "dtype") else type(x) for x in operands
             if not (led and hasattr(x, "dtype") and not x.ndim and is_floating(x.dtype))]
    if all(k in (int, bool) or getattr(k, "kind", "f") in "iub" for k in kinds):
        return _INT
    types = [k(0) if not isinstance(k, np.dtype) else wide(k) if is_floating(k) else k for k in kinds]
    return wide(np.result_type(*types))


def function(op: str, **numbers: Any) -> Callable[..., Any]:
    """The kernel of an op whose function in CUDA C++ has its name, in capitals where a word begins.

    ``numbers`` are attributes of the op with their defaults: the function takes them behind the operands.
    """
    name = "".join(part.capitalize() for part in op.split("_"))

    def run(*arrays: Any, **attrs: Any) -> None:
        *operands, out = arrays
        apply(name, wide(out.dtype), out, *operands, *(numbers | attrs).values())

    return run


def _with_room(op: str) -> Callable[..., Any]:
    """The same for an op that declares workspace, which only the CPU needs."""
    kernel = function(op)
    return lambda *arrays: kernel(*arrays[:-1])


def _test(name: str) -> Callable[..., Any]:
    def run(*arrays: Any) -> None:
        *operands, out = arrays
        for x in operands:
            if hasattr(x, "dtype") and x.dtype.itemsize == 2 and is_floating(x.dtype):
                # A number is compared with a tensor after rounding to the tensor's dtype.
                operands = [y if hasattr(y, "dtype") else float(x.dtype.type(y)) for y in operands]
                break
        apply(name, _common(*operands), out, *operands)

    return run


def _power(x: Any, y: Any, out: Any) -> None:
    # Roots are PyTorch's: of minus infinity they are NaN, and the power is not.
    root = {0.5: "Sqrt", -0.5: "Rsqrt"}.get(y) if isinstance(y, float) and is_floating(out.dtype) else None
    apply(*(("Pow", wide(out.dtype), out, x, y) if root is None else (root, wide(out.dtype), out, x)))


gl.KERNELS |= {name: function(name) for name in (
    "add sub mul div neg floor_divide remainder fmod reciprocal abs sign floor ceil round trunc frac exp exp2 expm1 log "
    "log1p log2 log10 logaddexp xlogy xlog1py sqrt rsqrt square hypot sin cos tan sinh cosh tanh arcsin arccos arctan arctan2 "
    "arcsinh arccosh arctanh erfc erfinv lgamma digamma gammainc gammaincc sinc logit maximum minimum fmax fmin lerp where "
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift relu relu_grad tanh_grad sigmoid "
    "sigmoid_grad silu silu_grad mish mish_grad softsign softsign_grad logsigmoid logsigmoid_grad hardsigmoid "
    "hardsigmoid_grad hardswish hardswish_grad leaky_relu leaky_relu_grad hardshrink softshrink shrink_grad threshold").split()}
gl.KERNELS |= {
    "pow": _power, "polygamma": function("polygamma", n=None),
    **{name: function(name, value=1) for name in ("addcmul", "addcdiv")},
    **{name: function(name, beta=None, threshold=None) for name in ("softplus", "softplus_grad")},
    **{name: function(name, low=None, high=None) for name in ("hardtanh", "hardtanh_grad")}}
gl.KERNELS |= {name: _with_room(name) for name in ("erf", "huber", "bce", "bce_logits")}
gl.KERNELS |= {name: _test(named) for name, named in {
    "eq": "Eq", "ne": "Ne", "lt": "Lt", "le": "Le", "gt": "Gt", "ge": "Ge", "logical_and": "LogicalAnd",
    "logical_or": "LogicalOr", "logical_xor": "LogicalXor", "logical_not": "LogicalNot", "isnan": "IsNan", "isinf": "IsInf",
    "isfinite": "IsFinite", "chance": "Lt"}.items()}


def check_apart(x: Any, y: Any) -> None:
    """Raise if threads could read elements of ``y`` after others have written them through ``x``. NumPy would copy then."""
    if gl.noted.tape is not None:
        gl.noted.tape.append((check_apart, (), (x, y)))
        return
    if not hasattr(y, "dtype") or not x.size or (x.data.ptr, x.strides, x.shape) == (y.data.ptr, y.strides, y.shape):
        return
    (first, last), (start, end) = gl.extent(x), gl.extent(y)
    if first < end and start < last and share_elements(*[TensorSpec.strided(
            a.shape, a.dtype, gl.elements(a), (a.data.ptr - min(first, start) // 16 * 16) // a.itemsize) for a in (x, y)]):
        raise RuntimeError("unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
                           "single memory location. Please clone() the tensor before performing the operation.")


@gl.kernel
def clamp(x: Any, low: Any, high: Any, out: Any) -> None:
    if low is None or high is None:
        apply("Maximum" if high is None else "Minimum", wide(out.dtype), out, x, low if high is None else high)
    else:
        apply("Clamp", wide(out.dtype), out, x, low, high)


@gl.kernel
def gelu(x: Any, out: Any, workspace: Any, *, tanh: bool = False) -> None:
    apply("GeluTanh" if tanh else "Gelu", wide(out.dtype), out, x)


@gl.kernel
def gelu_grad(dy: Any, x: Any, out: Any, workspace: Any, *, tanh: bool = False) -> None:
    apply("GeluTanhGrad" if tanh else "GeluGrad", wide(out.dtype), out, dy, x)


def gelu_with_grad(x: Any, out: Any, slopes: Any, *, tanh: bool = False) -> None:
    """Write gelu of ``x`` to ``out``, and replace the cotangent in ``slopes`` by the gradient; all are contiguous."""
    length = 16 // x.itemsize if gl.packed(x, out, slopes) else 1
    functions = ("GeluTanh", "GeluTanhGrad") if tanh else ("Gelu", "GeluGrad")
    types = (*functions, wide(x.dtype), length, x.dtype)
    gl.run("elementwise", "with_slopes", types, -(-x.size // length), np.int64(x.size), out, slopes, x)


@gl.kernel
def mse_grad(dy: Any, x: Any, target: Any, out: Any, *, reduction: str) -> None:
    apply("MseGrad", wide(out.dtype), out, dy, x, target, 2.0 / max(x.size, 1) if reduction == "mean" else 2.0)


@gl.kernel
def bitwise_not(x: Any, out: Any) -> None:
    apply("BoolNot" if x.dtype == np.bool_ else "BitwiseNot", wide(out.dtype), out, x)


@gl.kernel
def nan_to_num(x: Any, out: Any, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> None:
    if not is_floating(out.dtype):
        apply("Copy", wide(out.dtype), out, x)
        return
    ends = limits(out.dtype)
    apply("NanToNum", wide(out.dtype), out, x, nan, float(ends.max) if posinf is None else posinf,
          float(ends.min) if neginf is None else neginf)


@gl.kernel
def masked_fill_(x: Any, mask: Any, value: Any) -> None:
    check_apart(x, mask)
    apply("MaskedFill", wide(x.dtype), x, x, mask, value)


@gl.kernel
def elu(x: Any, out: Any, *, alpha: float, scale: float, inner: float) -> None:
    apply("Elu", wide(out.dtype), out, x, scale, scale * alpha, inner)


@gl.kernel
def elu_grad(dy: Any, x: Any, out: Any, *, alpha: float, scale: float, inner: float) -> None:
    apply("EluGrad", wide(out.dtype), out, dy, x, scale, scale * alpha, inner)


# -- in place ----------------------------------------------------------------------------------------------------------


def _written(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an in-place op: that of the functional op, with the first operand as its output."""

    def run(x: Any, *others: Any, **attrs: Any) -> None:
        for other in others:
            check_apart(x, other)
        kernel(x, *others, x, **attrs)

    return run


gl.KERNELS |= {f"{name}_": _written(function("erf") if name == "erf" else gl.KERNELS[name])
               for name in OVERWRITING}
