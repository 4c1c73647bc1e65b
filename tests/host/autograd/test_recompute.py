"""Outputs of cheap ops are not kept: backward recomputes them once, bit for bit, with the right owner."""

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.events import UNTAGGED, Keep, Launch
from gradcore.nn import functional
from gradcore.ops import activation
from gradcore.ops.op import op
from tests.conftest import raises
from tests.logs import normalized


def network(seed=0):
    gradcore.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))


def gradients(model, x, recompute=True, **options):
    model.zero_grad()
    with gradcore.recompute(recompute):
        loss = functional.cross_entropy(model(x), gradcore.tensor(np.array([0, 1, 2, 0])))
    loss.backward(**options)
    return [p.grad.numpy().copy() for p in model.parameters()]


def data():
    return gradcore.tensor(np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32))


def test_the_gradients_have_the_same_bits():
    x = data()
    model = network()
    for ours, kept in zip(gradients(model, x), gradients(model, x, False), strict=True):
        np.testing.assert_array_equal(ours, kept)


def test_what_a_result_is_made_to_show_is_kept():
    """As a straight-through estimator does it: the op that reads the new values must not be differentiated at the old ones."""
    model, x = network(), data()
    found = []
    for again in (True, False):
        model.zero_grad()
        with gradcore.recompute(again):
            h = model[:2](x)
            before = model[2](h)
            h.data = h.data.sign()
            after = model[2](h)
        (before.sum() + (after * after).sum()).backward()
        found.append([p.grad.tolist() for p in model[:3].parameters()])
    assert found[0] == found[1]


def step_of(model, x, recompute):
    with gradcore.step() as s:
        gradients(model, x, recompute)
    return s.report, normalized(s.raw_log)


def test_only_what_it_takes_is_kept():
    x = data()
    model = network()
    ours, records = step_of(model, x, True)
    kept, _ = step_of(model, x, False)
    # Two activations of 4 x 8 floats.
    assert kept.residual_bytes - ours.residual_bytes == 2 * 512
    names = [r.name for r in records if isinstance(r, Keep)]
    assert names.count("weight") == 2
    again = [r for r in records if isinstance(r, Launch) and r.invocation.op == "gelu" and r.tag.phase == "backward"]
    assert [r.tag.layer for r in again] == ["3", "1"]
    assert all(r.tag.site.function == "gradients" and r.tag.caller is not None for r in again)


def test_what_only_a_gradient_that_nobody_asked_for_would_read_is_not_made_again():
    """The layers' inputs are read for the gradients of their weights alone."""
    x, model = data().requires_grad_(), network()
    launched = {}
    for inputs in ((x,), (x, model[4].weight), tuple(model.parameters())):
        loss = functional.cross_entropy(model(x), gradcore.tensor(np.array([0, 1, 2, 0])))
        with gradcore.step() as s:
            gradients_of = gradcore.autograd.grad(loss, inputs)
        launched[len(inputs)] = [r.tag.layer for r in normalized(s.raw_log)
                                 if isinstance(r, Launch) and r.invocation.op == "gelu"]
        assert all(g is not None for g in gradients_of)
    assert launched == {1: [], 2: ["3"], 6: ["3", "1"]}


def test_a_tensor_that_several_nodes_ask_for_is_made_once():
    x = data()
    w = [gradcore.randn(6, 5, requires_grad=True) for _ in range(3)]

    def run():
        y = functional.gelu(x @ w[0])
        loss = ((y @ w[1].T) * (y @ w[2].T)).sum()
        del y
        loss.backward()

    run()
    with gradcore.step() as s:
        run()
    records = normalized(s.raw_log)
    assert sum(isinstance(r, Launch) and r.invocation.op == "gelu" for r in records) == 2


@pytest.mark.parametrize("cheap", [functional.silu, lambda x: functional.layer_norm(x, (6,))])
def test_a_chain_of_any_length_is_made_again_in_time_that_grows_with_it(cheap):
    def run(count):
        x = data().requires_grad_()
        with gradcore.step() as s:
            y = x
            for _ in range(count):
                y = cheap(y)
            (y * y).sum().backward()
        return x.grad.tolist(), sum(isinstance(r, Launch) and r.tag.phase == "backward" for r in normalized(s.raw_log))

    launches = [run(count)[1] for count in (100, 200, 1500)]
    assert launches[1] < 2.1 * launches[0] and launches[2] < 16 * launches[0]
    found, _ = run(20)
    with gradcore.recompute(False):
        assert run(20)[0] == found


def test_what_a_shared_tensor_was_made_from_goes_back_with_its_last_user():
    # relu's output is needed by relu and by the next convolution; it is recomputed from what batch norm keeps.
    gradcore.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
                          nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1))
    x = gradcore.ones(4, 3, 8, 8)

    def step():
        with gradcore.step(device="cpu") as s:
            loss = model(x).sum()
            loss.backward()
        return s.report

    step()
    report = step()
    kept = [k for k in report.kept if k.role != "parameter"]
    assert {k.name for k in kept} >= {"x", "mean", "rstd"}
    assert all(k.reason == "consumed" for k in kept)
    # All but x, which the test references.
    assert report.residual_bytes - report.residual_bytes_returned == x.numel() * 4
    # The first norm's input is freed before the first convolution's gradient is computed, last of all.
    first = next(k for k in kept if k.layer == "0" and k.op == "conv2d")
    assert first.freed_at < max(k.dropped_at for k in kept)


def test_backward_twice_through_a_retained_graph():
    x = data()
    model = network()
    loss = functional.cross_entropy(model(x), gradcore.tensor(np.array([0, 1, 2, 0])))
    loss.backward(retain_graph=True)
    first = [p.grad.numpy().copy() for p in model.parameters()]
    live = gradcore.device("cpu").ledger.requested
    model.zero_grad()
    loss.backward(retain_graph=True)
    assert gradcore.device("cpu").ledger.requested == live
    for p, g in zip(model.parameters(), first, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), g)
    loss.backward()
    with raises(RuntimeError, "Trying to backward through the graph a second time"):
        loss.backward()


def test_a_gradient_of_a_gradient():
    x = data()
    w, v = gradcore.randn(6, 5, requires_grad=True), gradcore.randn(5, 2, requires_grad=True)

    def second(enabled):
        with gradcore.recompute(enabled):
            z = functional.gelu(x @ w) @ v
        slope, = gradcore.autograd.grad((z * z).sum(), w, create_graph=True)
        return [g.numpy().copy() for g in gradcore.autograd.grad((slope * slope).sum(), (w, v))]

    for ours, kept in zip(second(True), second(False), strict=True):
        np.testing.assert_array_equal(ours, kept)
        assert np.abs(ours).max() > 0


def test_an_output_that_was_written_to_is_kept():
    x = data()
    w, v = gradcore.randn(6, 5, requires_grad=True), gradcore.randn(5, 2, requires_grad=True)
    y = functional.gelu(x @ w)
    with gradcore.no_grad():
        y.mul_(2)
    seen = y.detach().numpy()
    (y @ v).sum().backward()
    np.testing.assert_allclose(v.grad.numpy(), np.repeat(seen.sum(0)[:, None], 2, 1), rtol=1e-6)


def test_what_it_is_made_from_may_not_be_written_to():
    x = data()
    w, v = gradcore.randn(6, 5, requires_grad=True), gradcore.randn(5, 2, requires_grad=True)
    h = x @ w
    y = functional.gelu(h) @ v
    with gradcore.no_grad():
        h.mul_(2)
    with raises(gradcore.errors.ModifiedInPlace, "'x', float32[4, 5], kept by"):
        y.sum().backward()
    assert v.grad is None, "it would be of the wrong values"
    del h, y


def test_nor_may_a_parameter_that_only_the_recipe_reads():
    norm, w = nn.LayerNorm(6), gradcore.randn(6, 2, requires_grad=True)
    y = norm(data()) @ w
    with gradcore.no_grad():
        norm.bias.add_(1)
    with raises(gradcore.errors.ModifiedInPlace, "'bias', float32[6], kept by"):
        y.sum().backward()
    assert w.grad is None


def test_a_recipe_keeps_no_scale_alive_that_was_computed():
    x, scale, bias = data(), gradcore.ones(6, requires_grad=True), gradcore.zeros(6, requires_grad=True)
    assert functional.layer_norm(x, (6,), scale, bias).grad_fn.recipe is not None
    assert functional.layer_norm(x, (6,), scale, bias * 2).grad_fn.recipe is None


def test_a_retained_graph_holds_nothing_that_was_made_again():
    w = [gradcore.randn(*shape, requires_grad=True) for shape in ((6, 50), (50, 2), (50, 2))]
    y = functional.gelu(data() @ w[0])
    loss = (y @ w[1]).sum() + (y @ w[2]).sum()
    del y
    ledger = gradcore.device("cpu").ledger
    live = ledger.requested
    gradients = gradcore.autograd.grad(loss, w, retain_graph=True)
    assert ledger.requested - live == sum(g.numel() for g in gradients) * 4


def test_nothing_is_left_when_making_it_again_fails():
    x = data()
    model = network()
    loss = functional.cross_entropy(model(x), gradcore.tensor(np.array([0, 1, 2, 0])))
    device = gradcore.device("cpu")
    real = device.memory.allocate

    calls = []

    class Failing:
        release = device.memory.release

        def allocate(self, nbytes, stream, tag=UNTAGGED, node=0):
            calls.append(tag)
            if len(calls) == 5:
                raise gradcore.errors.OutOfMemory("out of memory: planted", asked=nbytes)
            return real(nbytes, stream, tag, node)

    before, device.memory = device.memory, Failing()
    try:
        with raises(gradcore.errors.OutOfMemory, "planted"):
            loss.backward()
    finally:
        device.memory = before
    del loss
    model.zero_grad()


def test_what_has_no_recipe_is_kept():
    """ReLU after a matrix product: no node keeps the product, so the result is kept."""
    x = data()
    w, v = gradcore.randn(6, 5, requires_grad=True), gradcore.randn(5, 2, requires_grad=True)
    y = functional.relu(x @ w)
    assert y.grad_fn.recipe is None
    z = functional.relu(functional.gelu(x @ w))
    assert z.grad_fn.recipe is not None
    (y @ v + z @ v).sum().backward()


def test_what_a_recipe_may_ask_for():
    with raises(TypeError, "op 'bad_again': again has the parameter 'out'"):
        op("bad_again", lambda x: x, again=lambda out: activation.relu(out))


@pytest.mark.parametrize("again", [True, False])
def test_a_gradient_that_ends_at_an_output_needs_its_input_only_to_recompute_it(again: bool) -> None:
    """As docs/memory.md says."""
    x = gradcore.ones(3, requires_grad=True) * 2
    with gradcore.recompute(again):
        y = functional.gelu(x)
        z = (y * y).sum()
    x.mul_(2)
    if again:
        with raises(RuntimeError, "modified by an inplace operation"):
            gradcore.autograd.grad(z, y)
    else:
        found, = gradcore.autograd.grad(z, y)
        assert found.tolist() == (y * 2).tolist()
