"""Containers of modules: ``Sequential``, ``ModuleList`` and ``ModuleDict``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from gradcore.nn import paths
from gradcore.nn.module import Module
from gradcore.units import count_of


class _Numbered(Module):
    """A list of modules, with the names ``0``, ``1``, ..."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self._modules.values()))

    def _module_name(self, index: int) -> str:
        count = len(self._modules)
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of range of {count_of(count, 'module')}")
        return list(self._modules)[index]

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            part = type(self).__new__(type(self))
            paths.part_of(part, self)
            part.__init__(self._module_given(list(self._modules.items())[index]))  # type: ignore[misc]
            return part
        return self._modules[self._module_name(index)]

    def _module_given(self, items: list[tuple[str, Any]]) -> Any:
        """What the constructor of a slice is called with."""
        return [m for _, m in items]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._module_name(index), module)

    def __delitem__(self, index: int | slice) -> None:
        for name in list(self._modules)[index] if isinstance(index, slice) else [self._module_name(index)]:
            delattr(self, name)
        self._module_renumber(list(self._modules.values()))

    def _module_renumber(self, modules: list[Any]) -> None:
        for name in list(self._modules):
            delattr(self, name)
        for k, module in enumerate(modules):
            self.add_module(str(k), module)

    def append(self, module: Module) -> Any:
        """Add a module at the end, and return the container. Raises TypeError for what is no module."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add modules at the end, and return the container. Raises TypeError for what is no module."""
        for module in modules:
            self.append(module)
        return self

    def __iadd__(self, modules: Iterable[Module]) -> Any:
        return self.extend(modules)

    def pop(self, index: int) -> Any:
        """Remove a module and return it."""
        module = self[index]
        del self[index]
        return module

    def insert(self, index: int, module: Module) -> Any:
        """Add a module before another, as ``list.insert``, and return the container. Raises TypeError for what is no module."""
        # Refused before the others lose their places.
        if module is not None and not isinstance(module, Module):
            raise TypeError(_no_module(module))
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._module_renumber(modules)
        return self


def _no_module(given: Any) -> str:
    name = getattr(given, "__name__", type(given).__name__)
    if isinstance(given, type):
        return f"{name} is a class, not a Module: write {name}(...)"
    hint = ""
    if isinstance(given, (list, tuple)):
        hint = ": write Sequential(*modules)"
    elif getattr(type(given), "_wraps_module", False):
        name, hint = type(given).__name__, ": compile the Sequential instead"
    return f"{name} is not a Module subclass{hint}"


class Sequential(_Numbered):
    """Calls modules one after the other; they are given as arguments, or as a dict of names."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for k, module in enumerate(args):
                if module is not None and not isinstance(module, Module):
                    raise TypeError(_no_module(module))
                self.add_module(str(k), module)

    def _module_given(self, items: list[tuple[str, Any]]) -> Any:
        return dict(items)

    def insert(self, index: int, module: Module) -> Any:
        """Insert a module before another, or at the end. Raises IndexError for a position that there is not."""
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}, expected one from {-len(self)} to {len(self)}")
        return super().insert(index, module)

    def forward(self, input: Any) -> Any:
        for module in self.__dict__["_modules"].values():
            input = module(input)
        return input

    def __add__(self, other: Any) -> Sequential:
        """The modules of both, renumbered. Raises ValueError unless ``other`` is a Sequential."""
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")
        return Sequential(*self, *other)

    def __mul__(self, other: int) -> Sequential:
        """The same modules repeated ``other`` times, renumbered. Raises TypeError for a non-int, ValueError for one below 1."""
        return Sequential(*self, *self._module_repeated(other))

    __rmul__ = __mul__

    def __imul__(self, other: int) -> Sequential:
        more: Sequential = self.extend(self._module_repeated(other))
        return more

    def _module_repeated(self, times: int) -> list[Module]:
        """The modules to append so that all come ``times`` times."""
        if not isinstance(times, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(times)}")
        if times <= 0:
            raise ValueError(f"Non-positive multiplication factor {times} for {type(self)}")
        return list(self) * (times - 1)


class ModuleList(_Numbered):
    """A list of modules, which become submodules of the module that it is assigned to."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __repr__(self) -> str:
        """A run of modules with the same text is one line, as ``(0-2): 3 x ReLU()``."""
        lines = []
        for text, run in groupby(enumerate(map(repr, self)), lambda numbered: numbered[1]):
            at = [k for k, _ in run]
            several = f"({at[0]}-{at[-1]}): {len(at)} x {text}"
            lines.append((f"({at[0]}): {text}" if len(at) == 1 else several).replace("\n", "\n  "))
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)" if lines else f"{self._get_name()}()"


class ModuleDict(Module):
    """A dict of modules, which become submodules of the module that it is assigned to."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules, from a mapping or (name, module) pairs. Raises TypeError for what is no module."""
        for name, module in dict(modules).items():
            self.add_module(name, module)

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        if name not in self._modules:
            raise KeyError(name)
        delattr(self, name)

    def pop(self, name: str) -> Any:
        """Remove a module and return it. Raises KeyError."""
        module = self[name]
        del self[name]
        return module

    def clear(self) -> None:
        """Remove all modules."""
        for name in list(self._modules):
            del self[name]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def keys(self) -> Iterable[str]:
        """The names, in order."""
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        """The modules, in order."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Pairs of name and module, in order."""
        return self._modules.items()
