"""Reads and writes the file of a program and its captured tensors: safetensors with the program as JSON in the metadata.

The metadata's ``gradcore.program`` holds the text, ``gradcore.digest`` its SHA-256. The text names a tensor of the file for
every captured buffer, with the CRC-32 of its bytes. Reading creates no object of a class that the file names, except
optimizers of :mod:`gradcore.optim`, and allocates no more than the file has bytes for.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradcore import optim
from gradcore.errors import ProgramError
from gradcore.events import DROP, DROP_REASONS, KEEP, LAUNCH, MARK, MARKS
from gradcore.program.program import KINDS, Buffer, Instruction, Number, Operand, Program, Update
from gradcore.program.shipping.encoding import (
    Tags,
    array,
    decode,
    decode_dtype,
    decode_spec,
    decode_tags,
    encode,
    encode_spec,
    fail,
    members,
    parsed,
    string,
    whole,
)
from gradcore.utils.safetensors import Entry, SafetensorsError, arrays_of, read_array, read_header, write_file

#: The version of the format, counted up by each change to it.
VERSION = 2
_PROGRAM, _DIGEST = "gradcore.program", "gradcore.digest"
_PARTS = ("version", "device", "sites", "tags", "buffers", "instructions", "inputs", "outputs", "captured", "leaves", "slots",
          "left", "presence", "optimizers", "updates", "script")
#: Kinds of records that a replay writes besides allocations, by their names in a file.
_RECORDS = {"launch": LAUNCH, "keep": KEEP, "drop": DROP, "mark": MARK}


@dataclass(frozen=True)
class Shipment:
    """The contents of a file besides the values of its tensors. Leaves and optimizers are identified by position."""

    program: Program
    #: For each captured buffer the name of its tensor.
    names: dict[int, str]
    #: The leaves: name, and the operand with their values.
    leaves: tuple[tuple[str, Operand], ...]
    #: A buffer that is the gradient of a leaf when the run begins, and the leaf.
    slots: tuple[tuple[int, int], ...]
    #: A leaf, and the gradient that a run leaves in its slot.
    left: tuple[tuple[int, Operand | None], ...]
    #: A leaf, and whether it must have a gradient when a run begins.
    presence: tuple[tuple[int, bool], ...]
    #: A class of :mod:`gradcore.optim`, and the options of the groups that are updated; an operand is one that is a tensor.
    optimizers: tuple[tuple[str, tuple[dict[str, Any], ...]], ...]
    #: Optimizer, group and leaves of each of the program's updates.
    updates: tuple[tuple[int, int, tuple[int, ...]], ...]
    #: Records, in order, of phases and of what is kept for backward, as in :attr:`Trace.script`; reports read them.
    script: tuple[tuple[Any, ...], ...]


# -- writing -----------------------------------------------------------------------------------------------------------


def write_program(path: str | os.PathLike[str], shipment: Shipment, tensors: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all; ``tensors`` by the names in the shipment. Raises OSError, TypeError and ValueError."""
    sums = {name: _checksum(tensors[name]) for name in tensors}
    text = json.dumps(_described(shipment, sums), separators=(",", ":"), allow_nan=False)
    # In an order that does not depend on who writes it, so that a loaded program is saved as the same bytes.
    tensors = {name: tensors[name] for name in sorted(tensors)}
    write_file(path, tensors, {_PROGRAM: text, _DIGEST: hashlib.sha256(text.encode()).hexdigest()})


def _checksum(tensor: Any) -> int:
    (values,) = arrays_of([tensor])
    return zlib.crc32(values.data)


def _described(s: Shipment, sums: dict[str, int]) -> dict[str, Any]:
    p = s.program
    tags = Tags(p.networks)

    def operand(x: Any) -> Any:
        if isinstance(x, Operand):
            return {"at": [x.buffer, encode_spec(x.spec)]}
        return {"update": [x.update, x.position]} if isinstance(x, Number) else encode(x)

    instructions = [[i.op, [*map(operand, i.operands)], list(i.counts), [[k, encode(v)] for k, v in i.attrs],
                     [*map(operand, i.outputs)], list(i.writes), operand(i.workspace), tags.tag(i.tag), i.node]
                    for i in p.instructions]
    kinds = {number: name for name, number in _RECORDS.items()}
    optimizers = [[kind, [[[k, operand(v)] for k, v in group.items()] for group in groups]] for kind, groups in s.optimizers]
    buffers = [[b.kind, b.nbytes, tags.tag(b.tag), b.first, b.last] for b in p.buffers]
    return {
        "version": VERSION, "device": p.device, "sites": tags.lines, "tags": tags.rows, "buffers": buffers,
        "instructions": instructions, "inputs": [*map(operand, p.inputs)], "outputs": [*map(operand, p.outputs)],
        "captured": [[b, name, sums[name]] for b, name in s.names.items()],
        "leaves": [[name, operand(x)] for name, x in s.leaves], "slots": list(s.slots),
        "left": [[leaf, operand(x)] for leaf, x in s.left], "presence": list(s.presence),
        "optimizers": optimizers, "script": [[kinds[kind], *rest] for kind, *rest in s.script],
        "updates": [[*where, [[k, encode(v)] for k, v in u.numbers]] for where, u in zip(s.updates, p.updates, strict=True)]}


# -- reading -----------------------------------------------------------------------------------------------------------


def read_program(path: str | os.PathLike[str]) -> tuple[Shipment, dict[str, np.ndarray[Any, Any]]]:
    """The contents of a file and the values of its tensors. Raises :class:`ProgramError` and OSError.

    The program's instructions are not checked here, but by :mod:`gradcore.program.shipping.verify`.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            entries, metadata = read_header(file, path.stat().st_size, str(path))
            if set(metadata) != {_PROGRAM, _DIGEST}:
                raise fail("metadata", f"{_PROGRAM} and {_DIGEST}, as Compiled.save writes them", sorted(metadata))
            text = metadata[_PROGRAM]
            if hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() != metadata[_DIGEST]:
                raise ProgramError("the program was modified after it was saved: its digest does not match")
            shipment, sums = _Reader(parsed(text)).shipment(entries)
            values = {name: read_array(file, entries[name], name) for name in sums}
    except SafetensorsError as error:
        raise ProgramError(str(error)) from None
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from None
    for name, found in values.items():
        if _checksum(found) != sums[name]:
            raise ProgramError(f"{path}: the tensor {name[:80]!r} was modified after it was saved: its checksum does not match")
    return shipment, values


class _Reader:
    """Makes the parts of a program from plain data, in order; every index is checked against what it points into."""

    def __init__(self, data: Any) -> None:
        parts = dict(zip(_PARTS, members(data, "the program", *_PARTS), strict=True))
        if parts["version"] != VERSION:
            raise fail("version", f"{VERSION}", parts["version"])
        self.parts = parts
        self.tags = decode_tags(parts["sites"], parts["tags"])
        rows = array(parts["instructions"], "instructions")
        self.buffers = tuple([self.buffer(k, b, len(rows)) for k, b in enumerate(array(parts["buffers"], "buffers"))])
        self.updates_count = len(array(parts["updates"], "updates"))
        self.instructions = tuple([self.instruction(f"instruction {k}", i) for k, i in enumerate(rows)])
        self.leaves: tuple[tuple[str, Operand], ...] = ()

    def buffer(self, k: int, x: Any, end: int) -> Buffer:
        where = f"buffer {k}"
        kind, nbytes, tag, first, last = array(x, where, 5)
        if kind not in KINDS:
            raise fail(where, f"one of {', '.join(KINDS)}", kind)
        first = whole(first, where, end + 1)
        return Buffer(k, kind, whole(nbytes, where), self.tags[whole(tag, where, len(self.tags))], first,
                      whole(last, where, end + 1, first))

    def operand(self, x: Any, where: str) -> Operand:
        (at,) = members(x, where, "at")
        buffer, spec = array(at, where, 2)
        return Operand(whole(buffer, where, len(self.buffers)), decode_spec(spec, where))

    def argument(self, x: Any, where: str) -> Any:
        if isinstance(x, dict) and "at" in x:
            return self.operand(x, where)
        if isinstance(x, dict) and "update" in x:
            (at,) = members(x, where, "update")
            update, position = array(at, where, 2)
            return Number(whole(update, where, self.updates_count), whole(position, where))
        return decode(x, where)

    def instruction(self, where: str, x: Any) -> Instruction:
        op, operands, counts, attrs, outputs, writes, workspace, tag, node = array(x, where, 9)
        return Instruction(
            string(op, where), tuple([self.argument(a, where) for a in array(operands, where)]),
            tuple([whole(n, where) for n in array(counts, where)]), self.pairs(attrs, where),
            tuple([self.operand(o, where) for o in array(outputs, where)]),
            tuple([whole(n, where) for n in array(writes, where)]),
            None if workspace is None else self.operand(workspace, where),
            self.tags[whole(tag, where, len(self.tags))], whole(node, where))

    def option(self, x: Any, where: str) -> Any:
        return self.operand(x, where) if isinstance(x, dict) and "at" in x else decode(x, where)

    def pairs(self, x: Any, where: str, read: Callable[[Any, str], Any] = decode) -> tuple[tuple[str, Any], ...]:
        found = [array(pair, where, 2) for pair in array(x, where)]
        if len({string(name, where) for name, _ in found}) != len(found):
            raise fail(where, "each name once", [name for name, _ in found])
        return tuple([(name, read(value, where)) for name, value in found])

    def shipment(self, entries: dict[str, Entry]) -> tuple[Shipment, dict[str, int]]:
        parts = self.parts
        names, sums = self.captured(entries)
        self.leaves = tuple([(string(n, "leaves"), self.operand(o, "leaves"))
                             for n, o in (array(x, "leaves", 2) for x in array(parts["leaves"], "leaves"))])
        if len({n for n, _ in self.leaves}) != len(self.leaves):
            raise fail("leaves", "each name once", [n for n, _ in self.leaves])
        presence = tuple([(self.leaf(a), b) for a, b in self.couples("presence")])
        if any(type(b) is not bool for _, b in presence):
            raise fail("presence", "true or false", parts["presence"])
        optimizers = tuple([self.optimizer(x) for x in array(parts["optimizers"], "optimizers")])
        places, updates = [], []
        for x in parts["updates"]:
            optimizer, group, params, numbers = array(x, "updates", 4)
            kind, groups = optimizers[whole(optimizer, "updates", len(optimizers))]
            options = groups[whole(group, "updates", len(groups))]
            places.append((optimizer, group, tuple([self.leaf(k) for k in array(params, "updates")])))
            updates.append(Update(kind, tuple(options.items()), self.pairs(numbers, "updates")))
        program = Program(
            device=string(parts["device"], "device"), buffers=self.buffers, instructions=self.instructions,
            inputs=tuple([self.operand(x, "inputs") for x in array(parts["inputs"], "inputs")]),
            outputs=tuple([self.operand(x, "outputs") for x in array(parts["outputs"], "outputs")]), updates=tuple(updates))
        slots = tuple([(whole(b, "slots", len(self.buffers)), self.leaf(k)) for b, k in self.couples("slots")])
        left = tuple([(self.leaf(k), None if x is None else self.operand(x, "left")) for k, x in self.couples("left")])
        script = tuple([self.record(x) for x in array(parts["script"], "script")])
        if sum(x == (LAUNCH,) for x in script) != len(self.instructions):
            raise ProgramError("script: there must be a launch for each instruction")
        return Shipment(program, names, self.leaves, slots, left, presence, optimizers, tuple(places), script), sums

    def captured(self, entries: dict[str, Entry]) -> tuple[dict[int, str], dict[str, int]]:
        """By captured buffer the name of its tensor, and by name the checksum, which are all of the file's ``entries``."""
        names: dict[int, str] = {}
        sums: dict[str, int] = {}
        for x in array(self.parts["captured"], "captured"):
            at, name, checksum = array(x, "captured", 3)
            name = string(name, "captured")
            buffer = self.buffers[whole(at, "captured", len(self.buffers))]
            if buffer.kind != "captured" or buffer.index in names or name in sums or name not in entries:
                raise fail("captured", "a tensor of its own for each captured buffer", x)
            if entries[name].dtype == "BF16":
                decode_dtype("bfloat16", f"tensor {name[:80]!r}")
            if entries[name].stop - entries[name].start != buffer.nbytes:
                raise fail(f"tensor {name[:80]!r}", f"{buffer.nbytes} bytes", entries[name])
            names[buffer.index], sums[name] = name, whole(checksum, "captured")
        if {b.index for b in self.buffers if b.kind == "captured"} != set(names) or set(entries) != set(sums):
            raise ProgramError("the captured buffers and the tensors of the file do not match")
        return names, sums

    def leaf(self, x: Any) -> int:
        return whole(x, "a leaf", len(self.leaves))

    def couples(self, part: str) -> list[list[Any]]:
        """The pairs of a part, each of whose first items is there once."""
        found = [array(x, part, 2) for x in array(self.parts[part], part)]
        if len({json.dumps(first) for first, _ in found}) != len(found):
            raise fail(part, "each once", found)
        return found

    def record(self, x: Any) -> tuple[Any, ...]:
        where = "script"
        kind, *rest = array(x, where) or [None]
        if kind == "launch" and not rest:
            return (LAUNCH,)
        if kind == "mark" and len(rest) == 2 and rest[0] in MARKS:
            return MARK, rest[0], string(rest[1], where)
        if kind in ("keep", "drop") and len(rest) == 3:
            what = string(rest[2], where) if kind == "keep" else whole(rest[2], where, len(DROP_REASONS))
            return _RECORDS[kind], whole(rest[0], where, len(self.buffers)), whole(rest[1], where), what
        raise fail(where, f"one of {', '.join(_RECORDS)}", x)

    def optimizer(self, x: Any) -> tuple[str, tuple[dict[str, Any], ...]]:
        kind, groups = array(x, "optimizers", 2)
        if kind not in optim.__all__ or kind in ("Optimizer", "lr_scheduler"):
            raise fail("optimizers", "a class of gradcore.optim", kind)
        return kind, tuple([dict(self.pairs(group, "optimizers", self.option)) for group in array(groups, "optimizers")])
