"""Nested containers taken apart and put together, under PyTorch's names: many packages import them from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gradcore import trees

__all__ = ["TreeSpec", "register_pytree_node", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only", "tree_structure",
           "tree_unflatten"]

_Flatten = Callable[[Any], tuple[Iterable[Any], Any]]
_Unflatten = Callable[[Iterable[Any], Any], Any]
_registered: dict[type, tuple[_Flatten, _Unflatten]] = {}


def register_pytree_node(cls: type, flatten_fn: _Flatten, unflatten_fn: _Unflatten, **named: Any) -> None:
    """Let objects of a class be nodes: one function gives the parts and a context, from which the other makes the object.

    PyTorch's further arguments, for files and for paths to leaves, change nothing. Raises ValueError for a class that is known.
    """
    if cls in _registered:
        raise ValueError(f"{cls} is already registered as a pytree node")
    _registered[cls] = flatten_fn, unflatten_fn


def _dict_flatten(tree: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """The values of a dict, and its keys. Packages give this function and the next ones to :func:`register_pytree_node`."""
    return list(tree.values()), list(tree)


def _dict_unflatten(values: Iterable[Any], context: list[Any]) -> dict[Any, Any]:
    return dict(zip(context, values, strict=True))


def _dict_flatten_with_keys(tree: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
    return list(tree.items()), list(tree)


def _parts(tree: Any) -> tuple[Iterable[Any], Any] | None:
    """The parts of a node, and what else makes it; None for a leaf."""
    if type(tree) in _registered:
        return _registered[type(tree)][0](tree)
    if isinstance(tree, (list, tuple, dict)):
        return tree.values() if isinstance(tree, dict) else tree, trees.mapped(tree, lambda part: None)
    return None


class TreeSpec:
    """The structure of a tree without its leaves; equal for trees that differ in these alone."""

    def __init__(self, tree: Any) -> None:
        found = _parts(tree)
        self.type: type | None = None if found is None else type(tree)
        self.context: Any = None if found is None else found[1]
        self._parts = [] if found is None else [TreeSpec(part) for part in found[0]]
        self.num_leaves: int = 1 if found is None else sum(part.num_leaves for part in self._parts)

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """A tree of this structure. Raises ValueError for another number of leaves."""
        given = list(leaves)
        if len(given) != self.num_leaves:
            raise ValueError(f"expected {self.num_leaves} leaves, but got {len(given)}")
        return self._filled(iter(given))

    def _filled(self, given: Iterator[Any]) -> Any:
        if self.type is None:
            return next(given)
        parts = [part._filled(given) for part in self._parts]
        return _registered[self.type][1](parts, self.context) if self.type in _registered else trees.filled(self.context, parts)

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, TreeSpec) and self.type is other.type and self.context == other.context
                and self._parts == other._parts)

    def __hash__(self) -> int:
        return hash(self.num_leaves)

    def __repr__(self) -> str:
        return "*" if self.type is None else f"TreeSpec({self.type.__name__}, {self._parts})"


def tree_leaves(tree: Any) -> list[Any]:
    """All that is no list, tuple, dict or object of a registered class, in order."""
    found = _parts(tree)
    return [tree] if found is None else [leaf for part in found[0] for leaf in tree_leaves(part)]


def tree_structure(tree: Any) -> TreeSpec:
    """The structure of a tree."""
    return TreeSpec(tree)


def tree_flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of a tree, and its structure."""
    return tree_leaves(tree), TreeSpec(tree)


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """A tree of that structure with these leaves. Raises ValueError for another number of leaves."""
    return treespec.unflatten(leaves)


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """The tree with ``func`` of each leaf, and of those in its place in ``rests``. Raises ValueError if these have fewer."""
    return TreeSpec(tree).unflatten(map(func, tree_leaves(tree), *map(tree_leaves, rests)))


def tree_map_only(kind: type | tuple[type, ...], func: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with ``func`` of each leaf of a type."""
    return tree_map(lambda x: func(x) if isinstance(x, kind) else x, tree)
