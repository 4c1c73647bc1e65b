"""Models that come and go, as copies for averages and wrappers of one step do, leave nothing behind on the host."""

from __future__ import annotations

import copy
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.engine import owners
from gradcore.events import Network, Scope, Site, Tag
from gradcore.utils.checkpoint import checkpoint

KINDS = (Network, Scope, Site, Tag)


class Wrapped(nn.Module):
    """A layer of its own before a network that stays, which is no part of it."""

    def __init__(self, rest: nn.Module) -> None:
        super().__init__()
        # To move it would be a change of structures, after which what stays is named anew.
        self.first = nn.Linear(4, 4, device=next(rest.parameters()).device)
        self.rest = [rest]

    def forward(self, x: Any) -> Any:
        return self.rest[0](self.first(x).tanh())


class Again(Wrapped):
    def forward(self, x: Any) -> Any:
        return checkpoint(self.rest[0], self.first(x), use_reentrant=False)


def trained(net: nn.Module, x: Any) -> None:
    optimizer = gradcore.optim.SGD(net.parameters(), lr=0.1)
    net(x).sum().backward()
    optimizer.step()


class Hooked(Wrapped):
    """The network that stays is called while backward is in the layer of this one."""

    def forward(self, x: Any) -> Any:
        y = self.first(x)

        def call(grad: Any) -> None:
            self.rest[0](x.detach())

        y.register_hook(call)
        return y * y


MADE: dict[str, Callable[[nn.Module, Any], None]] = {
    "models": lambda net, x: trained(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(x.device), x),
    "copies": lambda net, x: trained(copy.deepcopy(net), x),
    "wrappers": lambda net, x: trained(nn.Sequential(net), x),
    "beside": lambda net, x: trained(Wrapped(net), x),
    "checkpoints": lambda net, x: trained(Again(net), x),
    # What the network that stays computes is computed again in backward, for the layer that goes.
    "heads": lambda net, x: nn.Linear(4, 2, device=x.device)(net[:2](x)).sum().backward(),
    "hooks": lambda net, x: trained(Hooked(net), x),
}


def alive(device: str) -> Counter[str]:
    """How many of each kind there are, but for those in caches whose sizes are limited."""
    gradcore.device(device).calls.clear()
    owners._changed.cache_clear()
    gc.collect()
    return Counter(type(x).__name__ for x in gc.get_objects() if type(x) in KINDS)


@pytest.mark.parametrize("what", MADE)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_layers_of_models_that_are_gone_are_forgotten(device: str, what: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)).to(device)
    x = gradcore.ones(3, 4, device=device)
    net(x).sum().backward()

    def repeat(times: int) -> None:
        for _ in range(times):
            MADE[what](net, x)
            net.zero_grad()

    # What is remembered for a model that stays is limited.
    repeat(80)
    before = alive(device)
    repeat(160)
    grown = alive(device) - before
    assert all(n < 80 for n in grown.values()), grown
