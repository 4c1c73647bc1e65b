"""Operands of cat that are made in its result in a captured graph, without a GPU; and kernels that write any strides."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import nn
from gradcore.ops import all_ops
from tests.host.cuda.captured_steps import Stepping, program_of, same_steps
from tests.host.cuda.graph_bed import Bed, emulator_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

F = nn.functional


class Attention(nn.Module):
    """Queries, keys and values by one layer."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        n, t, width = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, width).mean(1))


def network(width: int = 32) -> Any:
    gradcore.manual_seed(3)
    return Attention(width).to("cuda")


def data(seed: int, width: int = 32) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    return (gradcore.tensor(generator.standard_normal((4, 20, width)).astype(np.float32), device="cuda"),
            gradcore.tensor(generator.integers(0, 3, 4), device="cuda"))


def scenario(bed: Bed) -> None:
    for wrap in (lambda f: f, gradcore.compile):
        for width in (32, 128):
            training = Stepping(network(width), wrap)
            for k in range(3):
                training.run(*data(k, width))


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: Any) -> Any:
    return emulator_of(tmp_path_factory.mktemp("lanes"), scenario)


def test_gradients_of_queries_keys_and_values_are_made_side_by_side(emulator: Any) -> None:
    with Bed(emulator).in_place() as bed:
        eager, captured = Stepping(network()), Stepping(network(), gradcore.compile)
        same_steps(eager, captured, data)
        (plan,) = captured.run.plans
        ops = [i.op for i in program_of(captured.run).instructions]
        assert len(plan.lanes) == 3 and {ops[k] for k in range(len(ops)) if ops[k + 1:k + 2] == ["cat"]} == {"attention_grad"}
        bed.take()
        captured.run(*data(9))
        nodes = list(bed.card.nodes.values())[-1]
        assert "attention_grads" in nodes and "cat" not in nodes


def test_lanes_at_the_alignment_of_the_buffers_of_eager_calls(emulator: Any) -> None:
    """The eager calls' launches have been written out by then, with the strides of buffers on their own."""
    with Bed(emulator).in_place():
        eager, captured = Stepping(network(128)), Stepping(network(128), gradcore.compile)
        same_steps(eager, captured, lambda seed: data(seed, 128))
        assert len(captured.run.plans[0].lanes) == 3


def test_what_declares_any_strides() -> None:
    """The test above runs it on the simulated GPU, tests/host/graph_mode/test_lanes.py on the CPU."""
    assert [name for name, op in all_ops().items() if op.any_strides] == ["attention_grad"]
