"""The text of a tensor: ``repr``, ``str`` and print options."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.dtypes import default_float
from gradcore.errors import DataDependentShape

_PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80}}
#: The options that :func:`set_printoptions` sets.
_OPTIONS: dict[str, Any] = {**_PROFILES["default"], "sci_mode": None}


def set_printoptions(precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
                     linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None) -> None:
    """Set how tensors are printed, as in PyTorch.

    ``precision`` is the number of digits, ``linewidth`` of columns; tensors with more than ``threshold`` elements show only
    ``edgeitems`` at each end of a dimension. ``profile`` is ``"default"``, ``"short"`` or ``"full"``; ``sci_mode`` says whether
    numbers have exponents: None, that the numbers decide. Raises KeyError for another profile.
    """
    if profile is not None:
        _OPTIONS.update(_PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    _OPTIONS.update((name, value) for name, value in given.items() if value is not None)
    _OPTIONS["sci_mode"] = sci_mode


def _styled(shown: Any) -> tuple[Callable[[Any], str], int]:
    """The text of a number among those that are shown, and its width: all have the same."""
    style, point, counted = "", False, shown
    if shown.dtype.kind == "f":
        # A zero, an infinity and NaN count only where there is nothing else.
        counted = shown[np.isfinite(shown) & (shown != 0)]
        sizes = np.abs(counted.astype(np.float64))
        point, exponents = bool((sizes == np.ceil(sizes)).all()), _OPTIONS["sci_mode"]
        if not sizes.size:
            exponents = False
        elif exponents is None:
            exponents = sizes.max() > 1000 * sizes.min() or sizes.max() > 1e8 or sizes.min() < 1e-4
        style = f".{_OPTIONS['precision']}{'e' if exponents else 'f'}" if exponents or not point else ".0f"
        point = point and not exponents

    def text(value: Any) -> str:
        return (format(value, style) if style else str(value)) + "." * (point and math.isfinite(value))

    width = max((len(text(value)) for value in counted.ravel().tolist()), default=1)
    return lambda value: text(value).rjust(width), width


def _edges(values: Any) -> Any:
    """The elements at both ends of each dimension that is long."""
    few = _OPTIONS["edgeitems"]
    kept = (np.r_[:few, n - few:n] if n > 2 * few else np.arange(n) for n in values.shape)
    return values[np.ix_(*kept)]


def _rows(values: Any, indent: int, cut: bool, text: Callable[[Any], str], width: int) -> str:
    if not values.ndim:
        return text(values.item())
    n, few = len(values), _OPTIONS["edgeitems"]
    cut_here = cut and n > 2 * few
    shown = [*values[:few], *values[n - few:]] if cut_here else list(values)
    parts = [_rows(row, indent + 1, cut, text, width) for row in shown]
    if cut_here:
        parts.insert(few, "..." if values.ndim > 1 or not few else " ...")
    if values.ndim == 1:
        fit = max(1, (_OPTIONS["linewidth"] - indent) // (width + 2))
        parts, between = [", ".join(parts[k:k + fit]) for k in range(0, len(parts), fit)], 1
    else:
        between = values.ndim - 1
    return "[" + ("," + "\n" * between + " " * (indent + 1)).join(parts) + "]"


def _values(values: Any, indent: int) -> str:
    """The text of an array behind ``indent`` characters, with PyTorch's digits and lines."""
    if not values.size:
        return "[]"
    cut = values.size > _OPTIONS["threshold"]
    text, width = _styled(_edges(values) if cut else values)
    return _rows(values, indent, cut, text, width)


def format_tensor(tensor: Any) -> str:
    """The text of a tensor as in PyTorch: values, then device, size, dtype and graph where they are not the default."""
    parts = []
    known = True
    try:
        values = tensor.storage.device.read(tensor.storage, tensor.spec)
        if tensor.spec.narrow:
            values = values.astype(np.float32)
        text = _values(values, len("tensor("))
        empty = not tensor.spec.numel
    except DataDependentShape:
        text, empty, known = "...", False, False
    if tensor.storage.device.type != "cpu":
        parts.append(f"device='{tensor.storage.device}'")
    if not known or (empty and tensor.spec.ndim != 1):
        parts.append(f"size={tuple(tensor.spec.shape)}")
    # Printed values show whether they are int64 or bool.
    plain = (default_float(),) if empty or not known else (default_float(), np.int64, np.bool_)
    if tensor.spec.dtype not in plain:
        parts.append(f"dtype=gradcore.{tensor.spec.dtype.name}")
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn={tensor.grad_fn!r}")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    made, indent = f"tensor({text}", len("tensor(")
    # As PyTorch counts it: two more than there are.
    width = len(made) - made.rfind("\n") + 1
    for part in parts:
        wraps = width + len(part) + 2 > _OPTIONS["linewidth"]
        made += f",\n{' ' * indent}{part}" if wraps else f", {part}"
        width = len(part) + (indent if wraps else width + 2)
    return made + ")"
