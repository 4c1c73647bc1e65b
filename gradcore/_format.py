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
    except DataDependentShape:
        text = "..."
        parts.append(f"size={tuple(tensor.spec.shape)}")
    if tensor.storage.device.type != "cpu":
        parts.append(f"device='{tensor.storage.device}'")
    if tensor.spec.dtype not in (default_float(), np.int64, np.bool_) or tensor.storage.device.type == "meta":
        parts.append(f"dtype=gradcore.{tensor.spec.dtype.name}")
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn={tensor.grad_fn!r}")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    return f"tensor({', '.join([text, *parts])})"
