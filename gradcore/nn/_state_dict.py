"""Collecting and loading the state dict of a module."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.dtypes import category
from gradcore.engine import modes, owners
from gradcore.engine.hooks import RemovableHandle, hang
from gradcore.nn import paths
from gradcore.nn.hooks import Hook, Tables
from gradcore.nn.named import Named

Module = Any


class _IncompatibleKeys(NamedTuple):
    """The keys of a module and of a loaded state dict that had no counterpart."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not any(self):
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


#: The last part of the key under which a module's ``get_extra_state`` is stored.
_EXTRA_STATE_KEY_SUFFIX = "_extra_state"
#: The entry of a module's metadata with the loading that it is a part of.
_LOADING = "loading"


class StateHooks(Tables):
    """A module's hooks on its state dict: before and after it is collected, and before and after it is loaded."""

    __slots__ = ("saving", "saved", "loading", "loaded")


class Stateful:
    """The part of :class:`Module` that collects and loads its state dict, each module by methods that it may override."""

    #: The hooks on the state dict, from the first one on.
    _module_state_hooks: StateHooks | None = None
    #: Stored with the state dict, for a later class that loads an earlier one's.
    _version: int = 1
    #: Names that a state dict may lack, since earlier ones did.
    _module_may_be_missing: frozenset[str] = frozenset()
    _parameters: Any
    _buffers: Any
    _modules: Any
    _non_persistent_buffers_set: set[str]

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Parameters and persistent buffers by path. The tensors share their storage with the module.

        For classes that define ``get_extra_state``, what it returns is added as ``_extra_state``. A module that occurs twice in
        the tree is listed twice. ``destination`` is a dict to add to.
        """
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = metadata
        for hook in self._module_hooks_of("saving"):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        found: dict[str, Any] = destination
        for hook in self._module_hooks_of("saved"):
            replaced = hook(self, found, prefix, metadata)
            found = found if replaced is None else replaced
        return found

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Add what this module has to a state dict, without its children."""
        destination.update(_tensors(self, prefix, keep_vars))
        if type(self).get_extra_state is not Named.get_extra_state:  # type: ignore[attr-defined]
            destination[prefix + _EXTRA_STATE_KEY_SUFFIX] = self.get_extra_state()  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> _IncompatibleKeys:
        """Copy values by path from gradcore tensors, or from anything that NumPy can convert to an array.

        With ``assign``, parameters and buffers take over the values' storage, device and dtype, as a model on meta needs, and
        parameters lose their gradients. Raises RuntimeError, before anything is copied, with a list of all size mismatches and,
        if ``strict``, all missing and unexpected keys.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        loading, missing, unexpected, errors = _Loading(assign), list[str](), list[str](), list[str]()
        unexpected += [k for k in state_dict if not isinstance(k, str)]
        given = {k: v for k, v in state_dict.items() if isinstance(k, str)}
        _load(self, given, "", getattr(state_dict, "_metadata", {}), loading, (missing, unexpected, errors))
        if loading.hooks and not errors:
            # Hooks see the loaded values, and may forgive what is missing.
            loading.run()
            for module, hook in loading.hooks:
                if hook(module, _IncompatibleKeys(missing, unexpected)) is not None:
                    raise AssertionError("hooks of register_load_state_dict_post_hook are not expected to return new values: "
                                         "change the lists of keys in place")
        if strict and unexpected:
            errors.insert(0, f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
        if strict and missing:
            errors.insert(0, f"Missing key(s) in state_dict: {_quoted(missing)}. ")
        if errors:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(errors))
        if not loading.hooks:
            loading.run()
        return _IncompatibleKeys(missing, unexpected)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
                              unexpected_keys: list[str], error_msgs: list[str]) -> None:
        """Load what this module has, without its children, and add to the lists what does not fit.

        ``state_dict`` has the keys below ``prefix``, and may be changed. As a part of :meth:`load_state_dict`, the values are
        copied when all modules have been looked at.
        """
        for hook in self._module_hooks_of("loading"):
            hook(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        loading = local_metadata.get(_LOADING)
        now = _Loading(False) if loading is None else loading
        own = _tensors(self, prefix, True)
        for key, target in own.items():
            if key in state_dict:
                value = as_value(key, state_dict[key])
                shape = tuple(value.shape)
                if shape == (1,) and target.spec.shape == ():
                    # Files of PyTorch before 0.4 have numbers so, and scripts make counts of batches so.
                    value, shape = value.reshape(()), ()
                if shape == target.spec.shape:
                    now.values.append((target, value))
                else:
                    error_msgs.append(f"size mismatch for {key}: copying a param with shape gradcore.Size({list(shape)}) from "
                                      f"checkpoint, the shape in current model is gradcore.Size({list(target.spec.shape)}).")
            # What keeps its own value must have one.
            elif strict and (key[len(prefix):] not in self._module_may_be_missing
                             or (now.assign and target.device.type == "meta")):
                missing_keys.append(key)
        has_extra = type(self).set_extra_state is not Named.set_extra_state  # type: ignore[attr-defined]
        if has_extra and prefix + _EXTRA_STATE_KEY_SUFFIX in state_dict:
            now.extra.append((self, state_dict[prefix + _EXTRA_STATE_KEY_SUFFIX]))
        elif has_extra and strict:
            missing_keys.append(prefix + _EXTRA_STATE_KEY_SUFFIX)
        if strict:
            known = {*own, prefix + _EXTRA_STATE_KEY_SUFFIX} if has_extra else own
            unexpected_keys += [k for k in state_dict if k.startswith(prefix) and k not in known
                                and _child_of(k, prefix) not in self._modules]
        if loading is None:
            now.run()

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, prefix, keep_vars)`` before the module's part of a state dict is collected."""
        return self._module_hang_state("saving", hook)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata)`` when the parts of a module and its children are collected.

        It may change the state dict, and must return None: otherwise RuntimeError is raised.
        """
        def without_result(*args: Any) -> None:
            if hook(*args) is not None:
                raise RuntimeError("state_dict post-hook must return None")

        return self._module_hang_state("saved", without_result)

    def _register_state_dict_hook(self, hook: Hook) -> RemovableHandle:
        """The older form of :meth:`register_state_dict_post_hook`; what it returns, unless None, replaces the state dict."""
        return self._module_hang_state("saved", hook)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)`` before
        the module looks at the state dict, which it may change: it has the keys below ``prefix``."""
        return self._module_hang_state("loading", hook)

    def _register_load_state_dict_pre_hook(self, hook: Hook, with_module: bool = False) -> RemovableHandle:
        """The older form of :meth:`register_load_state_dict_pre_hook`, by default without the module."""
        return self._module_hang_state("loading", hook if with_module else lambda module, *args: hook(*args))

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, incompatible_keys)`` when values have been loaded; it may change the lists of keys.

        With such a hook, values are copied before missing and unexpected keys raise.
        """
        return self._module_hang_state("loaded", hook)

    def _module_hang_state(self, kind: str, hook: Hook) -> RemovableHandle:
        if self._module_state_hooks is None:
            self.__dict__["_module_state_hooks"] = StateHooks()
        return hang(getattr(self._module_state_hooks, kind), hook)

    def _module_hooks_of(self, kind: str) -> list[Hook]:
        return [] if self._module_state_hooks is None else list(getattr(self._module_state_hooks, kind).values())


def _child_of(key: str, prefix: str) -> str | None:
    """The name of the child that a key below ``prefix`` leads to, if it leads to one."""
    name, dot, _ = key[len(prefix):].partition(".")
    return name if dot else None


def _tensors(module: Module, prefix: str, keep_vars: bool) -> dict[str, Tensor]:
    buffers = [(name, b) for name, b in module._buffers.items() if name not in module._non_persistent_buffers_set]
    return {prefix + name: value if keep_vars else value.detach()
            for name, value in (*module._parameters.items(), *buffers) if value is not None}


def _load(module: Module, state_dict: dict[str, Any], prefix: str, metadata: Any, loading: _Loading,
          found: tuple[list[str], list[str], list[str]]) -> None:
    """Let each module of a tree look at its part of a state dict, as a dict of its own, which it may change."""
    module._load_from_state_dict(state_dict, prefix, {**metadata.get(prefix[:-1], {}), _LOADING: loading}, True, *found)
    for name, child in module._modules.items():
        if child is not None:
            below = f"{prefix}{name}."
            _load(child, {k: v for k, v in state_dict.items() if k.startswith(below)}, below, metadata, loading, found)
    loading.hooks += [(module, hook) for hook in module._module_hooks_of("loaded")]


class _Loading:
    """What a state dict will set when all of it has been checked: values to copy, and extra state.

    With ``assign``, the tensors take over the values' storage instead.
    """

    def __init__(self, assign: bool) -> None:
        self.assign = assign
        self.values: list[tuple[Tensor, Any]] = []
        self.extra: list[tuple[Any, Any]] = []
        #: What to call when they are set: modules, and their hooks.
        self.hooks: list[tuple[Any, Hook]] = []

    def run(self) -> None:
        with modes.no_grad():
            for target, value in self.values:
                given = value if isinstance(value, Tensor) else functional.tensor(
                    value, device=None if self.assign else target.device)
                if self.assign:
                    was = target.storage.block.tag
                    if target.grad is not None:
                        # It is of the values before, and perhaps of another dtype or device.
                        target.grad = None
                    target.data = given.detach()
                    owners.retag(target, role=was.role, layer=was.layer, network=was.network)
                else:
                    target.copy_(given)
        for owner, state in self.extra:
            owner.set_extra_state(state)
        if self.assign:
            paths.structure_changed()


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
