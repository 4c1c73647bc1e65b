"""Windows for the spectra of sampled signals, computed in float64 on the host. Harris, Proceedings of the IEEE 66 (1978)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.dtypes import is_floating
from gradcore.errors import SpecError
from gradcore.functional.creation import get_default_dtype, tensor
from gradcore.functional.shape import plain

Tensor = Any
Array = np.ndarray[Any, Any]

__all__ = ["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"]


def _window(name: str, length: int, periodic: bool, dtype: Any, device: Any, requires_grad: bool,
            values: Callable[[Array], Array]) -> Tensor:
    """The ``values`` at positions from -1 to 1: of one element more if ``periodic``, without the last."""
    length = plain(length)
    if not isinstance(length, int):
        raise TypeError(f"{name}(): argument 'window_length' must be int, not {type(length).__name__}")
    if length < 0:
        raise SpecError(f"{name} requires non-negative window_length, got window_length={length}")
    dtype = np.dtype(dtype or get_default_dtype())
    if not is_floating(dtype):
        raise SpecError(f"{name} expects floating point dtypes, got: {dtype.name}")
    whole = length + bool(periodic)
    # What overflows is NaN, without a warning, as PyTorch's is.
    with np.errstate(all="ignore"):
        found = np.ones(length) if length < 2 else values(np.arange(length) * (2 / (whole - 1)) - 1)
    return tensor(found, dtype=dtype, device=device, requires_grad=requires_grad)


def bartlett_window(window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None,
                    requires_grad: bool = False) -> Tensor:
    """A triangle, 0 at its ends. With ``periodic`` the last of one element more is left out, as spectra need it."""
    return _window("bartlett_window", window_length, periodic, dtype, device, requires_grad, lambda x: 1 - np.abs(x))


def hamming_window(window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Any = None,
                   device: Any = None, requires_grad: bool = False) -> Tensor:
    """``alpha`` plus ``beta`` times a period of a cosine, largest in the middle; see :func:`bartlett_window`."""
    return _window("hamming_window", window_length, periodic, dtype, device, requires_grad,
                   lambda x: alpha + beta * np.cos(np.pi * x))


def hann_window(window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None,
                requires_grad: bool = False) -> Tensor:
    """A period of a cosine, from 0 to 1; see :func:`bartlett_window`."""
    return _window("hann_window", window_length, periodic, dtype, device, requires_grad,
                   lambda x: 0.5 + 0.5 * np.cos(np.pi * x))


def blackman_window(window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None,
                    requires_grad: bool = False) -> Tensor:
    """0.42 + 0.5 cos + 0.08 cos of two periods, 0 at its ends; see :func:`bartlett_window`."""
    return _window("blackman_window", window_length, periodic, dtype, device, requires_grad,
                   lambda x: 0.42 + 0.5 * np.cos(np.pi * x) + 0.08 * np.cos(2 * np.pi * x))


def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None, device: Any = None,
                  requires_grad: bool = False) -> Tensor:
    """I0(beta sqrt(1 - x^2)) / I0(beta) for x from -1 to 1; see :func:`bartlett_window`."""
    return _window("kaiser_window", window_length, periodic, dtype, device, requires_grad,
                   lambda x: np.i0(beta * np.sqrt(np.maximum(1 - x * x, 0))) / np.i0(beta))
