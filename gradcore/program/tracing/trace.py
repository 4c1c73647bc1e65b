"""A trace as data: a program, with the objects of this process that its plain data stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gradcore.devices.storage import Storage
from gradcore.devices.turns import is_shared
from gradcore.engine.leaf import Leaf
from gradcore.events import Invocation
from gradcore.program.program import Instruction, Operand, Program


@dataclass
class Second:
    """The gradient of a run's results, recorded after the run."""

    #: The index of its first launch.
    split: int
    #: Positions of the results that have a gradient, and the placeholders for their cotangents.
    roots: list[int]
    cotangents: list[Any]
    #: The tensors that the gradients are for: a leaf, or the position of an argument.
    targets: list[Leaf | int]
    gradients: list[Any]
    #: Reasons why that backward cannot be run again.
    obstacles: list[str]


@dataclass
class Trace:
    """A recorded run: the program, and the objects of this process that its plain data stands for."""

    program: Program
    #: By instruction: the bound kernel that ran.
    kernels: list[Any]
    #: By captured buffer.
    storages: dict[int, Storage]
    #: By gradient slot; and the gradients that the run left in slots (None: it set the slot to None).
    slots: dict[int, Leaf]
    left: list[tuple[Leaf, Operand | None]]
    #: Leaves that must have a gradient (True) or none (False) when a replay begins; those the run emptied may have either.
    presence: dict[Leaf, bool]
    #: By update: the optimizer, weakly, since a program must not keep one alive; its group; and the parameters.
    updates: list[tuple[Callable[[], Any], dict[str, Any], list[Any]]]
    #: Reasons why no replay can do the same; empty if one can.
    obstacles: list[str] = field(default_factory=list)
    second: Second | None = None
    #: By instruction: the index of its invocation; and the run's other records, with buffers in the place of serials.
    invocations: list[Invocation] = field(default_factory=list)
    script: list[tuple[Any, ...]] = field(default_factory=list)
    #: The buffers of the leaves that the run read.
    leaves: dict[Leaf, int] = field(default_factory=dict)
    #: The modules that the run put into a mode, weakly too, each with the last one.
    modes: list[tuple[Callable[[], Any], bool]] = field(default_factory=list)
    #: The schedules of learning rates that it stepped, weakly, in order.
    schedules: list[Callable[[], Any]] = field(default_factory=list)
    #: By gradient slot whose gradient the run dropped, so that it was freed: how many launches came before that.
    dropped: dict[int, int] = field(default_factory=dict)

    @cached_property
    def replaced(self) -> list[Leaf]:
        """The leaves whose gradients of before the run does not read, so that it can drop them as it begins."""
        read = {*self.slots.values()}
        return [leaf for leaf, _ in self.left if leaf not in read]

    @cached_property
    def renewed(self) -> dict[int, Leaf]:
        """Made buffers that become the gradient of a leaf when that of before is freed already: they may lie in its place."""
        freed = {self.slots[b]: at for b, at in self.dropped.items()}
        found = {x.buffer: leaf for leaf, x in self.left if x is not None and leaf in freed}
        return {b.index: found[b.index] for b in self.program.made()
                if b.index in found and b.first >= freed[found[b.index]]}


def read_afresh(backward: Iterable[Instruction], storages: Mapping[int, Storage]) -> set[int]:
    """The buffers in which a backward wants what is there when it runs, and not what forward has read there.

    A checkpoint's second run draws from a generator again, and writes to running statistics before anything else reads them.
    """
    first: dict[int, bool] = {}
    for i in backward:
        written = {x.buffer for x in i.targets()}
        for x in i.tensors():
            first.setdefault(x.buffer, x.buffer in written)
    return {b for b, writes in first.items() if writes} | {b for b, storage in storages.items() if is_shared(storage)}
