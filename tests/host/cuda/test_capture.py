"""Programs as CUDA graphs, without a GPU: a launch equals the eager run, and values that would be baked in are detected."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore.devices.gpu import numbers as gpu_numbers
from gradcore.devices.gpu.kernels import optimizers as gpu_optimizers
from gradcore.errors import CaptureError
from tests.host.cuda.captured_steps import KINDS, Training, full, on
from tests.host.cuda.graph_bed import bits

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_captured_step_is_the_eager_one_bit_for_bit(bed, kind, settings):
    eager, captured = Training(kind, **settings), Training(kind, gradcore.compile, **settings)
    for k in range(8):
        assert eager.step(k) == captured.step(k), k
        assert eager.state() == captured.state(), k
    assert "calls are captured in one graph" in captured.run.explain()
    assert len(captured.run.traces) == 2
    nodes, = bed.card.nodes.values()
    assert len(nodes) > 10 and not {"upload", "download"} & set(nodes)
    bed.take()
    captured.step(9)
    given = bed.take()
    assert given[given.index("graph"):] == ["graph", "download"] and "copy" not in given[:given.index("graph")]


def test_a_caller_whose_gradient_is_read_in_part(bed):
    w, v = (gradcore.ones(4, requires_grad=True, **on) for _ in range(2))
    f = gradcore.compile(lambda x: gradcore.cat([x[1:], (w * x).tanh()]))
    for k in range(5):
        g = gradcore.tensor(np.arange(7, dtype=np.float32), **on)
        f(full(k / 8)).backward(g)
        (v * full(k / 8)).tanh().backward(g[3:].clone())
        assert bits(w.grad) == bits(v.grad), k
    assert "of the second part" in f.explain()


# -- what would be baked ---------------------------------------------------------------------------------------------------


def test_gradients_of_the_step_before_are_read_in_the_places_of_the_new_ones(bed):
    def training():
        w = gradcore.nn.Parameter(full(2))
        optimizer = gradcore.optim.SGD([w], lr=0.5)

        def step(x):
            optimizer.step()
            optimizer.zero_grad()
            (w * x).tanh().sum().backward()

        return w, step

    (w, step), (expected, eager) = training(), training()
    f = gradcore.compile(step)
    for k in range(8):
        f(full(k / 8))
        eager(full(k / 8))
        assert bits(w) == bits(expected) and bits(w.grad) == bits(expected.grad)
    # Over the gradients of the traced run, and over the program's own.
    assert "are captured in one graph" in f.explain() and bed.card.calls["streamBeginCapture"] <= 3
    f._entries.clear()


def test_a_rate_that_a_kernel_asks_for_cannot_be_captured(bed):
    sgd = bed.device.kernels["sgd_"]
    bed.device.kernels["sgd_"] = lambda *args, **attrs: sgd(*args[:3], float(args[3]), *args[4:], **attrs)
    eager, captured = Training("SGD"), Training("SGD", gradcore.compile)
    for k in range(5):
        assert eager.step(k) == captured.step(k) and eager.state() == captured.state()
    assert "sgd_ in layer (root), optimizer" in captured.run.explain()
    assert "reads a number that changes from run to run" in captured.run.explain()


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_planted_rate_in_a_kernels_arguments_is_found(bed, kind, monkeypatch):
    """Without the guard above, the comparison with eager steps detects it as soon as the schedule changes the rate."""
    monkeypatch.setattr(gpu_optimizers, "Moving", type(None))
    monkeypatch.setattr(gpu_numbers.Moving, "__float__", lambda self: float(self.block.values[self.at]))
    eager, captured = Training(kind), Training(kind, gradcore.compile)
    for k in range(3):
        eager.step(k), captured.step(k)
    assert eager.state() == captured.state(), "the run before the capture"
    eager.step(3), captured.step(3)
    assert "are captured in one graph" in captured.run.explain() and eager.state() != captured.state()


def test_a_planted_missing_copy_of_an_input_is_found(bed, monkeypatch):
    f = gradcore.compile(lambda x: x.tanh() * 2)
    for k in range(3):
        f(full(k))
    assert bits(f(full(5))) == bits(full(5).tanh() * 2)
    box, _ = f._cached()[0].replay._fixed.boxes
    x, post = full(5), box.post
    monkeypatch.setattr(box, "post", lambda sources, targets: post([x.storage.block.address], targets))
    assert bits(f(full(7))) == bits(full(5).tanh() * 2)


def test_a_number_that_comes_during_the_capture_comes_too_late():
    sent = []
    numbers = gpu_numbers.Numbers(1, 4096, lambda *copied: sent.append(copied))
    rate, step = numbers.number(), numbers.number()
    numbers.values[:] = [0.5, 3]
    numbers.frozen = True
    dtype = np.dtype([("rate", "f8"), ("power", "f8")])
    with pytest.raises(CaptureError, match="first used during the capture"):
        numbers.hold(dtype, lambda a, b: (a, a ** b), (rate, step))
    with pytest.raises(CaptureError, match="reads a number"):
        float(rate)
    numbers.frozen = False
    assert float(rate) == 0.5 and numbers.hold(dtype, lambda a, b: (a, a ** b), (rate, step)) == 4096
    assert sent[0][::2] == (4096, 16)
    numbers.frozen = True
    assert numbers.hold(dtype, lambda a, b: (a, a ** b), (rate, step)) == 4096 and len(sent) == 1
    numbers.values[:] = [2.0, 5]
    assert np.frombuffer(numbers.computed(), np.float64, 2).tolist() == [2.0, 32.0] and len(sent) == 1
