"""Programs as CUDA graphs, with no GPU: what is captured, what is baked into it, and that a launch is the eager run."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import nn
from tests.host.graph_bed import Bed, bits, emulator_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

F = nn.functional
on = {"device": "cuda"}


class Training:
    """A network with its optimizer and schedule on the bed's device."""

    def __init__(self, kind="Adam", wrap=lambda f: f, **settings):
        gradcore.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)).to("cuda")
        self.optimizer = getattr(gradcore.optim, kind)(self.model.parameters(), lr=0.05, **settings)
        self.schedule = gradcore.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.8)
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
        loss = bits(self.run(*data(k)))
        self.schedule.step()
        return loss

    def state(self):
        found = [bits(t) for p in self.model.parameters() for t in (p, p.grad) if t is not None]
        return found + [bits(v) if hasattr(v, "storage") else v for p in self.model.parameters()
                        for v in self.optimizer.state[p].values()]


def data(seed, batch=5):
    generator = np.random.default_rng(seed)
    return (gradcore.tensor(generator.standard_normal((batch, 6)).astype(np.float32), **on),
            gradcore.tensor(generator.integers(0, 3, batch), **on))


KINDS = [("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}), ("Adam", {}), ("RMSprop", {"centered": True}),
         ("Adagrad", {"lr_decay": 0.1}), ("Adadelta", {}), ("NAdam", {}), ("RAdam", {}), ("Lion", {})]


def everything(bed):
    for kind, settings in KINDS:
        training = Training(kind, gradcore.compile, **settings)
        for k in range(3):
            training.step(k)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulator_of(tmp_path_factory.mktemp("capture"), everything)


@pytest.fixture
def bed(emulator):
    with Bed(emulator).in_place() as found:
        yield found
        found.card.deviceSynchronize()
    assert found.card.wrong == [] and found.card.graphs == {}


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_captured_step_is_the_eager_one_bit_for_bit(bed, kind, settings):
    eager, captured = Training(kind, **settings), Training(kind, gradcore.compile, **settings)
    for k in range(8):
        assert eager.step(k) == captured.step(k), k
        assert eager.state() == captured.state(), k
    assert "calls are one graph" in captured.run.explain()
    assert len(captured.run.traces) == 2
    nodes, = bed.card.nodes.values()
    assert len(nodes) > 15 and not {"upload", "download"} & set(nodes)
    bed.take()
    captured.step(9)
    given = bed.take()
    assert given.count("graph") == 1 and given[:given.index("graph")][-3:] == ["copy", "copy", "upload"]
