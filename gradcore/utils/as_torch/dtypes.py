"""PyTorch's dtypes: NumPy's, by the names and with the attributes that packages ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from gradcore.amp import get_autocast_dtype
from gradcore.dtypes import DTYPES, bfloat16
from gradcore.functional import get_default_dtype
from gradcore.functional.types import promote_types, result_type

#: Those that no tensor here has, but that tables of packages list. NumPy has the second by the package ml_dtypes.
_COMPLEX = ("complex64", "complex128")
_SMALL = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


class _Kind(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, np.dtype) or type(x) is cls


class dtype(metaclass=_Kind):
    """One of NumPy's dtypes, which it equals, and whose attributes it has besides PyTorch's."""

    __slots__ = ("dtype",)

    def __init__(self, of: np.dtype[Any]) -> None:
        #: NumPy takes an object that has this for the dtype.
        self.dtype = of

    @property
    def is_floating_point(self) -> bool:
        return "float" in self.dtype.name

    @property
    def is_complex(self) -> bool:
        return self.dtype.kind == "c"

    @property
    def is_signed(self) -> bool:
        return self.dtype.kind not in "ub"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dtype, name)

    def __eq__(self, other: object) -> Any:
        return self.dtype == (other.dtype if type(other) is dtype else other)

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __repr__(self) -> str:
        return f"torch.{self.dtype.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return named, (self.dtype,)


def _made() -> dict[str, dtype]:
    found = {**DTYPES, **{name: np.dtype(name) for name in _COMPLEX}}
    if find_spec("ml_dtypes"):
        found |= {name: np.dtype(getattr(import_module("ml_dtypes"), name)) for name in _SMALL} | {"bfloat16": bfloat16()}
    return {name: dtype(kind) for name, kind in found.items()}


#: By name, with PyTorch's short ones.
ALL = _made()
ALL |= {short: ALL[name] for short, name in (("half", "float16"), ("float", "float32"), ("double", "float64"),
                                            ("short", "int16"), ("int", "int32"), ("long", "int64"))}
_BY_KIND = {of.dtype: of for of in ALL.values()}


def named(of: np.dtype[Any]) -> Any:
    """PyTorch's dtype for one of NumPy's."""
    return _BY_KIND[of]


def _renamed(function: Callable[..., np.dtype[Any]]) -> Callable[..., Any]:
    @wraps(function)
    def renamed(*args: Any, **named_args: Any) -> Any:
        return named(function(*args, **named_args))

    return renamed


#: Functions of ``torch`` that return one.
FUNCTIONS = {of.__name__: _renamed(of) for of in (get_autocast_dtype, get_default_dtype, promote_types, result_type)}
