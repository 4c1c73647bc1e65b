"""Guards for modules, and the hooks on modules and leaves."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any
from weakref import ref

from gradcore.engine.leaf import Leaf, leaf_of
from gradcore.engine.value import Value
from gradcore.nn.members import KINDS
from gradcore.nn.module import Module
from gradcore.nn.parameter import is_lazy
from gradcore.program.guarding.guards import Asking, Term, same_memory
from gradcore.program.guarding.readers import Namer


class ModuleGuard(Asking):
    """A module is in the same mode, has the same hooks, and consists of the same parameters, buffers and modules."""

    __slots__ = ("owner", "own", "training", "forward", "lazy", "tensors", "others", "table", "hooks", "kind", "names",
                 "leaves")

    def __init__(self, module: Module) -> None:
        own = self.own = module.__dict__
        self.owner = ref(module)
        self.kind = type(module)
        self.training = own["training"]
        self.forward = own.get("forward")
        # Its own, or those of all modules.
        self.table = module._module_hooks
        self.hooks = tuple(module._module_hooks_in_order())
        # The attributes themselves: a compiled child is another object than the module in ``_modules``.
        members = [(name, own.get(name)) for part in KINDS for name in own[part]]
        # A lazy parameter has no bytes yet; it gets them as the same object, of another class.
        self.lazy = [(name, value, type(value)) for name, value in members if is_lazy(value)]
        self.tensors = [(name, value, value.storage, value.spec, value.edge) for name, value in members
                        if isinstance(value, Value) and not is_lazy(value)]
        self.others: list[tuple[str, Any]] = [(name, value) for name, value in members if not isinstance(value, Value)]
        #: Their names, in order: code may call all children, or update all parameters, one after the other.
        self.names = [(part, tuple(own[part])) for part in KINDS]
        #: Leaves, with the hooks on their gradients.
        self.leaves = [(leaf, leaf.hooks, hooks_on(leaf)) for leaf in filter(None, map(leaf_of, self.values()))]

    def leave_out(self, names: Container[str]) -> None:
        """Do not look at these buffers."""
        self.tensors = [t for t in self.tensors if t[0] not in names]
        self.others = [t for t in self.others if t[0] not in names]

    def values(self) -> list[Any]:
        return [tensor for _, tensor, *_ in self.tensors]

    def replaced(self) -> list[Any]:
        return [storage for _, tensor, storage, *_ in self.tensors if tensor.storage is not storage]

    def terms(self, name: Namer) -> Iterator[Term]:
        own, owner, kind = name(self.own), f"m{id(self.owner)}", self.kind.__name__
        yield f"type({owner} := {name(self.owner)}()) is {name(self.kind)}", self._is_other
        yield f"{owner}.__dict__ is {own}", f"the dict of {kind} is a different object"
        yield f"{own}['training'] is {name(self.training)}", (
            lambda: f"training of {kind} is {self.own['training']} and was {self.training}")
        hooks = f"the hooks of {kind} have changed"
        yield f"{owner}._module_hooks is {name(self.table)}", hooks
        members = ((key, value, f"{key} of {kind} is a different object")
                   for key, value, *_ in (*self.lazy, *self.tensors, *self.others))
        for key, value, why in (("forward", self.forward, f"forward of {kind} was replaced"), *members):
            # An attribute that is missing raises, and the guard then does not hold.
            missing = value is None and key not in self.own
            yield f"{key!r} not in {own}" if missing else f"{own}[{key!r}] is {name(value)}", why
        for key, parameter, lazy in self.lazy:
            yield f"type({name(parameter)}) is {name(lazy)}", f"{key} of {kind} has been initialized"
        for part, names in self.names:
            yield (f"tuple({own}[{part!r}]) == {names!r}" if names else f"not {own}[{part!r}]",
                   f"{kind} has different parameters, buffers or modules, or has them in another order")
        for key, tensor, storage, spec, edge in self.tensors:
            yield from same_memory(name, tensor, storage, spec, f"the memory of {key} of {kind} was replaced")
            yield f"{name(tensor)}.edge is {name(edge)}", f"requires_grad of {key} of {kind} has changed"
        for leaf, of, seen in self.leaves:
            yield f"{name(leaf)}.hooks is {name(of)}", hooks
            if of is not None:
                yield f"{name(hooks_on)}({name(leaf)}) == {seen!r}", hooks
        if self.table is not None:
            yield f"tuple({owner}._module_hooks_in_order()) == {name(self.hooks)}", hooks

    def _is_other(self) -> str:
        module, kind = self.owner(), self.kind.__name__
        return f"a {kind} " + ("no longer exists" if module is None else f"has become a {type(module).__name__}")


def hooks_on(leaf: Leaf) -> tuple[int, ...]:
    """The hooks on a leaf, by the keys under which they were registered."""
    hooks = leaf.hooks
    return () if hooks is None else (*hooks.tensor, *hooks.before, *hooks.after, *hooks.accumulated)


def hooks_in(module: Module) -> list[Any]:
    """The functions that are hooks of a module, or of its own parameters."""
    found = [function for _, function, _ in module._module_hooks_in_order()]
    for p in module._parameters.values():
        if p is not None and (leaf := leaf_of(p)) is not None and (of := leaf.hooks) is not None:
            found += [*of.before.values(), *of.after.values(), *(f for _, f in (*of.tensor.values(), *of.accumulated.values()))]
    return found
