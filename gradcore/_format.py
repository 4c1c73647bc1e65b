"""How a tensor is shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.errors import DataDependentShape
from gradcore.spec import default_float


def format_tensor(tensor: Any) -> str:
    """PyTorch's way: values to four digits, what is not the default behind them."""
    parts = []
    try:
        values = tensor.storage.device.read(tensor.storage, tensor.spec)
        if tensor.spec.narrow:
            values = values.astype(np.float32)
        text = np.array2string(values, precision=4, separator=", ", threshold=1000, prefix="tensor(")
        empty = not tensor.spec.numel
    except DataDependentShape:
        text, empty = "...", False
        parts.append(f"size={tuple(tensor.spec.shape)}")
    if tensor.storage.device.type != "cpu":
        parts.append(f"device='{tensor.storage.device}'")
    if empty and tensor.spec.ndim != 1:
        parts.append(f"size={tuple(tensor.spec.shape)}")
    # Values tell int64 and bool by themselves.
    plain = (default_float(),) if empty else (default_float(), np.int64, np.bool_)
    if tensor.spec.dtype not in plain or tensor.storage.device.type == "meta":
        parts.append(f"dtype=gradcore.{tensor.spec.dtype.name}")
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn={tensor.grad_fn!r}")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    return f"tensor({', '.join([text, *parts])})"
