"""The dtypes of tensors, and their promotion, which is PyTorch's: by category."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gradcore.spec import TensorSpec

_BOOL, _INTEGER, _FLOATING = range(3)
_CATEGORY = {"b": _BOOL, "u": _INTEGER, "i": _INTEGER, "f": _FLOATING}
#: The dtypes of tensors by name, without bfloat16, which needs a package.
DTYPES = {name: np.dtype(name) for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64",
                                            "float16", "float32", "float64")}
_KNOWN = frozenset(DTYPES.values())
FLOAT32 = DTYPES["float32"]
#: The dtype of Python's floats, and of results that are floats where only integers went in.
_default = [FLOAT32]


def default_float() -> np.dtype[Any]:
    return _default[0]


def set_default_float(dtype: np.dtype[Any]) -> None:
    """Set the default. Whatever was inferred and cached under the former default must be cleared by the caller."""
    _default[0] = dtype


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Is it float16, bfloat16, float32 or float64?"""
    # The kind comes first, since NumPy computes a dtype's name at every access.
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.name == "bfloat16")


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """A dtype that tensors may have. Raises TypeError for another, and for another byte order than the machine's."""
    found: np.dtype[Any] = np.dtype(dtype)
    if found not in _KNOWN and not (found.kind == "V" and is_floating(found)):
        raise TypeError(f"a tensor cannot be of dtype {found}: expected one of {', '.join(DTYPES)} or bfloat16")
    return found


def limits(dtype: np.dtype[Any]) -> Any:
    """NumPy's ``finfo`` of a floating dtype, bfloat16 among them."""
    if dtype.kind == "f":
        return np.finfo(dtype)
    import ml_dtypes
    finfo: Any = ml_dtypes.finfo
    return finfo(dtype)


def bfloat16() -> np.dtype[Any]:
    """The dtype bfloat16, which the package ``ml_dtypes`` adds to NumPy. Raises ImportError without it."""
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError("gradcore.bfloat16 needs the package ml_dtypes, which gives NumPy the type: "
                          "pip install 'gradcore[bfloat16]'") from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def dtype_named(name: Any) -> np.dtype[Any] | None:
    """The dtype of tensors that has this name, None if there is none. Raises ImportError as :func:`bfloat16` does."""
    return bfloat16() if name == "bfloat16" else DTYPES.get(name) if isinstance(name, str) else None


def category(dtype: np.dtype[Any]) -> int:
    """0 for bool, 1 for integers, 2 for floats. Raises TypeError for a dtype that tensors do not have."""
    found = _FLOATING if is_floating(dtype) else _CATEGORY.get(dtype.kind)
    if found is None:
        raise TypeError(f"tensors are of bool, integer and floating types, but got {dtype}")
    return found


def promote(operands: Sequence[TensorSpec | type]) -> np.dtype[Any]:
    """The dtype of a result, by PyTorch's rule: Python scalars, then 0-d tensors, matter only by their category.

    An operand is a spec or the type of a Python number.
    """
    ranks: list[list[np.dtype[Any]]] = [[], [], []]
    for x in operands:
        if not isinstance(x, type):
            ranks[0 if x.ndim else 1].append(x.dtype)
        else:
            # NumPy's numbers count as Python's.
            ranks[2].append(DTYPES["bool"] if issubclass(x, (bool, np.bool_)) else
                            DTYPES["int64"] if issubclass(x, (int, np.integer)) else _default[0])
    result: np.dtype[Any] | None = None
    for dtypes in ranks:
        if not dtypes:
            continue
        strongest = functools.reduce(join, dtypes)
        if result is None or category(strongest) > category(result):
            result = strongest
    assert result is not None
    return result


def join(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """The smallest dtype that holds both, by PyTorch's rule: an integer never widens a float."""
    if a == b:
        return a
    if is_floating(a) and is_floating(b):
        return FLOAT32 if a.itemsize == b.itemsize else max(a, b, key=lambda d: d.itemsize)
    return a if is_floating(a) else b if is_floating(b) else np.result_type(a, b)
