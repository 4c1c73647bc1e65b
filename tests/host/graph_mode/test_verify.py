"""What a program must not do: every one of these instructions could make a kernel read or write outside its buffers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import optim
from gradcore.engine.plans import infer
from gradcore.errors import ProgramError
from gradcore.events import Site, Tag
from gradcore.program import Buffer, Instruction, Operand, Program
from gradcore.program.program import Number, with_lifetimes
from gradcore.program.shipping.encoding import LARGEST
from gradcore.program.shipping.verify import checked_calls
from gradcore.spec import TensorSpec
from tests.conftest import raises
from tests.rows import ROWS, Row, tensors_of

TAG = Tag("op", "0", "forward", "temporary", Site("train.py", 3, "step"), None, None)
PAIR, ROW, COLUMN = (TensorSpec.of(shape, "float32") for shape in ((2, 3), (3,), (2, 1)))
TURNED = TensorSpec.strided((2, 3), PAIR.dtype, (1, 2), 0)
REPEATED = TensorSpec.strided((2, 3), PAIR.dtype, (0, 1), 0)


def program(op: str, *operands: Any, makes: tuple[TensorSpec, ...] = (), sizes: tuple[int, ...] = (), **parts: Any) -> Program:
    """One instruction: a spec among its operands is a captured buffer of 24 bytes, or those in ``sizes``; it makes the last."""
    count = sum(isinstance(x, TensorSpec) for x in operands)
    places = iter(range(count))
    given = tuple(Operand(next(places), x) if isinstance(x, TensorSpec) else x for x in operands)
    made = tuple(Operand(count + k, x) for k, x in enumerate(makes))
    parts = {"counts": (1,) * len(operands), "attrs": (), "writes": (), "workspace": None, **parts}
    buffers = (*(Buffer(k, "captured", sizes[k] if sizes else 24, TAG) for k in range(count)),
               *(Buffer(x.buffer, "made", x.spec.nbytes, TAG) for x in made))
    instruction = Instruction(op=op, operands=given, outputs=made, tag=TAG, **parts)
    return with_lifetimes(Program("cpu", buffers, (instruction,), (), made), {x.buffer for x in made})


def empty(offset: int) -> TensorSpec:
    return TensorSpec.strided((0,), PAIR.dtype, (1,), offset)


SOUND: dict[str, Program] = {
    "a sum": program("add", PAIR, ROW, makes=(PAIR,)),
    "in place, from a row": program("add_", PAIR, ROW, writes=(0,)),
    "as many bytes as there may be": program("add", PAIR, ROW, makes=(PAIR,), sizes=(LARGEST // 2, LARGEST // 2 - 25)),
    "in place, into columns": program("add_", TURNED, ROW, writes=(0,)),
    "the last of no elements": program("neg", empty(6), makes=(empty(0),)),
}
UNSOUND: dict[str, tuple[Program, str]] = {
    "nothing": (Program("cpu", (), (), (), ()), "at least one instruction"),
    "too many bytes together": (
        program("add", PAIR, ROW, makes=(PAIR,), sizes=(LARGEST // 2, LARGEST // 2 - 24)), "the buffers have more than"),
    "no elements, outside": (program("neg", empty(7), makes=(empty(0),)), "does not fit in the 24 bytes"),
    "a layout that the kernel does not read": (program("erf", TURNED, makes=(PAIR,)), "operand 0 must be contiguous"),
    "a write to rows that are one": (program("add_", REPEATED, PAIR, writes=(0,)), "it cannot write to float32[2, 3] strides"),
    "a write of more than there is": (program("add_", COLUMN, PAIR, writes=(0,)), "it cannot write to float32[2, 1]"),
    "an operand too many": (program("neg", PAIR, PAIR, makes=(PAIR,)), "2 operands in groups of (1, 1) do not match"),
    "an operand of no group": (program("neg", PAIR, PAIR, makes=(PAIR,), counts=(1,)), "2 operands in groups of (1,) do not"),
    "a group of two for one": (program("add", PAIR, PAIR, PAIR, makes=(PAIR,), counts=(1, 2)), "in groups of (1, 2) do not"),
    "a bias shorter than the rows": (
        program("layer_norm_apply", PAIR, ROW, TensorSpec.of((2,), "float32"), COLUMN, COLUMN, makes=(PAIR,),
                attrs=(("dims", 1),)), "bias to be of same shape as normalized_shape"),
    "a mean for each element": (
        program("layer_norm_apply", PAIR, ROW, ROW, PAIR, COLUMN, makes=(PAIR,), attrs=(("dims", 1),)), "expected mean to be"),
    "a number more than there are": (
        program("sgd_", PAIR, PAIR, Number(1, 0), Number(1, 1), counts=(1, 1, 0, 1, 1), writes=(0,)), "has 0 numbers"),
}


def check(given: Program) -> None:
    checked_calls(given, [(0.1,), ()], {x.buffer for x in given.outputs}, gradcore.device("cpu"))


@pytest.mark.parametrize("case", SOUND)
def test_a_sound_program_is_taken(case: str) -> None:
    check(SOUND[case])


@pytest.mark.parametrize("case", UNSOUND)
def test_an_unsound_program_is_refused(case: str) -> None:
    given, text = UNSOUND[case]
    with raises(ProgramError, text):
        check(given)


#: Sample calls of ops that read what another op made.
READERS = [row for row in ROWS if row.op.endswith("_grad") or row.op == "max_pool2d_take"]


def program_of(row: Row, *changed: tuple[int, TensorSpec]) -> Program:
    """The program of one sample call, with some operands of other specs."""
    specs = [x.spec if isinstance(x, gradcore.Tensor) else x for x in row.arguments(tensors_of(row, "meta"))]
    specs = [TensorSpec.of(x.shape, x.dtype) if isinstance(x, TensorSpec) else x for x in specs]
    specs += [None] * (len(row.declared.inputs) - len(specs))
    call = infer(row.declared, tuple(x if isinstance(x, TensorSpec) else type(x) for x in specs), None, dict(row.attrs),
                 gradcore.device("cpu"))
    for k, spec in changed:
        specs[k] = spec
    made = (*call.specs, *(spec for _, spec in call.aux))
    sizes = tuple(x.nbytes for x in specs if isinstance(x, TensorSpec))
    workspace = None if call.workspace is None else Operand(len(sizes) + len(made), call.workspace)
    found = program(row.op, *specs, makes=made, sizes=sizes, attrs=tuple(row.attrs.items()), workspace=workspace)
    if workspace is None:
        return found
    scratch = Buffer(workspace.buffer, "made", call.workspace.nbytes, TAG)
    return with_lifetimes(replace(found, buffers=(*found.buffers, scratch)), {x.buffer for x in found.outputs})


@pytest.mark.parametrize("row", READERS, ids=str)
def test_a_gradient_takes_the_cotangent_that_forward_says(row: Row) -> None:
    check(program_of(row))


@pytest.mark.parametrize("row", {r.op: r for r in READERS if all(0 not in x.shape for x in r.operands())}.values(), ids=str)
def test_a_gradient_of_another_shape_than_forwards_result_is_refused(row: Row) -> None:
    for name in ("dy", "dlast", "mean", "rstd", "lse", "out", "gates", "cells", "index", "state"):
        k = row.declared.inputs.index(name) if name in row.declared.inputs else None
        if k is None or k >= len(row.args) or row.args[k] is None or (name, row.op) in EITHER:
            continue
        spec = row.arguments(tensors_of(row, "meta"))[k].spec
        # A row more, or an element for a number.
        other = TensorSpec.of((spec.shape[0] + 1, *spec.shape[1:]) if spec.ndim else (1,), spec.dtype)
        narrow = TensorSpec.of(spec.shape, "float16" if spec.dtype.kind == "f" else "int16")
        for changed in (other, narrow) if name not in ("dy", "dlast") else (other,):
            with pytest.raises(ProgramError, match="it cannot run on these operands"):
                check(program_of(row, (k, changed)))


#: Operands whose shape says the result's.
EITHER = {("index", "embedding_grad"), ("index", "take_grad"), ("index", "take_along_grad")}


def test_an_update_of_one_parameter_is_taken(tmp_path: Path) -> None:
    w = gradcore.tensor([1.0, -2.0], requires_grad=True)
    optimizer = optim.SGD([w], lr=0.25)

    def step() -> Any:
        optimizer.zero_grad()
        loss = w.square().sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = gradcore.compile(step)
    for _ in range(2):
        compiled()
    compiled.save(tmp_path / "step")
    loaded = gradcore.load_program(tmp_path / "step")
    (kept,) = loaded.state.values()
    # Each step halves w.
    assert loaded().item() == (1 / 4) ** 2 + (2 / 4) ** 2 and kept.tolist() == [1 / 8, -2 / 8]
