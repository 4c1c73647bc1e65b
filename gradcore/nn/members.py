"""The dicts ``_parameters``, ``_buffers`` and ``_modules`` of a module, as code written for PyTorch uses them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from functools import cached_property
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

from gradcore.nn import paths

#: The dicts of a module, in the order in which its members are listed.
KINDS = ("_parameters", "_buffers", "_modules")


def _calls_getattr(code: CodeType) -> bool:
    return "__getattr__" in code.co_names or any(_calls_getattr(x) for x in code.co_consts if isinstance(x, CodeType))


def _functions_of(x: Any) -> Iterator[FunctionType]:
    """The functions behind an attribute of a class: itself, those of a property, and what its decorators wrap."""
    parts: tuple[Any, ...] = (x.fget, x.fset, x.fdel) if isinstance(x, property) else (
        x.func if isinstance(x, cached_property) else x.__func__ if isinstance(x, (classmethod, staticmethod)) else x,)
    for part in parts:
        if isinstance(part, FunctionType):
            yield from (f for f in (part, unwrap(part)) if isinstance(f, FunctionType))


class Asked:
    """A base of each class of modules that defines or calls ``__getattr__``, so that ``super().__getattr__`` is there.

    Others have no such method: with one, Python looks for every attribute that is there more slowly.
    """

    __slots__ = ()

    @staticmethod
    def add(kind: type, module: type) -> None:
        """Make it a base of a class of modules, if that or a mixin defines ``__getattr__``, or one of the class's functions
        calls it: before the bases that are no modules after those that are, which in PyTorch come after this method, too."""
        if not issubclass(kind, Asked) and (hasattr(kind, "__getattr__") or any(
                _calls_getattr(f.__code__) for x in vars(kind).values() for f in _functions_of(x))):
            bases = kind.__bases__
            at = max(k for k, base in enumerate(bases, 1) if issubclass(base, module))
            kind.__bases__ = (*bases[:at], Asked, *bases[at:])

    def __getattr__(self, name: str) -> Any:
        for kind in KINDS:
            if name in self.__dict__.get(kind, ()):
                return self.__dict__[kind][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self)


class Members(MutableMapping[str, Any]):
    """What a module has of one kind, by name, in order. A write sets the module's attribute, and a deletion deletes it."""

    __slots__ = ("_module", "_kind")

    def __init__(self, module: Any, kind: str) -> None:
        self._module = module
        self._kind = kind

    @property
    def _own(self) -> dict[str, Any]:
        found: dict[str, Any] = self._module.__dict__[self._kind]
        return found

    def __getitem__(self, name: str) -> Any:
        return self._own[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._module._module_put(self._kind, name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self._own:
            raise KeyError(name)
        delattr(self._module, name)

    def move_to_end(self, name: str, last: bool = True) -> None:
        """Make a member the last one, or the first. Raises KeyError if there is none of this name."""
        own = self._own
        if name not in own:
            raise KeyError(name)
        for moved in [name] if last else [other for other in own if other != name]:
            # Not by pop: an interrupt after that call would lose the member.
            value = own[moved]
            del own[moved]
            own[moved] = value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last member, and return it with its name. Raises KeyError if there is none."""
        name = next(reversed(self), None)
        if name is None:
            raise KeyError("popitem(): there is no member")
        return name, self.pop(name)

    def copy(self) -> dict[str, Any]:
        """A dict of them now."""
        return dict(self._own)

    def __contains__(self, name: object) -> bool:
        return name in self._own

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def keys(self) -> KeysView[str]:
        return self._own.keys()

    def values(self) -> ValuesView[Any]:
        return self._own.values()

    def items(self) -> ItemsView[str, Any]:
        return self._own.items()

    def __repr__(self) -> str:
        return repr(self._own)


def members(kind: str) -> Any:
    """The attribute of a module that shows its members of one kind, and can be set to a dict of others."""

    def get(module: Any) -> Members:
        if kind not in module.__dict__:
            raise AttributeError(f"'{type(module).__name__}' object has no attribute '{kind}': its __init__ must begin with "
                                 "super().__init__()")
        return Members(module, kind)

    def put(module: Any, given: Any) -> None:
        before, wanted = get(module), dict(given)
        own = {name: value for name, value in module.__dict__.items() if name not in before}
        for other in KINDS:
            own[other] = wanted if other == kind else {n: value for n, value in own[other].items() if n not in wanted}
        for child in wanted.values() if kind == "_modules" else ():
            if child is not None:
                paths.adopted(child, module)
        paths.structure_changed()
        # At once, so that an interrupt loses no member.
        module.__dict__ = own | wanted

    return property(get, put)
