"""Parameters that are made of others each time they are read, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradcore.engine.modes import no_grad
from gradcore.nn.container import ModuleDict
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter

Tensor = Any

__all__ = ["ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations"]

#: How many :func:`cached` are open, and by id of a list what it has made since the first was opened.
_open: list[int] = [0]
_made: dict[int, Tensor] = {}


@contextmanager
def cached() -> Iterator[None]:
    """Inside, each parametrized parameter is made once, when it is first read, and that is what is read from then on."""
    _open[0] += 1
    try:
        yield
    finally:
        _open[0] -= 1
        if not _open[0]:
            _made.clear()


class ParametrizationList(Module):
    """What a parameter is made of: ``original``, or ``original0`` and so on, and the modules that make it one after another."""

    original: Parameter

    def __init__(self, parametrization: Module, originals: Sequence[Tensor] | None, value: Tensor) -> None:
        super().__init__()
        self._count = 0 if originals is None else len(originals)
        for name, original in [("original", value)] if originals is None else [
                (f"original{k}", o) for k, o in enumerate(originals)]:
            self.register_parameter(name, Parameter(original.detach(), requires_grad=value.requires_grad))
        setattr(self, "0", parametrization)

    def __len__(self) -> int:
        return sum(name.isdigit() for name in self._modules)

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[Any]:
        return (module for name, module in self._modules.items() if name.isdigit())

    def append(self, parametrization: Module) -> None:
        setattr(self, str(len(self)), parametrization)

    def forward(self) -> Tensor:
        """The parameter."""
        value, *rest = self._originals()
        for k, part in enumerate(self):
            value = part(value) if k else part(value, *rest)
        return value

    def _originals(self) -> list[Parameter]:
        return [getattr(self, f"original{k}") for k in range(self._count)] if self._count else [self.original]

    def right_inverse(self, value: Tensor) -> None:
        """Write to the originals what makes the parameter this value, as far as the parametrizations can tell.

        Raises RuntimeError for one without a ``right_inverse``.
        """
        with no_grad():
            for part in reversed(list(self)):
                if not hasattr(part, "right_inverse"):
                    raise RuntimeError(f"parametrization {type(part).__name__} does not implement right_inverse.")
                value = part.right_inverse(value)
            for original, found in zip(self._originals(), value if self._count else [value], strict=True):
                original.copy_(found)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Is a parameter of the module, or the one of that name, made of others?"""
    found: Any = module._modules.get("parametrizations")
    return found is not None and (tensor_name is None or tensor_name in found)


def register_parametrization(module: Any, tensor_name: str, parametrization: Any) -> Any:
    """``module.tensor_name`` is from now on ``parametrization(original)``, made anew when it is read, and part of the graph.

    The parameter becomes ``module.parametrizations.tensor_name.original``; a parametrization with ``right_inverse`` says what
    it begins with, and is given several where that is a tuple. A second parametrization is given what the first one makes, and
    the original stays what it is. Raises ValueError for what is no parameter of the module, and for a result of another shape.
    """
    if is_parametrized(module, tensor_name):
        parts = module.parametrizations[tensor_name]
        with no_grad():
            value = parts()
            _check(value.spec.shape, parametrization(value).spec.shape)
        parts.append(parametrization)
        return module
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
    _check(value.spec.shape, shape)
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
        kind = type(module)
        # A property is the class's, so the module gets one of its own.
        module.__class__ = type(f"Parametrized{kind.__name__}", (kind,), {"__module__": kind.__module__})
    delattr(module, tensor_name)
    module.parametrizations[tensor_name] = made
    setattr(type(module), tensor_name, property(lambda self: _value(self.parametrizations[tensor_name]),
                                                lambda self, value: self.parametrizations[tensor_name].right_inverse(value)))
    return module


def _check(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    if before != after:
        raise ValueError("Registering a parametrization may not change the shape of the tensor: it was "
                         f"{list(before)} and would be {list(after)}")


def _value(parts: ParametrizationList) -> Tensor:
    if not _open[0]:
        return parts()
    if id(parts) not in _made:
        _made[id(parts)] = parts()
    return _made[id(parts)]


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
    if not made._count and made.original.spec == value.spec:
        # The same Parameter goes on, so that an optimizer which has it does, too.
        with no_grad():
            made.original.copy_(value)
        module.register_parameter(tensor_name, made.original)
    else:
        module.register_parameter(tensor_name, Parameter(value.detach(), requires_grad=next(made.parameters()).requires_grad))
    return module
