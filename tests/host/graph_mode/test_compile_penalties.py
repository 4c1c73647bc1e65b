"""Steps whose loss has a gradient in it, as WGAN-GP's penalty: the graph of the loss keeps what no replay needs."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import nn


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Softplus, nn.GELU, nn.Identity])
@pytest.mark.parametrize("detached", [False, True])
def test_a_step_with_a_penalty_is_replayed(activation: Any, detached: bool) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        critic = nn.Sequential(nn.Linear(2, 8), activation(), nn.Linear(8, 1))
        optimizer = gradcore.optim.Adam(critic.parameters(), lr=0.1)

        @wrap
        def step(x: Any, critic: Any = critic, optimizer: Any = optimizer) -> Any:
            mix = (x * gradcore.rand(4, 1)).requires_grad_()
            g, = gradcore.autograd.grad(critic(mix).sum(), mix, create_graph=True)
            loss = critic(x).mean() + 10 * (g.norm(2, dim=1) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach() if detached else loss

        found.append([step(gradcore.full((4, 2), k / 8)).item() for k in range(8)] + [p.tolist() for p in critic.parameters()])
    assert found[0] == found[1] and len(step.programs) == 1 and len(step.traces) == 2


def test_what_is_stored_is_still_an_obstacle() -> None:
    kept: list[Any] = []

    @gradcore.compile
    def step(w: Any) -> Any:
        h = w * 2
        kept[:] = [h]
        return h.square().sum()

    for _ in range(3):
        step(gradcore.ones(2, requires_grad=True) * 1)
    assert not step.programs and "still referenced" in step.traces[-1]
