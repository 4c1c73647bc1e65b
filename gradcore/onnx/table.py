"""The table of converters from ops to ONNX, by name of op.

A converter is called with the graph, the spec of the op's first result, its operands (a :class:`~gradcore.onnx.graph.Value`, a
number or None; a list if the op takes one) and its attributes by name. It returns the result, or a list of results, with None
for one that it cannot make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Converter = Callable[..., Any]
CONVERTERS: dict[str, Converter] = {}


class Refused(Exception):
    """Raised by a converter, with the reason, for attributes or operands without a counterpart in ONNX."""


def enter(converters: Mapping[str, Converter]) -> None:
    """Register converters by the names of their ops."""
    assert CONVERTERS.keys().isdisjoint(converters)
    CONVERTERS.update(converters)


def converts(*names: str) -> Callable[[Converter], Converter]:
    """A decorator that registers a converter for the named ops."""

    def entered(converter: Converter) -> Converter:
        enter(dict.fromkeys(names, converter))
        return converter

    return entered
