"""Training steps on a simulated GPU with graph capture, and all kernels that the tests of captured programs launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gradcore
from gradcore import nn
from gradcore.devices.gpu import launch as gpu_launch
from tests.host.cuda.graph_bed import Bed, bits
from tests.host.graph_mode.test_compile import step_of
from tests.logs import normalized

F = nn.functional
on: dict[str, Any] = {"device": "cuda"}

KINDS = [("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}), ("Adam", {}),
         ("AdamW", {"amsgrad": True}), ("RMSprop", {"centered": True}), ("Adagrad", {"lr_decay": 0.1}), ("Adadelta", {}),
         ("NAdam", {}), ("RAdam", {}), ("Lion", {}), ("Adamax", {}), ("Rprop", {}), ("ASGD", {"t0": 2})]


class Training:
    """A network with its optimizer and schedule on the bed's device."""

    def __init__(self, kind="Adam", wrap=lambda f: f, **settings):
        gradcore.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)).to("cuda")
        self.optimizer = getattr(gradcore.optim, kind)(self.model.parameters(), lr=0.05, **settings)
        self.schedule = gradcore.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.8)
        self.run = wrap(step_of(self.model, self.optimizer))

    def step(self, k):
        gradcore.manual_seed(k)
        loss = bits(self.run(*data(k)))
        self.schedule.step()
        return loss

    def state(self):
        found = [bits(t) for p in self.model.parameters() for t in (p, p.grad) if t is not None]
        return found + [bits(v) if hasattr(v, "storage") else v for p in self.model.parameters()
                        for v in self.optimizer.state[p].values()]


class Stepping:
    """A step of any model of the bed's device: gradients, momentum."""

    def __init__(self, model: Any, wrap: Any = lambda f: f) -> None:
        self.model = model
        self.run = wrap(step_of(model, gradcore.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)))

    def state(self) -> list[bytes]:
        return [bits(t) for p in self.model.parameters() for t in (p, p.grad)] + [bits(b) for b in self.model.buffers()]


def same_steps(eager: Stepping, captured: Stepping, batch_of: Callable[[int], tuple[Any, Any]]) -> None:
    """Five steps of two have the same bits, and leave the same state."""
    for k in range(5):
        assert bits(eager.run(*batch_of(k))) == bits(captured.run(*batch_of(k))), k
        assert eager.state() == captured.state(), k


def same_function(bed: Bed, function: Any, theirs: Any, inputs: list[Any]) -> tuple[Any, list[str]]:
    """A captured function has the bits of the eager one. Returns its program, and the nodes of its graph."""
    step = gradcore.compile(function)
    with gradcore.no_grad():
        for x in inputs:
            found, expected = step(x), theirs(x)
            for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, expected)), strict=True):
                assert bits(a) == bits(b)
        bed.take()
        step(inputs[-1])
        return program_of(step), list(bed.card.nodes.values())[-1]


def nan_stays(function: Any) -> None:
    """A row of NaN gives a row of NaN, and nothing else, in a captured function."""
    step, values = gradcore.compile(function), np.ones((5, 6), np.float32)
    with gradcore.no_grad():
        for _ in range(3):
            step(gradcore.tensor(values, device="cuda"))
        values[1] = np.nan
        found = step(gradcore.tensor(values, device="cuda")).cpu().numpy()
    assert np.isnan(found[1]).all() and not np.isnan(np.delete(found, 1, 0)).any()
    assert "are captured in one graph" in step.explain()


def logged(bed: Bed, training: Stepping, batch: tuple[Any, Any], left_out: int) -> tuple[list[Any], int]:
    """The log of four steps, the last two of them captured but for so many calls, and its peak."""
    with gradcore.step(device=bed.device) as step:
        for _ in range(4):
            training.run(*batch)
    calls = len(program_of(training.run).instructions) - left_out
    assert f"{calls} kernel calls are captured in one graph" in training.run.explain()
    return normalized(step.raw_log), step.report.peak.allocated


def program_of(compiled: Any) -> Any:
    """The latest program of a compiled function."""
    return next(iter(compiled._entries.values()))[0].replay.program


def data(seed, batch=5):
    generator = np.random.default_rng(seed)
    return (gradcore.tensor(generator.standard_normal((batch, 6)).astype(np.float32), **on),
            gradcore.tensor(generator.integers(0, 3, batch), **on))


def full(value, *shape):
    return gradcore.full(shape or (4,), float(value), **on)


def plant(bed, op, during):
    """Let the kernel of ``op`` do something first, only during a capture."""
    kernel = bed.device.kernels[op]

    def planted(*arrays, **attrs):
        # Like kernels that use CuPy, whose launches are not recorded.
        gpu_launch.refuse_notes()
        if bed.card.capturing:
            during()
        kernel(*arrays, **attrs)

    bed.device.kernels[op] = planted


def launched(bed):
    """All kernels that the tests launch."""
    for kind, settings in [*KINDS, ("SGD", {})]:
        training = Training(kind, gradcore.compile, **settings)
        for k in range(3):
            training.step(k)
    w = gradcore.ones(4, requires_grad=True, **on)
    for _ in range(2):
        (w * gradcore.ones(4, **on)).tanh().sum().backward()
        y = (w * gradcore.ones(4, **on)).tanh()
        (y.sum() * 1 + (y * 2).sum() * 2).backward()
        w[:1].expand(4).contiguous()
    x = gradcore.ones(3, 4, **on)
    x.mul_(3).add_(1)
    for y in (x, x.transpose(0, 1), x[1:, 1:], gradcore.zeros(0, 4, **on)):
        (y.tanh() * 2 + 1).sum()
    x[0].add_(x[1])
    gradcore.ones(8, **on)[2:4].tanh() + gradcore.ones(8, **on)[5:7]
    gradcore.cat([full(1)[1:], (w * full(1)).tanh()]).backward(full(1, 7))
    full(1, 7)[3:].clone()
    gradcore.zeros(6, 8, **on)[:, :4].mul_(2).clone()
    for first in (0, 1):
        gradcore.ones(9, **on)[first:first + 6].mul_(2).add(gradcore.ones(9, **on)[first + 2:first + 8])
    one_by_one = gradcore.compile(lambda x: (x * 2, (x * 2).sum()), capture=False)
    for _ in range(2):
        one_by_one(full(1))
    gradcore.autograd.grad(((w * x[0]).tanh() * x[1]).sum(), [w])
    ints = gradcore.zeros(4, dtype=np.int64, **on)
    ints.copy_(ints + 1)
    bed.use_cublas()
    Training().step(0)
