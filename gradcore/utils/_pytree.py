"""Nested lists, tuples and dicts taken apart and put together, under PyTorch's names: many packages import them from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gradcore import trees

__all__ = ["TreeSpec", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only", "tree_structure", "tree_unflatten"]


class TreeSpec:
    """The structure of a tree without its leaves; equal for trees that differ in these alone."""

    def __init__(self, tree: Any) -> None:
        self.num_leaves = sum(1 for _ in trees.leaves(tree))
        self._tree = trees.filled(tree, [None] * self.num_leaves)

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """A tree of this structure. Raises ValueError for another number of leaves."""
        given = list(leaves)
        if len(given) != self.num_leaves:
            raise ValueError(f"expected {self.num_leaves} leaves, but got {len(given)}")
        return trees.filled(self._tree, given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeSpec) and self._tree == other._tree

    def __hash__(self) -> int:
        return hash(self.num_leaves)

    def __repr__(self) -> str:
        return f"TreeSpec({self._tree!r})"


def tree_leaves(tree: Any) -> list[Any]:
    """All that is no list, tuple or dict, in order."""
    return list(trees.leaves(tree))


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
    return TreeSpec(tree).unflatten(map(func, trees.leaves(tree), *map(trees.leaves, rests)))


def tree_map_only(kind: type | tuple[type, ...], func: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with ``func`` of each leaf of a type."""
    return tree_map(lambda x: func(x) if isinstance(x, kind) else x, tree)
