"""Which results overwrite operands: those that an op declares, if nothing reads the operand later, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gradcore.events import Site, Tag
from gradcore.program import Buffer, Instruction, Operand, Program
from gradcore.program.planning.sharing import shared_places
from gradcore.program.program import with_lifetimes
from gradcore.spec import TensorSpec

SITE = Site("train.py", 3, "step")
SQUARE, HALF = TensorSpec.of((4, 4), "float32"), TensorSpec.of((2, 4), "float32")
TURNED, PART = TensorSpec.strided((4, 4), SQUARE.dtype, (1, 4), 0), TensorSpec.strided((2, 4), SQUARE.dtype, (4, 1), 8)
WHOLE, BYTES = TensorSpec.of((4, 4), "int32"), TensorSpec.of((64,), "uint8")


def made(*steps: tuple[Any, ...], given: str = "input", survivors: tuple[int, ...] = (), outputs: tuple[int, ...] = (),
         sizes: dict[int, int] | None = None, **parts: Any) -> Program:
    """A program over buffer 0, which is ``given``: each step is an op, its operands and the spec of its result, in order.

    An operand is a buffer, with its own spec, or a buffer and a spec.
    """
    specs = [SQUARE, *[s[-1] for s in steps]]
    tag = Tag("op", "0", "forward", "temporary", SITE, None, SQUARE)
    operands = [[Operand(*x) if isinstance(x, tuple) else Operand(x, specs[x]) for x in s[1:-1]] for s in steps]
    instructions = tuple(Instruction(s[0], tuple(xs), (1,) * len(xs), (), (Operand(k + 1, s[-1]),), (), None, tag)
                         for k, (s, xs) in enumerate(zip(steps, operands, strict=True)))
    buffers = tuple(Buffer(k, "made" if k else given, (sizes or {}).get(k, spec.nbytes), tag) for k, spec in enumerate(specs))
    ends = tuple(Operand(k, specs[k]) for k in outputs)
    program = Program("cpu", buffers, instructions, (), ends, **parts)
    return with_lifetimes(program, {*survivors, *(outputs if program.split is None else ())})


CASES: dict[str, tuple[Program, dict[int, int]]] = {
    "a chain": (made(("exp", 0, SQUARE), ("neg", 1, SQUARE), ("sin", 2, SQUARE)), {2: 1, 3: 2}),
    "of two that end, the first that the op names": (
        made(("exp", 0, SQUARE), ("neg", 0, SQUARE), ("gelu_grad", 2, 1, SQUARE)), {3: 2}),
    "the one that ends": (
        made(("exp", 0, SQUARE), ("neg", 0, SQUARE), ("add", 1, 2, SQUARE), ("sin", 1, SQUARE)), {3: 2, 4: 1}),
    "both operands in one": (made(("exp", 0, SQUARE), ("mul", 1, 1, SQUARE)), {2: 1}),
    "beside a row": (made(("exp", 0, SQUARE), ("add", 1, (0, HALF), SQUARE)), {2: 1}),
    "what is read later": (made(("exp", 0, SQUARE), ("neg", 1, SQUARE), ("add", 1, 1, SQUARE)), {3: 1}),
    "an argument": (made(("exp", 0, SQUARE)), {}),
    "a parameter": (made(("exp", 0, SQUARE), given="captured"), {}),
    "a gradient that was there": (made(("exp", 0, SQUARE), given="gradient slot"), {}),
    "what outlives the run": (made(("exp", 0, SQUARE), ("neg", 1, SQUARE), survivors=(1,)), {}),
    "what is returned": (made(("exp", 0, SQUARE), ("neg", 1, SQUARE), outputs=(1, 2)), {}),
    "what the first part returns when it has ended": (
        made(("exp", 0, SQUARE), ("neg", 1, SQUARE), ("sin", 2, SQUARE), outputs=(1,), split=2), {3: 2}),
    "a result of the second part": (
        made(("exp", 0, SQUARE), ("neg", 1, SQUARE), ("sin", 2, SQUARE), split=1, gradients=(Operand(2, SQUARE),)), {2: 1}),
    "an input that the op has not declared": (made(("exp", 0, SQUARE), ("relu_grad", 1, 0, SQUARE)), {}),
    "one that is read as another input, too": (made(("exp", 0, SQUARE), ("relu_grad", 1, 1, SQUARE)), {}),
    "one that is seen another way, too": (made(("exp", 0, SQUARE), ("add", 1, (1, TURNED), SQUARE)), {}),
    "a view that lies another way": (made(("exp", 0, SQUARE), ("neg", (1, TURNED), SQUARE)), {}),
    "a part": (made(("exp", 0, SQUARE), ("neg", (1, PART), HALF)), {}),
    "the first part of more": (made(("exp", 0, SQUARE), ("neg", (1, HALF), HALF)), {}),
    "a larger buffer than it is seen": (made(("exp", 0, SQUARE), ("neg", 1, SQUARE), sizes={1: 96}), {}),
    "another dtype": (made(("exp", 0, SQUARE), ("neg", (1, WHOLE), SQUARE)), {}),
    "a result that is larger": (made(("exp", (0, HALF), HALF), ("add", 1, 0, SQUARE)), {}),
    "no elements": (made(("exp", (0, TensorSpec.of((0,), "float32")), TensorSpec.of((0,), "float32")),
                         ("neg", 1, TensorSpec.of((0,), "float32"))), {}),
    "an op that is not elementwise": (made(("exp", 0, SQUARE), ("matmul", 1, 0, SQUARE)), {}),
    "an op that there is not": (made(("exp", 0, SQUARE), ("system", 1, SQUARE)), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_result_takes_the_place_of_what_ends_there_and_of_nothing_else(case: str) -> None:
    program, expected = CASES[case]
    assert shared_places(program) == expected


def test_a_workspace_is_no_place() -> None:
    program = made(("exp", 0, SQUARE), ("erf", 1, SQUARE))
    spare = Buffer(3, "made", 64, program.buffers[1].tag)
    one, two = program.instructions
    program = replace(program, buffers=(*program.buffers, spare),
                      instructions=(one, replace(two, workspace=Operand(3, BYTES))))
    assert shared_places(with_lifetimes(program, set())) == {2: 1}
