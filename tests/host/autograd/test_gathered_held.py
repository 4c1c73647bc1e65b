"""What backward holds of what it makes for a ``cat`` or a sum that it recomputes."""

from __future__ import annotations

from typing import Any

import gradcore
from gradcore import nn
from gradcore.events import Launch


def test_parts_are_not_held_beside_the_whole_for_their_own_nodes() -> None:
    """A part is computed for ``cat``, and again for its own node, which runs after the layer that reads the whole."""
    width, peaks, found = 512 * 256 * 4, [], []
    for again in (True, False):
        gradcore.manual_seed(0)
        branches = [nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(4)]
        net = nn.ModuleList([*branches, nn.Linear(256, 1)])
        x = gradcore.randn(512, 8)
        held = gradcore.memory_requested()
        with gradcore.step() as step, gradcore.recompute(again):
            net[4](gradcore.cat([branch(x) for branch in branches], 1)).square().mean().backward()
        peaks.append((step.report.peak.requested - held) / width)
        found.append([p.grad.tolist() for p in net.parameters()])
    # What the norms keep, the whole's gradient, and what the first norm takes; held parts would be three quarters more.
    assert found[0] == found[1] and peaks[0] < 3.1 < peaks[1]


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norms = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return (x + self.norms[1](self.second(self.norms[0](self.first(x)).relu()))).relu()


def test_residual_blocks_are_not_held_beside_the_one_that_is_made_from_them() -> None:
    """Each is made again for the layers that read it; also in a second backward through the same graph."""
    x, width, peaks, found = gradcore.randn(1024, 8), 1024 * 16 * 4, [], []
    for again in (True, False):
        gradcore.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), Block(), Block(), nn.Linear(16, 1))
        held = gradcore.memory_requested()
        with gradcore.recompute(again):
            loss = net(x).square().mean()
        launches = []
        for retained in (True, True, False):
            net.zero_grad()
            with gradcore.step() as step:
                loss.backward(retain_graph=retained)
            launches.append(sum(isinstance(record, Launch) for record in step.recording.records))
            found.append([p.grad.tolist() for p in net.parameters()])
        assert launches[0] == launches[1]
        peaks.append((step.report.peak.requested - held) / width)
    assert all(grads == found[0] for grads in found)
    # Held blocks would be two more.
    assert peaks[0] < 9.1 and peaks[1] > 12
