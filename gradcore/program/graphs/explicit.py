"""Graphs that the user traces, chains and executes explicitly: ``trace``, ``gradients`` and ``Graph.execute``."""

from __future__ import annotations

import os
from typing import Any

from gradcore.autograd import grad
from gradcore.engine.value import Value
from gradcore.errors import TraceError
from gradcore.functional import matrices
from gradcore.program.graphs.chain import Chain
from gradcore.program.planning.plan import Plan
from gradcore.program.program import Program
from gradcore.program.tracing.templates import rebuilt
from gradcore.spec import TensorSpec
from gradcore.trees import leaves, mapped


class Symbol:
    """An output of a traced graph, which can be an input of the next graph."""

    __slots__ = ("chain", "part", "index", "spec")

    def __init__(self, chain: Chain, part: int, index: int, spec: TensorSpec) -> None:
        self.chain = chain
        self.part = part
        self.index = index
        self.spec = spec

    def __repr__(self) -> str:
        return f"<output {self.index} of {self.chain.name(self.part)}: {self.spec}>"


class Graph:
    """A traced function, one part of a chain. ``outputs`` is its result with symbols in the place of tensors."""

    def __init__(self, chain: Chain, part: int) -> None:
        self._chain = chain
        self._part = part
        found = chain.parts[part]
        symbols = [Symbol(chain, part, k, t.spec) for k, t in enumerate(found.examples)]
        self.outputs = rebuilt(found.template, symbols, found.inputs)

    @property
    def program(self) -> Program:
        """This graph's part of the chain's program. Once it has been read, nothing can be chained to it."""
        return self._chain.ready().stages[self._part].program

    @property
    def plan(self) -> Plan:
        """The plan of the whole chain."""
        return self._chain.ready().plan

    def draw(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The plan of this part within the arena of its chain, drawn as by :meth:`Compiled.draw`."""
        from gradcore.program.planning.drawing import drawn
        return drawn(self.program, self.plan, path)

    def execute(self, *inputs: Any, keep: Any = None) -> Any:
        """Run this part on tensors of the traced specs, in the order of the tensors in the example inputs.

        The graphs before it in the chain must have been executed since its last run, each once. Returns what the function
        returned, as tensors without a graph; with ``keep``, an output or a list, tuple or dict of them, only those, and None
        for the others. Raises TraceError for a wrong order or other specs, TypeError for inputs that are not tensors.
        """
        kept = None if keep is None else [*leaves(keep)]
        for s in kept or ():
            if not isinstance(s, Symbol) or s.chain is not self._chain or s.part != self._part:
                got = repr(s) if isinstance(s, Symbol) else type(s).__name__
                raise TypeError(f"keep expects outputs of {self!r}, such as graph.outputs, but got {got}")
        return self._chain.execute(self._part, list(inputs), None if kept is None else {s.index for s in kept})

    def __repr__(self) -> str:
        return self._chain.name(self._part)


def trace(function: Any, example_inputs: Any = None) -> Any:
    """Trace a function on example inputs, tensors or outputs of graphs that were traced before, and return its graph.

    The function runs once, eagerly, on the examples. Raises TraceError for what a graph cannot contain (a value read on the
    host, a tensor made from host data), and for outputs of graphs in different chains. ``trace(matrix)`` is the sum of the
    matrix's diagonal, as in PyTorch.
    """
    if isinstance(function, Value) and example_inputs is None:
        return matrices.trace(function)
    if not callable(function):
        raise TypeError(f"trace expected a function and example inputs, or a matrix, but got {type(function).__name__}")
    arguments = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    symbols: list[Symbol] = []
    tensors: list[Any] = []
    args = [_concrete(a, symbols, tensors) for a in arguments]
    chains = {id(s.chain): s.chain for s in symbols}
    if len(chains) > 1:
        raise TraceError("the inputs are outputs of graphs of different chains: " + ", ".join(map(repr, symbols)))
    if chains:
        chain, = chains.values()
    elif tensors:
        chain = Chain(tensors[0].storage.device.compute)
    else:
        raise TypeError("trace expected example inputs with at least one tensor")
    return Graph(chain, chain.record(getattr(function, "__name__", type(function).__name__), tensors, lambda: function(*args)))


def _concrete(x: Any, symbols: list[Symbol], tensors: list[Any]) -> Any:
    """An example input with tensors in the place of symbols. Symbols and other tensors are appended to the lists."""
    if isinstance(x, Symbol):
        symbols.append(x)
        return x.chain.examples(x.part)[x.index]
    if isinstance(x, Value):
        tensors.append(x)
        return x
    return mapped(x, lambda v: _concrete(v, symbols, tensors))


def gradients(graph: Graph, wrt: Any) -> Graph:
    """The graph of the gradients of a graph's scalar outputs with respect to tensors, or outputs of graphs before it.

    Executing it takes no inputs and returns a tuple of tensors, one for each of ``wrt``. What it reads of earlier graphs
    stays in the arena until it has run. Raises RuntimeError as :func:`gradcore.autograd.grad` does.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"gradients expected a graph, as gradcore.trace returns it, but got {type(graph).__name__}")
    targets = list(wrt) if isinstance(wrt, (list, tuple)) else [wrt]
    symbols: list[Symbol] = []
    tensors = [_concrete(t, symbols, []) for t in targets]
    chain, part = graph._chain, graph._part
    roots = [t for t in chain.examples(part) if t.edge is not None]
    return Graph(chain, chain.record(f"the gradients of {chain.parts[part].name}", [], lambda: grad(roots, tensors),
                                     backward=True))
