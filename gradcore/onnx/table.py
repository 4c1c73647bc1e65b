"""The table of ops that have a counterpart in ONNX, by name.

A converter is called with the graph, the spec of the op's first result, its operands (a :class:`~gradcore.onnx.graph.Value`, a
number or None; a list where the op takes one) and its attributes by name. It returns the result, or a list of results, None for
one that it cannot make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Converter = Callable[..., Any]
CONVERTERS: dict[str, Converter] = {}


class Refused(Exception):
    """Raised by a converter for attributes or operands that ONNX has no counterpart for: the reason."""


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Enter a converter under names of ops."""

    def enter(converter: Converter) -> Converter:
        for name in names:
            assert name not in CONVERTERS
            CONVERTERS[name] = converter
        return converter

    return enter
