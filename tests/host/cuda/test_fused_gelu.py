"""gelu recomputed with its gradient, in one launch of a replay between the products that read them, without a GPU."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import nn
from gradcore.devices.gpu import fused as gpu_fused
from tests.host.cuda.captured_steps import Stepping, data, same_steps
from tests.host.cuda.emulator import Copy
from tests.host.cuda.graph_bed import Bed, emulator_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

F = nn.functional


class Training(Stepping):
    """A step of a network with a gelu of either kind: with or without a bias after the first, an odd width after the second.

    The gradients of the first layers are large enough that those of gelu's results would have room for places of their own.
    """

    def __init__(self, approximate: str, wrap: Any = lambda f: f) -> None:
        gradcore.manual_seed(3)
        super().__init__(nn.Sequential(nn.Linear(6, 99), nn.Linear(99, 12), nn.GELU(approximate), nn.Linear(12, 7, bias=False),
                                       nn.GELU(approximate), nn.Linear(7, 3)).to("cuda"), wrap)


def launched(bed: Bed) -> None:
    """All kernels that the tests launch."""
    for approximate in ("none", "tanh"):
        for wrap in (lambda f: f, gradcore.compile):
            training = Training(approximate, wrap)
            for k in range(3):
                training.run(*data(k))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return emulator_of(tmp_path_factory.mktemp("gelu"), launched)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_training_step_has_the_bits_of_the_eager_one(kernels: Any, approximate: str) -> None:
    with Bed(kernels).in_place() as bed:
        eager, captured = Training(approximate), Training(approximate, gradcore.compile)
        same_steps(eager, captured, data)
        nodes = list(bed.card.nodes.values())[-1]
    assert nodes.count("with_slopes") == 2 and "are captured in one graph" in captured.run.explain()
    program, plan = captured.run.programs[0], captured.run.plans[0]
    made = {i.outputs[0].buffer: i.op for i in program.instructions if i.outputs}
    read = [(i.outputs[0].buffer, i.operands[1].buffer) for i in program.instructions if i.op == "linear_grad"]
    # No gelu needs room beside its cotangent.
    assert [plan.shared.get(dx) for dx, x in read if made.get(x) == "gelu"] == [x for _, x in read if made.get(x) == "gelu"]
    # Those of forward: the gradients of gelu have no launch of their own.
    assert nodes.count("map") == 2


def test_a_gradient_that_lies_elsewhere_is_made_by_a_launch_of_its_own() -> None:
    room = Copy(np.zeros(256, np.float32)).cupy()
    x, out, dy, dx, elsewhere = (room[k:k + 8].reshape(2, 4) for k in (0, 8, 16, 24, 32))
    weight, dweight, dbias = room[40:56].reshape(4, 4), room[56:72].reshape(4, 4), room[72:76]

    def steps(x: Any, out: Any, dy: Any, result: Any, weight: Any = weight) -> list[Any]:
        return [[(None, [x, out, None])], [(None, [dy, out, weight, dx, dweight, dbias])], [(None, [dx, x, result, None])]]

    def bind(kernel: Any, op: str) -> tuple[Any, str]:
        return kernel, op

    for given in ((x, out, dy, elsewhere), (None, out, dy, dx), (x, out, None, dx), (x, dx, dy, dx), (x[:, ::2], out, dy, dx),
                  (x, out, dy, dx, None)):
        assert gpu_fused.fused("gelu with slopes", steps(*given), bind) is None
    nothing, calls, rest = gpu_fused.fused("gelu with slopes", steps(x, out, dy, dx), bind)
    assert nothing == rest == [] and [op for (_, op), _ in calls] == ["linear_grad", "gelu", "linear_grad"]
    assert [kernel.keywords.get("needs") for (kernel, _), _ in calls] == [(True, False, False), None, (False, True, True)]
    assert [len(args) for _, args in calls] == [4, 3, 5]


def test_gelu_is_written_over_its_input_if_nothing_reads_that_later() -> None:
    room = Copy(np.zeros(1024, np.float32)).cupy()
    x, out, dy, dx = (room[k:k + 8].reshape(2, 4) for k in (0, 128, 256, 384))
    weight, dweight, dbias = room[512:528].reshape(4, 4), room[640:656].reshape(4, 4), room[768:772]

    def fused(x: Any, out: Any, dx: Any, over: bool = True) -> Any:
        steps = [[(None, [x, out, None])], [(None, [dy, out, weight, dx, dweight, dbias])], [(None, [dx, x, dx, None])]]
        found = gpu_fused.fused("gelu over its input with slopes" if over else "gelu with slopes", steps, lambda k, op: (k, op))
        return found and [[a.data.ptr for a in args if a is not None] for _, args in found[1]]

    def at(*arrays: Any) -> list[int]:
        return [a.data.ptr for a in arrays]

    # Its own place may be where the cotangent is made, or any other.
    for own, made in ((out, dx), (dx, dx)):
        assert fused(x, own, made) == [at(dy, weight, made), at(x, x, made), at(dy, x, dweight, dbias)]
    assert fused(x, dx, dx, False) is None
    # An odd place could be multiplied by another algorithm.
    odd = room[1:9].reshape(2, 4)
    assert fused(odd, out, dx) == [at(dy, weight, dx), at(odd, out, dx), at(dy, out, dweight, dbias)]
    assert fused(odd, dx, dx) is None
