"""Records the gradient of a traced run's results behind the run itself, as the second part of its program."""

from __future__ import annotations

from typing import Any

from gradcore.engine.backward import run_backward
from gradcore.engine.below import reachable
from gradcore.engine.custom import custom_node
from gradcore.engine.dispatch import fresh
from gradcore.engine.hooks import hooks_of
from gradcore.engine.leaf import Leaf
from gradcore.engine.state import local
from gradcore.engine.value import Edge
from gradcore.nn.hooks import CALLS_HOOKS
from gradcore.program.tracing.recorder import Recorder
from gradcore.program.tracing.trace import Second
from gradcore.program.tracing.trace_log import ARGUMENT

_INNER = ("a backward inside its backward (checkpoint with use_reentrant=True) adds to gradients: call backward inside the "
          "function, or pass use_reentrant=False")


class Entered:
    """While a function is traced, the arguments that have a graph end in nodes of their own, where the traced graph stops.

    They stay the same objects: the function may return them, write to them, or to a base that they show. A context manager.
    """

    def __init__(self, tensors: list[Any]) -> None:
        self._tensors = [*{id(t): t for t in tensors if t.edge is not None}.values()]
        self._ends: list[tuple[Any, Edge, Edge]] = []
        #: Had any of them hooks before?
        self.hooked = any(t.edge[0].hooks is not None for t in self._tensors)
        #: Reasons against a replay, when the ends have been taken away.
        self.obstacles: list[str] = []

    def __enter__(self) -> Entered:
        for t in self._tensors:
            before = t.edge
            node = custom_node(ARGUMENT, [before], [t], (), lambda gs, values: gs)
            node.call.op.boundary = True
            t.edge = (node, 0)
            self._ends.append((t, before, t.edge))
        return self

    def __exit__(self, *exc: object) -> None:
        """Take the ends away; arguments that the function has written to keep their new graphs, and hooks that it has hung on
        them are hung where they belong."""
        for t, before, end in self._ends:
            if t.edge is end:
                t.edge = before
            else:
                self.obstacles.append("it writes to an argument that needs a gradient: write to a clone of it")
            if end[0].hooks is not None:
                _move(end[0].hooks, before)
                end[0].hooks = None
                self.obstacles.append("it hangs a hook on an argument, or asks it to retain its gradient: do that outside")
        self._tensors, self._ends = [], []


def _move(hooks: Any, edge: Edge) -> None:
    """Hang the hooks of an identity's output on another edge."""
    target, index = edge
    there = hooks_of(target)
    there.tensor |= {key: (index, function) for key, (_, function) in hooks.tensor.items()}
    if 0 in hooks.retained and (tensor := hooks.retainers[0]()) is not None:
        there.retain(index, tensor)
        there.retained[index] = hooks.retained[0]


def second_of(recorder: Recorder, arguments: list[Any], outputs: list[Any], roots: list[int]) -> Second:
    """Record backward from the results at ``roots``, with placeholder cotangents; graph and leaves are left unchanged."""
    split = len(recorder.log.launches)
    # A tensor that is given twice gets its gradient once.
    inside = [(k, t.edge) for k, t in enumerate(arguments) if t.edge is not None and all(t is not a for a in arguments[:k])]
    targets: list[Leaf | int] = [*recorder.log.leaves, *[k for k, _ in inside]]
    edges = [*[(leaf, 0) for leaf in recorder.log.leaves], *[edge for _, edge in inside]]
    captures: dict[tuple[int, int], list[Any]] = {(id(target), at): [None] for target, at in edges}
    tensors = [outputs[k] for k in roots]
    cotangents = [fresh(recorder.device, t.spec.like(), t.storage.block.tag, 0) for t in tensors]
    beyond = [(edge[0], edge[0].edges) for _, edge in inside]
    for node, _ in beyond:
        node.edges = [None]
    # The engine calls hooks of leaves on what each replay returns, so the recorded gradient must not include their effect.
    hooks = [(leaf, leaf.hooks) for leaf in recorder.log.leaves]
    for leaf, _ in hooks:
        leaf.hooks = None
    # Code inside that asks for these gradients is noticed. Those of other leaves may be what another thread works with.
    slots = [(leaf, leaf.grad) for leaf in recorder.log.leaves if leaf in recorder.before]
    for leaf, _ in slots:
        leaf.grad = None
    # What it writes to (running statistics in a checkpoint) is written by the caller's own backward.
    recorder.log.undo = {}
    # A backward that the user calls inside this one adds to gradients.
    local.state.aside = aside = set[Leaf]()
    try:
        run_backward(tensors, cotangents, retain_graph=True, create_graph=False, captures=captures)
    finally:
        local.state.aside = None
        recorder.log.undone()
        for node, before in beyond:
            node.edges = before
        for leaf, of in hooks:
            leaf.hooks = of
        inner = bool(aside) or any(leaf.grad is not None for leaf, _ in slots)
        for leaf, grad in slots:
            leaf.grad = grad
    return Second(split, roots, cotangents, targets, [captures[id(target), at][0] for target, at in edges],
                  [_INNER] if inner else [])


def hooked(outputs: list[Any], first: int) -> bool:
    """Does the graph of these results, as far as its nodes have numbers from ``first`` on, have hooks of the user's?"""
    return any(node.id >= first and (node.call.op.name == CALLS_HOOKS or (
        node.hooks is not None and bool(node.hooks.tensor or node.hooks.before or node.hooks.after)))
        for node in reachable(outputs).values())
