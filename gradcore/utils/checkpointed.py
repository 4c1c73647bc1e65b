"""Checkpoints of a network's layers, named by their paths, without a change to its code."""

from __future__ import annotations

from collections.abc import Iterable
from types import new_class
from typing import Any, TypeVar

from gradcore.nn.module import Module
from gradcore.nn.parameter import is_lazy
from gradcore.utils.checkpoint import checkpoint

M = TypeVar("M", bound=Module)


def checkpoint_layers(module: M, names: Iterable[str]) -> M:
    """Let every call of the named layers of ``module`` be a :func:`~gradcore.utils.checkpoint.checkpoint`; returns ``module``.

    ``names`` are paths as in ``named_modules()`` and in reports, such as those that ``gradcore find-checkpoints`` prints. What
    a layer runs, its hooks included, runs again in backward, as in any checkpoint. Its parameters, its state dict and its
    copies are as before, and its class is a subclass of the one that it had. Raises AttributeError for a name that ``module``
    does not have, TypeError for one name instead of several, and ValueError for a container that is never called, or a layer
    without parameters yet; then no layer has changed.
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a list of layers' names, but got the str {names!r}: write [{names!r}]")
    layers = {name: module.get_submodule(name) for name in names}
    for name, layer in layers.items():
        if why := obstacle(layer):
            raise ValueError(f"{name!r} is a {type(layer).__name__}, which {why}")
    for layer in layers.values():
        kind: Any = type(layer)
        if not issubclass(kind, _Checkpointed):
            layer.__class__ = _checkpointed(kind)
    return module


def obstacle(layer: Module) -> str:
    """Why a layer cannot be checkpointed, or ""."""
    if "forward" not in vars(layer) and type(layer).forward is Module.forward:
        return "is never called: name the layers in it"
    # It takes another class then.
    return "has no parameters yet: call it first" if any(is_lazy(p) for p in layer.parameters(recurse=False)) else ""


class _Checkpointed(Module):
    """Before the layer's own class, from which all that is not here comes."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Not as the layer's own class wants it, which may ask for arguments, or list what is derived from it.
        Module.__dict__["__init_subclass__"].__func__(cls, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(super().__call__, *args, **kwargs)


def _checkpointed(kind: type[Module]) -> type[Module]:
    """The class of checkpointed layers of this class, which alone knows it: a table would keep classes that are gone."""
    bases = _Checkpointed, kind
    return next((known for known in type.__subclasses__(kind) if known.__bases__ == bases), None) or new_class(
        kind.__name__, bases, {}, lambda body: body.update(
            __module__=kind.__module__, __qualname__=kind.__qualname__, __doc__=kind.__doc__,
            _module_foreign=kind._module_foreign))
