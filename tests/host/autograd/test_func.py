"""``gradcore.func.functional_call``: a module with other tensors in place of its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.events import Tag
from gradcore.func import functional_call
from tests.conftest import raises
from tests.meta.test_interrupts import at_every_moment


@pytest.mark.oracle
def test_a_step_of_the_weights_is_differentiated_as_in_pytorch(torch: Any) -> None:
    """Finn et al., Model-Agnostic Meta-Learning, arXiv:1703.03400, with one step inside."""
    found = []
    for library in (gradcore, torch):
        rng = np.random.default_rng(0)
        net = library.nn.Sequential(library.nn.Linear(2, 5), library.nn.Tanh(), library.nn.Linear(5, 1)).to(library.float64)
        net.load_state_dict({k: library.tensor(rng.normal(size=tuple(v.shape))) for k, v in net.state_dict().items()})
        optimizer = library.optim.Adam(net.parameters(), lr=0.01)
        losses = []
        for _ in range(5):
            x, y, x2, y2 = (library.tensor(rng.normal(size=(4, n))) for n in (2, 1, 2, 1))
            weights = dict(net.named_parameters())
            call, mse = library.func.functional_call, library.nn.functional.mse_loss
            slopes = library.autograd.grad(mse(call(net, weights, (x,)), y), weights.values(), create_graph=True)
            moved = {k: p - 0.1 * g for (k, p), g in zip(weights.items(), slopes, strict=True)}
            loss = mse(call(net, moved, x2), y2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append((losses, [p.tolist() for p in net.parameters()]))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
        self.out.weight = self.into.weight
        self.register_buffer("scale", gradcore.ones(1))

    def forward(self, x: Any, times: float = 1.0) -> Any:
        return self.out(self.into(x)) * self.scale * times


def test_names_of_one_tensor_are_replaced_together() -> None:
    net, x, other = Tied(), gradcore.tensor([0, 2]), gradcore.ones(3, 2)
    own = net.into.weight
    assert functional_call(net, {"into.weight": other}, x).tolist() == [[2.0] * 3] * 2
    apart = functional_call(net, {"into.weight": other}, x, tie_weights=False)
    np.testing.assert_allclose(apart.tolist(), (gradcore.ones(2, 2) @ own.T).tolist(), rtol=1e-6)
    twice = functional_call(net, ({"out.weight": other}, {"scale": gradcore.full((1,), 2.0)}), (x,), {"times": 3.0})
    assert twice.tolist() == [[12.0] * 3] * 2
    assert net.into.weight is own and net.out.weight is own and net.scale.item() == 1


def test_the_module_is_as_before_whatever_happens() -> None:
    net, own = nn.Linear(2, 2), None
    own = net.weight
    with raises(RuntimeError, "[1, 2]"):
        functional_call(net, {"weight": gradcore.ones(3, 3), "bias": gradcore.zeros(3)}, gradcore.ones(1, 2))
    assert net.weight is own and net.bias.shape == (2,)
    with raises(RuntimeError, "Error(s) in reparametrizing for Linear:\n\tUnexpected key(s): 'w'.\n\tMissing key(s): 'bias'."):
        functional_call(net, {"w": own, "weight": own}, gradcore.ones(1, 2), strict=True)
    with raises(AttributeError, "inner"):
        functional_call(net, {"inner.weight": own}, gradcore.ones(1, 2))
    with raises(ValueError, "'bias' appear in several of the dictionaries"):
        functional_call(net, ({"bias": own}, {"bias": own}), gradcore.ones(1, 2))
    assert functional_call(net, {"w": own}, gradcore.ones(1, 2)).tolist() == net(gradcore.ones(1, 2)).tolist()


def test_a_call_inside_a_compiled_step_is_replayed() -> None:
    net = nn.Linear(2, 1)

    def loss(x: Any) -> Any:
        weights = dict(net.named_parameters())
        slopes = gradcore.autograd.grad(net(x).square().mean(), weights.values(), create_graph=True)
        moved = {k: p - 0.1 * g for (k, p), g in zip(weights.items(), slopes, strict=True)}
        return functional_call(net, moved, x).square().mean()

    def step(x: Any) -> Any:
        net.zero_grad()
        found = loss(x)
        found.backward()
        return found

    compiled = gradcore.compile(step)
    for k in range(4):
        x = gradcore.full((3, 2), float(k))
        found = compiled(x).item(), net.weight.grad.tolist()
        assert found == (step(x).item(), net.weight.grad.tolist())
    assert compiled.programs, compiled.explain()


def tag_of(x: Any) -> Tag:
    return x.storage.block.tag


def test_layers_keep_their_parameters_names_while_others_stand_in() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    x = gradcore.ones(4, 2)
    fast = {name: p - 0.1 for name, p in net.named_parameters()}
    functional_call(net, fast, x)
    assert [(tag_of(p).role, tag_of(p).layer) for p in net.parameters()] == [("parameter", name) for name in "0022"]
    # What the caller has computed is a result of the caller's; what an optimizer has, is the layer's.
    assert {(tag_of(p).role, tag_of(p).layer) for p in fast.values()} == {("output", "")}
    own = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    optimizer = gradcore.optim.SGD(own.values(), lr=0.1, momentum=0.9)
    loss = functional_call(net, own, x).sum()
    assert "2.weight" in str(gradcore.graph(loss))
    loss.backward()
    optimizer.step()
    for name, p in own.items():
        state = optimizer.state[p]["momentum_buffer"]
        assert {(tag_of(t).layer, tag_of(t).network) for t in (p, p.grad, state)} == {(name[0], tag_of(net[0].weight).network)}


def test_different_tensors_for_one_are_refused() -> None:
    net, x = Tied(), gradcore.tensor([0, 2])
    mine, other = gradcore.ones(3, 2), gradcore.zeros(3, 2)
    with raises(ValueError, "functional_call: 'into.weight' and 'out.weight' are one tensor of the module"):
        functional_call(net, {"into.weight": mine, "out.weight": other}, x)
    functional_call(net, {"into.weight": mine, "out.weight": mine}, x)
    functional_call(net, {"into.weight": mine, "out.weight": other}, x, tie_weights=False)
    with raises(ValueError, "expected a dict of tensors by name, or a list or tuple of such dicts, but got int"):
        functional_call(net, 3, x)  # type: ignore[arg-type]


def test_an_interrupt_leaves_the_module_its_own() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    own = dict(net.named_parameters())
    given, x = {name: p.detach() * 2 for name, p in own.items()}, gradcore.ones(3, 2)
    for moment in at_every_moment(lambda: functional_call(net, given, x), "/gradcore/func/"):
        assert all(net.get_parameter(name) is p is getattr(net[int(name[0])], name[2:]) for name, p in own.items()), moment
