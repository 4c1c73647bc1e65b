"""Which instructions are fused: the patterns, and what differs from them by one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.program import plan
from gradcore.program.planning.fusion import groups, made_early
from gradcore.program.planning.plan import planned
from gradcore.program.planning.sharing import shared_places
from gradcore.program.program import Operand, Program

F = nn.functional


def program_of(function: Callable[..., Any], *tensors: Any) -> Program:
    compiled = gradcore.compile(function)
    compiled(*tensors)
    program: Program = compiled.programs[0]
    return program


def kinds(program: Program) -> list[str]:
    return [group.kind for group in groups(program)]


def changed(program: Program, at: int, **changes: Any) -> Program:
    """The program with something else in one of its instructions."""
    return replace(program, instructions=(*program.instructions[:at], replace(program.instructions[at], **changes),
                                          *program.instructions[at + 1:]))


def relinked(program: Program, at: int, k: int) -> Program:
    """The program with another buffer, of the same spec, as one operand."""
    operands = list(program.instructions[at].operands)
    new = replace(program.buffers[operands[k].buffer], index=len(program.buffers), kind="made")
    operands[k] = replace(operands[k], buffer=new.index)
    return changed(replace(program, buffers=(*program.buffers, new)), at, operands=tuple(operands))


def lasting(program: Program, at: int) -> Program:
    """The program with a first result that lives to the end."""
    buffers = list(program.buffers)
    b = program.instructions[at].outputs[0].buffer
    buffers[b] = replace(buffers[b], last=len(program.instructions))
    return replace(program, buffers=tuple(buffers))


def loss_step() -> Program:
    w = gradcore.ones(5, 3, device="meta", requires_grad=True)

    def step(x: Any, y: Any) -> Any:
        w.grad = None
        found = F.cross_entropy(x @ w, y)
        found.backward()
        return found

    return program_of(step, gradcore.ones(4, 5, device="meta"), gradcore.zeros(4, dtype=np.int64, device="meta"))


@pytest.fixture(scope="module")
def loss() -> Program:
    return loss_step()


def test_a_loss_and_its_gradient_are_one(loss: Program) -> None:
    assert kinds(loss) == ["loss with slopes"]
    assert kinds(changed(loss, [i.op for i in loss.instructions].index("full"), operands=(2.0,))) == []


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


# -- every pattern, with one thing changed --------------------------------------------------------------------------------


class Block(nn.Module):
    """A part of a transformer, without attention."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norms = nn.ModuleList([norm(8), norm(8)])
        self.a, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        x = x + self.a(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Bent(nn.Module):
    """A norm without a linear layer behind it."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norm = norm(8)

    def forward(self, x: Any) -> Any:
        return x + self.norm(x).tanh()


def test_a_norm_that_is_made_again_has_the_statistics_of_the_first() -> None:
    """A gradient that reads those which the recomputed norm makes needs them."""
    program = training_of(nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 8), nn.Tanh()), 2, 8)
    group, = (g for g in groups(program) if g.kind == "RMS norm again with gradients")
    again, slopes = program.instructions[group.first], program.instructions[group.first + 2]
    assert slopes.operands[3] != again.outputs[1]
    own = changed(program, group.first + 2, operands=(*slopes.operands[:3], again.outputs[1]))
    assert group not in [*groups(own)]


def convolutions(training: bool) -> nn.Module:
    layers = [nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU()] * 2
    return nn.Sequential(*layers[:2], nn.ReLU(), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).train(training)


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2))


def training_of(module: nn.Module, *shape: int, gradient: bool = False) -> Program:
    """A step of the module, whose input perhaps wants a gradient, too."""
    module.to("meta")

    def step(x: Any) -> None:
        module.zero_grad()
        module(x).sum().backward()

    return program_of(step, gradcore.ones(shape, device="meta", requires_grad=gradient))


NORMS: dict[str, Any] = {"layer norm": nn.LayerNorm, "RMS norm": nn.RMSNorm}
#: By norm: the operands of it, as recomputed, of the linear layer's gradient and of the norm's that must be others' results.
AGAIN = {"layer norm": {*((0, k) for k in (0, 1, 3, 4)), (1, 1), *((2, k) for k in range(5))},
         "RMS norm": {(0, 0), (0, 1), (1, 1), *((2, k) for k in range(4))}}

#: By kind: a program with it; the operands that must be others' results (instruction, operand); the instructions with
#: attributes that must agree; and those whose first result must not outlive the group.
PATTERNS: dict[str, tuple[Callable[[], Program], set[tuple[int, int]], set[int], set[int]]] = {
    "loss with slopes": (lambda: loss_step(), {(2, 0), (2, 1), (2, 2), (0, 0), (0, 1)}, {0, 2}, set()),
    "linear with relu": (lambda: training_of(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), 2, 8), {(1, 0)}, set(), {0}),
    "gelu over its input with slopes": (lambda: training_of(nn.Sequential(Block(), Block()), 2, 8),
                                        {(1, 1), (2, 0), (2, 1), (0, 0)}, {0, 2}, {0, 1}),
    "gelu with slopes": (lambda: training_of(nn.Sequential(nn.GELU(), nn.Linear(8, 8), nn.Tanh()), 2, 8, gradient=True),
                         {(1, 1), (2, 0), (2, 1), (0, 0)}, {0, 2}, {1}),
    **{f"{name} gradient added": (lambda norm=norm: training_of(nn.Sequential(*(nn.Linear(8, 8), Bent(norm)) * 2), 2, 8),
                                  {(1, 1)}, set(), {0}) for name, norm in NORMS.items()},
    **{f"{name} again with gradients": (lambda norm=norm: training_of(
        nn.Sequential(nn.Linear(8, 8), norm(8), nn.Linear(8, 8), nn.Tanh()), 2, 8), AGAIN[name], {0, 2}, {0})
       for name, norm in NORMS.items()},
    **{f"{name} again with gradients, added": (lambda norm=norm: training_of(nn.Sequential(Block(norm), Block(norm)), 2, 8), {
        *AGAIN[name], (3, 1)}, {0, 2}, {0, 2}) for name, norm in NORMS.items()},
    **{f"sum with {name}": (lambda norm=norm: training_of(nn.Sequential(Block(norm), Block(norm)), 2, 8), {(1, 0)}, set(),
                            set()) for name, norm in NORMS.items()},
    "counted batch norm with relu": (lambda: training_of(convolutions(True), 2, 3, 4, 4), {(2, 0)}, set(), {1}),
    "counted batch norm": (lambda: training_of(convolutions(True)[:2], 2, 3, 4, 4), set(), set(), set()),
    "batch norm with relu": (lambda: training_of(convolutions(False), 2, 3, 4, 4), {(1, 0)}, set(), {0}),
    "batch norm again with relu and gradients": (lambda: training_of(pooled(), 2, 3, 4, 4), {
        *((0, k) for k in (0, 1, 3, 4)), (1, 0), (2, 1), *((3, k) for k in range(5))}, set(), {0, 1, 2}),
    "relu gradient with batch norm's": (lambda: training_of(convolutions(True), 2, 3, 4, 4), {(1, 0)}, set(), {0})}


@pytest.mark.parametrize("kind", PATTERNS)
def test_a_pattern_holds_by_what_it_says_alone(kind: str) -> None:
    make, links, attributes, short = PATTERNS[kind]
    program = make()
    group = next(g for g in groups(program) if g.kind == kind)
    places = range(group.length)

    def breaks(change: Program) -> bool:
        return group not in [*groups(change)]

    first = program.instructions[group.first:group.first + group.length]
    assert {k for k in places if breaks(changed(program, group.first + k, op="nothing"))} == {*places}
    assert {(k, at) for k in places for at, x in enumerate(first[k].operands)
            if isinstance(x, Operand) and breaks(relinked(program, group.first + k, at))} == links
    assert {k for k in places if breaks(changed(program, group.first + k, attrs=(("other", 1),)))} == attributes
    made = [k for k in places if first[k].outputs]
    assert {k for k in made if breaks(lasting(program, group.first + k))} == short
    assert {k for k in made if breaks(replace(program, outputs=first[k].outputs[:1]))} == short
    assert {k for k in range(group.length + 1) if breaks(replace(program, split=group.first + k))} == {*places} - {0}


@pytest.mark.parametrize("rows, width", [(4, 16), (100, 300)])
def test_a_gradient_made_early_lies_apart_where_its_operand_has_room_until_it_is_read(rows: int, width: int) -> None:
    """The workspace of the norm's gradient, which comes after the operand was read, leaves no room for it."""
    layers = nn.Linear(width, 4 * width), nn.LayerNorm(4 * width), nn.Linear(4 * width, 10), nn.Tanh()
    program = training_of(nn.Sequential(*layers), rows, width)
    early, = made_early(program)
    found, together = plan(program), planned(program, shared_places(program))
    assert early in together.shared and early not in found.shared and found.nbytes == together.nbytes == together.bound
