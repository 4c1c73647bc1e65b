"""``ParameterList`` and ``ParameterDict``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, KeysView, Mapping
from operator import index as as_int
from typing import Any

from gradcore._tensor import Tensor
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter


def _held(value: Any) -> Any:
    """A tensor as a parameter; anything else, also a parameter or a module, as it is."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _line(name: str, value: Any, kind: str) -> str:
    """The line of a value in the text of its list or dict; ``kind`` is the name of a parameter's type."""
    if not isinstance(value, Tensor):
        return f"  ({name}): Object of type: {type(value).__name__}"
    return f"  ({name}): Parameter containing: [{kind} of size {'x'.join(map(str, value.shape))}]"


class ParameterList(Module):
    """A list of parameters, with the names ``0``, ``1``, ...; tensors become parameters.

    Values of other types are kept as they are, as in PyTorch; a list in a list is a submodule, whose parameters are named
    ``0.0``, ``0.1``, ...
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def _module_name(self, index: int) -> str:
        index, count = as_int(index), len(self)
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of range")
        return str(index % count)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return getattr(self, self._module_name(index))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._module_name(index), _held(value))

    def append(self, value: Any) -> ParameterList:
        """Add a value at the end, a tensor as a parameter, and return the list."""
        self._size += 1
        self[-1] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Append all of ``values``. Raises TypeError for a tensor, whose rows nobody means, and for what cannot be iterated."""
        if isinstance(values, Tensor) or not isinstance(values, Iterable):
            raise TypeError(f"ParameterList.extend() takes an iterable of values, but got {type(values).__name__}")
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def extra_repr(self) -> str:
        return "\n".join(_line(str(i), p, f"gradcore.{getattr(p, 'dtype', None)}") for i, p in enumerate(self))


class ParameterDict(Module):
    """A dict of parameters; tensors become parameters, and values of other types are kept as they are, as in PyTorch."""

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add parameters from a mapping or (name, parameter) pairs; the names of a mapping are sorted, but not those of an
        OrderedDict or a ParameterDict, as in PyTorch."""
        items, ordered = dict(parameters).items(), isinstance(parameters, OrderedDict) or not isinstance(parameters, Mapping)
        for name, value in items if ordered else sorted(items):
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        if name not in self._keys:
            raise KeyError(name)
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the names of a ParameterDict are strings, but got {name!r} of type {type(name).__name__}")
        if name not in self._keys and hasattr(self, name):
            # PyTorch replaces the method or the attribute, which breaks what needs it.
            raise KeyError(f"attribute {name!r} of {type(self).__name__} exists: choose another name")
        setattr(self, name, _held(value))
        self._keys[name] = None

    def __delitem__(self, name: str) -> None:
        del self._keys[name]
        delattr(self, name)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def extra_repr(self) -> str:
        return "\n".join(_line(name, p, p.type() if isinstance(p, Tensor) else "") for name, p in self.items())

    def keys(self) -> KeysView[str]:
        """The names, in order."""
        return self._keys.keys()

    def values(self) -> Iterable[Any]:
        """The values, in order."""
        return [self[name] for name in self._keys]

    def items(self) -> Iterable[tuple[str, Any]]:
        """Pairs of name and value, in order."""
        return [(name, self[name]) for name in self._keys]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of this name, or ``default`` if there is none."""
        return self[name] if name in self._keys else default

    def pop(self, name: str) -> Any:
        """Remove a value and return it. Raises KeyError."""
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last parameter, and return it with its name. Raises KeyError if there is none."""
        if not self._keys:
            raise KeyError("popitem(): the ParameterDict is empty")
        name = list(self)[-1]
        return name, self.pop(name)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """The parameter of this name, which is ``default`` if there was none."""
        if name not in self:
            self[name] = default
        return self[name]

    def fromkeys(self, names: Iterable[str], default: Any = None) -> ParameterDict:
        """Another dict, in which each of ``names`` has the value ``default``."""
        return type(self)([(name, default) for name in names])

    def clear(self) -> None:
        """Remove all values."""
        for name in list(self):
            del self[name]

    def __or__(self, other: Any) -> ParameterDict:
        both = self.copy()
        both.update(other)
        return both

    def __ror__(self, other: Any) -> Any:
        both = other.copy()
        both.update(self)
        return both

    def __ior__(self, other: Any) -> ParameterDict:
        self.update(other)
        return self

    def copy(self) -> ParameterDict:
        """Another dict of the same parameters."""
        return type(self)(self.items())
