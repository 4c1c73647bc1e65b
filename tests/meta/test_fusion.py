"""Which instructions are fused: the patterns, and what differs from them by one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.program.fusion import groups
from gradcore.program.program import Operand, Program

F = nn.functional


def program_of(function: Callable[..., Any], *tensors: Any) -> Program:
    compiled = gradcore.compile(function)
    compiled(*tensors)
    program: Program = compiled.programs[0]
    return program


def kinds(program: Program) -> list[str]:
    return [group.kind for group in groups(program)]


def changed(program: Program, of: str, **changes: Any) -> Program:
    """The program with something else in its first instruction of an op."""
    at = [i.op for i in program.instructions].index(of)
    return replace(program, instructions=(*program.instructions[:at], replace(program.instructions[at], **changes),
                                          *program.instructions[at + 1:]))


def operands(program: Program, op: str) -> tuple[Any, ...]:
    return next(i.operands for i in program.instructions if i.op == op)


def other(operand: Any) -> Operand:
    """An operand of the same spec in a buffer that the program does not have."""
    return Operand(10_000, operand.spec)


@pytest.fixture(scope="module")
def loss() -> Program:
    w = gradcore.ones(5, 3, device="meta", requires_grad=True)

    def step(x: Any, y: Any) -> Any:
        w.grad = None
        found = F.cross_entropy(x @ w, y)
        found.backward()
        return found

    return program_of(step, gradcore.ones(4, 5, device="meta"), gradcore.zeros(4, dtype=np.int64, device="meta"))


def test_a_loss_and_its_gradient_are_one(loss: Program) -> None:
    assert kinds(loss) == ["loss with slopes"]


@pytest.mark.parametrize("change", [
    lambda p: changed(p, "cross_entropy", op="nll"), lambda p: changed(p, "full", op="empty"),
    lambda p: changed(p, "cross_entropy_grad", op="nll_grad"), lambda p: changed(p, "full", operands=(2.0,)),
    lambda p: changed(p, "cross_entropy_grad", attrs=(("reduction", "sum"), ("ignore_index", -100))),
    lambda p: changed(p, "cross_entropy_grad", attrs=(("reduction", "mean"), ("ignore_index", 0))),
    *(lambda p, k=k: changed(p, "cross_entropy_grad", operands=tuple(
        other(x) if at == k else x for at, x in enumerate(operands(p, "cross_entropy_grad")))) for k in range(3)),
    *(lambda p, k=k: replace(p, split=[i.op for i in p.instructions].index("cross_entropy") + k) for k in (1, 2))])
def test_another_loss_is_not(loss: Program, change: Callable[[Program], Program]) -> None:
    assert kinds(change(loss)) == []


@pytest.mark.parametrize("k", [0, 3])
def test_parts_may_begin_beside_it(loss: Program, k: int) -> None:
    at = [i.op for i in loss.instructions].index("cross_entropy") + k
    assert kinds(replace(loss, split=at)) == ["loss with slopes"]


def test_a_cotangent_that_is_not_1_is_kept() -> None:
    w = gradcore.ones(5, 3, device="meta", requires_grad=True)

    def step(x: Any, y: Any) -> Any:
        w.grad = None
        F.cross_entropy(x @ w, y).backward(gradcore.full((), 2.0, device="meta"))

    assert kinds(program_of(step, gradcore.ones(4, 5, device="meta"),
                            gradcore.zeros(4, dtype=np.int64, device="meta"))) == []


def test_linear_and_relu_are_one_only_with_a_bias() -> None:
    x = gradcore.ones(4, 5, device="meta")
    for bias, expected in ((True, ["linear with relu"]), (False, [])):
        layer = nn.Linear(5, 3, bias=bias, device="meta")
        program = program_of(lambda x, layer=layer: layer(x).relu(), x)
        assert kinds(program) == expected
    assert kinds(program_of(lambda x: (layer(x), x.relu())[1], x)) == []


def test_the_last_instruction_may_be_alone() -> None:
    """A pattern that begins in the last instruction is not there."""
    layer = nn.Linear(5, 3, device="meta")
    assert kinds(program_of(lambda x: layer(x), gradcore.ones(4, 5, device="meta"))) == []
