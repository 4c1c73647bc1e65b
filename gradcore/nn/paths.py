"""Where a module stands in the largest tree that it is part of: the layer that its bytes belong to.

The path of every module below a root is worked out when one of them is first called, and again after the structure of any
module of any tree has changed. Nothing here holds a module: a map of a root that held it would be a cycle, and its
parameters would wait for the collector.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any
from weakref import ref

from gradcore.engine import owners
from gradcore.engine.node import Leaf
from gradcore.engine.state import SCOPES
from gradcore.events import Network, Scope
from gradcore.forking import brief

Module = Any


class Tree:
    """The name of one root's map, the structure that it was made for, and the network that it is of."""

    __slots__ = ("structure", "network")

    def __init__(self, structure: int, network: Network | None) -> None:
        self.structure = structure
        self.network = network


class Place(dict[int, int]):
    """A module's path in one tree, and the scope that a call enters, by the scope that it comes from."""

    __slots__ = ("path", "network")

    def __init__(self, path: str, network: Network | None) -> None:
        super().__init__()
        self.path = path
        self.network = network

    def __missing__(self, before: int) -> int:
        old = SCOPES[before]
        phase = "forward" if old.phase == "setup" else old.phase
        after = self[before] = SCOPES.index(Scope(self.path, phase, old.caller, old.role, self.network))
        return after


class _Calls(threading.local):
    #: The tree of the outermost module that this thread is in a call of.
    tree: Tree | None = None


calls = _Calls()

_structure = [0]
_numbers = itertools.count(1)
_lock = brief()


def structure_changed() -> None:
    """A module that stands in a tree got or lost something: every map is out of date."""
    _structure[0] += 1


def call_outermost(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module that is not in the current tree: as part of its own, or on its caller's account where there is one."""
    if calls.tree is not None:
        return module.forward(*args, **kwargs)
    tree = tree_of(module)
    calls.tree = tree
    try:
        return module(*args, **kwargs)
    finally:
        calls.tree = None


def adopted(child: Module, parent: Module) -> None:
    """A module is a child of another one from now on."""
    child.__dict__["_parents"] = [*(r for r in child._parents if r() is not None), ref(parent)]
    if child._places:
        structure_changed()


def root_of(module: Module) -> Module:
    """The module at the top of the tree that a module is in: one that is in several, or in none, is that itself."""
    seen = {id(module)}
    while True:
        found = {id(p): p for p in (r() for r in module._parents)
                 if p is not None and any(m is module for m in p._modules.values())}
        if len(found) != 1 or not seen.isdisjoint(found):
            return module
        seen |= found.keys()
        (module,) = found.values()


def tree_of(module: Module) -> Tree:
    """The map of the tree that a module is in, made anew if a structure has changed since."""
    tree: Tree | None = module._tree
    if tree is not None and tree.structure == _structure[0]:
        return tree
    root = root_of(module)
    if root is not module:
        module.__dict__["_tree"] = tree = tree_of(root)
        return tree
    with _lock:
        now = _structure[0]
        tree = Tree(now, _network_of(root))
        # Bytes are named after the largest tree that they stand in.
        inner = any(other.structure == now for other in root._places if other is not root._tree)
        named: set[int] = set()
        for path, module in root.named_modules():
            for other in list(module._places):
                if other.structure != now:
                    del module._places[other]
            module._places[tree] = Place(path, tree.network)
            if not inner:
                _name_bytes(module, path, tree.network, named)
        root.__dict__["_tree"] = tree
    return tree


def _network_of(root: Module) -> Network | None:
    """The network that a root is, the same as ever: none where it has no parameters, as most losses."""
    before = root._places.get(root._tree)
    if before is not None and before.network is not None and not before.path:
        network: Network = before.network
        return network
    return Network(type(root).__name__, next(_numbers)) if any(True for _ in root.parameters()) else None


def _name_bytes(module: Module, path: str, network: Network | None, named: set[int]) -> None:
    """A tensor that several modules share, such as a tied weight, is the first one's, as in ``named_parameters``."""
    for name, p in module._parameters.items():
        if p is not None and id(p) not in named:
            named.add(id(p))
            owners.retag(p, role="parameter", layer=path, network=network)
            edge = p.edge
            if edge is not None and type(edge[0]) is Leaf:
                edge[0].name = f"{path}.{name}" if path else name
                edge[0].network = network
    for b in module._buffers.values():
        if b is not None and id(b) not in named:
            named.add(id(b))
            owners.retag(b, role="buffer", layer=path, network=network)
