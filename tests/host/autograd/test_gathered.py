"""What ``cat`` puts together, and sums, are recomputed from their operands, where keeping these takes less memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.nn import functional
from gradcore.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from tests.logs import normalized

PART = 8 * 128 * 4


def parts(count: int, keep: int = 0) -> tuple[Any, list[Any], list[Any]]:
    """A leaf, what was made of it, and what keeps the first of these."""
    leaf = gradcore.full((8, 128), 2.0, requires_grad=True)
    made = [leaf * float(k + 1) for k in range(count)]
    return leaf, made, [x * x for x in made[:keep]]


def kept(*tensors: Any) -> int:
    return gradcore.graph(sum(t.sum() for t in tensors)).nbytes


@pytest.mark.parametrize(("count", "keep", "recomputed"), [
    (2, 0, False), (2, 1, False), (2, 2, True), (3, 2, True), (1, 1, True)])
def test_a_third_of_the_output_may_be_kept_in_its_place(count: int, keep: int, recomputed: bool) -> None:
    leaf, made, others = parts(count, keep)
    y = gradcore.cat(made, 1)
    z = y * y
    assert kept(z, *others) == PART * (count if recomputed else count + keep)
    (z.sum() + sum(other.sum() for other in others)).backward()
    # Of (k x)^2, once for each k, and for each that is kept once more.
    assert leaf.grad[0, 0].item() == sum(2 * k * k * 2.0 * (2 if k <= keep else 1) for k in range(1, count + 1))


def dense(x: Any, layers: Any) -> Any:
    features = [x]
    for layer in layers:
        features.append(layer(gradcore.cat(features, 1)))
    return gradcore.cat(features, 1)


def made_layers() -> Any:
    gradcore.manual_seed(0)
    return [nn.Sequential(nn.BatchNorm1d(16 + 8 * k), nn.ReLU(), nn.Linear(16 + 8 * k, 8)) for k in range(6)]


def test_what_is_gathered_again_and_again_is_kept_once() -> None:
    first, layers = nn.Linear(4, 16), made_layers()
    weights = [first.weight, *(p for layer in layers for p in layer.parameters())]
    x = gradcore.randn(32, 4)
    found, bytes_of = [], []
    for again in (True, False):
        with gradcore.recompute(again):
            loss = dense(first(x), layers).square().mean()
            bytes_of.append(gradcore.graph(loss).nbytes)
        slopes = gradcore.autograd.grad(loss, weights, create_graph=True)
        second = gradcore.autograd.grad(sum((g * g).sum() for g in slopes), weights)
        found.append([g.tolist() for g in (*slopes, *second)])
    assert found[0] == found[1]
    # A copy of the first 16 columns, and 16 and 6 times 8 in parts; means and deviations of norms; a few numbers more.
    least = 32 * 4 * (16 + 16 + 6 * 8) + 2 * 4 * sum(16 + 8 * k for k in range(6))
    assert least <= bytes_of[0] < least + 1024 and bytes_of[1] > 5 * least


def test_it_is_predicted() -> None:
    logs = []
    for device in ("cpu", "meta"):
        gradcore.empty_cache(device)
        with gradcore.device(device):
            layers, x = made_layers(), gradcore.ones(32, 16)
            w = gradcore.ones(16, requires_grad=True)
            with gradcore.step(device=device) as step:
                dense(x * w, layers).square().mean().backward()
        logs.append(normalized(step.raw_log))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("when", ["before it is read", "after"])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_part_may_be_written_to(when: str, recorded: bool) -> None:
    """As in PyTorch, where ``cat`` keeps nothing: the recipe goes on with a copy."""
    leaf, (a, b), others = parts(2, 2)
    y = gradcore.cat([a, b], 1)
    del others
    z = y * y if when == "after" else None
    with gradcore.set_grad_enabled(recorded):
        a.mul_(7)
        b[:, :2].add_(1)
    z = y * y if z is None else z
    z.sum().backward()
    assert leaf.grad.tolist() == [[2 * (1 + 4) * 2.0] * 128] * 8


def test_parts_go_with_a_result_that_nobody_has_asked_for() -> None:
    leaf, made, others = parts(3, 2)
    before = gradcore.memory_allocated()
    y = gradcore.cat(made, 1).sum()
    del made, others
    # Backward of a sum reads a shape.
    assert gradcore.memory_allocated() == before - 5 * PART + 512
    y.backward()
    assert leaf.grad[0, 0].item() == 6


def test_a_part_of_much_more_is_not_kept_for_it() -> None:
    leaf, (wide, ), others = parts(1, 1)
    y = gradcore.cat([wide[:, :4], wide[:, 4:8]], 1)
    z = (y * y).sum()
    del wide, others
    # Without the keeper, y alone is kept.
    assert kept(z) == 8 * 8 * 4
    z.backward()
    assert leaf.grad[0].tolist() == [4.0] * 8 + [0.0] * 120


def test_a_constant_that_each_step_gathers_is_no_reason() -> None:
    fixed, leaf = gradcore.ones(8, 128), gradcore.ones(8, 128, requires_grad=True)
    for _ in range(3):
        y = gradcore.cat([fixed, leaf * 2], 1)
        assert y.grad_fn.recipe is None
    for _ in range(5):
        x = leaf * 2
        aside = x * x
        y = gradcore.cat([leaf, x], 1)
        assert y.grad_fn.recipe is not None
        del aside
    # Those of steps before are forgotten.
    assert len(leaf.storage.gathered) <= 2


def test_a_view_of_a_parameter_which_each_step_gathers_is_no_reason() -> None:
    leaf = gradcore.ones(8, 128, requires_grad=True)
    for _ in range(3):
        assert gradcore.cat([leaf.view(4, 2, 128)[:, 0], (leaf * 2)[:4]], 1).grad_fn.recipe is None


class Block(nn.Module):
    """A residual block, whose sum is made in place or not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.how = how
        self.relu = nn.ReLU(inplace=how != "anew")

    def forward(self, x: Any) -> Any:
        y = self.norms[1](self.second(self.relu(self.norms[0](self.first(x)))))
        if self.how == "in place":
            y += x
        elif self.how == "taken off":
            y -= x
        else:
            y = y + x
        return self.relu(y)


@pytest.mark.parametrize("how", ["anew", "in place", "taken off"])
def test_of_residual_blocks_every_third_sum_is_kept(how: str) -> None:
    x = gradcore.randn(2, 4, 8, 8)
    sizes, found = [], []
    for again in (True, False):
        gradcore.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(4, 4, 1), *(Block(how) for _ in range(8)))
        weights = list(net.parameters())
        with gradcore.recompute(again):
            loss = net(x).square().mean()
        sizes.append(gradcore.graph(loss).nbytes)
        slopes = gradcore.autograd.grad(loss, weights, create_graph=True)
        second = gradcore.autograd.grad(sum((g * g).sum() for g in slopes), weights)
        found.append([g.tolist() for g in (*slopes, *second)])
    assert found[0] == found[1]
    # The input, what the first convolution and two in each block return, and two of the blocks' sums.
    assert sizes[0] // x.nbytes == 1 + 1 + 8 * 2 + 2 and sizes[1] // x.nbytes >= 8 * 4


def test_an_operand_of_a_sum_may_be_written_to() -> None:
    found = []
    for again in (True, False):
        leaf = gradcore.full((3,), 2.0, requires_grad=True)
        with gradcore.recompute(again):
            x = leaf * 1
            aside = x * x
            y = functional.gelu(leaf) + x
            z = (y * y).sum()
        assert (y.grad_fn.recipe is not None) == again
        del aside
        with gradcore.no_grad():
            x.zero_()
        z.backward()
        found.append(leaf.grad.tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("policy", [["add"], ["clone"], ["add", "clone", "mul", "sin"]])
def test_a_selective_checkpoint_runs_the_same_ops_again(policy: list[str]) -> None:
    """Also where its second run alone could recompute a sum, and its first run alone copies what others gather."""
    leaf = gradcore.full((3,), 2.0, requires_grad=True)

    def run(leaf: Any) -> Any:
        x = leaf * 1
        aside = x * x
        y = functional.gelu(leaf)
        y += x
        with gradcore.no_grad():
            outside.mul_(2)
        return (y * y).clone().sin() + aside

    found = []
    for again in (True, False):
        with gradcore.recompute(again):
            outside = leaf * 1
            aside = outside * outside
            z = (functional.gelu(leaf) + outside).square().sum()
            del aside
            z = z + checkpoint(run, leaf, context_fn=partial(create_selective_checkpoint_contexts, policy)).sum()
            found.append(gradcore.autograd.grad(z, leaf)[0].tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("when", ["borrowed", "shown before", "shown", "not asked for"])
@pytest.mark.parametrize("gathered", ["cat", "sum"])
def test_what_arrays_of_other_libraries_write_is_not_gathered(when: str, gathered: str) -> None:
    """As a buffer that the next observations are read into: in PyTorch, neither ``cat`` nor a sum keeps its parts."""
    found = []
    for again in (True, False):
        leaf, weight = (gradcore.full((8, 8), 2.0, requires_grad=True) for _ in range(2))
        array = np.full((8, 8), 3.0, np.float32)
        x = gradcore.from_numpy(array) if when == "borrowed" else leaf * 1
        if when == "shown before":
            array = x.detach().numpy()
        aside = x * leaf
        with gradcore.recompute(again):
            made = functional.gelu(leaf)
            y = gradcore.cat([x, made], 0) if gathered == "cat" else made + x
            z = y @ weight if when != "not asked for" else None
            if when in ("shown", "not asked for"):
                array = x.detach().numpy()
            array[:] = 7
            z = y @ weight if z is None else z
        z.square().sum().backward()
        found.append([leaf.grad.tolist(), weight.grad.tolist()])
    assert found[0] == found[1]
    del aside


def test_a_replay_may_write_to_it() -> None:
    """An argument, a parameter or a buffer."""
    leaf = gradcore.full((8,), 2.0, requires_grad=True)
    weight, mean = nn.Parameter(gradcore.ones(8)), gradcore.ones(8)
    optimizer = gradcore.optim.SGD([weight], lr=0.5)

    @gradcore.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        (weight * leaf.detach()).sum().backward()
        optimizer.step()
        with gradcore.no_grad():
            mean.mul_(2)
            x.mul_(2)

    for _ in range(3):
        step(gradcore.ones(8))
    found, traced = [], len(step.traces)
    for again in (True, False):
        with gradcore.no_grad():
            weight.fill_(1)
            mean.fill_(1)
        x = leaf * 1
        aside = x * x + x * mean
        with gradcore.recompute(again):
            y = gradcore.cat([functional.gelu(leaf) + given for given in (x, weight, mean)])
            z = (y * y).sum()
        step(x.detach())
        found.append(gradcore.autograd.grad(z, leaf)[0].tolist())
        assert len(step.traces) == traced and x.tolist() == [4.0] * 8
        del aside
    assert found[0] == found[1]


@pytest.mark.parametrize("again", [True, False])
def test_a_sum_in_place_stays_on_its_device(again: bool) -> None:
    x, other = gradcore.tensor(2.0, requires_grad=True), gradcore.ones((), device="meta", requires_grad=True)
    with gradcore.recompute(again):
        y, kept = functional.gelu(x), other * 1
        aside = kept * kept
        with pytest.raises(gradcore.errors.DeviceError, match="add_: Expected all tensors to be on the same device"):
            y += kept
    del aside


def test_who_shares_what_is_added_to_sees_the_sum() -> None:
    leaf = gradcore.full((3,), 2.0, requires_grad=True)
    kept = leaf * 1
    aside = kept * kept
    x = y = functional.gelu(leaf)
    was = x.storage.serial
    x += kept
    assert x is y and x.storage.serial != was
    x = functional.gelu(leaf)
    view, was = x[:2], x.storage.serial
    x += kept
    assert x.storage.serial == was and view.tolist() == y[:2].tolist()
    (x * y).sum().backward()
    assert leaf.grad.tolist() == gradcore.autograd.grad(((functional.gelu(leaf) + leaf) ** 2).sum(), leaf)[0].tolist()
    del aside


def test_what_a_graph_keeps_for_it_is_listed() -> None:
    _, made, others = parts(3, 2)
    y = functional.gelu(gradcore.cat(made, 1))
    graph = gradcore.graph(y)
    assert graph.nbytes == 3 * PART
    at = next(n for n in graph.nodes if n.name == "CatBackward0")
    assert [(r.how, r.nbytes, r.made_by) for r in at.residuals] == [("kept", PART, "mul")] * 3
    assert [(r.how, r.name) for n in graph.nodes if n.name == "GeluBackward0" for r in n.residuals] == [("recomputed", "x")]
    del others
