"""einops on tensors: its functions and layers, their values and gradients beside PyTorch's, the account, and replays."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn

einops = pytest.importorskip("einops", reason="einops is not installed: pip install -e '.[oracle]'")
# It must not be skipped if einops is there, but not what gradcore needs of it.
importlib.import_module("gradcore.utils.einops")

#: Calls of einops with a tensor x [2, 3, 4, 6].
CALLS: dict[str, Callable[[Any], Any]] = {
    "rearrange": lambda x: einops.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=3),
    "rearrange_list": lambda x: einops.rearrange([x, 2 * x], "n b c h w -> (b n) c h w"),
    "repeat": lambda x: einops.repeat(x, "b c h w -> b (c k) h w n", k=2, n=3),
    "pack": lambda x: einops.unpack(*einops.pack([x, x[0]], "* c h w"), "* c h w")[1],
    "einsum": lambda x: einops.einsum(x, x[0], "b c h w, c h v -> b w v"),
    **{name: lambda x, name=name: einops.reduce(x, "b c (h p) w -> b h w", name, p=2) for name in ("min", "max", "sum", "mean",
                                                                                                  "prod")}}


def layers(module: Any) -> list[Any]:
    return [module.Rearrange("b c (h p) w -> b h (w p c)", p=2), module.Reduce("b c h w -> b c", "mean"),
            module.EinMix("b c h w -> b h w o", weight_shape="c o", bias_shape="o", c=3, o=5),
            module.EinMix("b (g c) h w -> b (g o) h w", weight_shape="g c o", g=3, c=1, o=2)]


@pytest.mark.oracle
@pytest.mark.parametrize("name", CALLS)
def test_functions(name: str, torch: Any) -> None:
    data = np.random.default_rng(0).normal(size=(2, 3, 4, 6))
    results = []
    for t in (gradcore, torch):
        x = t.tensor(data, requires_grad=True)
        y = CALLS[name](x)
        (y ** 2).sum().backward()
        results.append((y.detach().numpy(), x.grad.numpy()))
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.oracle
def test_layers(torch: Any) -> None:
    import einops.layers.torch as of_torch

    from gradcore.utils import einops as of_gradcore

    data = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype(np.float32)
    for ours, theirs in zip(layers(of_gradcore), layers(of_torch), strict=True):
        assert repr(ours) == repr(theirs)
        ours.load_state_dict({name: gradcore.tensor(p.numpy()) for name, p in theirs.state_dict().items()})
        for layer in (ours, copy.deepcopy(ours)):
            np.testing.assert_allclose(layer(gradcore.tensor(data)).detach().numpy(),
                                       theirs(torch.tensor(data)).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_layer_begins_within_einops_bounds() -> None:
    from gradcore.utils.einops import EinMix

    mixed = EinMix("b c -> b o", weight_shape="c o", bias_shape="o", c=100, o=50)
    for x, bound in ((mixed.weight, 0.03 ** 0.5), (mixed.bias, 0.1)):
        assert -bound <= x.min() < -0.8 * bound and 0.8 * bound < x.max() <= bound


def test_bools_parse_shape_and_errors() -> None:
    x = gradcore.tensor([[True, False], [True, True]])
    assert einops.reduce(x, "a b -> a", "all").tolist() == [False, True]
    assert einops.reduce(x, "a b -> b", "any").tolist() == [True, True]
    assert einops.parse_shape(x, "a _") == {"a": 2} and einops.asnumpy(x).tolist() == x.tolist()
    with pytest.raises(NotImplementedError, match="reduce_mean is not available for non-floating tensors"):
        einops.reduce(x, "a b -> a", "mean")
    with pytest.raises(einops.EinopsError, match="Shape mismatch"):
        einops.rearrange(x, "(a b) c -> a b c", b=3)


def test_a_step_with_its_layers_is_accounted_and_replays() -> None:
    from gradcore.utils.einops import EinMix, Rearrange

    mixed = EinMix("b p c -> b p o", weight_shape="c o", bias_shape="o", c=8, o=8)
    model = nn.Sequential(Rearrange("b (c p) -> b p c", p=4), mixed, nn.ReLU(), Rearrange("b p o -> b (p o)"))
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)
    x = gradcore.tensor(np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32))

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (einops.reduce(model(x), "b o -> b", "sum") ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    state = copy.deepcopy(model.state_dict())
    with gradcore.step() as s:
        eager = [step(x).item() for _ in range(3)]
    assert s.report.by_layer["1"] >= 2048
    model.load_state_dict(state)
    replay = gradcore.compile(step)
    assert [replay(x).item() for _ in range(3)] == eager
    assert "eager" not in replay.explain()
