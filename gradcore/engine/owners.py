"""Bytes that no op made, and bytes that change hands."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.device import Device
from gradcore.engine.dispatch import fresh
from gradcore.engine.node import Value
from gradcore.engine.state import SCOPES, SITES, here, local
from gradcore.events import TAGS, Tag
from gradcore.spec import TensorSpec


def upload(values: np.ndarray[Any, Any], device: Device, *, op: str = "upload", role: str = "input") -> Any:
    """A fresh tensor with the host's values. Uploads allocate on every device alike, the CPU too."""
    state = local.state
    scope = SCOPES[state.scope]
    spec = TensorSpec.of(values.shape, values.dtype)
    tag = TAGS.index(Tag(op, scope.layer, scope.phase, scope.role or role, SITES[here()], scope.caller, spec))
    value = fresh(device, spec, tag, state.node)
    device.upload(value.storage, spec, values)
    return value


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
