"""Guards for optimizers: for their updates, and for what other code reads of their groups and their state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import ref

from gradcore.engine.value import Value
from gradcore.optim import Optimizer
from gradcore.optim.hooks import everywhere
from gradcore.program.guarding.entries import of_entries
from gradcore.program.guarding.guards import (
    Asking,
    Found,
    Guard,
    Once,
    Term,
    identical,
    items_of,
    same_items,
    same_memory,
    weakly,
)
from gradcore.program.guarding.names import Names
from gradcore.program.guarding.readers import Item, Namer
from gradcore.program.guarding.values import copied, equal, is_plain

if TYPE_CHECKING:
    from gradcore.program.guarding.reach import Reach

#: Attributes that are guarded here, or that each step changes. The library's own code alone reads those named ``_optim_...``.
INTERNAL = frozenset(("state", "param_groups", "_opt_called"))


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


# -- what other code reads -----------------------------------------------------------------------------------------------


def of_optimizer(optimizer: Optimizer, names: Names, reach: Reach) -> Found:
    """Guards for what code with these names can read of an optimizer's groups and state."""
    if not names.read.isdisjoint(("param_groups", "state")):
        yield OptimizerGuard(optimizer, names.options), ("groups", id(optimizer))
    if "param_groups" in names.read:
        yield (Once(f"the options of a {type(optimizer).__name__}", partial(plain_options, optimizer), plain_options(optimizer),
                    equal), ("options", id(optimizer)))
    if "state" not in names.read:
        return
    # The counts of the library's updates change with each step, and are read by their names.
    counts = optimizer._optim_numbers.keys() - names.texts
    look, whose = Item(optimizer.__dict__, "state"), f"the state of a {type(optimizer).__name__}"
    yield Guard(f"the keys of {whose}", lambda: tuple(look()), tuple(optimizer.state), same_items), ("state", id(optimizer))
    for p, kept in optimizer.state.items():
        label, at = repr(p) if is_plain(p) else "a Parameter", weakly(p)
        # An index would make an entry that the function has removed.
        place, key = lambda at=at: look().get(at(), {}), ("state", id(optimizer), id(p))
        if isinstance(kept, dict):
            yield items_of(f"{whose}[{label}]", partial(_objects, place)), (*key, "ids")
            # The guard of the groups has the tensors.
            tensors = {name for name, x in kept.items() if isinstance(x, Value)}
            yield from of_entries(f"{whose}[{label}]", place, kept, key, reach, counts | tensors)
        else:
            yield from reach.of_value(f"{whose}[{label}]", place, kept, key)


def _objects(place: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is not compared by its value."""
    return {name: x for name, x in place().items() if not is_plain(x)}
