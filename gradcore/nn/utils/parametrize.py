"""Parametrizations: parameters that are computed from others each time they are read, with PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any
from weakref import WeakKeyDictionary

from gradcore.engine.modes import no_grad
from gradcore.engine.value import Value
from gradcore.nn.container import ModuleDict
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter

Tensor = Any

__all__ = ["ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
           "type_before_parametrizations"]

#: The number of open :func:`cached` blocks; and the values computed in them, which go with their lists, or with the last block.
_open: list[int] = [0]
_made: WeakKeyDictionary[ParametrizationList, Tensor] = WeakKeyDictionary()


@contextmanager
def cached() -> Iterator[None]:
    """Within the block, each parametrized parameter is computed once, when first read."""
    _open[0] += 1
    try:
        yield
    finally:
        _open[0] -= 1
        if not _open[0]:
            _made.clear()


class ParametrizationList(Module):
    """The originals of a parameter (``original``, or ``original0``, ``original1``, ...) and the modules that compute it.

    ``is_tensor`` tells whether there is one, ``ntensors`` how many, and ``unsafe`` whether a parametrization is not checked.
    """

    original: Parameter

    def __init__(self, parametrization: Module, originals: Sequence[Tensor] | None, value: Tensor, unsafe: bool) -> None:
        super().__init__()
        self.is_tensor = originals is None
        self.ntensors = 1 if originals is None else len(originals)
        self.unsafe = unsafe
        if originals is None:
            # The Parameter object itself, so that an optimizer that holds it keeps working.
            _register(self, "original", value)
        for k, original in enumerate(originals or ()):
            _register(self, f"original{k}", _like(value, original))
        setattr(self, "0", parametrization)

    def __len__(self) -> int:
        return sum(name.isdigit() for name in self._modules)

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[Any]:
        return (module for name, module in self._modules.items() if name.isdigit())

    def append(self, parametrization: Module) -> None:
        """Add a parametrization, which is applied after the others."""
        setattr(self, str(len(self)), parametrization)

    def forward(self) -> Tensor:
        """Compute the parameter."""
        value, *rest = self._originals()
        for k, part in enumerate(self):
            value = part(value) if k else part(value, *rest)
        return value

    def _originals(self) -> list[Parameter]:
        return [self.original] if self.is_tensor else [getattr(self, f"original{k}") for k in range(self.ntensors)]

    def right_inverse(self, value: Tensor) -> None:
        """Set the originals so that the parameter gets this value, by each parametrization's ``right_inverse``.

        Raises RuntimeError for a parametrization that has none.
        """
        with no_grad():
            for part in reversed(list(self)):
                if not hasattr(part, "right_inverse"):
                    raise RuntimeError(f"parametrization {type(part).__name__} does not implement right_inverse.")
                value = part.right_inverse(value)
            for original, found in zip(self._originals(), [value] if self.is_tensor else value, strict=True):
                original.copy_(found)


def _like(value: Tensor, made: Tensor) -> Tensor:
    """``made`` as what ``value`` is: a parameter, which requires a gradient or not, or a buffer."""
    return Parameter(made.detach(), value.requires_grad) if isinstance(value, Parameter) else made.detach()


def _register(module: Any, name: str, value: Tensor) -> None:
    (module.register_parameter if isinstance(value, Parameter) else module.register_buffer)(name, value)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether the module has a parametrized parameter, or one of the given name."""
    found: Any = module._modules.get("parametrizations")
    return found is not None and (tensor_name is None or tensor_name in found)


def register_parametrization(module: Any, tensor_name: str, parametrization: Any, *, unsafe: bool = False) -> Any:
    """Make ``module.tensor_name`` be ``parametrization(original)``, computed whenever it is read, and part of the graph.

    The parameter, or buffer, becomes ``module.parametrizations.tensor_name.original``, the same object, so an optimizer that
    holds it goes on with it. A ``right_inverse`` of the parametrization gives its new value, or a tuple of several originals
    instead of it; one that raises NotImplementedError is left out. A further parametrization takes the result of the previous
    one, and leaves the original as it is. Each takes the mode of ``module``, training or evaluation. Raises ValueError if there
    is no such tensor, for a ``right_inverse`` that gives anything but tensors, or one of another dtype, and unless ``unsafe``
    for a result that is no tensor, or of another shape or dtype.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        parts = module.parametrizations[tensor_name]
        if not unsafe:
            with no_grad():
                value = parts()
                made = parametrization(value)
                _check(value, made)
                _check(value, _inverse(parametrization, made))
        parts.append(parametrization)
        parts.unsafe |= unsafe
        return module
    value = {**module._buffers, **module._parameters}.get(tensor_name)
    if value is None:
        raise ValueError(f"Module '{type(module).__name__}' does not have a parameter or a buffer with name '{tensor_name}'")
    with no_grad():
        inverse = _inverse(parametrization, value)
        several = inverse if isinstance(inverse, (tuple, list)) else None
        for k, x in enumerate([inverse] if several is None else several):
            if not isinstance(x, Value):
                raise ValueError("'right_inverse' must return a tensor or a tuple or list of tensors, but got "
                                 f"{type(x).__name__}" + ("" if several is None else f" as element {k}"))
        if several is None and inverse.spec.dtype != value.spec.dtype:
            raise ValueError("When `right_inverse` outputs one tensor, it may not change the dtype: it was "
                             f"{value.spec.dtype} and would be {inverse.spec.dtype}")
        if not unsafe:
            _check(value, parametrization(*(several or [inverse])))
        if several is None and inverse is not value:
            if inverse.spec.shape == value.spec.shape:
                value.copy_(inverse)
            else:
                value.data = inverse.contiguous()
    made = ParametrizationList(parametrization, several, value, unsafe)
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
        kind = type(module)
        # A property must be on the class, so the module gets a class of its own.
        module.__class__ = type(f"Parametrized{kind.__name__}", (kind,), {"__module__": kind.__module__})
    delattr(module, tensor_name)
    module.parametrizations[tensor_name] = made
    setattr(type(module), tensor_name, property(lambda self: _value(self.parametrizations[tensor_name]),
                                                lambda self, value: self.parametrizations[tensor_name].right_inverse(value)))
    return module


def _inverse(parametrization: Any, value: Tensor) -> Any:
    """What its ``right_inverse`` gives; ``value`` if it has none, or one that raises NotImplementedError, as in PyTorch."""
    if not hasattr(parametrization, "right_inverse"):
        return value
    try:
        return parametrization.right_inverse(value)
    except NotImplementedError as error:
        # What gradcore lacks is no word of the parametrization's.
        if _raised_in(error).startswith("gradcore."):
            raise
        return value


def _raised_in(error: Exception) -> str:
    """The name of the module that raised it."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", ""))


def _check(before: Tensor, after: Any) -> None:
    if not isinstance(after, Value):
        raise ValueError(f"A parametrization must return a tensor. Got {type(after).__name__}.")
    for what, old, new in (("dtype", before.spec.dtype, after.spec.dtype),
                           ("shape", list(before.spec.shape), list(after.spec.shape))):
        if old != new:
            raise ValueError(f"Registering a parametrization may not change the {what} of the tensor, unless `unsafe` flag is "
                             f"enabled: it was {old} and would be {new}")


def type_before_parametrizations(module: Module) -> type:
    """The class of the module without its parametrizations."""
    kind = type(module)
    return kind.__bases__[0] if is_parametrized(module) else kind


def _value(parts: ParametrizationList) -> Tensor:
    if not _open[0]:
        return parts()
    if parts not in _made:
        _made[parts] = parts()
    return _made[parts]


def remove_parametrizations(module: Any, tensor_name: str, leave_parametrized: bool = True) -> Any:
    """Make it plain again, with its present value, or with ``leave_parametrized=False`` that of the original.

    Raises ValueError if it is not parametrized, and for ``leave_parametrized=False`` with several originals.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {type(module).__name__} does not have a parametrization on {tensor_name}")
    made = module.parametrizations[tensor_name]
    if not leave_parametrized and not made.is_tensor:
        raise ValueError("leave_parametrized=False is not possible: the parametrization has several original tensors")
    with no_grad():
        value = made() if leave_parametrized else made.original
    kind = type(module)
    delattr(kind, tensor_name)
    del module.parametrizations[tensor_name]
    if not len(module.parametrizations):
        del module.parametrizations
        module.__class__ = kind.__bases__[0]
    first = _first(made)
    if made.is_tensor and first is made.original and first.spec == value.spec:
        # The Parameter object stays the same, so that an optimizer that holds it keeps working.
        with no_grad():
            first.copy_(value)
        _register(module, tensor_name, first)
    else:
        _register(module, tensor_name, _like(first, value))
    return module


def _first(parts: Any) -> Tensor:
    """The first original, or if that is parametrized itself, the first one that it is computed from."""
    name = "original" if parts.is_tensor else "original0"
    return _first(parts.parametrizations[name]) if is_parametrized(parts, name) else getattr(parts, name)
