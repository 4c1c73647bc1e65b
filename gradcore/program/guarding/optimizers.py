"""Guards for what code beside its update reads of an optimizer: its groups and its state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gradcore.engine.value import Value
from gradcore.optim import Optimizer
from gradcore.program.guarding.entries import of_entries
from gradcore.program.guarding.guards import Found, Guard, Item, Once, items_of, same_items, weakly
from gradcore.program.guarding.library_guards import OptimizerGuard, plain_options
from gradcore.program.guarding.names import Names
from gradcore.program.guarding.values import equal, is_plain

if TYPE_CHECKING:
    from gradcore.program.guarding.reach import Reach

#: Attributes that are guarded here, or that each step changes. The library's own code alone reads those named ``_optim_...``.
INTERNAL = frozenset(("state", "param_groups", "_opt_called"))


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
