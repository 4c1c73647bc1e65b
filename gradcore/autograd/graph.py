"""``autograd.graph``: the nodes of a graph, and hooks on how its residuals are stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradcore.devices.device import Device, get_device
from gradcore.engine.node import Node
from gradcore.engine.owners import blank_pinned, send, upload
from gradcore.engine.state import local
from gradcore.functional import transfer
from gradcore.spec import TensorSpec

__all__ = ["Node", "disable_saved_tensors_hooks", "save_on_cpu", "saved_tensors_hooks"]

Tensor = Any


class saved_tensors_hooks:
    """A context manager in which ops keep ``pack_hook(tensor)`` as a residual, which ``unpack_hook`` turns back in backward.

    The tensor that is packed has no graph, and must not be written to. Hooks run without a graph; each run is a ``pack`` or
    ``unpack`` mark in the log. Of nested contexts the innermost applies. Outputs of cheap ops, which are else recomputed
    (:class:`gradcore.recompute`), are packed, too.
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self._hooks = (pack_hook, unpack_hook)
        self._before: list[Any] = []

    def __enter__(self) -> None:
        if _refused.message is not None:
            raise RuntimeError(_refused.message)
        self._before.append(local.state.packing)
        local.state.packing = self._hooks

    def __exit__(self, *exc: object) -> None:
        local.state.packing = self._before.pop()


class save_on_cpu(saved_tensors_hooks):
    """A context manager in which residuals are moved to host memory, and back when backward needs them.

    With ``pin_memory`` they are in pinned memory, and the copies run on the device's stream for copies, beside its other work.
    Tensors on the CPU stay where they are. For meta no host memory is allocated.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(*((_to_pinned, _from_pinned) if pin_memory else (_to_host, _from_host)))


def _to_host(tensor: Tensor) -> tuple[Device, Any]:
    device: Device = tensor.storage.device
    if device.type == "meta":
        # There are no values to move; the log records that the bytes are freed and allocated again.
        device.note_read(tensor.storage, tensor.spec)
        return device, tensor.spec
    return device, tensor if device.type == "cpu" else transfer(tensor, get_device("cpu"))


def _from_host(packed: tuple[Device, Any]) -> Tensor:
    device, held = packed
    if device.type == "meta":
        return upload(np.broadcast_to(np.zeros((), held.dtype), held.shape), device)
    return held if held.storage.device is device else transfer(held, device)


def _to_pinned(tensor: Tensor) -> tuple[Device, Any]:
    device: Device = tensor.storage.device
    if device.type == "cpu":
        return device, tensor
    spec = TensorSpec.of(tensor.spec.shape, tensor.spec.dtype)
    held = spec if device.type == "meta" else blank_pinned(spec, "save_on_cpu", "residual")
    device.fetch(tensor.storage, tensor.spec, held)
    return device, held


def _from_pinned(packed: tuple[Device, Any]) -> Tensor:
    device, held = packed
    if device.type == "cpu":
        return held
    return send(held if device.type == "meta" else held.spec, device, held)


class _Refused(threading.local):
    message: str | None = None


_refused = _Refused()


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """A context manager in which entering :class:`saved_tensors_hooks` raises RuntimeError with ``error_message``."""
    if local.state.packing is not None:
        raise RuntimeError(error_message)
    before, _refused.message = _refused.message, error_message
    try:
        yield
    finally:
        _refused.message = before
