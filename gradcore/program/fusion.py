"""Fusion: which neighbours in a program one kernel does together, with the same values, over the memory planned for them.

The program, its plan and its log stay as they are; only the calls that a replay makes are fewer. A device does those kinds
that it has a kernel for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gradcore.program.program import Instruction, Operand, Program


class Group(NamedTuple):
    """``length`` instructions from ``first`` on; ``kind`` is a key of :data:`KINDS`."""

    kind: str
    first: int
    length: int


class Kind(NamedTuple):
    """``holds`` says of ``length`` neighbours whether they do what the kernel does, ``lives`` of the program and the positions
    of the first and the last whether buffers are alive at the last, or dead behind it, as the kernel needs."""

    length: int
    holds: Callable[..., bool]
    lives: Callable[[Program, int, int], bool]


def groups(program: Program) -> Iterator[Group]:
    """Neighbours that are done together. No two groups share an instruction, and none lies in both parts of a program."""
    k = 0
    while k < len(program.instructions):
        kind = next((name for name, kind in KINDS.items() if _is(program, kind, k)), None)
        if kind is not None:
            yield Group(kind, k, KINDS[kind].length)
        k += 1 if kind is None else KINDS[kind].length


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
    """gelu made again for the gradient of a linear layer, that gradient, and gelu's for its cotangent."""
    return ((again.op, products.op, slopes.op) == ("gelu", "linear_grad", "gelu_grad")
            and products.operands[1].buffer == again.outputs[0].buffer and len(products.outputs) > 1
            and slopes.operands == (products.outputs[0], again.operands[0]) and slopes.attrs == again.attrs)


def _is_linear_with_relu(linear: Instruction, relu: Instruction) -> bool:
    """A linear layer with a bias, and relu of what it makes."""
    return ((linear.op, relu.op) == ("linear", "relu") and linear.operands[2] is not None
            and relu.operands == linear.outputs)


def _is_norm_with_relu(norm: Instruction, relu: Instruction) -> bool:
    """Batch norm, by the batch's statistics or given ones, and relu of what it makes."""
    return norm.op in ("batch_norm", "batch_norm_apply") and relu.op == "relu" and relu.operands == norm.outputs[:1]


def _is_norm_with_relu_slopes(norm: Instruction, relu: Instruction, slopes: Instruction) -> bool:
    """Batch norm and relu made again, and the gradient of relu."""
    return (norm.op == "batch_norm_apply" and _is_norm_with_relu(norm, relu) and slopes.op == "relu_grad"
            and slopes.operands[1:] == relu.outputs and slopes.operands[0] != relu.outputs[0])


def _is_norm_slopes_added(slopes: Instruction, added: Instruction) -> bool:
    """The gradients of layer norm, and its dx added to another gradient of the same tensor."""
    return (slopes.op == "layer_norm_grad" and added.op == "add_" and added.operands[1:] == slopes.outputs[:1]
            and added.operands[0] != slopes.outputs[0])


def _is_sum_with_norm(total: Instruction, norm: Instruction) -> bool:
    """A sum of two tensors that lie alike, and layer norm of it."""
    return ((total.op, norm.op) == ("add", "layer_norm") and norm.operands[0] == total.outputs[0]
            and all(isinstance(x, Operand) and _alike(x, total.outputs[0]) for x in total.operands))


def _alike(x: Operand, y: Operand) -> bool:
    return x.spec.contiguous and y.spec.contiguous and (x.spec.shape, x.spec.dtype) == (y.spec.shape, y.spec.dtype)


def _last(program: Program, k: int, output: int = 0) -> int:
    """Where a result of an instruction is read last."""
    return program.buffers[program.instructions[k].outputs[output].buffer].last


KINDS = {
    # It is filled by the last of the three, and lies in bytes of its own if it still lives.
    "loss with slopes": Kind(3, _is_loss_with_slopes, lambda program, first, last: _last(program, first) >= last),
    # The cotangent of gelu is overwritten.
    "gelu with slopes": Kind(3, _is_gelu_with_slopes, lambda program, first, last: _last(program, first + 1) <= last),
    # What relu is given is never made; its gradient reads its result.
    "linear with relu": Kind(2, _is_linear_with_relu, lambda program, first, last: _last(program, first) <= last),
    # Neither what relu is given nor what it makes is made.
    "batch norm with relu gradient": Kind(3, _is_norm_with_relu_slopes, lambda program, first, last: (
        max(_last(program, first), _last(program, first + 1)) <= last)),
    "batch norm with relu": Kind(2, _is_norm_with_relu, lambda program, first, last: _last(program, first) <= last),
    # dx is never made, and what it is added to is nothing that a run brings.
    "layer norm gradient added": Kind(2, _is_norm_slopes_added, lambda program, first, last: (
        _last(program, first) <= last and program.buffers[program.instructions[last].operands[0].buffer].kind == "made")),
    # The sum is made as before.
    "sum with layer norm": Kind(2, _is_sum_with_norm, lambda program, first, last: True)}
