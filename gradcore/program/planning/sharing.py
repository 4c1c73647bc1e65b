"""Finds the results of a program that can take the place of operands which are not read later.

An op declares the inputs that its output may be written over (``may_alias``). The output takes the place of such an input if
this instruction is the last that reads it, both fill their buffers and have the same layout, and the operand is not read
after the run, or after a part of it.

The operands of ``cat`` can be made in its result, so that nothing is left to copy. Along the first dimension that is larger
than 1 an operand is one run of bytes there, which any op can make. Otherwise its rows lie apart, and it must come from an op
whose kernels write any strides, and be read by nothing but the ``cat``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

from gradcore.ops.op import Op, all_ops
from gradcore.program.program import Instruction, Operand, Program
from gradcore.spec import TensorSpec, round_up


def shared_places(program: Program) -> dict[int, int]:
    """Maps each made buffer that can take the place of another one to that buffer."""
    ops = all_ops()
    found: dict[int, int] = {}
    for k, i in enumerate(program.instructions):
        op = ops.get(i.op)
        if op is not None and op.may_alias:
            place = next((x.buffer for x in _over(op, i) if x.buffer not in program.returned and _ends(program, x, k)), None)
            if place is not None:
                found[i.outputs[0].buffer] = place
    return found


def _over(op: Op, i: Instruction) -> Iterator[Operand]:
    """The operands that the output may overwrite: of the same layout, and not read by this op in any other way."""
    out = i.outputs[0].spec
    may_alias = op.over(dict(i.attrs))
    names = [name for name, count in zip(op.inputs, i.counts, strict=True) for _ in range(count)]
    alike = [(name, x) for name, x in zip(names, i.operands, strict=True) if isinstance(x, Operand)]
    for wanted in may_alias:
        for name, x in alike:
            if name == wanted and all(y.spec is out and other in may_alias for other, y in alike if y.buffer == x.buffer):
                yield x


def _ends(program: Program, x: Operand, k: int) -> bool:
    """Does the operand fill its buffer, and does that end at instruction ``k``?"""
    b = program.buffers[x.buffer]
    return b.kind == "made" and b.first < k == b.last and x.spec.contiguous and 0 < x.spec.nbytes == b.nbytes


# -- operands of cat ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lane:
    """Where a buffer lies in another one, ``whole``: rows of ``width`` elements, ``pitch`` apart, from element ``start`` on."""

    whole: int
    width: int
    pitch: int
    start: int

    def spec(self, spec: TensorSpec) -> TensorSpec | None:
        """How a view of the buffer lies in ``whole``; None if it crosses rows in a way that strides cannot say."""
        row, within = divmod(spec.offset, self.width)
        strides = []
        for n, stride in zip(spec.shape, spec.strides, strict=True):
            rows, rest = divmod(stride, self.width)
            strides.append(stride if rest else rows * self.pitch)
            within += rest and stride * (n - 1)
        if self.width != self.pitch and within >= self.width:
            return None
        return TensorSpec.strided(spec.shape, spec.dtype, tuple(strides),
                                  self.start + row * self.pitch + spec.offset % self.width)

    def operand(self, x: Operand) -> Operand:
        """A view of the buffer as one of ``whole``."""
        spec = self.spec(x.spec)
        assert spec is not None
        return replace(x, buffer=self.whole, spec=spec)


def lanes(program: Program, renewed: Container[int] = ()) -> dict[int, Lane]:
    """The lane of each operand of a ``cat`` that can be made in its result."""
    users: dict[int, list[int]] = {}
    for k, i in enumerate(program.instructions):
        for buffer in dict.fromkeys(i.reads_and_writes()):
            users.setdefault(buffer, []).append(k)
    found: dict[int, Lane] = {}
    wholes: set[int] = set()
    for k, i in enumerate(program.instructions):
        if i.op == "cat" and i.outputs[0].buffer not in renewed:
            inside = _inside(program, i)
            # A result of cat in another one would need lanes within lanes.
            if inside and wholes.isdisjoint(inside) and program.returned.isdisjoint(inside) and all(
                    _can_lie(program, users[buffer], k, buffer, lane) for buffer, lane in inside.items()):
                found |= inside
                wholes.add(i.outputs[0].buffer)
    return found


def _inside(program: Program, cat: Instruction) -> dict[int, Lane]:
    """The lanes of the operands, in order; none if one is no buffer of its own, or the log could not show them side by side."""
    (out,), dim = cat.outputs, dict(cat.attrs)["dim"]
    parts = cat.tensors()
    alike = all(x.spec.dtype == out.spec.dtype and x.spec.contiguous and 0 < x.spec.nbytes == program.buffers[x.buffer].nbytes
                for x in parts)
    if not alike or len({x.buffer for x in parts}) < len(cat.operands) or any(
            round_up(x.spec.nbytes) > x.spec.nbytes for x in parts[:-1]):
        return {}
    widths = [prod(x.spec.shape[dim:]) for x in parts]
    starts = accumulate(widths, initial=0)
    pitch = prod(out.spec.shape[dim:])
    # One row, of which the pitch is never used.
    single = prod(out.spec.shape[:dim]) == 1
    return {x.buffer: Lane(out.buffer, width, width if single else pitch, start)
            for x, width, start in zip(parts, widths, starts, strict=False)}


def _can_lie(program: Program, users: list[int], k: int, buffer: int, lane: Lane) -> bool:
    """Does the buffer end at the ``cat``, instruction ``k``, of the same part, and can all that touches it do so there?"""
    b, (first, *between, last) = program.buffers[buffer], users if len(users) > 1 else (*users, -1)
    maker, ops = program.instructions[first], all_ops()
    outputs = [x for x in maker.outputs if x.buffer == buffer]
    split = program.split
    return (b.kind == "made" and b.first == first < k == last == b.last and len(outputs) == 1
            and outputs[0].spec.nbytes == b.nbytes and (split is None or (first < split) == (k < split))
            and (lane.width == lane.pitch or (not between and maker.op in ops and ops[maker.op].any_strides
                                              and lane.spec(outputs[0].spec) is not None)))
