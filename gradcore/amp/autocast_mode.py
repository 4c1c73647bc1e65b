"""``autocast``, which chooses the dtype of each op in a region, and decorators for functions with gradients of their own."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from gradcore.dtypes import bfloat16, is_floating
from gradcore.engine import autocast as regions
from gradcore.engine.modes import Decorator, Switch
from gradcore.engine.state import local
from gradcore.engine.value import Value
from gradcore.trees import mapped

_TYPES = ("cpu", "cuda", "meta")


class autocast(Switch, Decorator):
    """Cast the operands of each op to a dtype that suits it.

    Matrix products, convolutions, attention and recurrent layers run in ``dtype``; losses, norms, sums, softmax and functions
    that grow fast, such as exp, in float32; all others in the dtype of their operands. Only floating tensors on devices of
    ``device_type`` (``cpu``, ``cuda``, ``meta``) are cast, and always those on meta, which represent tensors on any device. A
    leaf that requires grad, such as a weight, is cast once per region.

    ``dtype`` is by default bfloat16, on CUDA float16. Backward runs each op in the dtype of its forward, inside or outside a
    region, and leaves get gradients in their own dtype. ``enabled=False`` suspends an enclosing region. Raises RuntimeError
    for another type of device; for a ``dtype`` that is not of 16 bits, it warns and has no effect.
    """

    _switch = "autocast"

    def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        _check(device_type)
        if device_type not in _TYPES:
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}': expected one of "
                               f"{', '.join(_TYPES)}")
        self.device = device_type
        # The default may need a package, which a script that has switched autocast off does without.
        self.fast_dtype = np.dtype(dtype) if dtype is not None else get_autocast_dtype(device_type) if enabled else None
        if enabled and self.fast_dtype is not None and not (is_floating(self.fast_dtype) and self.fast_dtype.itemsize == 2):
            warnings.warn(f"In {device_type} autocast, but the target dtype {self.fast_dtype.name} is not supported. Disabling "
                          "autocast: expected bfloat16 or float16", stacklevel=2)
            enabled = False
        super().__init__(self.fast_dtype if enabled else None)
        self._caching = cache_enabled is not False

    def __enter__(self) -> autocast:
        region = regions.inside(local.state.autocast, self.device, self._value, self._caching)
        regions.note(True)
        self._turn_to(region)
        return self

    def __exit__(self, *exc: object) -> None:
        state = local.state
        region = state.autocast
        super().__exit__(*exc)
        regions.note(state.autocast is not None)
        if state.autocast is None and region is not None:
            # The key of a compiled function's program, or a checkpoint, may hold the region.
            region.casts.clear()

    def _alone(self) -> autocast:
        mode = copy(self)
        mode._before = {}
        return mode


def is_autocast_available(device_type: str) -> bool:
    """Whether there is such a type of device, whose ops :class:`autocast` can cast for."""
    return device_type in _TYPES


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether this thread is in an autocast region, for one type of device or for any."""
    region = local.state.autocast
    return region is not None and (bool(region.dtypes) if device_type is None else device_type in region.dtypes)


def get_autocast_dtype(device_type: str) -> np.dtype[Any]:
    """The dtype of this thread's autocast region, or the default one outside a region."""
    region = local.state.autocast
    if region is not None and device_type in region.dtypes:
        return region.dtypes[device_type]
    return np.dtype(np.float16) if device_type == "cuda" else bfloat16()


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
        ctx._function_region = get_autocast_dtype(device_type) if inside and cast_inputs is None else None
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
        if ctx._function_region is None:
            return bwd(ctx, *args, **kwargs)
        with autocast(device_type, ctx._function_region):
            return bwd(ctx, *args, **kwargs)

    return backward


def _check(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


def _cast(value: Any, device_type: str, dtype: Any) -> Any:
    if isinstance(value, Value):
        fits = value.storage.device.compute.type == device_type and value.spec.floating
        return value.to(dtype) if fits and value.spec.dtype != np.float64 else value  # type: ignore[attr-defined]
    return mapped(value, lambda part: _cast(part, device_type, dtype))
