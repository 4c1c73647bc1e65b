"""Networks that run a part again in backward by themselves: the states of generators that they save, as PyTorch names them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.utils.checkpoint import get_device_states, set_device_states


class States:
    """The states of the generators, as of where it was made."""

    def __init__(self, *args: Any) -> None:
        self.cpu, self.gpus = gradcore.get_rng_state(), get_device_states(*args) if gradcore.cuda._initialized else ([], [])

    @contextmanager
    def again(self) -> Any:
        with gradcore.random.fork_rng(devices=self.gpus[0], enabled=True):
            gradcore.set_rng_state(self.cpu)
            set_device_states(*self.gpus)
            yield


class RunAgain(gradcore.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, net: Any) -> Any:
        ctx.states, ctx.net, ctx.x = States(x), net, x.detach()
        return net(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        with gradcore.enable_grad(), ctx.states.again():
            x = ctx.x.requires_grad_()
            y = ctx.net(x)
        gradcore.autograd.backward(y, dy)
        return x.grad, None


def gradients(run: Any) -> list[Any]:
    gradcore.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 8))
    x = gradcore.ones(4, 8, requires_grad=True)
    (run(net, run(net, x)) * gradcore.rand(4, 8)).sum().backward()
    return [x.grad.numpy(), *(p.grad.numpy() for p in net.parameters())]


def test_the_same_random_numbers_when_it_runs_again() -> None:
    found = gradients(lambda net, x: RunAgain.apply(x, net))
    for ours, plain in zip(found, gradients(lambda net, x: net(x)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-6)


@pytest.mark.oracle
def test_without_a_gpu_there_are_no_states(torch: Any) -> None:
    from torch.utils import checkpoint as of_torch

    assert get_device_states(gradcore.ones(2), [gradcore.ones(1)], 3) == ([], []) == of_torch.get_device_states(torch.ones(2))
    assert gradcore.cuda._initialized is gradcore.cuda.is_initialized() is False or gradcore.cuda.is_available()
