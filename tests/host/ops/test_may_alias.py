"""A CPU kernel's result that overwrites a declared input has the same bits, and is computed without a copy."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradcore.devices.host.device import HostDevice, make_host
from gradcore.devices.host.tape import written_out
from gradcore.dtypes import bfloat16
from gradcore.engine.plans import Call
from gradcore.ops import all_ops
from gradcore.ops.op import op
from tests.conftest import raises
from tests.host.ops.test_temporaries import SLACK
from tests.rows import ROWS, Row, tensors_of
from tests.rows_big import BIG

pytestmark = pytest.mark.usefixtures("tracing")

DECLARED = sorted(name for name, op in all_ops().items() if op.may_alias)
#: Kernels that read an operand again after they have written a part of the result.
PLANTED = [("relu_grad", "dy"), ("tanh_grad", "dy"), ("sigmoid_grad", "x"), ("where", "x"), ("clamp", "high"),
           ("bce_logits", "x"), ("tril", "x"), ("roll", "x"), ("log_softmax_grad", "dy"), ("softmax_grad", "x"),
           ("recurrence", "b")]


def copies(args: tuple[Any, ...]) -> list[Any]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in args]


class Over:
    """A device that compares each launch with one whose result overwrites an input: ``seen`` has their names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.device: HostDevice = make_host()
        self.device.bind = self.bind  # type: ignore[method-assign]
        self.seen: set[str] = set()
        self.wrong: set[str] = set()
        self.worst = 0

    def bind(self, kernel: Callable[..., Any], name: str = "", any_strides: bool = False) -> Callable[..., Any]:
        inputs = all_ops()[name].inputs
        at = len(inputs)

        def launched(*args: Any) -> None:
            out = args[at]
            alike = [k for k, a in enumerate(args[:at])
                     if inputs[k] in self.names and isinstance(a, np.ndarray) and out.size > 1
                     and (a.shape, a.dtype, a.strides) == (out.shape, out.dtype, out.strides)]
            # Each separately, and all of them as one operand.
            for places in [[k] for k in alike] + [alike] * (len(alike) > 1):
                same = copies(args)
                for k in places:
                    same[k] = args[places[0]]
                expected, over, tape = copies(tuple(same)), copies(tuple(same)), copies(tuple(same))
                kernel(*expected)
                for given in (over, tape):
                    for k in (*places, at):
                        given[k] = given[places[0]]
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                kernel(*over)
                self.worst = max(self.worst, tracemalloc.get_traced_memory()[1] - before)
                for function, operands in written_out(name, kernel, tape) or [(kernel, tape)]:
                    function(*operands)
                self.seen |= {inputs[k] for k in places}
                if not over[at].tobytes() == tape[at].tobytes() == expected[at].tobytes():
                    self.wrong |= {inputs[k] for k in places}
            kernel(*args)

        return launched

    def run(self, row: Row, dtype: Any = np.float32) -> None:
        try:
            # Sample values may be out of range for half precision.
            with np.errstate(over="ignore"):
                row.declared(*row.arguments(tensors_of(row, self.device, dtype)), **row.attrs)
        except NotImplementedError:
            assert dtype != np.float32

    def library(self) -> int:
        return max(call.library for call in self.device.calls.values() if isinstance(call, Call))


@pytest.mark.parametrize("name", DECLARED)
def test_a_result_over_a_declared_input_has_the_same_bits(name: str) -> None:
    declared = all_ops()[name].may_alias
    over = Over(declared)
    for row in (r for r in ROWS if r.op == name):
        over.names = row.declared.over(row.attrs)
        for dtype in (np.float32, np.float64, np.float16, bfloat16()):
            over.run(row, dtype)
    assert (over.seen, over.wrong) == (set(declared), set()), "every declared input is tried, and right"


@pytest.mark.parametrize("row", [r for r in BIG if r.op in DECLARED], ids=str)
def test_large_ones_too_and_without_a_copy(row: Row) -> None:
    over = Over(row.declared.over(row.attrs))
    over.run(row)
    assert not over.wrong
    assert over.worst <= SLACK + over.library(), f"{row.op} made {over.worst:,} bytes that it had not declared"


@pytest.mark.parametrize("name, place", PLANTED)
def test_a_wrong_declaration_is_seen(name: str, place: str) -> None:
    assert place not in all_ops()[name].may_alias
    over = Over((place,))
    for row in (r for r in ROWS if r.op == name):
        over.run(row)
    assert over.wrong == {place}


def test_what_cannot_be_declared() -> None:
    for k, (settings, name) in enumerate([
            ({"may_alias": ("z",)}, "z"), ({"may_alias": ("x",), "outputs": ("a", "b")}, "x"),
            ({"may_alias": ("x",), "view": True}, "x"), ({"may_alias": ("x",), "writes": ("x",)}, "x"),
            ({"may_alias": ("x",), "aux": ("mean",)}, "x")]):
        with raises(TypeError, f"may_alias names '{name}'; a functional op of one output"):
            op(f"planted {k}", lambda x: x, **settings)
        assert f"planted {k}" not in all_ops()
