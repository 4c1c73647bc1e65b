"""What backward holds of what it makes for a ``cat`` or a sum that it recomputes, and what is kept in the place of others."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.events import Launch
from gradcore.nn import functional
from tests.logs import normalized


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


def of_neighbors(leaf: Any, nodes: Any) -> Any:
    """As in a network of graphs: what is at the ends of edges."""
    ends = gradcore.arange(24, device=nodes.device) % 4
    return nodes[ends]


def shifted(leaf: Any, nodes: Any) -> Any:
    """As by the embedding of a time in a diffusion's network."""
    return functional.gelu(leaf.expand(6, 4, 16) * 1.5) + nodes


@pytest.mark.parametrize("run", [of_neighbors, shifted])
@pytest.mark.parametrize("written", [None, "before", "after"])
def test_what_is_made_of_a_far_smaller_tensor_is_recomputed(run: Any, written: str | None) -> None:
    """And that is kept once; the program may write to it, as in PyTorch, where take and sums keep nothing."""
    kept, found = [], []
    for again in (True, False):
        leaf, weight = (gradcore.full(shape, 0.5, requires_grad=True) for shape in ((4, 16), (16, 16)))
        with gradcore.recompute(again):
            nodes = leaf * 2
            wide = run(leaf, nodes)
            for when in ("before", "after"):
                if when == "after":
                    y = wide @ weight
                if when == written:
                    with gradcore.no_grad():
                        nodes.zero_()
            z = (y * y).sum()
        assert written == "before" or (wide.grad_fn.recipe is not None) == again
        del wide, nodes
        kept.append(gradcore.graph(z).nbytes)
        found.append([g.tolist() for g in gradcore.autograd.grad(z, [leaf, weight])])
    assert found[0] == found[1]
    # The smaller one in the place of six times as much, unless it was written to before anything had asked; and the leaf in the
    # place of what the activation keeps.
    assert kept[1] - kept[0] == 5 * leaf.nbytes * ((run is shifted) + (written != "before"))


@pytest.mark.parametrize("run", [of_neighbors, shifted])
def test_it_is_predicted(run: Any) -> None:
    logs = []
    for device in ("cpu", "meta"):
        gradcore.empty_cache(device)
        with gradcore.device(device):
            leaf, weight = (gradcore.full(shape, 0.5, requires_grad=True) for shape in ((4, 16), (16, 16)))
            with gradcore.step(device=device) as step:
                (run(leaf, leaf * 2) @ weight).square().sum().backward()
        logs.append(normalized(step.raw_log))
    assert logs[0] == logs[1]


def test_a_tensor_that_is_not_far_smaller_is_not_kept_for_it() -> None:
    nodes = gradcore.ones(10, 16, requires_grad=True) * 2
    assert nodes[gradcore.arange(24) % 10].grad_fn.recipe is None
    view = (gradcore.ones(10, 16, requires_grad=True) * 2)[:4]
    assert view[gradcore.arange(24) % 4].grad_fn.recipe is None
