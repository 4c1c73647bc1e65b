"""Dynamic batch sizes: compares the graphs for two sizes, and leaves open what differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gradcore.errors import ExportError
from gradcore.onnx.graph import Graph, Node, Value

#: The end of a slice that goes to the end of any dimension.
_END = (1 << 63) - 1


def open_batch(g: Graph, other: Graph) -> None:
    """Change ``g``, made for one batch size, so that it is valid for any; ``other`` was made for another size.

    Raises :class:`ExportError` if more than one dimension of a reshape, or the values of a tensor, depend on the size.
    """
    if [(n.kind, n.outputs, n.attrs) for n in g.nodes] != [(n.kind, n.outputs, n.attrs) for n in other.nodes]:
        raise ExportError("dynamic_batch: the program runs different ops for another batch size")
    for k, (node, twin) in enumerate(zip(g.nodes, other.nodes, strict=True)):
        inputs = list(node.inputs)
        for j, (a, b) in enumerate(zip(node.inputs, twin.inputs, strict=True)):
            if a in g.constants and b in other.constants:
                ours, theirs = g.initializers[a], other.initializers[b]
                if ours.shape != theirs.shape or not np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"):
                    inputs[j] = g.constant(_opened(g, node, j, ours, theirs)).name
            elif a != b:
                raise ExportError(f"dynamic_batch: {node.name} has different inputs for another batch size")
        g.nodes[k] = replace(node, inputs=tuple(inputs))
    used = {name for node in g.nodes for name in node.inputs}
    for name in [n for n in g.initializers if n not in used]:
        del g.initializers[name]


def _opened(g: Graph, node: Node, j: int, ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A shape, or the ends of a slice, with the entries that depend on the batch size left open."""
    shape = g.shapes[node.inputs[0]]
    differ = np.flatnonzero(ours != theirs) if ours.shape == theirs.shape and ours.ndim == 1 else np.array([], np.int64)
    found = ours.copy()
    if node.kind == "Reshape" and j == 1 and len(differ) == 1 and 0 not in ours:
        found[differ] = -1
        return found
    if node.kind == "Expand" and j == 1 and len(differ):
        lead = len(ours) - len(shape)
        if all(d >= lead and shape[d - lead] == ours[d] for d in differ):
            # Expand with 1 keeps the size of the operand.
            found[differ] = 1
            return found
    if node.kind == "Slice" and j == 2 and len(differ):
        dims = g.initializers[node.inputs[3]]
        if all(shape[dims[d]] == ours[d] for d in differ):
            found[differ] = _END
            return found
    raise ExportError(f"dynamic_batch: the values of {node.name}, {node.doc}, depend on the batch size")


def open_shape(a: Value, b: Value, size: int) -> list[int | str]:
    """A shape, with names for the dimensions in which two values differ."""
    pairs = enumerate(zip(a.shape, b.shape, strict=True))
    return [n if n == m else "batch" if n == size else f"batch_{d}" for d, (n, m) in pairs]
