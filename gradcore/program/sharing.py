"""Finds the results of a program that can overwrite an operand that is not read later.

An op declares the inputs that its output may be written over (``may_alias``). The output takes the place of such an input if
this instruction is the last that reads it, both fill their buffers and have the same layout, and the operand is not read
after the run, or after a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradcore.ops.op import Op, all_ops
from gradcore.program.program import Instruction, Operand, Program


def shared_places(program: Program) -> dict[int, int]:
    """Maps each made buffer that can take the place of another one to that buffer."""
    ops = all_ops()
    # Results are copied out at the end of a part, which may be after the last instruction that reads them.
    returned = {x.buffer for x in (*program.outputs, *program.gradients) if x is not None}
    found: dict[int, int] = {}
    for k, i in enumerate(program.instructions):
        op = ops.get(i.op)
        if op is not None and op.may_alias:
            place = next((x.buffer for x in _over(op, i) if x.buffer not in returned and _ends(program, x, k)), None)
            if place is not None:
                found[i.outputs[0].buffer] = place
    return found


def _over(op: Op, i: Instruction) -> Iterator[Operand]:
    """The operands that the output may overwrite: of the same layout, and not read by this op in any other way."""
    out = i.outputs[0].spec
    names = [name for name, count in zip(op.inputs, i.counts, strict=True) for _ in range(count)]
    alike = [(name, x) for name, x in zip(names, i.operands, strict=True) if isinstance(x, Operand)]
    for wanted in op.may_alias:
        for name, x in alike:
            if name == wanted and all(y.spec is out and other in op.may_alias for other, y in alike if y.buffer == x.buffer):
                yield x


def _ends(program: Program, x: Operand, k: int) -> bool:
    """Does the operand fill its buffer, and does that end at instruction ``k``?"""
    b = program.buffers[x.buffer]
    return b.kind == "made" and b.first < k == b.last and x.spec.contiguous and 0 < x.spec.nbytes == b.nbytes
