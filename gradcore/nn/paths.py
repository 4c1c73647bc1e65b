"""The path of each module in the largest tree that it is part of, which names the layer that owns its memory.

The paths of all modules below a root are computed when one of them is first called, and again after the structure of any
module has changed. Nothing here holds a strong reference to a module: that would make a cycle, and its parameters would be
released only by the garbage collector.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any
from weakref import ref

from gradcore.engine import owners
from gradcore.engine.leaf import leaf_of
from gradcore.engine.state import Where, where
from gradcore.events import Network, Scope
from gradcore.forking import brief
from gradcore.nn.parameter import is_lazy

Module = Any
#: So many places are remembered with one: a model that stays may work together with others that come and go.
MOST = 64


class Tree:
    """Identifies the paths of one root, with the structure that they were computed for and the root's network."""

    __slots__ = ("structure", "network", "root")

    def __init__(self, structure: int, network: Network | None, root: Module) -> None:
        self.structure = structure
        self.network = network
        self.root = ref(root)


class Place(dict[Where, Where]):
    """A module's path in one tree; as a dict, the scope that a call enters, by the scope of its caller."""

    __slots__ = ("path", "network")

    def __init__(self, path: str, network: Network | None) -> None:
        super().__init__()
        self.path = path
        self.network = network

    def __missing__(self, before: Where) -> Where:
        old = before.plain
        phase = "forward" if old.phase == "setup" else old.phase
        if len(self) >= MOST:
            self.clear()
        after = self[before] = where(Scope(self.path, phase, old.caller, old.role, self.network), before.watched)
        return after


def require_name(what: str, name: str) -> None:
    """Raises TypeError or KeyError for a name that cannot be a part of a path."""
    if not isinstance(name, str):
        raise TypeError(f"{what} name should be a string. Got {type(name).__name__}")
    if "." in name:
        raise KeyError(f'{what} name can\'t contain ".", got: {name}')
    if name == "":
        raise KeyError(f'{what} name can\'t be empty string ""')


class _Calls(threading.local):
    #: The tree of the outermost module that this thread is calling.
    tree: Tree | None = None
    #: Has this thread copied modules since it last called one?
    copied = False


calls = _Calls()

#: Numbers of modules, by age.
numbers = itertools.count(1)

_structure = [0]
#: Weak references to the copies that have no names yet, and the threads that made them.
_copies: dict[int, tuple[Any, int]] = {}
_lock = brief()


def structure_changed() -> None:
    """Note that a module gained or lost a child or a parameter, so that all paths are out of date."""
    _structure[0] += 1


def copied(module: Module) -> None:
    """Note that a module is a copy, whose parameters are nobody's: nothing may ever call one that holds averages."""
    for b in module._buffers.values():
        if b is not None:
            owners.retag(b, role="buffer")
    key = id(module)
    _copies[key] = ref(module, lambda _: _copies.pop(key, None)), threading.get_ident()
    calls.copied = True


def name_copies(thread: int | None = None) -> None:
    """Name the layers of the copies since the last time, as a call would; parts of networks wait for that. Those of another
    thread than ``thread``, if that is given, may not be whole yet."""
    # Of a copy, since the collector may take entries out meanwhile.
    found = {key: module for key, (r, by) in _copies.copy().items() if thread in (None, by) and (module := r()) is not None}
    for key, module in found.items():
        _copies.pop(key, None)
        root = root_of(module)
        if id(root) in found and not any(p.storage.block.tag.network for p in root.parameters() if not is_lazy(p)):
            tree_of(root)


owners.around_steps.append(name_copies)


def call_outermost(call: Any, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module that is not in the current tree: in its own tree, or in its caller's scope if there is a caller.

    ``call`` is what calls a module in its tree, without what a subclass does around it, which is running already.
    """
    if calls.tree is not None:
        return module._module_run_forward(args, kwargs)
    if calls.copied:
        calls.copied = False
        name_copies(threading.get_ident())
    tree = tree_of(module)
    calls.tree = tree
    try:
        return call(module, *args, **kwargs)
    finally:
        calls.tree = None


def adopted(child: Module, parent: Module) -> None:
    """Note that ``child`` became a child of ``parent``."""
    # Once, though a program put it in the same place in every step.
    others = (r for r in child._module_parents if (found := r()) is not None and found is not parent)
    child.__dict__["_module_parents"] = [*others, ref(parent)]
    part = child.__dict__.pop("_module_whole", None)
    if "_module_whole" in parent.__dict__ and _whole(parent) is None:
        # A slice that gets a child of its own is no slice any more.
        del parent.__dict__["_module_whole"]
        structure_changed()
    elif (child._module_places or part is not None) and _whole(parent) is None:
        structure_changed()


def part_of(part: Module, whole: Module) -> None:
    """Note that ``part``, which has no children yet, will be a slice of ``whole``.

    While that exists, and until the slice is assigned to a module, the children keep their paths: networks often call slices
    of themselves, which are new in every step.
    """
    part.__dict__["_module_whole"] = ref(_whole(whole) or whole)


def _whole(part: Module) -> Module | None:
    """The module that this is a slice of, if that still exists and has the same children."""
    found = part.__dict__.get("_module_whole")
    whole = None if found is None else found()
    if whole is None:
        return None
    children = {*map(id, whole.__dict__["_modules"].values())}
    return whole if all(id(m) in children for m in part.__dict__["_modules"].values()) else None


def root_of(module: Module) -> Module:
    """The root of the tree that a module is in: the nearest of the module and its ancestors without a single parent."""
    seen = {id(module)}
    while True:
        whole = _whole(module)
        found = {id(whole): whole} if whole is not None else {
            id(p): p for p in (r() for r in module._module_parents)
            if p is not None and _whole(p) is None and any(m is module for m in p.__dict__["_modules"].values())}
        if len(found) != 1 or not seen.isdisjoint(found):
            return module
        seen |= found.keys()
        (module,) = found.values()


def tree_of(module: Module) -> Tree:
    """The tree that a module is in, with paths computed again if a structure has changed since."""
    tree: Tree | None = module._module_tree
    if tree is not None and tree.structure == _structure[0]:
        return tree
    root = root_of(module)
    if root is not module:
        module.__dict__["_module_tree"] = tree = tree_of(root)
        return tree
    with _lock:
        now = _structure[0]
        tree = Tree(now, _network_of(root), root)
        # Parameters are named by their paths in the largest tree.
        inner = any(other.structure == now and other.root() is not None
                    for other in root._module_places if other is not root._module_tree)
        named: set[int] = set()
        moved: set[tuple[Tree, str]] = set()
        for path, module in root.named_modules():
            _follow(module, path, tree, root, moved)
            for other in list(module._module_places):
                if other.structure != now:
                    del module._module_places[other]
            module._module_places[tree] = Place(path, tree.network)
            if not inner:
                _name_bytes(module, path, tree.network, named)
        root.__dict__["_module_tree"] = tree
    return tree


def _network_of(root: Module) -> Network | None:
    """The network of a root, always the same object; None for a root without parameters, such as most losses."""
    before = root._module_places.get(root._module_tree)
    if before is not None and before.network is not None and not before.path:
        network: Network = before.network
        return network
    return Network(type(root).__name__, root._module_number) if any(True for _ in root.parameters()) else None


def _follow(module: Module, path: str, tree: Tree, root: Module, moved: set[tuple[Tree, str]]) -> None:
    """Let what is live of a network's layers, such as optimizer state, follow a module that was the network's root and is now a
    part of a larger one, or that has outlived its root. ``moved`` has the places of modules that were followed before it."""
    for other, place in module._module_places.items():
        if place.network is None or place.network == tree.network:
            continue
        if place.path and (other, place.path.rpartition(".")[0]) in moved:
            moved.add((other, place.path))
        elif (not place.path and root_of(module) is root) or other.root() is None:
            moved.add((other, place.path))
            owners.move_layers((place.network, place.path), (tree.network, path))


def _name_bytes(module: Module, path: str, network: Network | None, named: set[int]) -> None:
    """Name the storages of parameters and buffers; a shared tensor, such as a tied weight, belongs to the first module."""
    for name, p in module._parameters.items():
        if p is not None and id(p) not in named and not is_lazy(p):
            named.add(id(p))
            owners.retag(p, role="parameter", layer=path, network=network)
            _name_leaf(p, f"{path}.{name}" if path else name, network)
    for b in module._buffers.values():
        if b is not None and id(b) not in named:
            named.add(id(b))
            owners.retag(b, role="buffer", layer=path, network=network)


def _name_leaf(p: Any, path: str, network: Network | None) -> None:
    if (leaf := leaf_of(p)) is not None:
        leaf.path, leaf.network = path, network


def stand_in(tensor: Any, p: Any, name: str) -> None:
    """Name a tensor that a call takes for the parameter ``p``, whose module has it by this name, as that: if an optimizer has
    it, and no module. Any other is what the caller has computed, as weights after a step that is differentiated."""
    tag, like = tensor.storage.block.tag, p.storage.block.tag
    if tag.role == "parameter" and tag.network is None and like.network is not None:
        owners.retag(tensor, layer=like.layer, network=like.network)
        _name_leaf(tensor, f"{like.layer}.{name}" if like.layer else name, like.network)
