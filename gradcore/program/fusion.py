"""Fusion: which neighbours in a program one kernel does together, with the same bits, over the memory that is planned for them.

The program, its plan and its log stay as they are; only the calls that a replay makes are fewer.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradcore.program.program import Instruction


def losses_with_slopes(instructions: Sequence[Instruction]) -> set[int]:
    """Positions of a cross-entropy that a cotangent of 1 follows, and then its gradient.

    Whatever lives at the third of them lives in bytes of its own, so they may all be filled there.
    """
    return {k for k in range(len(instructions) - 2) if _is_loss_with_slopes(*instructions[k:k + 3])}


def _is_loss_with_slopes(loss: Instruction, one: Instruction, slopes: Instruction) -> bool:
    return ((loss.op, one.op, slopes.op) == ("cross_entropy", "full", "cross_entropy_grad") and one.operands == (1.0,)
            and slopes.operands == (one.outputs[0], *loss.operands) and slopes.attrs == loss.attrs)
