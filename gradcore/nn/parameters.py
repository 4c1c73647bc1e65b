"""``ParameterList`` and ``ParameterDict``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gradcore._tensor import Tensor
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter


def _parameter(value: Any) -> Parameter:
    """A parameter as it is, a tensor as a new parameter. Raises TypeError for anything else."""
    if isinstance(value, Parameter):
        return value
    if not isinstance(value, Tensor):
        raise TypeError(f"lists and dicts of parameters hold Parameters and Tensors, but got {type(value).__name__}")
    return Parameter(value)


def _listed(kinds: dict[str, str], parameters: Mapping[str, Any]) -> str:
    """A line for each parameter, with its kind and its shape."""
    return "\n".join(f"  ({name}): Parameter containing: [{kind} of size {'x'.join(map(str, parameters[name].shape))}]"
                     for name, kind in kinds.items())


class ParameterList(Module):
    """A list of parameters, with the names ``0``, ``1``, ...; tensors become parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def _name(self, index: int) -> str:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of range")
        return str(index % count)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._parameters.values()))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return self._parameters[self._name(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._name(index), _parameter(value))

    def append(self, value: Any) -> ParameterList:
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def extra_repr(self) -> str:
        return _listed({k: f"gradcore.{p.dtype}" for k, p in self._parameters.items() if p is not None}, self._parameters)


class ParameterDict(Module):
    """A dict of parameters; tensors become parameters."""

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add parameters from a mapping or (name, parameter) pairs; the names of a plain dict are sorted, as in PyTorch."""
        items = dict(parameters).items()
        for name, value in sorted(items) if type(parameters) is dict else items:
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        return self._parameters[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.register_parameter(name, _parameter(value))

    def __delitem__(self, name: str) -> None:
        if name not in self._parameters:
            raise KeyError(name)
        delattr(self, name)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._parameters))

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def extra_repr(self) -> str:
        return _listed({k: p.type() for k, p in self._parameters.items() if p is not None}, self._parameters)

    def keys(self) -> Iterable[str]:
        return self._parameters.keys()

    def values(self) -> Iterable[Any]:
        return self._parameters.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._parameters.items()

    def get(self, name: str, default: Any = None) -> Any:
        return self._parameters.get(name, default)

    def pop(self, name: str) -> Any:
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last parameter, and return it with its name. Raises KeyError if there is none."""
        if not self._parameters:
            raise KeyError("popitem(): the ParameterDict is empty")
        name = list(self)[-1]
        return name, self.pop(name)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """The parameter of this name, which is ``default`` if there was none."""
        if name not in self:
            self.register_parameter(name, None if default is None else _parameter(default))
        return self[name]

    def clear(self) -> None:
        self._parameters.clear()

    def __or__(self, other: Any) -> ParameterDict:
        both = self.copy()
        both.update(other)
        return both

    def __ior__(self, other: Any) -> ParameterDict:
        self.update(other)
        return self

    def copy(self) -> ParameterDict:
        """Another dict of the same parameters."""
        return type(self)(self._parameters.copy().items())
