"""Activation checkpointing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn import functional as F
from gradcore.utils.checkpoint import checkpoint, checkpoint_sequential
from tests.conftest import raises


def blocks() -> Any:
    gradcore.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.5))
                           for _ in range(6)])


RUNS: dict[str, Any] = {
    "plain": lambda m, x: m(x),
    "each": lambda m, x: [x := checkpoint(layer, x) for layer in m][-1],
    "nested": lambda m, x: checkpoint(lambda x: checkpoint(m, x), x),
    "reentrant": lambda m, x: [x := checkpoint(layer, x, use_reentrant=True) for layer in m][-1],
    "sequential": lambda m, x: checkpoint_sequential(m, 3, x)}


def train(device: str, name: str) -> tuple[list[Any], Any]:
    model = blocks().to(device)
    gradcore.empty_cache(device)
    gradcore.manual_seed(1)
    x = gradcore.ones(256, 32, device=device, requires_grad=True)
    with gradcore.step(device=device) as s:
        loss = (RUNS[name](model, x) ** 2).mean()
        loss.backward()
    gradients = [] if device == "meta" else [p.grad.numpy().copy() for p in model.parameters()]
    return gradients, s.report


@pytest.mark.parametrize("name", [n for n in RUNS if n != "plain"])
def test_a_checkpoint_saves_bytes_and_changes_no_bit(name: str) -> None:
    """Dropout draws the same numbers again, and meta predicts its memory."""
    (expected, plain), (found, report) = train("cpu", "plain"), train("cpu", name)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert report.residual_bytes < plain.residual_bytes * 0.75
    predicted = train("meta", name)[1]
    assert (predicted.peak.requested, predicted.peak.allocated, predicted.residual_bytes) == (
        report.peak.requested, report.peak.allocated, report.residual_bytes)


@pytest.mark.parametrize("preserve", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_the_second_run_shuffles_as_the_first(reentrant: bool, preserve: bool) -> None:
    orders = []

    def part(x: Any) -> Any:
        orders.append(gradcore.randperm(20).tolist())
        return (x * x)[orders[-1]] * gradcore.arange(20)

    x = gradcore.ones(20, requires_grad=True)
    y = checkpoint(part, x, use_reentrant=reentrant, preserve_rng_state=preserve).sum()
    following = gradcore.randperm(20).tolist()
    state = gradcore.get_rng_state().tolist()
    y.backward()
    assert (orders[0] == orders[1]) is preserve and orders[0] != following
    assert (gradcore.get_rng_state().tolist() == state) is preserve


@pytest.mark.parametrize("call", [lambda f, x: checkpoint(lambda xs: f(xs[0]), [x]), lambda f, x: checkpoint(lambda: f(x)),
                                  lambda f, x: checkpoint(lambda d: f(*d["x"]), d={"x": (x,)})], ids=["list", "none", "dict"])
def test_the_second_run_draws_as_the_first_wherever_its_tensors_are(call: Any) -> None:
    gradcore.manual_seed(0)
    w = gradcore.ones(100, requires_grad=True)
    drawn = []

    def part(x: Any) -> Any:
        y = F.dropout(x * x)
        drawn.append(y.tolist())
        return y * y

    y = call(part, w).sum()
    gradcore.rand(3)
    y.backward()
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("stem", [nn.GELU, nn.SiLU, lambda: nn.Sequential(nn.BatchNorm1d(32), nn.ReLU()),
                                  lambda: nn.LayerNorm(32)], ids=["gelu", "silu", "batch norm, relu", "layer norm"])
@pytest.mark.parametrize("rows", [32, 7])
def test_what_a_checkpoint_reads_may_be_recomputed_itself(stem: Any, rows: int) -> None:
    gradcore.manual_seed(0)
    first, middle = nn.Sequential(nn.Linear(32, 32), stem()), nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
    x = gradcore.randn(rows, 32)
    found = []
    for run in (middle, lambda x: checkpoint(middle, x)):
        first.zero_grad(), middle.zero_grad()
        (run(first(x)) ** 2).mean().backward()
        found.append([p.grad.numpy().copy() for p in (*first.parameters(), *middle.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_hooks_around_a_checkpoint_may_return_its_argument_with_other_strides(device: str) -> None:
    x = gradcore.ones(3, 4, device=device, requires_grad=True)
    with gradcore.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        y = checkpoint(lambda a: a * a, x.t())
    y.sum().backward()
    assert x.grad.shape == (3, 4) and (device == "meta" or x.grad.tolist() == [[2.0] * 4] * 3)


def test_a_checkpoint_must_do_the_same_again() -> None:
    widths = iter((3, 4))
    x = gradcore.ones(2, 5, requires_grad=True)
    y = checkpoint(lambda x: (x @ gradcore.ones(5, next(widths))).exp(), x)
    with raises(RuntimeError, "Recomputed values for the following tensors have different metadata"):
        y.sum().backward()
    for counts, text in (((1, 2), "tensor 2 is float32[2, 5], and was no more"),
                         ((2, 1), "the recomputation kept fewer tensors than the first run, 4")):
        squares = iter(counts)
        y = checkpoint(lambda x, squares=squares: sum(x * x for _ in range(next(squares))), x, early_stop=False)
        with raises(RuntimeError, text):
            y.sum().backward()
    for segments in (1, 6):
        assert checkpoint_sequential(blocks(), segments, gradcore.ones(2, 32)).shape == (2, 32)
    with raises(ValueError, "segments must be between 1 and 6, but got 7"):
        checkpoint_sequential(blocks(), 7, x)
    with raises(ValueError, "determinism_check must be"):
        checkpoint(lambda x: x, x, determinism_check="some")
    del y


@pytest.mark.parametrize("check", ["default", "none"])
def test_another_dtype_is_noticed_unless_the_check_is_off(check: str) -> None:
    dtypes = iter((gradcore.float32, gradcore.float64))
    x = gradcore.zeros(2, requires_grad=True)
    y = checkpoint(lambda x, pair: x.to(next(dtypes)).exp() * pair[1], x, (1, 2.0), determinism_check=check)
    if check == "none":
        y.sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]
    else:
        with raises(RuntimeError, "different metadata", "tensor 0 is float64[2], and was float32[2]"):
            y.sum().backward()


@pytest.mark.parametrize("retain", [False, True])
def test_a_backward_that_needs_a_part_of_a_checkpoint_lets_go_of_the_rest(retain: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 3))
    loss = checkpoint(model, gradcore.ones(6, 4)).square().sum()
    before = gradcore.memory_requested()
    g, = gradcore.autograd.grad(loss, [model[4].bias], retain_graph=retain)
    assert gradcore.memory_requested() <= before + g.nbytes
    if retain:
        loss.backward()
        assert model[4].bias.grad.tolist() == g.tolist()


@pytest.mark.parametrize("again", [True, False])
def test_the_second_run_keeps_what_a_forward_keeps(again: bool) -> None:
    """Outputs of norms and activations are recomputed from what it keeps, or kept, as the mode of the first run says."""
    gradcore.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
                            for _ in range(4)))
    x = gradcore.ones(512, 64, requires_grad=True)
    peaks = []
    for name in ("plain", "whole", "each"):
        for _ in range(2):
            model.zero_grad()
            x.grad = None
            with gradcore.step(device="cpu") as s:
                with gradcore.recompute(again):
                    y = checkpoint(model, x) if name == "whole" else RUNS[name](model, x)
                y.sum().backward()
                del y
        peaks.append(s.report.peak.allocated)
    plain, whole, each = peaks
    # The gradient of the result is there before the second run.
    assert whole <= plain + 1024 and each < 0.9 * plain


class Doubled(gradcore.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x * 2)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.saved_tensors[0]


class Mixed(nn.Module):
    """What keeps, overwrites, recomputes and drops in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(gradcore.ones(8) * 1.5)

    def forward(self, x: Any) -> Any:
        h = Doubled.apply(F.gelu(self.first(x)))
        k = self.second(h)
        k.mul_(self.scale)
        k = k + h
        k.sigmoid_()
        z = F.layer_norm(k, (8,))
        F.gelu(z).exp()
        return (z * F.silu(F.dropout(h, 0.2))).cumsum(1) + F.softmax(z, -1)


@pytest.mark.parametrize("way", ["once", "twice", "in part", "second"])
def test_the_bits_of_gradients_of_any_order(way: str) -> None:
    gradcore.manual_seed(0)
    models = [(Mixed(), (4, 8)), (nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU(), nn.MaxPool2d(2),
                                                nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3), nn.GELU()), (3, 2, 8, 8))]
    runs = (lambda m, x: m(x), lambda m, x: checkpoint(m, x), lambda m, x: checkpoint(lambda x: checkpoint(m, x), x))
    for model, shape in models:
        x = gradcore.randn(*shape, requires_grad=True)
        found = []
        for run in runs:
            gradcore.manual_seed(1)
            inputs = (x, *model.parameters())
            before = gradcore.memory_requested()
            loss = (run(model, x) ** 2).mean()
            if way == "in part":
                gradients = [*gradcore.autograd.grad(loss, inputs[-1:], retain_graph=True), *gradcore.autograd.grad(loss, [x])]
            elif way == "second":
                slopes = gradcore.autograd.grad(loss, inputs, create_graph=True)
                gradients = list(gradcore.autograd.grad(sum((g * g).sum() for g in slopes), inputs))
                del slopes
            else:
                gradients = list(gradcore.autograd.grad(loss, inputs, retain_graph=way == "twice"))
                if way == "twice":
                    gradients += gradcore.autograd.grad(loss, inputs)
            del loss
            live = gradcore.memory_requested() - before - sum(g.nbytes for g in gradients)
            found.append(([g.numpy().copy() for g in gradients], live))
            del gradients
        for gradients, live in found[1:]:
            assert live == found[0][1] == 0
            for a, b in zip(gradients, found[0][0], strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_write_to_what_the_second_run_keeps_is_noticed() -> None:
    x = gradcore.ones(3, requires_grad=True)

    def run(x: Any) -> Any:
        y = x.sin()
        z = y * y
        y.add_(1)
        return z.exp()

    for made in (run(x), checkpoint(run, x)):
        with raises(RuntimeError, "modified by an inplace operation: "):
            made.sum().backward()


def test_a_backward_inside_backward_adds_to_no_gradient_that_was_not_asked_for() -> None:
    model, x = nn.Linear(3, 3), gradcore.ones(2, 3, requires_grad=True)

    @gradcore.enable_grad()
    def hook(g: Any) -> None:
        checkpoint(model, x, use_reentrant=True).sum().backward()

    def inside() -> Any:
        y = x * 2
        y.register_hook(hook)
        return y.sum()

    for loss in (lambda: checkpoint(model, x, use_reentrant=True).sum(), inside):
        for asked in (lambda loss: gradcore.autograd.grad(loss, x), lambda loss: loss.backward(inputs=[x])):
            with raises(RuntimeError, "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad()"):
                asked(loss())
    assert x.grad is None and all(p.grad is None for p in model.parameters())
    # Without parameters the gradient is complete.
    slope, = gradcore.autograd.grad(checkpoint(lambda z: z * z, x, use_reentrant=True).sum(), x)
    assert slope.tolist() == [[2.0] * 3] * 2
    checkpoint(model, x, use_reentrant=True).sum().backward()
    assert x.grad is not None and all(p.grad is not None for p in model.parameters())


def test_the_second_run_stops_early_unless_it_is_told_not_to() -> None:
    x = gradcore.ones(3, requires_grad=True)
    runs: list[str] = []

    def run(x: Any) -> Any:
        y = x.exp().sin()
        runs.append("end")
        return y

    for early_stop, count in ((True, 1), (False, 2)):
        runs.clear()
        checkpoint(run, x, use_reentrant=False, early_stop=early_stop).sum().backward()
        assert len(runs) == count
    for wrong in ({"context_fn": lambda: (None, None)}, {"debug": True}):
        with raises(ValueError, "Passing `context_fn` or `debug` is only supported when use_reentrant=False"):
            checkpoint(run, x, use_reentrant=True, **wrong)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("outputs", [lambda x: x * 2, lambda x: (x * 2, 3, None), lambda x: [x, x * 1]],
                         ids=["one", "tuple", "list"])
def test_a_part_may_return_several(outputs: Any, reentrant: bool) -> None:
    x = gradcore.ones(3, requires_grad=True)
    found = checkpoint(lambda x: outputs(x.exp().log()), x, use_reentrant=reentrant)
    sum(y.sum() for y in (found if isinstance(found, (tuple, list)) else [found]) if isinstance(y, gradcore.Tensor)).backward()
    assert x.grad.tolist() == pytest.approx([2, 2, 2])


def test_what_a_function_saved_in_a_checkpoint_can_be_asked_for_before_backward() -> None:
    class Square(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            contexts.append(ctx)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * g * ctx.saved_tensors[0]

    contexts: list[Any] = []
    x = gradcore.tensor([1.0, 3.0], requires_grad=True)
    y = checkpoint(lambda x: Square.apply(x * 2), x)
    assert [contexts[0].saved_tensors[0].tolist() for _ in range(2)] == [[2.0, 6.0]] * 2
    y.sum().backward()
    assert x.grad.tolist() == [8.0, 24.0]
    contexts.clear()


def test_arguments_may_be_no_tensors_and_tensors_must_stay_as_they_are() -> None:
    def times(x: Any, by: int, other: None) -> Any:
        assert other is None
        return x * x * by

    x = gradcore.tensor([1.0, 3.0], requires_grad=True)
    doubled = x * 2
    y = checkpoint(times, doubled, 3, None)
    doubled.add_(1)
    with raises(RuntimeError, "modified by an inplace operation: 'an argument of checkpoint', float32[2], kept by checkpoint"):
        y.sum().backward()
    for reentrant in (False, True):
        x.grad = None
        checkpoint(times, x * 2, 3, None, use_reentrant=reentrant).sum().backward()
        assert x.grad.tolist() == [24.0, 72.0]
