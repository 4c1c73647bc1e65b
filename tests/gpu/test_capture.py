"""Programs as CUDA graphs on a real GPU: equal to eager, at constant addresses, several at once, usable after an error."""

from __future__ import annotations

import inspect
import os

import numpy as np
import pytest

import gradcore
from bench.gpu.streams import sleep
from gradcore import cuda, nn
from gradcore.errors import CaptureError
from gradcore.memory.resource import Stream

F = nn.functional
on = {"device": "cuda"}
KINDS = [("SGD", {"momentum": 0.9}), ("Adam", {}), ("Adam", {"amsgrad": True}), ("AdamW", {}),
         ("RMSprop", {"centered": True, "momentum": 0.5}), ("Adagrad", {"lr_decay": 0.1}), ("Adadelta", {}), ("NAdam", {}),
         ("RAdam", {}), ("Lion", {}), ("Adamax", {}), ("Rprop", {}), ("ASGD", {"t0": 2})]


class Training:
    """A network with dropout, its optimizer and schedule."""

    def __init__(self, kind="Adam", wrap=lambda f: f, **settings):
        gradcore.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Dropout(0.2),
                                   nn.Linear(128, 10)).to("cuda")
        self.optimizer = getattr(gradcore.optim, kind)(self.model.parameters(), lr=0.01, **settings)
        # Momentum, or the first beta, changes with the rate.
        self.schedule = gradcore.optim.lr_scheduler.CyclicLR(
            self.optimizer, 0.005, 0.02, 7, cycle_momentum=not {"momentum", "betas"}.isdisjoint(self.optimizer.defaults))
        model, optimizer = self.model, self.optimizer

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        self.run = wrap(step)

    def step(self, k):
        gradcore.manual_seed(k)
        loss = self.run(*batch(k % 50))
        self.schedule.step()
        return loss

    def state(self):
        return [t.detach().cpu().numpy().tobytes() for p in self.model.parameters() for t in (p, p.grad) if t is not None]

    def replay(self):
        return next(iter(self.run._entries.values()))[0].replay


def batch(seed):
    generator = np.random.default_rng(seed)
    return (gradcore.tensor(generator.standard_normal((32, 64)).astype(np.float32), **on),
            gradcore.tensor(generator.integers(0, 10, 32), **on))


@pytest.fixture(autouse=True)
def captured_products():
    """cuBLAS through CuPy cannot be captured, cuBLASLt can."""
    f = gradcore.compile(lambda x: x @ x)
    for _ in range(3):
        f(gradcore.ones(8, 8, **on))
    if "are captured in one graph" not in f.explain():
        pytest.skip(f"matrix products cannot be captured here: {f.explain()}")


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_captured_step_is_the_eager_one_bit_for_bit(kind, settings):
    eager, captured = Training(kind, **settings), Training(kind, gradcore.compile, **settings)
    for k in range(30):
        assert eager.step(k).item() == captured.step(k).item(), k
    assert eager.state() == captured.state()
    assert "are captured in one graph" in captured.run.explain(), captured.run.explain()


def test_a_thousand_launches_at_the_same_addresses():
    eager, captured = Training(), Training(wrap=gradcore.compile)
    for k in range(3):
        eager.step(k), captured.step(k)
    replay = captured.replay()
    places = replay._bound.arena.block.address, replay._fixed.own.block.address
    reserved = gradcore.memory_reserved("cuda")
    for k in range(3, 1003):
        eager.step(k), captured.step(k)
    assert eager.state() == captured.state()
    assert places == (replay._bound.arena.block.address, replay._fixed.own.block.address)
    assert gradcore.memory_reserved("cuda") == reserved and len(captured.run.traces) == 2


def test_the_host_may_be_further_ahead_than_there_are_slots():
    """It waits then until the device has told that it has read a slot."""
    from gradcore.devices.gpu.mailbox import SLOTS

    f = gradcore.compile(lambda x: x * 2 + 1)
    xs = [gradcore.full((1000,), float(k), **on) for k in range(3 * SLOTS)]
    for x in xs[:3]:
        f(x)
    if "GRADCORE_ON_CARD" not in os.environ:
        # The tests' card is late by itself, and has no other kernels than ours.
        sleep(gradcore.device("cuda"), 100_000_000)
    found = [f(x) for x in xs]
    assert [(y.min().item(), y.max().item()) for y in found] == [(2 * k + 1, 2 * k + 1) for k in range(3 * SLOTS)]
    assert "are captured in one graph" in f.explain()


def test_a_small_product_applies_the_gradient_of_the_relu_before():
    from gradcore.devices.gpu.kernels.linalg import input_grad_through_relu

    def trained(wrap):
        gradcore.manual_seed(3)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 48), nn.ReLU(), nn.Linear(48, 10)).to("cuda")

        def step(x, y):
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            with gradcore.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
            return loss

        run = wrap(step)
        return [run(*batch(k)).item() for k in range(8)], [p.detach().cpu().tolist() for p in model.parameters()], run

    *eager, _ = trained(lambda f: f)
    *found, run = trained(gradcore.compile)
    assert found == eager and "are captured in one graph" in run.explain()
    calls = next(iter(run._entries.values()))[0].replay._bound.calls.parts[0]
    assert sum(inspect.unwrap(kernel) is input_grad_through_relu for kernel, _ in calls) == 2


def test_two_graphs_at_once_and_on_other_streams():
    eagers = [Training("SGD"), Training("Adam")]
    captured = [Training("SGD", gradcore.compile), Training("Adam", gradcore.compile)]
    streams = [cuda.default_stream(), cuda.Stream()]
    for k in range(20):
        for which in (0, 1):
            stream = streams[k // 3 % 2]
            stream.wait_stream(streams[1 - k // 3 % 2])
            with cuda.stream(stream):
                ours = captured[which].step(k)
            cuda.default_stream().wait_stream(stream)
            assert ours.item() == eagers[which].step(k).item(), (k, which)
    cuda.synchronize()
    assert [t.state() for t in captured] == [t.state() for t in eagers]
    del captured


def test_an_exception_in_the_middle_of_a_capture_leaves_the_stream_usable():
    device = gradcore.device("cuda")
    x = gradcore.ones(1000, **on)
    x * 2

    def breaks(what):
        def run():
            x * 0 if what is None else what()

        return run

    def waits():
        """For work that is not captured, from which a driver isolates the graph."""
        from gradcore.devices.gpu.workspaces import current_stream

        device.driver.wait(Stream(-1, current_stream()), device.driver.record(device.stream))

    for what, error in ((lambda: 1 / 0, ZeroDivisionError), (None, CaptureError),
                        (lambda: device.driver.synchronize(), Exception), (waits, Exception)):
        with pytest.raises(error):
            device.graphs.capture(breaks(what))
        assert (x * 3).sum().item() == 3000
    f = gradcore.compile(lambda x: x * 2 + 1)
    for k in range(3):
        assert f(x * k).sum().item() == 1000 * (2 * k + 1)
    assert "are captured in one graph" in f.explain()


def test_a_layer_whose_caller_differentiates_it():
    model, other = (Training().model for _ in range(2))
    f = gradcore.compile(other)
    for k in range(6):
        for run in (model, f):
            gradcore.manual_seed(k)
            x, y = batch(k)
            F.cross_entropy(run(x), y).backward()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            np.testing.assert_array_equal(p.grad.cpu().numpy(), q.grad.cpu().numpy())
    assert "of the second part" in f.explain(), f.explain()


def test_graphs_give_their_memory_back():
    device = gradcore.device("cuda")
    # The device's generator stays allocated.
    gradcore.manual_seed(0)
    before = device.ledger.allocated, len(device.ledger.arenas)
    training = Training(wrap=gradcore.compile)
    for k in range(5):
        training.step(k)
    del training
    assert (device.ledger.allocated, len(device.ledger.arenas)) == before


#: Options under which every number of an update that depends on the rate does something.
RATED = {"SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "Adam": {"amsgrad": True, "weight_decay": 0.1},
         "AdamW": {"weight_decay": 0.1}, "RMSprop": {"centered": True, "momentum": 0.9}, "Adagrad": {"lr_decay": 0.1},
         "Adadelta": {}, "Adamax": {"weight_decay": 0.1}, "Lion": {"weight_decay": 0.1},
         "NAdam": {"weight_decay": 0.1, "decoupled_weight_decay": True},
         "RAdam": {"weight_decay": 0.1, "decoupled_weight_decay": True}}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", RATED)
def test_a_rate_in_device_memory_is_read_there(kind, dtype):
    def trained(device, compiled, tensor):
        weight = gradcore.full((5,), 1.5, dtype=gradcore.float64, device=device, requires_grad=True)
        rate = gradcore.tensor(0.25, device=device, dtype=getattr(gradcore, dtype)) if tensor else 0.25
        optimizer = getattr(gradcore.optim, kind)([weight], lr=rate, **RATED[kind])

        def step(x):
            optimizer.zero_grad()
            (weight * x).square().sum().backward()
            optimizer.step()

        run, found = gradcore.compile(step) if compiled else step, []
        for k in range(6):
            run(gradcore.full((5,), 1.0 + k, dtype=gradcore.float64, device=device))
            found.append(weight.tolist())
            if tensor:
                rate.mul_(0.5)
            else:
                optimizer.param_groups[0]["lr"] *= 0.5
        assert not compiled or "captured in one graph" in run.explain()
        return found

    eager = trained("cuda", False, True)
    assert trained("cuda", True, True) == eager
    for other in (trained("cuda", False, False), trained("cpu", False, True)):
        np.testing.assert_allclose(eager, other, rtol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
def test_gelu_is_not_written_over_an_input_that_is_also_the_cotangent(transposed):
    rng = np.random.default_rng(0)
    first, last, *data = (gradcore.tensor(rng.standard_normal((16, 16)).astype(np.float32), device="cuda") for _ in range(5))
    first.requires_grad_()
    last.requires_grad_()

    def slopes(x):
        hidden = gradcore.nn.functional.linear(x, first)
        result = gradcore.nn.functional.linear(gradcore.nn.functional.gelu(hidden), last)
        cotangent = hidden.detach()
        return gradcore.autograd.grad(result, [first, last], cotangent.T if transposed else cotangent)

    run = gradcore.compile(slopes)
    for x in data:
        assert [g.tolist() for g in run(x)] == [g.tolist() for g in slopes(x)]
    assert "captured in one graph" in run.explain()
