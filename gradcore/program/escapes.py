"""Finds what a traced run leaves behind, besides what it returns: results that are still referenced when it has ended."""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable, Mapping
from types import FrameType
from typing import Any

from gradcore.devices.device import Device
from gradcore.devices.storage import Storage
from gradcore.engine.node import Leaf, Node
from gradcore.engine.value import Value
from gradcore.events import BORROW, Raw, Tag
from gradcore.memory.resource import Block
from gradcore.program.trace_log import TraceLog

#: What is said of a result that is live when the run has ended, and of one that is returned and held elsewhere too.
HELD, STORED = "is still referenced after the run", "the function stores a result"
#: Why it may be: the debugger of a notebook keeps the frames of all calls, and with them what was local there.
DEBUGGED = "a debugger, or what else sys.settrace() has set, may hold results"


def gradient_serial(leaf: Leaf) -> int:
    """The serial of a leaf's gradient, or 0 if it has none."""
    return 0 if leaf.grad is None else leaf.grad.storage.serial


def escaped(device: Device, log: TraceLog, before: Container[Leaf], made: Mapping[int, Raw], kept: set[int],
            results: list[Any]) -> list[str]:
    """Reasons against a replay: what is live of what the run ``made``, but not among the serials that may be ``kept``.

    ``before`` are the leaves that existed when the run began.
    """
    def left() -> dict[Tag, int]:
        """For each tag the serial of one storage."""
        return {made[serial][7]: serial for serial in _left(device.ledger.live, log, before, made, kept, results)}

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
    storages = [x for x in referrers([block] if block else []) if isinstance(x, Storage)]
    holders = referrers([x for x in referrers(storages) if isinstance(x, Value)])
    if any(isinstance(x, Leaf) for x in holders):
        return ", as a gradient"
    kinds = [type(x).__name__ for x in holders if not isinstance(x, (Value, Node, FrameType))]
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
    return found


def _left(live: Mapping[int, Block], log: TraceLog, before: Container[Leaf], made: Iterable[int], kept: set[int],
          results: list[Any]) -> list[int]:
    # The graph of a result keeps the gradient of a leaf that was freed itself; in a replay results have no such graph.
    kept = kept | {gradient_serial(leaf) for leaf, serial in log.leaves.items() if leaf not in before and serial not in live}
    left = {serial: block for serial in made if serial not in kept and (block := live.get(serial)) is not None}
    if any(t.edge is not None for t in results):
        # The graphs of results still keep residuals, as a replay's do not; only what a tensor shows as well outlives them.
        shown = _shown_by_tensors([block for block in left.values() if block.keeps])
        left = {serial: block for serial, block in left.items() if not block.keeps or serial in shown}
    return [*left]


def _shown_by_tensors(blocks: list[Any]) -> set[int]:
    """The serials of those blocks that a tensor lies in, rather than only what a graph keeps."""
    storages = [x for x in referrers(blocks) if isinstance(x, Storage)]
    return {x.storage.serial for x in referrers(storages) if isinstance(x, Value)}
