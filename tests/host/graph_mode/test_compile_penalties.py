"""Steps whose loss has a gradient in it, as WGAN-GP's penalty: the graph of the loss keeps what no replay needs."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.utils.checkpoint import checkpoint


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


@pytest.mark.parametrize("first", [lambda: nn.LayerNorm(4), lambda: nn.RMSNorm(4), nn.GELU])
def test_a_penalty_through_a_checkpoint_is_replayed_though_what_is_recomputed_may_not_be_read(first: Any) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        critic = nn.Sequential(first(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = gradcore.optim.SGD(critic.parameters(), lr=0.1)

        @wrap
        def step(x: Any, critic: Any = critic, optimizer: Any = optimizer) -> Any:
            mix = x.detach().requires_grad_()
            scores = checkpoint(critic, mix, use_reentrant=False)
            g, = gradcore.autograd.grad(scores.sum(), mix, create_graph=True)
            loss = scores.mean() + g.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        batches = [gradcore.arange(12.0).view(3, 4).sub(k).sin() for k in range(4)]
        found.append([step(x).item() for x in batches] + [p.tolist() for p in critic.parameters()])
    assert found[0] == found[1] and len(step.traces) == 2


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
