"""Guards on the library's own objects that a traced function used: gradients, optimizers and modules."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Container, Iterator
from operator import is_, itemgetter
from typing import Any, TypeGuard
from weakref import ref

from gradcore.engine.node import Leaf, leaf_of
from gradcore.engine.value import Value
from gradcore.nn.members import KINDS
from gradcore.nn.module import Module
from gradcore.nn.parameter import is_lazy
from gradcore.optim import Optimizer
from gradcore.optim.hooks import everywhere
from gradcore.program.guarding.guards import Asking, Guard, Item, Namer, Term, identical, same_memory
from gradcore.program.guarding.values import copied, is_plain


class GradientGuard(Asking):
    """A leaf has a gradient of the same layout, which something else holds or not, as before; or it has none, as before.

    It matters whether it is held, since a held gradient is not added to in place.
    """

    __slots__ = ("leaf", "spec", "held")

    def __init__(self, leaf: Any, spec: Any, held: bool = False) -> None:
        self.leaf = leaf
        self.spec = spec
        self.held = held

    def terms(self, name: Namer) -> Iterator[Term]:
        yield f"{name(self)}.holds()", self.why_not

    def _spec(self) -> Any:
        return None if self.leaf.grad is None else self.leaf.grad.spec

    def holds(self) -> bool:
        spec = self._spec()
        return spec is self.spec and (spec is None or is_gradient_held(self.leaf) is self.held)

    def why_not(self) -> str:
        now = self._spec()
        held = "no longer referenced elsewhere" if self.held else "now referenced elsewhere"
        return (f"the gradient of {self.leaf.described()}, is "
                + (held if now is self.spec else f"{now} and was {self.spec}"))


def is_gradient_held(leaf: Leaf) -> bool:
    """Does anything but the leaf, and the replay that made it, refer to the gradient that a leaf has, or to its bytes?"""
    grad = leaf.grad
    if grad is None:
        # Another thread has just dropped it.
        return False
    # The replay that made it also holds a reference.
    more = grad.storage.lender is not None
    # A base that nobody else sees may be dropped by the next write.
    own = grad.base is not None and sys.getrefcount(grad.base) <= 2
    return sys.getrefcount(leaf.grad) > 3 + more or sys.getrefcount(grad.storage) > 2 + more + own


class OptimizerGuard(Asking):
    """An optimizer has the same groups with the same options and keeps the same tensors.

    What is only an operand of its updates, such as the learning rate, may change; with ``rates`` it may not, as the function
    may read it. With ``only_clears`` the function does nothing but clear gradients, and the state may change too.
    """

    __slots__ = ("owner", "kind", "state", "dicts", "groups", "free", "hooks", "kept", "places", "tensors")

    def __init__(self, optimizer: Optimizer, rates: bool, only_clears: bool = False) -> None:
        #: Weakly, as in all guards: a program must not keep the memory of what the user has given up.
        self.owner = ref(optimizer)
        self.kind = type(optimizer)
        #: The groups themselves, from which a replay of updates reads rates.
        self.dicts = [] if only_clears else list(optimizer.param_groups)
        self.groups = [_group(group, optimizer, rates) for group in optimizer.param_groups]
        #: By group: the options that are only operands, with their bytes where they are tensors, else None.
        self.free = [{k: (x, x.storage, x.spec) if isinstance(x := group[k], Value) else None
                      for k in optimizer._optim_free if k in group} for group in optimizer.param_groups]
        self.hooks = step_hooks(optimizer)
        #: Parameters that have state, and the dicts with it.
        self.kept = [p for p, state in states_of(optimizer) if state and not only_clears]
        self.places = [optimizer.state[p] for p in self.kept]
        #: None where no such dict is guarded, as a reference would keep the state that load_state_dict() has replaced.
        self.state = optimizer.state if self.kept else None
        #: The tensors in the state: the dict, the name, and the tensor, with its bytes.
        self.tensors = [(place, name, x, x.storage, x.spec) for place in self.places for name, x in place.items()
                        if isinstance(x, Value)]

    def terms(self, name: Namer) -> Iterator[Term]:
        # Variables of the expression's: several terms ask for them.
        optimizer = f"o{id(self.owner)}"
        state, options = (f"the {what} of the optimizer {self.kind.__name__} changed"
                          for what in ("state", "options or parameters"))
        yield f"({optimizer} := {name(self.owner)}()) is not None", state
        if self.state is not None:
            yield f"{optimizer}.state is {name(self.state)}", state
            yield f"all(map({name(is_)}, map({name(self.state)}.get, {name(self.kept)}), {name(self.places)}))", state
        for place, key, tensor, storage, spec in self.tensors:
            # A dict of another kind may make what is missing.
            read = (Item(place, key).term(name) if type(place) is dict
                    else f"{name(dict.get)}({name(place)}, {name(key)})")
            yield f"{read} is {name(tensor)}", state
            yield from same_memory(name, tensor, storage, spec, state)
        yield (f"{name(step_hooks)}({optimizer}) == {self.hooks!r}" if self.hooks else
               f"not {optimizer}._optim_before and not {optimizer}._optim_after and not {name(everywhere)}"), options
        yield f"len({optimizer}.param_groups) == {len(self.groups)}", options
        for k, (chosen, values, decisive, count, params) in enumerate(self.groups):
            group = f"g{k}_{id(self.owner)}"
            yield f"len({group} := {optimizer}.param_groups[{k}]) == {count}", options
            if self.dicts:
                yield f"{group} is {name(self.dicts[k])}", options
            yield f"{name(chosen)}({group}) == {name(values)}", options
            if decisive is not None:
                yield f"{optimizer}._optim_decisive({group}) == {name(decisive)}", options
            for key, value in self.free[k].items():
                # A tensor is read where it lies; a number may become any other number.
                if value is None:
                    yield f"not isinstance({group}[{key!r}], {name(Value)})", options
                else:
                    yield f"{group}[{key!r}] is {name(value[0])}", options
                    yield from same_memory(name, *value, options)
            yield f"len({group}['params']) == {len(params)}", options
            yield f"all(map({name(is_)}, {group}['params'], {name(params)}))", options

    def params(self) -> list[Any]:
        """The parameters of all groups."""
        return [p for *_, params in self.groups for p in params]

    def values(self) -> list[Any]:
        return [*(x for _, _, x, *_ in self.tensors), *(x[0] for free in self.free for x in free.values() if x is not None)]

    def replaced(self) -> list[Any]:
        # A tensor that is no longer in the state has lost its memory, too.
        optimizer = self.owner()
        kept = {id(x) for _, state in (() if optimizer is None else states_of(optimizer)) for x in state.values()}
        return [storage for _, _, x, storage, _ in self.tensors if id(x) not in kept or x.storage is not storage]


def _group(group: dict[str, Any], optimizer: Optimizer, rates: bool) -> tuple[Callable[..., Any], Any, Any, int, list[Any]]:
    """Of a group: a getter of the options that a program depends on, their values, what the others decide, the number of
    entries, and the parameters."""
    names = [k for k in group if k != "params" and (k not in optimizer._optim_free or rates)]
    options: Callable[..., Any] = itemgetter(*names) if names else lambda group: None
    # A list, of betas say, can be changed in place.
    seen = options({k: copy.copy(v) if type(v) is list else v for k, v in group.items()})
    return options, seen, optimizer._optim_decisive(group), len(group), list(group["params"])


def has_counts(optimizer: Optimizer, params: list[Any]) -> bool:
    """Have the parameters of one update, which has just run, the counts that it left in their state?"""
    return all(optimizer._optim_numbers.keys() <= optimizer.state.get(p, {}).keys() for p in params)


def counts_guard(optimizer: Optimizer, params: list[Any]) -> Guard:
    """The parameters of one update have the same count of steps: the update takes the first one's count for all of them."""
    count, places = itemgetter(*optimizer._optim_numbers), [optimizer.state[p] for p in params]
    return Guard(f"whether the optimizer {type(optimizer).__name__} has updated its parameters the same number of times",
                 lambda: len(set(map(count, places))) == 1, True, identical)


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


def step_hooks(optimizer: Optimizer) -> tuple[int, ...]:
    """The hooks before and after an optimizer's step, those of all optimizers included, by the keys under which they were
    registered."""
    return (*optimizer._optim_before, *optimizer._optim_after, *everywhere)


def is_optimizer(x: Any) -> TypeGuard[Optimizer]:
    """Is it an optimizer, whose ``__init__`` has run? A wrapper may have none of an optimizer's own attributes."""
    return isinstance(x, Optimizer) and "_optim_before" in x.__dict__


def states_of(optimizer: Optimizer) -> list[tuple[Any, dict[str, Any]]]:
    """The parameters that have state, each with it. One of the user's may keep something else beside that."""
    return [(p, state) for p, state in optimizer.state.items() if isinstance(state, dict)]


def plain_options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """By group: the options that are plain data."""
    return [{name: copied(v) for name, v in group.items() if name != "params" and is_plain(v)}
            for group in optimizer.param_groups]


def numbers_of(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    """By id of a parameter: the plain data in its state."""
    return {id(p): {name: v for name, v in state.items() if is_plain(v)} for p, state in states_of(optimizer)}


def changed_numbers(optimizers: list[Optimizer], before: dict[int, dict[int, dict[str, Any]]]) -> list[str]:
    """Reasons against a replay: plain data that optimizers of the user's changed in their state, by id of the optimizer."""
    return [f"{type(o).__name__} changes {name!r} in its state: it is {now!r} and was {was.get(name)!r}"
            for o in optimizers for p, state in numbers_of(o).items()
            for was in [before[id(o)].get(p)] if was is not None
            for name, now in state.items() if name not in o._optim_numbers and was.get(name, now) != now][:1]
