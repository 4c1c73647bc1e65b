"""Decorators for the methods of an ``autograd.Function`` that autocast regions concern."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.amp.autocast_mode import autocast, get_autocast_dtype, is_autocast_enabled
from gradcore.engine.value import Value


def custom_fwd(fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: Any = None) -> Any:
    """Decorate ``forward``: it runs in the caller's autocast region; with ``cast_inputs`` in none, on tensors of this dtype.

    Only floating tensors on devices of ``device_type`` are cast, but no float64, and outside a region none. Raises ValueError
    for a ``device_type`` that is no str.
    """
    _check(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        inside = is_autocast_enabled(device_type)
        ctx._region = get_autocast_dtype(device_type) if inside and cast_inputs is None else None
        if cast_inputs is None or not inside:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, cast_inputs, enabled=False):
            return fwd(ctx, *_cast(args, device_type, cast_inputs), **_cast(kwargs, device_type, cast_inputs))

    return forward


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Any:
    """Decorate ``backward``: it runs in the region that a ``forward`` decorated by :func:`custom_fwd` ran in, or in none.

    Raises ValueError for a ``device_type`` that is no str.
    """
    _check(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if ctx._region is None:
            return bwd(ctx, *args, **kwargs)
        with autocast(device_type, ctx._region):
            return bwd(ctx, *args, **kwargs)

    return backward


def _check(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


def _cast(value: Any, device_type: str, dtype: Any) -> Any:
    if isinstance(value, Value):
        fits = value.storage.device.compute.type == device_type and value.spec.floating
        return value.to(dtype) if fits and value.spec.dtype != np.float64 else value  # type: ignore[attr-defined]
    if isinstance(value, dict):
        return {_cast(k, device_type, dtype): _cast(v, device_type, dtype) for k, v in value.items()}
    return type(value)(_cast(v, device_type, dtype) for v in value) if isinstance(value, (list, tuple)) else value
