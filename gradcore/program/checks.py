"""Compiles the guards of a program into one Python expression, since they run at every call and a loop would cost more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any

from gradcore.engine.node import Leaf
from gradcore.events import WRITTEN
from gradcore.program.guards import Guard, identical
from gradcore.program.library_guards import ModuleGuard, OptimizerGuard, hooks_on, step_hooks


def all_hold(guards: Iterable[Any], presence: dict[Leaf, bool]) -> Callable[[], bool]:
    """A function that says whether all guards hold and every leaf in ``presence`` has a gradient, or none, as it says there.

    Most modules have no hooks: these are compared in the expression itself, each attribute once however many modules and guards
    name it.
    """
    names: dict[str, Any] = {}
    terms: dict[str, None] = {}

    def name(x: Any) -> str:
        found = f"x{id(x)}"
        names[found] = x
        return found

    for guard in guards:
        if type(guard) is Guard:
            terms[_of_guard(guard, name)] = None
            continue
        if type(guard) is OptimizerGuard:
            terms |= dict.fromkeys(_of_optimizer(guard, name))
            continue
        if type(guard) is not ModuleGuard or guard.forward is not None:
            terms[f"{name(guard)}.holds()"] = None
            continue
        own = name(guard.module.__dict__)
        for key, value, *_ in (("training", guard.training), ("forward", None), *guard.tensors, *guard.others):
            # An attribute that is missing raises, and the guard then does not hold.
            terms[f"{own}.get({key!r}) is None" if value is None else f"{own}[{key!r}] is {name(value)}"] = None
        for part, count in guard.counts:
            terms[f"len({own}[{part!r}]) == {count}"] = None
        for leaf, hooks, seen in guard.leaves:
            terms[f"{name(leaf)}.hooks is {name(hooks)}"] = None
            if hooks is not None:
                terms[f"{name(hooks_on)}({name(leaf)}) == {seen!r}"] = None
        for _, tensor, storage, edge in guard.tensors:
            terms[f"{name(tensor)}.storage is {name(storage)}"] = None
            terms[f"{name(tensor)}.edge is {name(edge)}"] = None
    for leaf, wanted in presence.items():
        terms[f"({name(leaf)}.grad is not None) is {wanted}"] = None
    # A value that cannot be read any more has changed.
    source = f"def check():\n try: return {' and '.join(terms) or 'True'}\n except Exception: return False"
    exec(compile(source, WRITTEN, "exec"), names)
    # Out of its own globals, so that there is no reference cycle and reference counts free it.
    check: Callable[[], bool] = names.pop("check")
    return check


def _of_guard(guard: Guard, name: Callable[[Any], str]) -> str:
    now = f"{name(guard.look)}()"
    if guard.same is identical:
        return f"{now} is {name(guard.seen)}"
    return f"{name(guard.same)}({now}, {name(guard.seen)})"


def _of_optimizer(guard: OptimizerGuard, name: Callable[[Any], str]) -> Iterator[str]:
    optimizer = name(guard.optimizer)
    yield f"{optimizer}.state is {name(guard.state)}"
    yield f"all(map({name(is_)}, map({name(guard.state)}.get, {name(guard.kept)}), {name(guard.places)}))"
    if guard.tensors:
        places, names, tensors = map(list, zip(*guard.tensors, strict=True))
        yield f"all(map({name(is_)}, map({name(dict.get)}, {name(places)}, {name(names)}), {name(tensors)}))"
    yield f"{name(step_hooks)}({optimizer}) == {guard.hooks!r}"
    yield f"len({optimizer}.param_groups) == {len(guard.groups)}"
    for k, (options, values, count, params) in enumerate(guard.groups):
        group = f"{optimizer}.param_groups[{k}]"
        yield f"len({group}) == {count}"
        yield f"{name(options)}({group}) == {name(values)}"
        yield f"len({group}['params']) == {len(params)}"
        yield f"all(map({name(is_)}, {group}['params'], {name(params)}))"
