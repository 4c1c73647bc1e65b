"""Nested containers taken apart and put together, under PyTorch's names: many packages import them from here."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

__all__ = ["LeafSpec", "TreeSpec", "register_pytree_node", "tree_all", "tree_any", "tree_flatten", "tree_leaves", "tree_map",
           "tree_map_only", "tree_structure", "tree_unflatten"]

PyTree = Any
IsLeaf = Callable[[Any], bool] | None


class NodeDef(NamedTuple):
    """How objects of a class are taken apart, into their parts and a context, and put together."""

    type: Any
    flatten_fn: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten_fn: Callable[[Iterable[Any], Any], Any]


def _dict_flatten(tree: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """The values of a dict, and its keys. Packages give this function and the next ones to :func:`register_pytree_node`."""
    return list(tree.values()), list(tree)


def _dict_unflatten(values: Iterable[Any], context: list[Any]) -> dict[Any, Any]:
    return dict(zip(context, values, strict=True))


def _dict_flatten_with_keys(tree: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
    return list(tree.items()), list(tree)


#: By class. Objects of other classes, derived ones too, are leaves; all named tuples are nodes.
SUPPORTED_NODES: dict[Any, NodeDef] = {node.type: node for node in (
    NodeDef(list, lambda x: (x, None), lambda parts, _: list(parts)),
    NodeDef(tuple, lambda x: (x, None), lambda parts, _: tuple(parts)),
    NodeDef(namedtuple, lambda x: (x, type(x)), lambda parts, kind: kind(*parts)),
    NodeDef(dict, _dict_flatten, _dict_unflatten),
    NodeDef(OrderedDict, _dict_flatten, lambda parts, keys: OrderedDict(zip(keys, parts, strict=True))),
    NodeDef(defaultdict, lambda x: ([*x.values()], (x.default_factory, [*x])),
            lambda parts, made: defaultdict(made[0], zip(made[1], parts, strict=True))),
    NodeDef(deque, lambda x: (x, x.maxlen), lambda parts, maxlen: deque(parts, maxlen)))}
#: Those that stand for each other where another tree is compared.
_DICTS = (dict, OrderedDict, defaultdict)


def register_pytree_node(cls: type, flatten_fn: Callable[[Any], tuple[Iterable[Any], Any]],
                         unflatten_fn: Callable[[Iterable[Any], Any], Any], **named: Any) -> None:
    """Let objects of a class be nodes: one function gives the parts and a context, from which the other makes the object.

    PyTorch's further arguments, for files and for paths to leaves, change nothing. Raises ValueError for a class that is known.
    """
    if cls in SUPPORTED_NODES:
        raise ValueError(f"{cls} is already registered as a pytree node")
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn)


def _get_node_type(tree: Any) -> Any:
    return namedtuple if isinstance(tree, tuple) and hasattr(type(tree), "_fields") else type(tree)


class TreeSpec:
    """The structure of a tree without its leaves: the class of its root, the context, and the structure of each part."""

    def __init__(self, type: Any, context: Any, children_specs: list[TreeSpec]) -> None:
        self.type, self.context, self.children_specs = type, context, children_specs
        self.num_leaves: int = 1 if type is None else sum(part.num_leaves for part in children_specs)

    def is_leaf(self) -> bool:
        return self.type is None

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """A tree of this structure. Raises ValueError for another number of leaves."""
        given = list(leaves)
        if len(given) != self.num_leaves:
            raise ValueError(f"expected {self.num_leaves} leaves, but got {len(given)}")
        return self._filled(iter(given))

    def _filled(self, given: Iterator[Any]) -> Any:
        if self.type is None:
            return next(given)
        return SUPPORTED_NODES[self.type].unflatten_fn([part._filled(given) for part in self.children_specs], self.context)

    def flatten_up_to(self, tree: PyTree) -> list[PyTree]:
        """What another tree has in the places of the leaves, by key in dicts. Raises ValueError where its structure differs."""
        if self.type is None:
            return [tree]
        kind, parts = _get_node_type(tree), None
        if kind in _DICTS and self.type in _DICTS:
            keys = self.context[1] if self.type is defaultdict else self.context
            parts = [tree[key] for key in keys] if tree.keys() == set(keys) else None
        elif kind is self.type:
            found, context = SUPPORTED_NODES[kind].flatten_fn(tree)
            parts = list(found) if kind is deque or context == self.context else None
        if parts is None or len(parts) != len(self.children_specs):
            raise ValueError(f"expected a tree as {self}, but got {tree!r:.200}")
        return [x for spec, part in zip(self.children_specs, parts, strict=True) for x in spec.flatten_up_to(part)]

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, TreeSpec) and self.type is other.type and self.context == other.context
                and self.children_specs == other.children_specs)

    def __hash__(self) -> int:
        return hash(self.num_leaves)

    def __repr__(self) -> str:
        return "*" if self.type is None else f"TreeSpec({self.type.__name__}, {self.context}, {self.children_specs})"


class LeafSpec(TreeSpec):
    """The structure of a leaf."""

    def __init__(self) -> None:
        super().__init__(None, None, [])


def tree_flatten(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """The leaves of a tree, in order, and its structure. What ``is_leaf`` says is one is not taken apart."""
    node = SUPPORTED_NODES.get(_get_node_type(tree))
    if node is None or (is_leaf is not None and is_leaf(tree)):
        return [tree], LeafSpec()
    parts, context = node.flatten_fn(tree)
    found = [tree_flatten(part, is_leaf) for part in parts]
    return [leaf for leaves, _ in found for leaf in leaves], TreeSpec(node.type, context, [spec for _, spec in found])


def tree_leaves(tree: PyTree, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a tree, in order."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: PyTree, is_leaf: IsLeaf = None) -> TreeSpec:
    """The structure of a tree."""
    return tree_flatten(tree, is_leaf)[1]


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """A tree of that structure with these leaves. Raises ValueError for another number of leaves."""
    return treespec.unflatten(leaves)


def tree_map(func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None) -> Any:
    """The tree with ``func`` of each leaf, and of what ``rests`` have in its place. Raises ValueError if they have no such."""
    leaves, spec = tree_flatten(tree, is_leaf)
    return spec.unflatten(map(func, leaves, *map(spec.flatten_up_to, rests)))


def tree_map_only(kind: type | tuple[type, ...], func: Callable[[Any], Any], tree: PyTree, is_leaf: IsLeaf = None) -> Any:
    """The tree with ``func`` of each leaf of a type."""
    return tree_map(lambda x: func(x) if isinstance(x, kind) else x, tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether something holds for all leaves."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether something holds for a leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))
