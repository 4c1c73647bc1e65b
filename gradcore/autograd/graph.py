"""``autograd.graph``: the nodes and edges of a graph, hooks on several gradients, and on how residuals are stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from gradcore.devices.device import Device, get_device
from gradcore.engine.below import GradientEdge, behind
from gradcore.engine.hooks import RemovableHandle
from gradcore.engine.modes import Switch
from gradcore.engine.node import Node
from gradcore.engine.owners import blank_pinned, note_write, send, upload
from gradcore.engine.state import local
from gradcore.engine.value import Value
from gradcore.functional import transfer
from gradcore.spec import TensorSpec

__all__ = ["GradientEdge", "Node", "disable_saved_tensors_hooks", "get_gradient_edge", "increment_version",
           "register_multi_grad_hook", "save_on_cpu", "saved_tensors_hooks"]

Tensor = Any


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Where the gradient of a tensor arrives. ``grad`` and ``backward`` take it in the place of the tensor, which may go.

    Raises RuntimeError for a tensor that requires no gradient.
    """
    if tensor.edge is None:
        raise RuntimeError("It is not possible to get the gradient edge for a Tensor that does not require gradients")
    return GradientEdge(*behind(tensor.edge))


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Count a write to the bytes of a tensor, or of several, that no op has made: a backward that needs the old ones raises."""
    tensors: list[Any] = [tensor] if isinstance(tensor, Value) else list(tensor) if isinstance(tensor, Iterable) else [None]
    if not all(isinstance(t, Value) for t in tensors):
        raise RuntimeError("increment_version expect a Iterable[Tensor] as input")
    for t in tensors:
        note_write(t, "increment_version")


class _Handles(RemovableHandle):
    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self.handles = tuple(handles)

    def __reduce__(self) -> Any:
        return _Handles, (self.handles,)

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def register_multi_grad_hook(tensors: Sequence[Tensor], fn: Callable[..., None], *, mode: str = "all") -> RemovableHandle:
    """Call ``fn(gradients)`` in each backward pass when all tensors that it reaches have their gradients; the others are None.

    With ``mode="any"`` call ``fn(gradient)`` with the first. Raises ValueError for another mode, and with ``all``
    AssertionError for a tensor that requires no gradient.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    if mode == "all" and any(t.edge is None for t in tensors):
        raise AssertionError("Expected gradient function to be set")
    # Weakly: the hooks hang on them.
    targets = [ref(behind(t.edge)[0]) for t in tensors if t.edge is not None]
    #: By backward pass: how many gradients are still to come, and those that have.
    running: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()

    def hook_of(k: int) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            sweep = local.state.sweep
            if mode == "any":
                if sweep not in running:
                    running[sweep] = []
                    fn(gradient)
                return
            if sweep not in running:
                runs = sweep.executed()
                running[sweep] = [sum(id(target()) in runs for target in targets), [None] * len(targets)]
            found = running[sweep]
            found[0] -= 1
            found[1][k] = gradient
            if not found[0]:
                del running[sweep]
                fn(found[1])

        return hook

    return _Handles([t.register_hook(hook_of(k)) for k, t in enumerate(tensors) if t.edge is not None])


class saved_tensors_hooks(Switch):
    """A context manager in which ops keep ``pack_hook(tensor)`` as a residual, which ``unpack_hook`` turns back in backward.

    The tensor that is packed has no graph, and must not be written to. Hooks run without a graph; each run is a ``pack`` or
    ``unpack`` mark in the log. Of nested contexts the innermost applies. Outputs of cheap ops, which are else recomputed
    (:class:`gradcore.recompute`), are packed, too. What the unpack hook returns is converted to the dtype that was packed.
    """

    _switch = "packing"

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        for hook in (pack_hook, unpack_hook):
            if not callable(hook):
                raise TypeError(f"saved_tensors_hooks expects two functions, but got {type(hook).__name__}")
        super().__init__((pack_hook, unpack_hook))

    def __enter__(self) -> None:
        if _refused.message is not None:
            raise RuntimeError(_refused.message)
        super().__enter__()


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
