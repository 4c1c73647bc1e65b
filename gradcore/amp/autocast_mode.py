"""``autocast``: a context manager, and a decorator, that chooses the precision of each op."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gradcore.engine import autocast as regions
from gradcore.engine.modes import Decorator
from gradcore.engine.state import local
from gradcore.spec import bfloat16, is_floating

_TYPES = ("cpu", "cuda", "meta")


class autocast(Decorator):
    """Products of matrices, convolutions, attention and recurrent layers take and give ``dtype``; losses, norms, sums, softmax
    and functions that grow fast take and give float32; all others go by their operands. Only float tensors on devices of
    ``device_type`` (``cpu``, ``cuda``, ``meta``) are cast, and those on meta, which stand for them, in a region of any type; a
    leaf that needs a gradient, such as a weight, once a region.

    ``dtype`` is bfloat16 unless given, on CUDA float16. Backward runs each op in the dtype that forward ran it in, whether it
    is called inside or not, and leaves get gradients of their own dtype. ``enabled=False`` makes an exception inside of a
    region. Raises RuntimeError for another type of device; warns of another dtype than one of 16 bits, and does nothing then.
    """

    def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        if device_type not in _TYPES:
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}': expected one of "
                               f"{', '.join(_TYPES)}")
        self.device = device_type
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else np.dtype(dtype)
        if enabled and not (is_floating(self.fast_dtype) and self.fast_dtype.itemsize == 2):
            warnings.warn(f"In {device_type} autocast, but the target dtype {self.fast_dtype.name} is not supported. Disabling "
                          "autocast: expected bfloat16 or float16", stacklevel=2)
            enabled = False
        self._enabled = enabled
        self._caching = cache_enabled is not False
        self._around: list[regions.Region | None] = []

    def __enter__(self) -> autocast:
        self._around.append(regions.enter(self.device, self.fast_dtype if self._enabled else None, self._caching))
        return self

    def __exit__(self, *exc: object) -> None:
        regions.leave(self._around.pop())


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Is this thread inside of a region, for a type of device or for any?"""
    region = local.state.autocast
    return region is not None and (bool(region.dtypes) if device_type is None else device_type in region.dtypes)


def get_autocast_dtype(device_type: str) -> np.dtype[Any]:
    """What products run in: of the region that this thread is in, or of one that is given no dtype."""
    region = local.state.autocast
    if region is not None and device_type in region.dtypes:
        return region.dtypes[device_type]
    return np.dtype(np.float16) if device_type == "cuda" else bfloat16()
