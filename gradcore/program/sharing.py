"""Which results of a program can overwrite an operand that is not read later.

An op declares the inputs that its output may be written over (``may_alias``). Such an input gives its bytes to the output where
this instruction is the last that reads them, both are all of their buffers and lie alike, and nobody looks at them when a run,
or a part of it, has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradcore.ops.op import Op, all_ops
from gradcore.program.program import Instruction, Operand, Program


def shared_places(program: Program) -> dict[int, int]:
    """For each made buffer that can take over the bytes of another one: which."""
    ops = all_ops()
    # A part's results are copied out when it has ended, which may be after their last instruction.
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
    """The operands that the output may be written over, as far as they lie as it does and are read in no other way."""
    out = i.outputs[0].spec
    names = [name for name, count in zip(op.inputs, i.counts, strict=True) for _ in range(count)]
    alike = [(name, x) for name, x in zip(names, i.operands, strict=True) if isinstance(x, Operand)]
    for wanted in op.may_alias:
        for name, x in alike:
            if name == wanted and all(y.spec is out and other in op.may_alias for other, y in alike if y.buffer == x.buffer):
                yield x


def _ends(program: Program, x: Operand, k: int) -> bool:
    """Does the buffer of an operand hold nothing else, and end at instruction ``k``?"""
    b = program.buffers[x.buffer]
    return b.kind == "made" and b.first < k == b.last and x.spec.contiguous and 0 < x.spec.nbytes == b.nbytes
