"""``inplace=True``: what else holds the input sees the result in it, as in PyTorch, and memory is taken as without."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.utils.checkpoint import checkpoint

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda n: n.ReLU(True), "leaky_relu": lambda n: n.LeakyReLU(0.2, True), "elu": lambda n: n.ELU(1.3, True),
    "celu": lambda n: n.CELU(1.2, True), "selu": lambda n: n.SELU(True), "silu": lambda n: n.SiLU(True),
    "mish": lambda n: n.Mish(True), "hardtanh": lambda n: n.Hardtanh(-0.5, 0.5, True), "relu6": lambda n: n.ReLU6(True),
    "hardsigmoid": lambda n: n.Hardsigmoid(True), "hardswish": lambda n: n.Hardswish(True),
    "threshold": lambda n: n.Threshold(0.1, 0.7, True), "rrelu": lambda n: n.RReLU(0.1, 0.3, True).eval(),
    "dropout": lambda n: n.Dropout(1.0, True), "dropout1d": lambda n: n.Dropout1d(1.0, True),
    "alpha_dropout": lambda n: n.AlphaDropout(1.0, True), "evaluated": lambda n: n.Dropout(0.5, True).eval()}


def held_elsewhere(t: Any, x: Any) -> Any:
    return x


def seen_through_a_view(t: Any, x: Any) -> Any:
    return x[:, 1:]


def seen_through_detached(t: Any, x: Any) -> Any:
    return x.detach()


def a_view_itself(t: Any, x: Any) -> Any:
    return x, x[0]


def seen_as_an_array(t: Any, x: Any) -> Any:
    return t.from_numpy(x.detach().numpy())


HOLDERS = [held_elsewhere, seen_through_a_view, seen_through_detached, a_view_itself, seen_as_an_array]


@pytest.mark.oracle
@pytest.mark.parametrize("holder", HOLDERS, ids=lambda h: h.__name__)
@pytest.mark.parametrize("graph", ["graph", "no graph", "leaf"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_gradients_are_torchs(name: str, graph: str, holder: Callable[[Any, Any], Any], torch: Any) -> None:
    outcomes = []
    for t in (gradcore, torch):
        values = np.linspace(-2, 2, 12, dtype=np.float32).reshape(1, 3, 4)
        # Also a leaf may be what an op has made.
        leaf, act = t.tensor(values).mul(1).requires_grad_(graph != "no graph"), ACTIVATIONS[name](t.nn)
        x = leaf if graph == "leaf" else leaf * 1.5
        other = holder(t, x)
        if isinstance(other, tuple):
            other, x = other
        version, outcome = x._version, []
        try:
            y = act(x)
            outcome += [y is x, y.tolist(), x.tolist(), other.tolist()]
            total = (y * y).sum() + (other * 2).sum()
            if total.requires_grad:
                total.backward()
                outcome.append(leaf.grad.tolist())
        except RuntimeError as error:
            outcome.append(str(error))
            assert x._version == version and leaf.tolist() == values.tolist()
        outcomes.append(outcome)
    ours, theirs = outcomes
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, list):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert a == b


@pytest.mark.oracle
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_result_overwritten_in_no_grad_mode_keeps_its_history(name: str, torch: Any) -> None:
    found = []
    for t in (gradcore, torch):
        x = t.tensor([[1.0, -2.0, 3.0]], requires_grad=True)
        y = x * 2
        y.retain_grad()
        with t.no_grad():
            ACTIVATIONS[name](t.nn)(y)
        (y * y).sum().backward()
        found.append([y.tolist(), y.grad.tolist(), x.grad.tolist()])
    np.testing.assert_allclose(*map(np.array, found), rtol=1e-5)


def test_bytes_that_an_array_had_before_are_written_to() -> None:
    array = np.array([-1.0, 2.0], np.float32)
    nn.functional.relu_(gradcore.from_numpy(array))
    assert array.tolist() == [0, 2]


class Residual(nn.Module):
    """As in a well-known VQ-VAE: the skip connection carries the activated input."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.ReLU(inplace), nn.Linear(4, 4), nn.ReLU(inplace), nn.Linear(4, 4))

    def forward(self, x: Any) -> Any:
        return x + self.block(x)


def network(inplace: bool) -> nn.Module:
    gradcore.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace), nn.MaxPool2d(2),
                         nn.Conv2d(4, 4, 3, padding=1), nn.SiLU(inplace), nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8),
                         nn.ReLU(inplace), nn.Dropout(0.5, inplace), nn.Linear(8, 3))


def steps(net: nn.Module, shape: tuple[int, ...], wrap: Callable[[Any], Any] = lambda f: f) -> list[Any]:
    """Losses and parameters after five steps, the peak of the last one, and the ops of its program."""
    optimizer = gradcore.optim.SGD(net.parameters(), lr=0.1)
    gradcore.manual_seed(1)
    x = gradcore.randn(*shape)

    @wrap
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step(x).item() for _ in range(4)]
    with gradcore.step() as recorded:
        losses.append(step(x).item())
    peak = recorded.report.peak
    ops = [i.op for program in getattr(step, "programs", ()) for i in program.instructions]
    return [losses, [p.tolist() for p in net.parameters()], (peak.requested, peak.allocated, peak.op), ops]


def test_as_much_is_allocated_kept_and_computed_as_without() -> None:
    for wrap in (lambda f: f, gradcore.compile):
        found = []
        for inplace in (False, True):
            # What the run before it has left would count at the peak.
            gc.collect()
            found.append(steps(network(inplace), (2, 3, 8, 8), wrap))
        assert found[0] == found[1]


def test_in_checkpoints_and_with_hooks_on_what_is_kept() -> None:
    def layers(inplace: bool) -> nn.Module:
        return seeded(nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace), nn.LayerNorm(8), nn.SiLU(inplace),
                                    nn.Dropout(0.5, inplace), nn.Linear(8, 8), nn.Tanh(), nn.LeakyReLU(inplace=inplace)))

    def packed(net: nn.Module, x: Any) -> Any:
        with gradcore.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), gradcore.tensor):
            return net(x)

    def recomputed(net: nn.Module, x: Any) -> Any:
        return checkpoint(net, x, use_reentrant=False)

    def reentrant(net: nn.Module, x: Any) -> Any:
        return checkpoint(net, x, use_reentrant=True)

    found = []
    for inplace in (False, True):
        for call in (lambda net, x: net(x), packed, recomputed, reentrant):
            net, x = layers(inplace), gradcore.tensor(np.eye(4, dtype=np.float32), requires_grad=True)
            gradcore.manual_seed(2)
            call(net, x).square().sum().backward()
            found.append([t.grad.tolist() for t in (x, *net.parameters())])
    assert all(gradients == found[0] for gradients in found)


def test_a_skip_connection_around_an_activation() -> None:
    found = [steps(seeded(nn.Sequential(nn.Linear(4, 4), Residual(inplace))), (3, 4), wrap)[:2]
             for inplace, wrap in ((True, lambda f: f), (True, gradcore.compile), (False, lambda f: f))]
    assert found[0] == found[1] != found[2]


def seeded(module: nn.Module) -> nn.Module:
    for k, p in enumerate(module.parameters()):
        p.data = gradcore.tensor(np.random.default_rng(k).normal(size=tuple(p.shape)).astype(np.float32))
    return module


@pytest.mark.parametrize("graph", [False, True])
def test_a_replay_writes_to_what_its_caller_holds(graph: bool) -> None:
    """The bytes of before the call cannot be exchanged for others: the caller's views would not see it."""
    f = gradcore.compile(lambda x: nn.functional.relu_(x) * 2)
    for k in range(5):
        x = gradcore.tensor([-1.0, 2.0 + k]).requires_grad_(graph) * 1
        y = f(x)
        assert (x.tolist(), y.tolist()) == ([0.0, 2.0 + k], [0.0, 4.0 + 2 * k])


def test_an_op_that_keeps_its_result_may_come_before() -> None:
    x = gradcore.tensor([-1.0, 2.0], requires_grad=True)
    y = x.tanh()
    nn.functional.relu_(y).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.0, 1 - np.tanh(2.0) ** 2], rtol=1e-5)
