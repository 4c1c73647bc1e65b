"""Collecting and loading the state dict of a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.engine import modes, owners
from gradcore.events import TAGS
from gradcore.nn import paths
from gradcore.nn.named import Named
from gradcore.spec import category

Module = Any


class IncompatibleKeys(NamedTuple):
    """The keys of a module and of a loaded state dict that had no counterpart."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not any(self):
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


#: The last part of the key under which a module's ``get_extra_state`` is stored.
_EXTRA = "_extra_state"


def collect(module: Module, prefix: str, keep_vars: bool) -> dict[str, Any]:
    """The state dict: for each module of the tree its parameters, its persistent buffers, and its extra state.

    A module that occurs twice in the tree is listed twice, as in PyTorch.
    """
    found: dict[str, Any] = {}
    for path, owner in _paths(module, prefix):
        found.update(_tensors(owner, path, keep_vars))
        if type(owner).get_extra_state is not Named.get_extra_state:
            found[path + _EXTRA] = owner.get_extra_state()
    return found


def _paths(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _paths(child, f"{prefix}{name}.")


def _tensors(module: Module, prefix: str, keep_vars: bool) -> dict[str, Tensor]:
    return {prefix + name: value if keep_vars else value.detach()
            for name, value in (*module._parameters.items(), *module._buffers.items())
            if value is not None and name not in module._transient}


def load(module: Module, state_dict: Mapping[str, Any], strict: bool, assign: bool = False) -> IncompatibleKeys:
    """Load a state dict: check everything, then copy the values, or with ``assign`` take over their storage."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
    own: dict[str, Tensor] = {}
    extra: dict[str, Module] = {}
    optional: set[str] = set()
    for path, owner in _paths(module, ""):
        optional.update(path + name for name in owner._may_be_missing)
        own.update(_tensors(owner, path, True))
        if type(owner).set_extra_state is not Named.set_extra_state:
            extra[path + _EXTRA] = owner
    if assign:
        # What keeps its own value must have one.
        optional = {k for k in optional if k in own and own[k].device.type != "meta"}
    missing = [k for k in (*own, *extra) if k not in state_dict and k not in optional]
    unexpected = [k for k in state_dict if k not in own and k not in extra]
    errors = []
    if strict and missing:
        errors.append(f"Missing key(s) in state_dict: {_quoted(missing)}. ")
    if strict and unexpected:
        errors.append(f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
    values = {}
    for key, target in own.items():
        if key in state_dict:
            value = values[key] = as_value(key, state_dict[key])
            shape = tuple(value.shape)
            if shape != target.spec.shape:
                errors.append(f"size mismatch for {key}: copying a param with shape gradcore.Size({list(shape)}) from "
                              f"checkpoint, the shape in current model is gradcore.Size({list(target.spec.shape)}).")
    if errors:
        raise RuntimeError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t" + "\n\t".join(errors))
    with modes.no_grad():
        for key, value in values.items():
            target = own[key]
            given = value if isinstance(value, Tensor) else functional.tensor(value, device=None if assign else target.device)
            if assign:
                was = TAGS[target.storage.block.tag]
                target.data = given.detach()
                owners.retag(target, role=was.role, layer=was.layer, network=was.network)
            else:
                target.copy_(given)
    for key, owner in extra.items():
        if key in state_dict:
            owner.set_extra_state(state_dict[key])
    if assign:
        paths.structure_changed()
    return IncompatibleKeys(missing, unexpected)


def as_value(key: str, value: Any) -> Any:
    """A gradcore tensor as it is; anything else as a NumPy array."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # NumPy cannot convert PyTorch's bfloat16; float32 holds all of its values.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    array = np.asarray(value)
    try:
        category(array.dtype)
    except TypeError:
        raise TypeError(f"state_dict[{key!r}] must be a tensor or an array of numbers, but got "
                        f"{type(value).__name__}") from None
    return array


def _quoted(keys: list[str]) -> str:
    return ", ".join(f'"{k}"' for k in keys)
