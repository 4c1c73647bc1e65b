"""Fusion: finds neighboring instructions that one kernel can run, with the same values and in the planned memory.

The program, its plan and its log stay as they are; only the calls that a replay makes are fewer. A device fuses the kinds that
it has a kernel for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gradcore.program.program import Instruction, Operand, Program


class Group(NamedTuple):
    """``length`` instructions, the first at position ``first``; ``kind`` is a key of :data:`KINDS`."""

    kind: str
    first: int
    length: int


class Kind(NamedTuple):
    """A kind of group. ``holds``, called with ``length`` neighbors, says whether they compute what the kernel computes.

    ``lives``, called with the program and the positions of the first and the last, says whether lifetimes of buffers allow it.
    """

    length: int
    holds: Callable[..., bool]
    lives: Callable[[Program, int, int], bool]


def groups(program: Program) -> Iterator[Group]:
    """The groups of instructions to fuse. No two share an instruction, and none spans both parts of a program."""
    k = 0
    while k < len(program.instructions):
        kind = next((name for name, kind in KINDS.items() if _is(program, kind, k)), None)
        if kind is not None:
            yield Group(kind, k, KINDS[kind].length)
        k += 1 if kind is None else KINDS[kind].length


def made_early(program: Program) -> Iterator[int]:
    """The gradients of linear layers' inputs in fused groups, which make them before the gradients of weights, which read these
    inputs, unless that input is a gelu made elsewhere."""
    for kind, first, length in groups(program):
        yield from (i.outputs[0].buffer for i in program.instructions[first:first + length]
                    if i.op == "linear_grad" and kind != "gelu over its input with slopes")


def touched_together(program: Program) -> dict[int, int]:
    """By buffer, the last instruction of the last group that reads or writes it. Its place is best left alone until then: in a
    fused group instructions read and write at other times."""
    return {buffer: first + length - 1 for _, first, length in groups(program)
            for i in program.instructions[first:first + length] for buffer in i.reads_and_writes()}


def _is(program: Program, kind: Kind, first: int) -> bool:
    end = first + kind.length
    found = program.instructions[first:end]
    return (len(found) == kind.length and kind.holds(*found) and kind.lives(program, first, end - 1)
            and (program.split is None or not first < program.split < end))


def _is_loss_with_slopes(loss: Instruction, one: Instruction, slopes: Instruction) -> bool:
    """A cross-entropy, a cotangent of 1, and its gradient."""
    return ((loss.op, one.op, slopes.op) == ("cross_entropy", "full", "cross_entropy_grad") and one.operands == (1.0,)
            and slopes.operands == (one.outputs[0], *loss.operands) and slopes.attrs == loss.attrs)


def _is_gelu_with_slopes(again: Instruction, products: Instruction, slopes: Instruction) -> bool:
    """gelu recomputed for the gradient of a linear layer, that gradient, and the gradient of gelu."""
    return ((again.op, products.op, slopes.op) == ("gelu", "linear_grad", "gelu_grad")
            # Under create_graph a checkpoint also makes again what the gradient of the input alone does not read.
            and not _unread(products.operands[1:2], again.outputs[0]) and len(products.outputs) > 1
            and slopes.operands == (products.outputs[0], again.operands[0]) and slopes.attrs == again.attrs)


def _is_norm_again_with_slopes(op: str, again: Instruction, products: Instruction, slopes: Instruction,
                               *added: Instruction) -> bool:
    """A norm of rows recomputed for the gradient of a linear layer, that gradient, and the norm's, perhaps added to another."""
    # Layer norm is recomputed from its statistics, and RMS norm computes its own again.
    same = again.operands if op == "rms_norm" else (*again.operands[:2], *again.operands[3:])
    return ((again.op, products.op, slopes.op) == (AGAIN[op], "linear_grad", f"{op}_grad")
            and not _unread(products.operands[1:2], again.outputs[0]) and len(products.outputs) > 1
            and slopes.operands[:len(same) + 1] == (products.outputs[0], *same)
            and dict(slopes.attrs).get("dims") == dict(again.attrs).get("dims")
            # The launch without it reads no rows.
            and bool(slopes.outputs[0].spec.numel)
            and (not added or _is_norm_slopes_added(f"{op}_grad", slopes, *added)))


def _is_linear_with_relu(linear: Instruction, relu: Instruction) -> bool:
    """A linear layer with a bias, and relu of its output."""
    return ((linear.op, relu.op) == ("linear", "relu") and linear.operands[2] is not None
            and relu.operands == linear.outputs)


def _is_linear_slopes_with_relu(products: Instruction, slopes: Instruction) -> bool:
    """The gradients of a linear layer, and that of the relu before it."""
    return ((products.op, slopes.op) == ("linear_grad", "relu_grad") and dict(products.attrs)["needs"][0]
            and slopes.operands[0] == products.outputs[0])


def _is_norm_with_relu(norm: Instruction, relu: Instruction) -> bool:
    """Batch norm, by the batch's statistics or given ones, and relu of its output."""
    return (norm.op in ("batch_norm", "batch_norm_apply") and relu.op == "relu" and relu.operands == norm.outputs[:1]
            and _alike(*relu.outputs, norm.outputs[0]))


def _is_norm_with_relu_slopes(norm: Instruction, relu: Instruction, slopes: Instruction) -> bool:
    """Batch norm and relu recomputed, and the gradient of relu."""
    return (norm.op == "batch_norm_apply" and _is_norm_with_relu(norm, relu) and slopes.op == "relu_grad"
            and slopes.operands[1:] == relu.outputs and _alike(*slopes.operands, *slopes.outputs)
            and _unread(slopes.operands[:1], *norm.outputs, *relu.outputs))


def _is_relu_slopes_through_norm(slopes: Instruction, norm: Instruction) -> bool:
    """The gradient of relu, and that of the batch norm before it."""
    return ((slopes.op, norm.op) == ("relu_grad", "batch_norm_grad") and norm.operands[:1] == slopes.outputs
            and _alike(*slopes.operands, *slopes.outputs) and _unread(norm.operands[1:], *slopes.outputs))


def _is_relu_slopes_through_norm_again(again: Instruction, relu: Instruction, slopes: Instruction, norm: Instruction) -> bool:
    """The same, with batch norm and relu recomputed for it."""
    return (_is_norm_with_relu_slopes(again, relu, slopes) and _is_relu_slopes_through_norm(slopes, norm)
            and norm.operands[1:] == (*again.operands[:2], *again.operands[3:]))


def _counts(counted: Instruction) -> bool:
    """Does it add 1 to a single int64, as batch norm counts its batches?"""
    return (counted.op == "add_" and type(counted.operands[1]) is int and counted.operands[1] == 1
            and counted.operands[0].spec.numel == 1 and counted.operands[0].spec.dtype == np.int64)


def _is_norm_slopes_added(op: str, slopes: Instruction, added: Instruction) -> bool:
    """The gradients of a norm of rows, and its dx added to another gradient of the same tensor."""
    return (slopes.op == op and added.op == "add_" and added.operands[1:] == slopes.outputs[:1]
            and _alike(*added.operands) and _unread(added.operands[:1], slopes.outputs[0]))


def _is_sum_with_norm(op: str, total: Instruction, norm: Instruction) -> bool:
    """A sum of two tensors of the same layout, and a norm of its rows."""
    return ((total.op, norm.op) == ("add", op) and norm.operands[0] == total.outputs[0]
            and _alike(*total.operands, *total.outputs) and _unread(norm.operands[1:], *total.outputs))


def _alike(*given: Any) -> bool:
    """Are all of them contiguous tensors of the same shape and dtype?"""
    return all(isinstance(x, Operand) and x.spec.contiguous
               and (x.spec.shape, x.spec.dtype) == (given[0].spec.shape, given[0].spec.dtype) for x in given)


def _unread(operands: tuple[Any, ...], *results: Operand) -> bool:
    """Do the operands share no buffer with results that the fused kernel does not write, or not before it reads them?"""
    return not {x.buffer for x in operands if isinstance(x, Operand)} & {x.buffer for x in results}


def _last(program: Program, k: int) -> int:
    """The position of the last instruction that reads the first result of instruction ``k``, behind all if it is returned."""
    return _end(program, program.instructions[k].outputs[0].buffer)


def _end(program: Program, buffer: int) -> int:
    return len(program.instructions) if buffer in program.returned else program.buffers[buffer].last


def _known(program: Program, k: int, operand: int) -> bool:
    """Does an operand have the same address in every run, or is it None?"""
    x = program.instructions[k].operands[operand]
    return x is None or program.buffers[x.buffer].kind in ("made", "captured")


def _passing(count: int) -> Callable[[Program, int, int], bool]:
    """A ``lives`` that says whether nothing reads the results of the first ``count`` instructions after the group."""
    return lambda program, first, last: all(_last(program, first + k) <= last for k in range(count))


def _lives_over(program: Program, first: int, last: int) -> bool:
    """Can gelu also be written over its input, which nothing reads afterwards, nor the products as their cotangent?"""
    given, cotangent = (program.instructions[k].operands[0].buffer for k in (first, first + 1))
    return (_passing(2)(program, first, last) and program.buffers[given].kind == "made" and _end(program, given) <= last
            and cotangent != given)


def _lives_again(op: str, program: Program, first: int, last: int) -> bool:
    """May the recomputed norm be made with the gradients, and dx only be added to others?"""
    again, _, slopes, *added = program.instructions[first:last + 1]
    if op == "rms_norm":
        rstd = slopes.operands[-1]
        maker = next((i for i in program.instructions[:first] if rstd in i.outputs), None)
        if maker is None or (maker.op, maker.operands, maker.attrs) != (again.op, again.operands, again.attrs):
            return False
    elif not _known(program, first, 2):
        return False
    return (all(_end(program, x.buffer) <= last for x in again.outputs)
            and (not added or _lives_added(program, first + 2, last)))


def _lives_added(program: Program, first: int, last: int) -> bool:
    """dx is not read elsewhere, and is added to a buffer whose address is the same in every run."""
    total = program.instructions[last].operands[0]
    return _last(program, first) <= last and program.buffers[total.buffer].kind == "made"


ROW_NORMS = {"layer norm": "layer_norm", "RMS norm": "rms_norm"}
#: By norm: the op that recomputes it.
AGAIN = {"layer_norm": "layer_norm_apply", "rms_norm": "rms_norm"}

KINDS: dict[str, Kind] = {
    # The loss is written by the last of the three, and has bytes of its own if it still lives then.
    "loss with slopes": Kind(3, _is_loss_with_slopes, lambda program, first, last: _last(program, first) >= last),
    # The cotangent of gelu is overwritten, and its input, too, or else gelu needs a place of its own beside both.
    "gelu over its input with slopes": Kind(3, _is_gelu_with_slopes, _lives_over),
    "gelu with slopes": Kind(3, _is_gelu_with_slopes, lambda program, first, last: _last(program, first + 1) <= last),
    # relu's input is never written; the gradient of relu reads its output.
    "linear with relu": Kind(2, _is_linear_with_relu, _passing(1)),
    # The gradient of relu's result is never written. A batch norm before relu has a gradient that applies relu's, too.
    "linear gradient with relu's": Kind(2, _is_linear_slopes_with_relu, lambda program, first, last: (
        _passing(1)(program, first, last) and not _is(program, KINDS["relu gradient with batch norm's"], last))),
    # None of the first three results is written.
    "batch norm again with relu and gradients": Kind(4, _is_relu_slopes_through_norm_again, lambda program, first, last: (
        _passing(3)(program, first, last) and _known(program, first, 2))),
    "batch norm with relu gradient": Kind(3, _is_norm_with_relu_slopes, _passing(2)),
    "relu gradient with batch norm's": Kind(2, _is_relu_slopes_through_norm, _passing(1)),
    "counted batch norm with relu": Kind(3, lambda counted, norm, relu: (
        norm.op == "batch_norm" and _counts(counted) and _is_norm_with_relu(norm, relu)), lambda program, first, last: (
        _last(program, first + 1) <= last)),
    "counted batch norm": Kind(2, lambda counted, norm: norm.op == "batch_norm" and _counts(counted), _passing(0)),
    "batch norm with relu": Kind(2, _is_norm_with_relu, _passing(1)),
    # The norm is written with its gradient, after the gradient of the linear layer's input and before those of its parameters.
    **{f"{name} again with gradients{', added' * (length > 3)}": Kind(
        length, partial(_is_norm_again_with_slopes, op), partial(_lives_again, op))
       for name, op in ROW_NORMS.items() for length in (4, 3)},
    # dx is never written.
    **{f"{name} gradient added": Kind(2, partial(_is_norm_slopes_added, f"{op}_grad"), _lives_added)
       for name, op in ROW_NORMS.items()},
    # The sum is written as it is without fusion.
    **{f"sum with {name}": Kind(2, partial(_is_sum_with_norm, op), _passing(0)) for name, op in ROW_NORMS.items()}}
