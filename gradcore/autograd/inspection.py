"""Inspects a graph: its nodes, what each of them keeps, and how many bytes that is.

The results hold numbers and strings, and keep no tensor, storage or node alive.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from gradcore.engine.below import reachable
from gradcore.engine.leaf import Leaf
from gradcore.engine.node import Node
from gradcore.engine.recipes import Again, beside
from gradcore.engine.saved import Packed, Saved
from gradcore.engine.value import Value
from gradcore.events import Network
from gradcore.memory.resource import Block
from gradcore.ops import all_ops
from gradcore.reading import layer_in, network_names, short_path
from gradcore.units import count_of

#: The most lines of a printed graph.
LINES = 1000


@dataclass(frozen=True)
class Residual:
    """One tensor that a node's gradient rules read. ``nbytes`` are the requested bytes of its storage."""

    name: str
    #: "kept", "recomputed" in backward (0 bytes), or "packed" by a hook (0 bytes if the hook did not return a tensor).
    how: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    #: The storage's serial in the log; residuals with the same serial share the bytes.
    storage: int
    #: The owner of the bytes: role and layer, and the op and line that made them.
    role: str
    layer: str
    made_by: str
    line: str
    #: The form and line of an export, if an array of another library shares the bytes; otherwise "".
    exported: str = ""


@dataclass(frozen=True)
class GraphNode:
    """One node of the graph: a run of an op that gradients flow through."""

    number: int
    name: str
    op: str
    layer: str
    line: str
    #: "held": it keeps residuals and has not run; "retained": it ran and still keeps them (retain_graph); "released": it ran
    #: and released them; "keeps nothing": its rules read no tensor.
    state: str
    residuals: tuple[Residual, ...]
    #: The targets of its gradients: numbers of nodes, names of leaves, None for an input that requires no gradient.
    inputs: tuple[int | str | None, ...]

    def __str__(self) -> str:
        """Its line of a printed graph."""
        kept = ", ".join(f"{r.name} {r.dtype}{list(r.shape)}{_bytes_of(r)}" for r in self.residuals)
        return (f"#{self.number} {self.name} of {self.layer or '(root)'}, {short_path(self.line)}: {self.state}"
                + (f": {kept}" if kept else ""))


@dataclass(frozen=True, repr=False)
class Graph:
    """The nodes that a tensor's gradient would run through, the newest first."""

    nodes: tuple[GraphNode, ...]

    def __iter__(self) -> Iterator[GraphNode]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def _bytes(self, parameters: bool) -> int:
        held = {r.storage: r.nbytes for n in self.nodes for r in n.residuals if (r.role == "parameter") is parameters}
        return sum(held.values())

    @property
    def nbytes(self) -> int:
        """Bytes that the graph keeps alive, each storage once, without parameters, which live anyway."""
        return self._bytes(False)

    @property
    def parameter_nbytes(self) -> int:
        """Bytes of the parameters that the graph keeps."""
        return self._bytes(True)

    def __repr__(self) -> str:
        lines = [f"{count_of(len(self), 'node')} keep{'s' * (len(self) == 1)} {self.nbytes:,} bytes, and "
                 f"{self.parameter_nbytes:,} of parameters"]
        by_number = {n.number: n for n in self.nodes}
        seen: set[int] = set()
        stack: list[tuple[int | str, int]] = [(self.nodes[0].number, 0)] if self.nodes else []
        while stack and len(lines) < LINES:
            target, depth = stack.pop()
            indent = "  " * depth
            if isinstance(target, str):
                lines.append(f"{indent}leaf {target}")
                continue
            node = by_number[target]
            if target in seen:
                lines.append(f"{indent}#{target} {node.name} (above)")
                continue
            seen.add(target)
            lines.append(f"{indent}{node}")
            below = [i for i in node.inputs if i is not None]
            # The nodes of a chain have the same indentation, so that long ones are readable.
            stack.extend((i, depth + (len(below) > 1)) for i in reversed(below))
        if stack:
            lines.append(f"... and {len(self) - len(seen):,} nodes more")
        return "\n".join(lines)

    def dot(self) -> str:
        """The graph in Graphviz's language."""

        def quoted(text: str) -> str:
            return json.dumps(text, ensure_ascii=False)

        lines = ["digraph gradcore {", "  node [shape=box, fontname=monospace];"]
        leaves: set[str] = set()
        for n in self.nodes:
            alone = Graph((n,))
            held = f"{alone.nbytes + alone.parameter_nbytes:,} bytes"
            label = "\n".join([n.name, n.layer or "(root)", short_path(n.line), f"{n.state}, {held}"])
            lines.append(f"  n{n.number} [label={quoted(label)}];")
            for i in n.inputs:
                if isinstance(i, int):
                    lines.append(f"  n{n.number} -> n{i};")
                elif i is not None:
                    leaves.add(i)
                    lines.append(f"  n{n.number} -> {quoted(i)};")
        lines += [f"  {quoted(leaf)} [shape=ellipse];" for leaf in sorted(leaves)]
        return "\n".join([*lines, "}"])

    def to_json(self) -> str:
        """Nodes and residuals as a JSON object with ``version`` 1."""
        return json.dumps({"version": 1, "nbytes": self.nbytes, "parameter_nbytes": self.parameter_nbytes,
                           "nodes": [asdict(n) for n in self.nodes]})


def graph(tensor: Any) -> Graph:
    """The graph of ``tensor``: the nodes that backward would run, and what they keep alive until then.

    It is empty for a leaf and for a tensor that requires no gradient. Raises TypeError for other objects.
    """
    if not isinstance(tensor, Value):
        raise TypeError(f"graph() takes a Tensor, but got {type(tensor).__name__}")
    nodes = nodes_behind(tensor)
    # The same names as in a step's report.
    names = network_names(chain((node.scope.plain.network for node in nodes),
                                (block.tag.network for node in nodes for block in _in_arena(node))))
    leaves: dict[Leaf, str] = {}
    hidden = _beside(nodes)
    return Graph(tuple(_seen(node, hidden[node.id], leaves, names) for node in nodes))


def nodes_behind(tensor: Value) -> list[Node]:
    """The nodes of a tensor's graph, the last built first."""
    found = {} if tensor.edge is None else reachable([tensor])
    return [found[number] for number in sorted(found, reverse=True)]


def is_held(tensor: Value, ran: Set[int]) -> bool:
    """Does a tensor's graph still keep all residuals that its backward needs? If it needs none: is it none of the nodes that
    have ``ran``, by number?"""
    nodes = nodes_behind(tensor)
    keeping = [node for node in nodes if node.plan.slots]
    return all(node.saved is not None for node in keeping) if keeping else ran.isdisjoint(node.id for node in nodes)


def _beside(nodes: Sequence[Node]) -> dict[int, list[Any]]:
    """By number of a node: the residuals that it keeps alive beside those in its slots, each for the oldest such node.

    They are what recipes read, and what a checkpoint runs again on.
    """
    known = {id(r) for node in nodes for r in node.saved or ()}
    found: dict[int, list[Any]] = {}
    for node in reversed(nodes):
        mine = found[node.id] = []
        stack = list(node.saved or ())
        if node.recipe is not None:
            stack.append(node.recipe)
        while stack:
            for r in beside(stack.pop()):
                if id(r) not in known and isinstance(r, (Saved, Packed, Again)):
                    known.add(id(r))
                    stack.append(r)
                    if not isinstance(r, Again):
                        mine.append(r)
    return found


def _seen(node: Node, beside: Sequence[Any], leaves: dict[Leaf, str], names: Mapping[Network, str]) -> GraphNode:
    inputs: list[int | str | None] = []
    for edge in node.edges:
        if edge is None:
            inputs.append(None)
        elif isinstance(edge[0], Node):
            inputs.append(edge[0].id)
        else:
            leaf = edge[0]
            network = names.get(leaf.network)
            name = leaf.path and (f"{network}.{leaf.path}" if network else leaf.path)
            inputs.append(leaves.setdefault(leaf, name or f"{leaf.spec} ({len(leaves) + 1})"))
    kept = (*chain.from_iterable(_residuals(r, names) for r in (*(node.saved or ()), *beside)),
            *(_waiting(block, names) for block in _in_arena(node)))
    state = "keeps nothing"
    # A slot may hold a number.
    if kept or (node.plan.slots and node.saved is None):
        state = "released" if node.saved is None and node.recipe is None else "retained" if hasattr(node, "ran") else "held"
    return GraphNode(node.id, node.name(), node.call.op.name, layer_in(node.scope.plain, names), str(node.site), state,
                     kept, tuple(inputs))


def _in_arena(node: Node) -> Sequence[Block]:
    """The blocks that the node of a compiled function keeps in an arena for its gradient; none for other nodes."""
    rules = node.plan.rules
    found: Sequence[Block] = getattr(getattr(rules[0][2], "__self__", None), "in_arena", ()) if rules else ()
    return found


def _waiting(block: Block, names: Mapping[Network, str]) -> Residual:
    tag = block.tag
    layer = layer_in(tag, names)
    shape, dtype = (tag.spec.shape, tag.spec.dtype.name) if tag.spec is not None else ((block.requested,), "uint8")
    return Residual(f"{tag.op} of {layer or '(root)'}", "kept", shape, dtype, block.requested, block.serial, "residual", layer,
                    tag.op, str(tag.site))


def _residuals(r: Any, names: Mapping[Network, str]) -> Iterator[Residual]:
    """The residuals in one slot of a node; none for a number."""
    if isinstance(r, Packed):
        yield from (replace(_residual(x, names), how="packed") for x in r.kept)
        if not r.kept:
            yield Residual(r.name, "packed", (), "", 0, 0, "", "", "", "")
    elif isinstance(r, (Saved, Again)):
        yield _residual(r, names)


def _residual(r: Saved | Again, names: Mapping[Network, str]) -> Residual:
    if isinstance(r, Again):
        spec = r.spec
        return Residual(r.name, "recomputed", spec.shape, spec.dtype.name, 0, 0, "residual",
                        layer_in(r.recipe.scope.plain, names), r.recipe.call.op.name, str(r.recipe.site))
    block = r.storage.block
    tag = block.tag
    return Residual(r.name, "kept", r.spec.shape, r.spec.dtype.name, block.requested, block.serial, tag.role,
                    layer_in(tag, names), tag.op, str(tag.site), f"{tag.export.form}, {tag.export.site}" if tag.export else "")


def _bytes_of(r: Residual) -> str:
    how = "" if r.how == "kept" else f" {r.how}"
    return f" {r.nbytes:,} bytes{how}" + (f" (shared by {r.exported})" if r.exported else "") if r.storage else how


def kept_by_ops() -> dict[str, dict[str, tuple[str, ...]]]:
    """By op and input: the names of the inputs, results and auxiliary results that a gradient for that input keeps."""
    return {name: op.keeps() for name, op in sorted(all_ops().items()) if op.differentiable}
