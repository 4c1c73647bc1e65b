"""Dynamic batch sizes: compares the graphs for several sizes, and leaves open what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradcore.errors import ExportError
from gradcore.onnx.graph import Graph, Node, Shape, Value

Array = np.ndarray[Any, Any]

#: The end of a slice that goes to the end of any dimension.
_END = (1 << 63) - 1


def open_batch(g: Graph, others: Sequence[Graph]) -> None:
    """Change ``g``, made for one batch size, so that it is valid for any; ``others`` were made for other sizes.

    Raises :class:`ExportError` if more than one dimension of a reshape, or the values of a tensor, depend on the size.
    """
    graphs = [g, *others]
    for other in others:
        if [(n.kind, n.outputs, n.attrs) for n in g.nodes] != [(n.kind, n.outputs, n.attrs) for n in other.nodes]:
            raise ExportError("dynamic_batch: the program runs different ops for another batch size")
    for k, twins in enumerate(zip(*(graph.nodes for graph in graphs), strict=True)):
        inputs = list(twins[0].inputs)
        for j, names in enumerate(zip(*(node.inputs for node in twins), strict=True)):
            if all(name in graph.constants for name, graph in zip(names, graphs, strict=True)):
                values = [graph.initializers[name] for name, graph in zip(names, graphs, strict=True)]
                ours = values[0]
                if any(ours.shape != v.shape or not np.array_equal(ours, v, equal_nan=ours.dtype.kind == "f") for v in values):
                    shapes = [graph.shapes[node.inputs[0]] for node, graph in zip(twins, graphs, strict=True)]
                    inputs[j] = g.constant(_opened(g, twins[0], j, values, shapes)).name
            elif len(set(names)) > 1 or (names[0] in g.initializers and len({graph.shapes[names[0]] for graph in graphs}) > 1):
                raise ExportError(f"dynamic_batch: {_told(twins[0])} has different inputs for another batch size")
        g.nodes[k] = replace(twins[0], inputs=tuple(inputs))
    used = {name for node in g.nodes for name in node.inputs}
    for name in [n for n in g.initializers if n not in used]:
        del g.initializers[name]


def _opened(g: Graph, node: Node, j: int, values: Sequence[Array], shapes: Sequence[Shape]) -> Array:
    """A shape, or the ends of a slice, with the entries that depend on the batch size left open.

    ``values`` and ``shapes`` are the constant and the shape of the node's first operand for each size.
    """
    ours = values[0]
    same = ours.ndim == 1 and all(v.shape == ours.shape for v in values)
    differ = np.flatnonzero(np.any([v != ours for v in values], axis=0)) if same else np.array([], np.int64)
    found = ours.copy()
    if node.kind == "Reshape" and j == 1 and len(differ) == 1 and 0 not in ours:
        found[differ] = -1
        return found
    if node.kind == "Expand" and j == 1 and len(differ):
        lead = len(ours) - len(shapes[0])
        if all(d >= lead and shape[d - lead] == v[d] for d in differ for v, shape in zip(values, shapes, strict=True)):
            # Expand with 1 keeps the size of the operand.
            found[differ] = 1
            return found
    if node.kind == "Slice" and j == 2 and len(differ):
        dims = g.initializers[node.inputs[3]]
        if all(shape[dims[d]] == v[d] for d in differ for v, shape in zip(values, shapes, strict=True)):
            found[differ] = _END
            return found
    raise ExportError(f"dynamic_batch: the values of {_told(node)} depend on the batch size")


def _told(node: Node) -> str:
    """A node with its op and line, which one that makes a view for the results has not."""
    return f"{node.name}, {node.doc}," if node.doc else node.name


def open_shape(values: Sequence[Value], names: dict[tuple[int, ...], str]) -> list[int | str]:
    """The shape of a value that was made for several batch sizes, with names for the dimensions that differ: ``names`` has them
    by size, since for ONNX dimensions of one name are equal, and gets those that are new."""
    return [spans[0] if len(set(spans)) == 1 else names.setdefault(spans, f"batch_{len(names)}")
            for spans in zip(*(v.shape for v in values), strict=True)]
