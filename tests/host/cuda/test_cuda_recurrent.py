"""Recurrent layers on the CUDA device, without a GPU: the launches of a step, the CPU's values, and one captured graph."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import nn
from gradcore.ops import all_ops
from tests.host.cuda.graph_bed import Bed, bits, emulator_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

LAYERS = {"rnn": lambda size, **how: nn.RNN(4, size, **how), "lstm": lambda size, **how: nn.LSTM(4, size, **how),
          "gru": lambda size, **how: nn.GRU(4, size, **how),
          "relu": lambda size, **how: nn.RNN(4, size, nonlinearity="relu", **how)}


def trained(kind: str, device: str, size: int, length: int = 5, **how: Any) -> list[Any]:
    """The outputs of a layer, and the gradients of its input and parameters."""
    gradcore.manual_seed(3)
    layer = LAYERS[kind](size, **how).to(device)
    x = gradcore.tensor(np.random.default_rng(0).normal(size=(length, 3, 4)).astype(np.float32), device=device,
                        requires_grad=True)
    out, _ = layer(x)
    (out * out).sum().backward()
    return [out, x.grad, *[p.grad for p in layer.parameters()]]


def compiled(kind: str) -> tuple[Any, list[bytes], list[bytes]]:
    """A layer as a compiled function, the results of three runs, and the results of the plain layer."""
    gradcore.manual_seed(3)
    layer = LAYERS[kind](8).to("cuda")
    inputs = [gradcore.tensor(np.random.default_rng(k).normal(size=(5, 3, 4)).astype(np.float32), device="cuda")
              for k in range(3)]
    step = gradcore.compile(lambda x: layer(x)[0])
    with gradcore.no_grad():
        return step, [bits(step(x)) for x in inputs], [bits(layer(x)[0]) for x in inputs]


def launched(bed: Bed) -> None:
    """All kernels that the tests launch."""
    for kind in LAYERS:
        for size in (5, 8, 40):
            trained(kind, "cuda", size, num_layers=2, bidirectional=True)
        compiled(kind)
    for size in (8, 40):
        stepped(size)


def stepped(size: int) -> list[np.ndarray]:
    """Operands and results of three steps in bfloat16: the input's part, the weight, the first state, all states."""
    rng = np.random.default_rng(4)
    given = [gradcore.tensor(rng.normal(size=shape).astype(np.float32)).to(gradcore.bfloat16)
             for shape in ((3, 6, size), (size, size), (6, size))]
    out = all_ops()["rnn"](*[x.to("cuda") for x in given], relu=False, backwards=False)
    return [x.cpu().float().numpy().astype(np.float64) for x in (*given, out)]


@pytest.fixture(scope="module")
def captured_kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return emulator_of(tmp_path_factory.mktemp("recurrent"), launched)


@pytest.mark.parametrize("size, products, ending", [(8, 1, "_small"), (40, 2, "")])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_step_is_a_product_and_one_launch_each_way(bed: Bed, kind: str, size: int, products: int, ending: str) -> None:
    """The product of a small state is in the launch of the step."""
    given = []
    for length in (3, 7):
        bed.take()
        trained(kind, "cuda", size, length)
        given.append(Counter(bed.take()))
    name = "rnn" if kind == "relu" else kind
    assert given[1] - given[0] == {"product": products * 4, name + ending: 4, f"{name}_grad": 4}
    assert given[0][name + ending] == given[0][f"{name}_grad"] == 3


@pytest.mark.parametrize("size", [5, 8, 40])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_train_as_on_the_cpu(bed: Bed, kind: str, size: int) -> None:
    ours, theirs = (trained(kind, device, size, num_layers=2, bidirectional=True) for device in ("cuda", "cpu"))
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found.detach().cpu().numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size, rounded", [(8, False), (40, True)])
def test_a_step_in_bfloat16_rounds_its_product_if_it_is_stored_and_its_result(bed: Bed, size: int, rounded: bool) -> None:
    given, weight, h0, out = stepped(size)
    for x, h, found in zip(given, [h0, *out[:-1]], out, strict=True):
        product = h @ weight.T
        off = abs(found - np.tanh(x + product))
        assert (off <= 2**-8 * (rounded * abs(product) + abs(found)) + 1e-6).all()
        assert (off > 2**-8 * abs(found) + 1e-6).any() == rounded


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_is_captured(bed: Bed, kind: str) -> None:
    step, found, expected = compiled(kind)
    assert found == expected
    assert "one graph" in step.explain()
