"""Readers of places in objects, which guards call, or of which they make terms of Python."""

from __future__ import annotations

from collections.abc import Callable
from keyword import iskeyword
from typing import Any

#: Gives an object a name that terms can refer to it by.
Namer = Callable[[Any], str]


class Reader:
    """Reads a place in an object: when it is called, or by a term, which costs a guard a tenth of a function that does so."""

    __slots__ = ("of", "key")

    def __init__(self, of: Any, key: Any) -> None:
        self.of = of
        self.key = key

    def __call__(self) -> Any:
        raise NotImplementedError

    def term(self, name: Namer) -> str:
        raise NotImplementedError


class Item(Reader):
    """Reads ``of[key]``."""

    __slots__ = ()

    def __call__(self) -> Any:
        return self.of[self.key]

    def term(self, name: Namer) -> str:
        return f"{name(self.of)}[{repr(self.key) if type(self.key) is str else name(self.key)}]"


class Has(Reader):
    """Reads ``key in of``, for a string."""

    __slots__ = ()

    def __call__(self) -> Any:
        return self.key in self.of

    def term(self, name: Namer) -> str:
        return f"({self.key!r} in {name(self.of)})"


class Attribute(Reader):
    """Reads ``of.key``."""

    __slots__ = ()

    def __call__(self) -> Any:
        return getattr(self.of, self.key)

    def term(self, name: Namer) -> str:
        return _attribute(name(self.of), self.key)


class AttributeOf(Reader):
    """Reads ``of().key``: of what a weak reference gives."""

    __slots__ = ()

    def __call__(self) -> Any:
        return getattr(self.of(), self.key)

    def term(self, name: Namer) -> str:
        return _attribute(f"{name(self.of)}()", self.key)


def _attribute(of: str, key: str) -> str:
    """The term for an attribute of an object, which may have been named by any string."""
    return f"{of}.{key}" if key.isascii() and key.isidentifier() and not iskeyword(key) else f"getattr({of}, {key!r})"
