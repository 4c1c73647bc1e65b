"""Parameters that are made of others each time they are read, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.engine.modes import no_grad
from gradcore.nn.container import ModuleDict
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter

Tensor = Any

__all__ = ["ParametrizationList", "is_parametrized", "register_parametrization", "remove_parametrizations"]


class ParametrizationList(Module):
    """What a parameter is made of: ``original``, or ``original0`` and so on, and the module that makes it of them."""

    original: Parameter

    def __init__(self, parametrization: Module, originals: Sequence[Tensor] | None, value: Tensor) -> None:
        super().__init__()
        self._count = 0 if originals is None else len(originals)
        for name, original in [("original", value)] if originals is None else [
                (f"original{k}", o) for k, o in enumerate(originals)]:
            self.register_parameter(name, Parameter(original.detach(), requires_grad=value.requires_grad))
        setattr(self, "0", parametrization)

    def forward(self) -> Tensor:
        """The parameter."""
        made = getattr(self, "0")
        return made(*[getattr(self, f"original{k}") for k in range(self._count)]) if self._count else made(self.original)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Is a parameter of the module, or the one of that name, made of others?"""
    found: Any = module._modules.get("parametrizations")
    return found is not None and (tensor_name is None or tensor_name in found)


def register_parametrization(module: Any, tensor_name: str, parametrization: Any) -> Any:
    """``module.tensor_name`` is from now on ``parametrization(original)``, made anew when it is read, and part of the graph.

    The parameter becomes ``module.parametrizations.tensor_name.original``; a parametrization with ``right_inverse`` says what
    it begins with, and is given several where that is a tuple. Raises ValueError for what is no parameter of the module,
    NotImplementedError for a second parametrization of one, SpecError where the result has another shape.
    """
    if is_parametrized(module, tensor_name):
        raise NotImplementedError(f"{tensor_name!r} has a parametrization already: write one that does the work of both")
    value = module._parameters.get(tensor_name)
    if value is None:
        raise ValueError(f"Module '{type(module).__name__}' does not have a parameter with name '{tensor_name}'")
    with no_grad():
        inverse = parametrization.right_inverse(value) if hasattr(parametrization, "right_inverse") else value
    several = inverse if isinstance(inverse, (tuple, list)) else None
    made = ParametrizationList(parametrization, several, value if several is not None else Parameter(
        inverse.detach(), requires_grad=value.requires_grad))
    with no_grad():
        shape = made().spec.shape
    if shape != value.spec.shape:
        raise ValueError("Registering a parametrization may not change the shape of the tensor: it was "
                         f"{list(value.spec.shape)} and would be {list(shape)}")
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
        kind = type(module)
        # A property is the class's, so the module gets one of its own.
        module.__class__ = type(f"Parametrized{kind.__name__}", (kind,), {"__module__": kind.__module__})
    delattr(module, tensor_name)
    module.parametrizations[tensor_name] = made
    setattr(type(module), tensor_name, property(lambda self: self.parametrizations[tensor_name]()))
    return module


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Any:
    """Make a parameter of it again: of the value that it has, or of the original with ``leave_parametrized=False``.

    Raises ValueError for what has no parametrization, and for an original that is several tensors.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {type(module).__name__} does not have a parametrization on {tensor_name}")
    made = module.parametrizations[tensor_name]
    if not leave_parametrized and made._count:
        raise ValueError("leave_parametrized=False: the original is several tensors, of which none can take the place")
    with no_grad():
        value = made() if leave_parametrized else made.original
    kind = type(module)
    delattr(kind, tensor_name)
    del module.parametrizations[tensor_name]
    if not len(module.parametrizations):
        del module.parametrizations
        module.__class__ = kind.__bases__[0]
    module.register_parameter(tensor_name, Parameter(value.detach(), requires_grad=next(made.parameters()).requires_grad))
    return module
