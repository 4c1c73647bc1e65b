"""Ops with no tensor operand: they name their device."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.errors import SpecError
from gradcore.ops.op import op
from gradcore.spec import TensorSpec


def sized(shape: tuple[int, ...], dtype: Any) -> TensorSpec:
    """A contiguous spec. Raises :class:`SpecError` for a negative size."""
    if any(n < 0 for n in shape):
        raise SpecError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    return TensorSpec.of(shape, dtype)


def _full_spec(value: type, *, shape: tuple[int, ...], dtype: Any) -> TensorSpec:
    return sized(shape, dtype)


def _empty_spec(*, shape: tuple[int, ...], dtype: Any) -> TensorSpec:
    return sized(shape, dtype)


def _arange_spec(start: type, step: type, *, length: int, dtype: Any) -> TensorSpec:
    return TensorSpec.of((length,), dtype)


def _eye_spec(*, rows: int, columns: int, dtype: Any) -> TensorSpec:
    if rows < 0 or columns < 0:
        raise SpecError(f"eye: n and m must be greater or equal to 0, got {rows} and {columns}")
    return TensorSpec.of((rows, columns), dtype)


def _fill_spec(x: TensorSpec, value: type) -> TensorSpec:
    return TensorSpec.of(x.shape, x.dtype)


full = op("full", _full_spec)
empty = op("empty", _empty_spec, doc="Bytes as the pool had them.")
arange = op("arange", _arange_spec, doc="start + i * step.")
eye = op("eye", _eye_spec)
fill_ = op("fill_", _fill_spec, writes=("x",), x=lambda g: zeros_of(g))


def new_full(x: Any, shape: tuple[int, ...], value: Any) -> Any:
    """A number in every element, with the dtype and on the device of ``x``."""
    return full(value, shape=shape, dtype=x.spec.dtype, device=x.storage.device)


def zeros_of(g: Any) -> Any:
    """The gradient of what a result does not depend on. Not a product, since 0 times an infinite cotangent is NaN."""
    return new_full(g, g.spec.shape, 0.0)


def identity_of(x: Any) -> Any:
    """A matrix with ones on the diagonal, of the size of the matrices [..., m, n], their dtype and their device."""
    rows, columns = x.spec.shape[-2:]
    return eye(rows=rows, columns=columns, dtype=x.spec.dtype, device=x.storage.device)


def length_of_range(start: float, end: float, step: float) -> int:
    """How many numbers ``arange`` makes. Raises :class:`SpecError` for a step that never arrives."""
    if step == 0:
        raise SpecError("step must be nonzero")
    if not (np.isfinite(start) and np.isfinite(end)):
        raise SpecError(f"unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise SpecError(f"upper bound and lower bound inconsistent with step sign: {start}, {end}, {step}")
    return int(np.ceil((end - start) / step))
