"""Programs: the launches of a traced run as plain data, in order, with the lifetime of every buffer that they touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from gradcore.events import Network, Tag
from gradcore.reading import layer_in, network_names
from gradcore.spec import TensorSpec
from gradcore.units import count_of

#: Where a buffer's bytes come from: an argument of the traced function; a tensor from before the run (a parameter, a buffer,
#: an optimizer's state); the gradient of a leaf when the run begins; an instruction.
KINDS = ("input", "captured", "gradient slot", "made")


@dataclass(frozen=True)
class Buffer:
    """Bytes that instructions read or write.

    ``nbytes`` are the requested bytes. A ``made`` buffer lives from instruction ``first`` to instruction ``last``, both
    included; if it must outlive the run, ``last`` is the number of instructions.
    """

    index: int
    kind: str
    nbytes: int
    tag: Tag
    first: int = 0
    last: int = 0

    @property
    def name(self) -> str:
        return {"input": "in", "captured": "p", "gradient slot": "g", "made": "t"}[self.kind] + str(self.index)


@dataclass(frozen=True)
class Operand:
    """A buffer viewed with a spec, whose strides and offset are in elements."""

    buffer: int
    spec: TensorSpec


@dataclass(frozen=True)
class Number:
    """A number that each run computes again: operand ``position`` of an optimizer's ``update``."""

    update: int
    position: int


@dataclass(frozen=True)
class Instruction:
    """One launch. ``operands`` are flat, in the op's order; ``counts`` has the number of operands of each declared input."""

    op: str
    operands: tuple[Any, ...]
    counts: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...]
    #: Outputs, then auxiliary outputs; none for an op that works in place.
    outputs: tuple[Operand, ...]
    #: Positions of the operands that it writes to.
    writes: tuple[int, ...]
    workspace: Operand | None
    tag: Tag
    #: The number of the node that it ran for, as in the log's allocations.
    node: int = 0

    def tensors(self) -> list[Operand]:
        """The operands that are tensors."""
        return [x for x in self.operands if isinstance(x, Operand)]

    def targets(self) -> list[Operand]:
        """The operands that it writes to."""
        return [self.operands[k] for k in self.writes]

    def made(self) -> tuple[Operand, ...]:
        """What is allocated for it: its outputs, and its workspace."""
        return self.outputs if self.workspace is None else (*self.outputs, self.workspace)

    def reads_and_writes(self) -> Iterator[int]:
        """The index of each buffer that it reads or writes, with repetitions."""
        return (x.buffer for x in (*self.tensors(), *self.made()))


@dataclass(frozen=True)
class Update:
    """The part of an optimizer's step that runs on the host, which computes the numbers that its op takes.

    ``optimizer`` names a class of :mod:`gradcore.optim`; ``group`` has the options, ``numbers`` the counts, such as of
    steps, in the state of its parameters before the traced step.
    """

    optimizer: str
    group: tuple[tuple[str, Any], ...]
    numbers: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, optimizer: Any, group: dict[str, Any], numbers: dict[str, Any]) -> Update:
        return cls(type(optimizer).__name__, tuple(options_of(group).items()), tuple(numbers.items()))


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """A group of an optimizer without its parameters."""
    return {name: x for name, x in group.items() if name != "params"}


@dataclass(frozen=True, repr=False)
class Program:
    """What a traced run did, as data. Printing it gives a line for each instruction.

    ``inputs`` and ``outputs`` are in the order of the traced function's tensors. If the caller differentiates the results, the
    program has two parts: the first ``split`` instructions compute ``outputs``; the others take ``cotangents``, one for each
    output that has a gradient, and compute ``gradients``. Otherwise ``split`` is None.
    """

    device: str
    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    updates: tuple[Update, ...] = ()
    split: int | None = None
    cotangents: tuple[Operand, ...] = ()
    #: None where no output depends on the tensor that the gradient is for.
    gradients: tuple[Operand | None, ...] = ()

    def made(self) -> list[Buffer]:
        """The buffers that the program makes, in order."""
        return [b for b in self.buffers if b.kind == "made"]

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The parts: of each the position of its first instruction, and of the one past its last."""
        count = len(self.instructions)
        return list(pairwise([0, count] if self.split is None else [0, self.split, count]))

    @cached_property
    def read_later(self) -> dict[int, TensorSpec]:
        """The buffers that the second part reads or writes, each with the spec by which it first does."""
        later = () if self.split is None else self.instructions[self.split:]
        return {x.buffer: x.spec for i in reversed(later) for x in reversed(i.tensors())}

    @cached_property
    def returned(self) -> frozenset[int]:
        """The buffers of results: copied out at the end of a part, which may be after the last instruction that reads them."""
        return frozenset(x.buffer for x in (*self.outputs, *self.gradients) if x is not None)

    def node_of(self, made: Buffer) -> int:
        """The number of the node that a buffer was made for; 0 for one that another part of a chain makes."""
        return self.instructions[made.first].node if 0 <= made.first < len(self.instructions) else 0

    def written(self) -> dict[int, int]:
        """Buffers from before the run that instructions write to, with the index of the last of these instructions."""
        found: dict[int, int] = {}
        for k, instruction in enumerate(self.instructions):
            found |= {x.buffer: k for x in instruction.targets() if self.buffers[x.buffer].kind != "made"}
        return found

    @cached_property
    def networks(self) -> dict[Network, str]:
        """Names of the networks whose layers occur: see :func:`~gradcore.reading.network_names`."""
        tags = [*(i.tag for i in self.instructions), *(b.tag for b in self.buffers)]
        return network_names(tag.network for tag in tags)

    def _text(self, x: Any) -> str:
        if isinstance(x, Operand):
            return f"{self.buffers[x.buffer].name}:{x.spec}"
        return f"update{x.update}[{x.position}]" if isinstance(x, Number) else repr(x)

    def line(self, k: int) -> str:
        """Instruction ``k`` as text: results, op, operands, attributes, layer, source line, and lifetimes of what it makes."""
        i = self.instructions[k]
        made = ", ".join(map(self._text, i.outputs)) or ", ".join(map(self._text, i.targets()))
        lives = " ".join(f"{b.name} {b.first}..{'end' if b.last == len(self.instructions) else b.last}"
                         for b in (self.buffers[o.buffer] for o in i.outputs))
        attrs = "".join(f", {name}={value!r}" for name, value in i.attrs)
        room = f" + {self.buffers[i.workspace.buffer].nbytes} bytes" if i.workspace is not None else ""
        layer, line = layer_in(i.tag, self.networks) or "(root)", i.tag.site.short
        where = f"{layer} {i.tag.phase} {line}"
        return f"{k:4} {made} = {i.op}({', '.join(map(self._text, i.operands))}{attrs}){room}  # {where}; {lives}".rstrip("; ")

    def _counts(self) -> str:
        return (f"program on {self.device}: {count_of(len(self.instructions), 'instruction')}, "
                f"{count_of(len(self.made()), 'buffer')} made, {sum(b.kind == 'captured' for b in self.buffers)} captured")

    def __repr__(self) -> str:
        return f"<{self._counts()}>"

    def __str__(self) -> str:
        return "\n".join([self._counts(), "inputs  " + ", ".join(map(self._text, self.inputs)),
                          *(self.line(k) for k in range(len(self.instructions))),
                          "outputs " + ", ".join(map(self._text, self.outputs))])


def with_lifetimes(program: Program, survivors: set[int], parts: Sequence[int] = (), results: Sequence[int] = ()) -> Program:
    """The program with ``first`` and ``last`` of each made buffer set; ``survivors`` last to its end.

    With ``split``, the outputs last to the end of the first part. ``parts`` are numbers of instructions of consecutive
    parts, and ``results`` says how many of the outputs each part gives, which last to the end of it.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, instruction in enumerate(program.instructions):
        for buffer in instruction.reads_and_writes():
            first.setdefault(buffer, k)
            last[buffer] = k
    end = len(program.instructions)
    if program.split is not None:
        parts, results = (program.split,), (len(program.outputs),)
    at = given = 0
    for count, width in zip(parts, results, strict=True):
        at += count
        for x in program.outputs[given:given + width]:
            last[x.buffer] = max(last.get(x.buffer, 0), at - 1)
        given += width
    return replace(program, buffers=tuple(
        replace(b, first=first.get(b.index, 0), last=end if b.index in survivors else last.get(b.index, 0))
        if b.kind == "made" else b for b in program.buffers))
