"""Conversion between a list of parameters and one vector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcore import functional
from gradcore._tensor import Tensor as _Tensor
from gradcore.engine.modes import no_grad
from gradcore.errors import DeviceError

Tensor = Any


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """A 1-d copy of all parameters, concatenated. Raises :class:`DeviceError` for several devices."""
    parts = list(parameters)
    devices = {p.storage.device.name for p in parts}
    if len(devices) > 1:
        raise DeviceError(f"Found parameters on different devices, this is currently not supported: {sorted(devices)}")
    return functional.cat([functional.reshape(p, -1) for p in parts])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy the parts of a vector into the parameters. Raises TypeError for a non-tensor, ValueError for another length."""
    if not isinstance(vec, _Tensor):
        raise TypeError(f"expected gradcore.Tensor, but got: {type(vec).__name__}")
    targets = list(parameters)
    count = sum(p.numel() for p in targets)
    if vec.spec.shape != (count,):
        raise ValueError(f"the parameters have {count} elements, but the vector has the shape {list(vec.spec.shape)}")
    at = 0
    with no_grad():
        for p in targets:
            p.copy_(functional.reshape(functional.narrow(vec, 0, at, p.numel()), p.spec.shape))
            at += p.numel()
