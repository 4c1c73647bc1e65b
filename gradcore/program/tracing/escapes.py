"""What a traced run leaves behind: results that something still refers to when it has ended, besides what it returns."""

from __future__ import annotations

import gc
import sys
from collections.abc import Container, Iterable, Mapping
from types import BuiltinFunctionType, FrameType, ModuleType
from typing import Any

import numpy as np

from gradcore.devices.device import Device
from gradcore.devices.storage import Storage
from gradcore.engine.leaf import Leaf
from gradcore.engine.node import Node
from gradcore.engine.value import Value
from gradcore.events import BORROW, Raw, Tag
from gradcore.memory.resource import Block
from gradcore.program.guarding.guards import Asking, Guard
from gradcore.program.tracing.templates import parts

#: What is said of a result that is live when the run has ended, and of one that is returned and held elsewhere too.
HELD, STORED = "is still referenced after the run", "the function stores a result"
#: Why it may be: the debugger of a notebook keeps the frames of all calls, and with them what was local there.
DEBUGGED = "a debugger, or what else sys.settrace() has set, may hold results"
#: What may refer to a tensor and is not the user's; a frame is a function's that runs.
_ENGINE = (Value, Node, Leaf, FrameType)


def gradient_serial(leaf: Leaf) -> int:
    """The serial of a leaf's gradient, or 0 if it has none."""
    return 0 if leaf.grad is None else leaf.grad.storage.serial


def escaped(device: Device, leaves: Mapping[Leaf, int], before: Container[Leaf], made: Mapping[int, Raw], kept: set[int],
            results: list[Any]) -> list[str]:
    """Reasons against a replay: what is live of what the run ``made``, but not among the serials that may be ``kept``.

    ``before`` are the leaves that existed when the run began, ``leaves`` those that it read, with the serials of their bytes.
    """
    def left() -> dict[Tag, int]:
        """For each tag the serial of one storage."""
        return {made[serial][7]: serial for serial in _left(device.ledger.live, leaves, before, made, kept, results)}

    tags = left()
    if any(tag.role != "optimizer state" for tag in tags):
        # In a cycle of references, as that of a nested function which calls itself, tensors wait for the collector.
        gc.collect()
        tags = left()
    borrowed = [record[7] for record in made.values() if record[7].op == BORROW]
    if borrowed:
        return [f"{borrowed[0].site}: a tensor shares memory that gradcore did not allocate (from_numpy, from_dlpack): "
                "make it outside"]
    # One reason for all of it: the first step of every optimizer makes it.
    states = dict.fromkeys(f"{tag.site} makes optimizer state, as a first step does" for tag in tags
                           if tag.role == "optimizer state")
    return [*states, *(f"{tag.site}: the result of {tag.op}, {tag.role} of {tag.layer or '(root)'}, {HELD}"
                       f"{_holder(device.ledger.live.get(serial))}"
                       for tag, serial in tags.items() if tag.role != "optimizer state")]


def _holder(block: Block | None) -> str:
    """What refers to a tensor over the block, in words; "" if nothing of the user's is found."""
    holders = referrers(_tensors_in([block] if block else []))
    if any(isinstance(x, Leaf) for x in holders):
        return ", as a gradient"
    kinds = [type(x).__name__ for x in holders if not isinstance(x, _ENGINE)]
    return f", by a {kinds[0]}" if kinds else ""


def referrers(objects: list[Any]) -> list[Any]:
    """What refers to any of the objects, but for this list and the call that asks.

    From Python 3.13 on the tuples that carry the arguments of the call are among the answers: their last item tells them.
    """
    end = object()
    found: list[Any] = []
    if not objects:
        # Everything would be searched.
        return found
    # A comprehension would have a cell that refers to the last item.
    for x in gc.get_referrers(*objects, end):
        if x is not objects and not (type(x) is tuple and x and x[-1] is end):
            found.append(x)
    # Guards refer to what the user's containers have, and hold their items in tuples: the user's own come first, to be named.
    return sorted(found, key=lambda x: type(x) is tuple or isinstance(x, Asking))


def _tensors_in(blocks: list[Any]) -> list[Value]:
    """The tensors that lie in these blocks, rather than only what a graph keeps."""
    return _tensors_over([x for x in referrers(blocks) if isinstance(x, Storage)])


def _tensors_over(storages: list[Storage]) -> list[Value]:
    return [x for x in referrers(storages) if isinstance(x, Value)]


def _left(live: Mapping[int, Block], leaves: Mapping[Leaf, int], before: Container[Leaf], made: Iterable[int], kept: set[int],
          results: list[Any]) -> list[int]:
    # The graph of a result keeps the gradient of a leaf that was freed itself; in a replay results have no such graph.
    kept = kept | {gradient_serial(leaf) for leaf, serial in leaves.items() if leaf not in before and serial not in live}
    left = {serial: block for serial in made if serial not in kept and (block := live.get(serial)) is not None}
    if any(t.edge is not None for t in results):
        # The graphs of results still keep residuals, as a replay's do not; only what a tensor shows as well outlives them.
        shown = {x.storage.serial for x in _tensors_in([block for block in left.values() if block.keeps])}
        left = {serial: block for serial, block in left.items() if not block.keeps or serial in shown}
    return [*left]


# -- what it returns, and something else refers to ---------------------------------------------------------------------


def stored(outputs: list[Any], made: frozenset[int], leaves: list[Leaf]) -> list[str]:
    """Reasons against a replay, which would not do it: what the user has stored of the results, or of what shares their bytes.

    ``made`` has the serials of the storages that the traced run made, which left gradients in ``leaves``. Nothing else of the
    library may refer to the results at this moment, nor a variable of a function that calls this.
    """
    return _stored(outputs, made) or _stored_apart(outputs, made, leaves)


def _stored(outputs: list[Any], made: frozenset[int]) -> list[str]:
    """The results that something of the user's refers to."""
    found = []
    for k in range(len(outputs)):
        # An item of a container counts one more reference as an argument; a local variable does not from Python 3.14 on.
        if sys.getrefcount(outputs[k]) > 2 and outputs[k].storage.serial in made:
            holders = [x for x in referrers(outputs[k:k + 1]) if x is not outputs and not isinstance(x, _ENGINE)]
            if holders:
                found.append(f"{STORED}, {outputs[k].spec}, in a {type(holders[0]).__name__}, which a "
                             "replay would not do")
    return found


def _stored_apart(outputs: list[Any], made: frozenset[int], leaves: list[Leaf]) -> list[str]:
    """The same for other tensors that share the bytes of results or of gradients, and for the gradients themselves."""
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    storages = [*{id(t.storage): t.storage for t in (*outputs, *gradients) if t.storage.serial in made}.values()]
    if any(t.storage is g.storage and t is not g for t in outputs for g in gradients):
        return ["it returns a view of a gradient that it leaves in a parameter: return the gradient, or clone() the view"]
    known = {id(t) for t in outputs} | {id(t.base) for t in outputs}
    shown = [x for x in _tensors_over(storages) if id(x) not in known]
    holders = [x for x in referrers(shown) if not isinstance(x, _ENGINE) and x is not gradients]
    return [f"the function stores a tensor with the memory of a result or of a gradient in a {type(x).__name__}, which a "
            "replay would not do" for x in holders[:1]]


def made_anew(template: Any, arguments: list[Any], guards: list[Asking]) -> list[str]:
    """Reasons against a replay, which would return the same object each time: those in a template that the run may have made,
    and that their caller may change, since a copy would not do for all of them."""
    known = {id(x) for x in arguments} | {id(guard.look()) for guard in guards if isinstance(guard, Guard)}
    return [f"it returns a {type(x).__name__}, which each call makes anew" for x in parts(template)
            if id(x) not in known and _is_changeable(x)][:1]


def _is_changeable(x: Any) -> bool:
    """Is it neither a place for a tensor, nor what each call copies, nor what cannot be changed?"""
    # Up to Python 3.11 None hashes like an object.
    return (x is not None and type(x).__hash__ in (None, object.__hash__) and not type(x).__module__.startswith("gradcore.")
            and not isinstance(x, (set, slice, np.ndarray, type, ModuleType, BuiltinFunctionType)))
