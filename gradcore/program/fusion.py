"""Fusion: which neighbours in a program one kernel does together, with the same bits, over the memory that is planned for them.

The program, its plan and its log stay as they are; only the calls that a replay makes are fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradcore.program.program import Instruction, Program


def groups(program: Program) -> Iterator[tuple[str, int]]:
    """Kinds of groups of three neighbours, with the positions where they begin. No two groups share an instruction."""
    k = 0
    while k < len(program.instructions) - 2:
        three = program.instructions[k:k + 3]
        kind = next((name for name, holds in KINDS.items() if holds(*three)), None)
        if kind is not None and not _PLACES[kind](program, three, k + 2):
            kind = None
        if kind is not None and (program.split is None or not k < program.split < k + 3):
            yield kind, k
        k += 1 if kind is None else 3


def _is_loss_with_slopes(loss: Instruction, one: Instruction, slopes: Instruction) -> bool:
    """A cross-entropy, a cotangent of 1, and its gradient."""
    return ((loss.op, one.op, slopes.op) == ("cross_entropy", "full", "cross_entropy_grad") and one.operands == (1.0,)
            and slopes.operands == (one.outputs[0], *loss.operands) and slopes.attrs == loss.attrs)


def _is_gelu_with_slopes(again: Instruction, products: Instruction, slopes: Instruction) -> bool:
    """gelu made again for the gradient of a linear layer, that gradient, and gelu's for its cotangent."""
    return ((again.op, products.op, slopes.op) == ("gelu", "linear_grad", "gelu_grad")
            and products.operands[1].buffer == again.outputs[0].buffer and len(products.outputs) > 1
            and slopes.operands == (products.outputs[0], again.operands[0]) and slopes.attrs == again.attrs)


KINDS = {"loss with slopes": _is_loss_with_slopes, "gelu with slopes": _is_gelu_with_slopes}
#: By kind, are buffers alive at the third instruction, or dead after it, as the kernel needs? The loss is filled there, and
#: lies in bytes of its own if it still lives; the cotangent of gelu is overwritten.
_PLACES: dict[str, Callable[[Program, Sequence[Instruction], int], bool]] = {
    "loss with slopes": lambda program, three, at: program.buffers[three[0].outputs[0].buffer].last >= at,
    "gelu with slopes": lambda program, three, at: program.buffers[three[1].outputs[0].buffer].last <= at}
