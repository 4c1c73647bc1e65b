"""The text of a tensor: ``repr``, ``str`` and print options."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gradcore.errors import DataDependentShape
from gradcore.spec import default_float

#: The options that :func:`set_printoptions` sets, under NumPy's names.
_OPTIONS: dict[str, Any] = {}
_PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "max_line_width": None, "suppress_small": None},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "max_line_width": None, "suppress_small": None},
    "full": {"precision": 4, "threshold": sys.maxsize, "edgeitems": 3, "max_line_width": None, "suppress_small": None}}
_OPTIONS.update(_PROFILES["default"])


def set_printoptions(precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
                     linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None) -> None:
    """Set how tensors are printed, as in PyTorch.

    ``precision`` is the number of digits, ``linewidth`` of columns; tensors with more than ``threshold`` elements show only
    ``edgeitems`` at each end of a dimension. ``profile`` is ``"default"``, ``"short"`` or ``"full"``; ``sci_mode=False`` writes
    small numbers without an exponent, and True changes nothing. Raises KeyError for another profile.
    """
    if profile is not None:
        _OPTIONS.update(_PROFILES[profile])
    for name, value in (("precision", precision), ("edgeitems", edgeitems), ("max_line_width", linewidth),
                        ("threshold", None if threshold is None else int(min(threshold, sys.maxsize))),
                        ("suppress_small", None if sci_mode is None else not sci_mode or None)):
        if value is not None:
            _OPTIONS[name] = value


def format_tensor(tensor: Any) -> str:
    """The text of a tensor as in PyTorch: values, then device, size, dtype and graph where they are not the default."""
    parts = []
    try:
        values = tensor.storage.device.read(tensor.storage, tensor.spec)
        if tensor.spec.narrow:
            values = values.astype(np.float32)
        text = np.array2string(values, separator=", ", prefix="tensor(", **_OPTIONS)
        empty = not tensor.spec.numel
    except DataDependentShape:
        text, empty = "...", False
        parts.append(f"size={tuple(tensor.spec.shape)}")
    if tensor.storage.device.type != "cpu":
        parts.append(f"device='{tensor.storage.device}'")
    if empty and tensor.spec.ndim != 1:
        parts.append(f"size={tuple(tensor.spec.shape)}")
    # Printed values show whether they are int64 or bool.
    plain = (default_float(),) if empty else (default_float(), np.int64, np.bool_)
    if tensor.spec.dtype not in plain or tensor.storage.device.type == "meta":
        parts.append(f"dtype=gradcore.{tensor.spec.dtype.name}")
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn={tensor.grad_fn!r}")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    return f"tensor({', '.join([text, *parts])})"
