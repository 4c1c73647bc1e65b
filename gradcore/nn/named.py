"""Access to submodules, parameters and buffers by path, such as ``layers.0.weight``."""

from __future__ import annotations

from typing import Any


class Named:
    """The part of :class:`Module` that finds and replaces what is below it by path."""

    def get_submodule(self, target: str) -> Any:
        """The module at a path. Raises AttributeError, which names the missing part."""
        module: Any = self
        for part in target.split(".") if target else ():
            found = module._modules.get(part)
            if found is None:
                raise AttributeError(f"{type(module).__name__} has no attribute `{part}`")
            module = found
        return module

    def set_submodule(self, target: str, module: Any, strict: bool = False) -> None:
        """Set the module at a path; with ``strict``, there must be one to replace.

        Raises ValueError for an empty path or a value that is not a module, AttributeError for a path that does not exist.
        """
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        if not isinstance(module, Named):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{type(parent).__name__} has no attribute `{name}`")
        if not isinstance(getattr(parent, name, module), Named):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Any:
        """The parameter at a path. Raises AttributeError if there is none."""
        return self._module_at("_parameters", target, "an nn.Parameter")

    def get_buffer(self, target: str) -> Any:
        """The buffer at a path. Raises AttributeError if there is none."""
        return self._module_at("_buffers", target, "a buffer")

    def _module_at(self, kind: str, target: str, what: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
        if name not in module.__dict__[kind]:
            raise AttributeError(f"`{name}` is not {what}")
        return module.__dict__[kind][name]

    # -- extra state of a state dict -----------------------------------------------------------------------------------

    def get_extra_state(self) -> Any:
        """Data for the state dict besides tensors. A class that has any overrides this and :meth:`set_extra_state`."""
        raise RuntimeError(f"{type(self).__name__} has no extra state: define get_extra_state() and set_extra_state()")

    def set_extra_state(self, state: Any) -> None:
        """Restore what :meth:`get_extra_state` returned, from a state dict."""
        Named.get_extra_state(self)
