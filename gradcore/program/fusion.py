"""Fusion: a traced program with fewer instructions that do the same, to the bit, before its memory is planned.

What nobody reads is not computed, and neighbours for which the device has one kernel become one instruction. No buffer lives
longer than before, so the plan needs no more memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gradcore.devices.device import get_device
from gradcore.program.program import Instruction, Operand, Program, with_lifetimes
from gradcore.program.recorder import Trace

Step = tuple[Instruction, Any]


def fused(trace: Trace) -> Trace:
    """The trace with instructions and kernels fused; one in two parts is left as it is."""
    program = trace.program
    if program.split is not None:
        return trace
    survivors = {b.index for b in program.made() if b.last == len(program.instructions)}
    steps = with_losses(list(zip(program.instructions, trace.kernels, strict=True)), get_device(program.device).fused)
    steps = read_later(steps, survivors)
    return replace(trace, program=_with_steps(program, [i for i, _ in steps], survivors), kernels=[k for _, k in steps])


def _with_steps(program: Program, instructions: list[Instruction], survivors: set[int]) -> Program:
    touched = {b for i in instructions for b in i.reads_and_writes()} | survivors
    buffers = tuple(replace(b, kind="dropped") if b.kind == "made" and b.index not in touched else b for b in program.buffers)
    return with_lifetimes(replace(program, buffers=buffers, instructions=tuple(instructions)), survivors)


def read_later(steps: list[Step], survivors: set[int]) -> list[Step]:
    """The instructions that write to what was there before, or make something that is read or returned."""
    read = set(survivors)
    kept = []
    for step in reversed(steps):
        instruction = step[0]
        if instruction.writes or any(o.buffer in read for o in instruction.outputs):
            read.update(x.buffer for x in instruction.operands if isinstance(x, Operand))
            kept.append(step)
    return kept[::-1]


def with_losses(steps: list[Step], kernels: dict[str, Callable[..., Any]]) -> list[Step]:
    """Cross-entropy, a cotangent of 1 and the gradient, one after the other, are one instruction."""
    if "cross_entropy_with_grad" not in kernels:
        return steps
    found: list[Step] = []
    k = 0
    while k < len(steps):
        three = [i for i, _ in steps[k:k + 3]]
        if _is_loss_with_grad(three):
            loss, _, slopes = three
            made = replace(loss, op="cross_entropy_with_grad", outputs=(*loss.outputs, *slopes.outputs))
            found.append((made, partial(kernels[made.op], **dict(loss.attrs))))
            # The cotangent may be read again.
            found.append(steps[k + 1])
            k += 3
        else:
            found.append(steps[k])
            k += 1
    return found


def _is_loss_with_grad(three: list[Instruction]) -> bool:
    if [i.op for i in three] != ["cross_entropy", "full", "cross_entropy_grad"]:
        return False
    loss, one, slopes = three
    return (one.operands == (1.0,)
            and slopes.operands == (one.outputs[0], *loss.operands) and slopes.attrs == loss.attrs)
