"""Bytes that no op made, and bytes that change hands."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.device import Device, get_device
from gradcore.engine.dispatch import fresh
from gradcore.engine.node import Value
from gradcore.engine.state import SCOPES, SITES, here, local
from gradcore.events import TAGS, Tag
from gradcore.spec import TensorSpec


def upload(values: np.ndarray[Any, Any], device: Device, *, op: str = "upload", role: str = "input") -> Any:
    """A fresh tensor with the host's values. Uploads allocate on every device alike, the CPU too."""
    device = device.compute
    spec = TensorSpec.of(values.shape, values.dtype)
    value = fresh(device, spec, _tag(op, role, spec), local.state.node)
    device.upload(value.storage, spec, values)
    return value


def pin(x: Any) -> Any:
    """A copy of a tensor on the CPU in pinned memory."""
    spec = TensorSpec.of(x.spec.shape, x.spec.dtype)
    value = blank_pinned(spec, "pin_memory", "input")
    value.storage.device.upload(value.storage, spec, x.array)
    return value


def blank_pinned(spec: TensorSpec, op: str, role: str) -> Any:
    """A tensor of pinned bytes that nobody has written."""
    return fresh(get_device("pinned"), spec, _tag(op, role, spec), local.state.node)


def send(spec: TensorSpec, device: Device, pinned: Any) -> Any:
    """A copy of a pinned tensor on a device, made on its stream for copies: the host does not wait, nor does the copy for what
    the current stream has been given so far."""
    spec = TensorSpec.of(spec.shape, spec.dtype)
    value = fresh(device, spec, _tag("upload", "input", spec), local.state.node, device.copies)
    device.send(value.storage, spec, pinned)
    return value


def _tag(op: str, role: str, spec: TensorSpec) -> int:
    scope = SCOPES[local.state.scope]
    return TAGS.index(Tag(op, scope.layer, scope.phase, scope.role or role, SITES[here()], scope.caller, spec))


def retag(value: Value, *, role: str | None = None, layer: str | None = None) -> None:
    """The bytes of ``value`` belong to another role or layer from here on: they became a parameter, or a gradient."""
    block = value.storage.block
    key = block.tag, role, layer
    changed = _retagged.get(key)
    if changed is None:
        tag = TAGS[block.tag]
        changed = _retagged[key] = TAGS.index(
            tag._replace(role=tag.role if role is None else role, layer=tag.layer if layer is None else layer))
    value.storage.device.ledger.retag(block, changed)


_retagged: dict[tuple[int, str | None, str | None], int] = {}
