"""Tensors that no op made (uploads, borrowed arrays), and changes of the owner of bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from gradcore.devices.device import Device, devices, get_device
from gradcore.devices.storage import Storage
from gradcore.dtypes import category
from gradcore.engine.dispatch import fresh
from gradcore.engine.sites import here
from gradcore.engine.state import local
from gradcore.engine.tracer import tracer_of
from gradcore.engine.value import Value, value_over
from gradcore.events import BORROW, Network, Tag
from gradcore.spec import TensorSpec

#: Called before a recorded step and at its end, to name bytes that no call may ever name.
around_steps: list[Callable[[], None]] = []
#: The most items of a container that a compiled function compares; so many cost a replay a tenth of a millisecond.
MOST = 10_000


def upload(values: np.ndarray[Any, Any], device: Device, *, op: str = "upload", role: str = "input",
           constant: bool = False, numbers: bool = False) -> Any:
    """A new tensor with the host's values. Uploads allocate on every device alike, on the CPU too.

    ``constant`` says that only shapes and attributes decide the values, ``numbers`` that they are Python's, and both that
    nothing writes to them, so a replay may use those of the traced run.
    """
    device = device.compute
    spec = TensorSpec.of(values.shape, values.dtype)
    value = fresh(device, spec, _tag(op, role, spec), local.state.node)
    if (constant or numbers) and (tracer := tracer_of(device.ledger.log)) is not None:
        tracer.constant(value.storage, numbers)
    device.upload(value.storage, spec, values)
    return value


def constant(op: str, values: np.ndarray[Any, Any], like: Any) -> Any:
    """A temporary tensor of an op, on the device of ``like``, with values that only shapes and attributes decide."""
    return upload(values, like.storage.device, op=op, role="temporary", constant=True)


def made_of_numbers(data: Any, depth: int = 4) -> bool:
    """Is it made of Python numbers only, as far as guards look? A trace treats these as constants, with guards on where they
    came from."""
    if isinstance(data, (list, tuple)):
        return depth > 0 and len(data) <= MOST and all(made_of_numbers(x, depth - 1) for x in data)
    return type(data) in (int, bool, float, range)


def is_traced(device: Device) -> bool:
    """Is what this thread runs on the device being traced?"""
    return tracer_of(device.compute.ledger.log) is not None


def pin(x: Any) -> Any:
    """A copy of a tensor on the CPU in pinned memory."""
    spec = TensorSpec.of(x.spec.shape, x.spec.dtype)
    value = blank_pinned(spec, "pin_memory", "input")
    value.storage.device.upload(value.storage, spec, x.array)
    return value


def blank_pinned(spec: TensorSpec, op: str, role: str) -> Any:
    """An uninitialized tensor in pinned memory."""
    return fresh(get_device("pinned"), spec, _tag(op, role, spec), local.state.node)


def send(spec: TensorSpec, device: Device, pinned: Any) -> Any:
    """A copy of a pinned tensor on a device, made on its stream for copies: the host does not wait for it, and it does not wait
    for the current stream's work so far."""
    spec = TensorSpec.of(spec.shape, spec.dtype)
    value = fresh(device, spec, _tag("upload", "input", spec), local.state.node, device.copies)
    device.send(value.storage, spec, pinned)
    return value


def _tag(op: str, role: str, spec: TensorSpec) -> Tag:
    scope = local.state.scope.plain
    if local.state.node and role == "input":
        # Uploads during backward are temporaries of backward.
        role = "temporary"
    return Tag(op, scope.layer, scope.phase, scope.role or role, here(), scope.caller, spec, None, scope.network)


def note_write(value: Value, op: str) -> None:
    """Count a write to a tensor's bytes that may not have been an op's."""
    value.storage.version += 1
    value.storage.written_by = _tag(op, "output", value.spec)


def borrow(values: Any, device: Device, dtype: Any = None) -> Any:
    """A tensor over the memory of a NumPy or CuPy array, which it keeps alive. ``dtype`` is that of the elements if the array's
    own is not. Raises TypeError for an array that is not of numbers, ValueError for strides that tensors cannot have."""
    state = local.state
    scope = state.scope.plain
    dtype, step = np.dtype(dtype or values.dtype), values.dtype.itemsize
    library = type(values).__module__.partition(".")[0]
    try:
        category(dtype)
    except TypeError:
        raise TypeError(f"can't convert {library.replace('numpy', 'np')}.ndarray of type {dtype}. The only supported types are "
                        "those of tensors: bool, integers and floats") from None
    if any(s < 0 or s % step for s in values.strides):
        raise ValueError(f"At least one stride in the given {library} array is negative, or not a multiple of the element's "
                         "size, and tensors with such strides are not supported: make a copy of the array with array.copy()")
    spec = TensorSpec.strided(values.shape, dtype, tuple(s // step for s in values.strides), 0)
    tag = Tag(BORROW, scope.layer, scope.phase, scope.role or "input", here(), scope.caller, spec, None, scope.network)
    segment = device.foreign(values, spec.span[1])
    # Tensors over the same array are accounted once, and notice each other's writes.
    key = id(device), segment.address, segment.nbytes
    storage = _borrowed.get(key)
    if storage is None:
        storage = _borrowed[key] = Storage(device, device.ledger.adopt(segment, device.stream, tag))
    return value_over(storage, spec)


#: By device, address and size: storages over memory of other libraries, which they keep alive.
_borrowed: WeakValueDictionary[tuple[int, int, int], Storage] = WeakValueDictionary()


def retag(value: Value, *, role: str | None = None, layer: str | None = None, network: Network | None = None) -> None:
    """Give the bytes of ``value`` another role, or a layer of a network, as when they become a parameter or a gradient."""
    block = value.storage.block
    value.storage.device.ledger.retag(block, _changed(block.tag, role, layer, network))


@functools.lru_cache(maxsize=4096)
def _changed(tag: Tag, role: str | None, layer: str | None, network: Network | None) -> Tag:
    if layer is not None:
        tag = tag._replace(layer=layer, network=network)
    return tag if role is None else tag._replace(role=role)


def retag_gradient(value: Value, of: Value | None) -> None:
    """Make the bytes of ``value`` a gradient: of the layer whose parameter ``of`` is, whatever layer computed it. That of any
    other tensor stays with the layer that did."""
    like = None if of is None else of.storage.block.tag
    if like is not None and like.network is not None and like.role == "parameter":
        retag(value, role="gradient", layer=like.layer, network=like.network)
    else:
        retag(value, role="gradient")


def move_layers(before: tuple[Network, str], after: tuple[Network | None, str]) -> None:
    """Give live bytes of a layer, and of the layers in it, another path, in another network."""
    network, path = before
    for device in devices():
        ledger = device.ledger
        # No block may be freed meanwhile, and become another tensor's.
        with ledger.lock:
            for block in ledger.live.values():
                tag = block.tag
                if tag.network == network and f"{tag.layer}.".startswith(path and f"{path}."):
                    inner = tag.layer[len(path):].lstrip(".")
                    layer = ".".join(filter(None, (after[1], inner)))
                    ledger.retag(block, tag._replace(layer=layer, network=after[0]))

