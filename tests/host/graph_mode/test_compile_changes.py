"""Whatever a user changes between two calls of a compiled function, the next call equals an eager one."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn

F = nn.functional
SCALE = [1.0]
OPTIONS = {"gain": 1.0}


@dataclass
class Config:
    scale: float = 1.0
    scaled: bool = True


class Block(nn.Module):
    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.bn, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.2)
        self.p, self.config, self.activation, self.order = 0.1, Config(), F.relu, ["lin", "bn"]
        self.own = {"gain": 1.0}
        self.last: Any = None
        self.register_buffer("offset", gradcore.zeros(4))

    def scaled(self, x: Any) -> Any:
        return x * self.factor

    def forward(self, x: Any) -> Any:
        for name in self.order:
            x = getattr(self, name)(x)
        x = F.dropout(self.drop(self.activation(x)), self.p, self.training)
        if self.config.scaled:
            x = x * self.config.scale
        x = self.scaled(x) + self.offset * self.own["gain"]
        return x if self.last is None else self.last(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)
        self.temperature = 1.0

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x) * OPTIONS["gain"] * SCALE[0]
        return self.head(x) / self.temperature


class Session:
    """A network in training, compiled as a whole step or as a module, and changes that a user may make."""

    def __init__(self, seed: int, wrap: Callable[[Any], Any], module: bool) -> None:
        gradcore.manual_seed(seed)
        Block.factor, OPTIONS["gain"], SCALE[0] = 1.0, 1.0, 1.0
        self.net = net = Net()
        self.optimizer = optimizer = gradcore.optim.SGD(net.parameters(), lr=0.02, momentum=0.5)
        self.block: Any = net.blocks[0]
        self.seed = seed
        self.handles: list[Any] = []
        self.weight_of_loss = weight = [1.0]
        self.held: list[Any] = []
        model = wrap(net) if module else net

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) * weight[0]
            loss.backward()
            optimizer.step()
            return loss

        self.step = step if module else wrap(step)

    def run(self, k: int) -> list[Any]:
        draw = np.random.default_rng(10 * self.seed + k)
        x, y = gradcore.tensor(draw.standard_normal((6, 4)).astype(np.float32)), gradcore.tensor(draw.integers(0, 2, 6))
        loss = self.step(x, y)
        tensors = [loss, *self.net.parameters(), *self.net.buffers(), *[p.grad for p in self.net.parameters()]]
        return [None if t is None else t.detach().numpy().tobytes() for t in tensors]

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


def assign(path: str, value: Any) -> Callable[[Session], None]:
    """Sets an attribute of the first block."""
    *owners, name = path.split(".")

    def change(s: Session) -> None:
        owner = s.block
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, name, value)

    return change


def option(name: str, value: float) -> Callable[[Session], None]:
    return lambda s: s.optimizer.param_groups[0].update({name: value})


def scaled_state(s: Session) -> None:
    s.net.load_state_dict({k: v.clone() if k.endswith("tracked") else v * 0.9 for k, v in s.net.state_dict().items()})


def swap(s: Session) -> None:
    s.net.blocks[0], s.net.blocks[1] = s.net.blocks[1], s.net.blocks[0]


def copy_half(s: Session) -> None:
    with gradcore.no_grad():
        s.block.lin.weight.copy_(s.block.lin.weight * 0.5)


def add_group(s: Session) -> None:
    s.net.head.scale = nn.Parameter(gradcore.ones(2))
    s.optimizer.add_param_group({"params": [s.net.head.scale], "lr": 0.1})


def hook(register: Callable[[Session], Any]) -> Callable[[Session], None]:
    return lambda s: s.handles.append(register(s))


CHANGES: dict[str, Callable[[Session], Any]] = {
    "nothing": lambda s: None, "eval": lambda s: s.net.eval(), "train": lambda s: s.net.train(),
    "attribute": assign("p", 0.4), "child's attribute": assign("drop.p", 0.5), "dataclass": assign("config.scale", 1.5),
    "flag": assign("config.scaled", False), "function": assign("activation", gradcore.tanh),
    "list": assign("order", ["bn", "lin"]),
    "buffer": lambda s: setattr(s.block, "offset", gradcore.ones(4)), "buffer's values": lambda s: s.block.offset.fill_(2.0),
    "instance's": assign("factor", 0.5), "class's": lambda s: setattr(Block, "factor", 1.5),
    "dict": lambda s: s.block.own.update(gain=1.5), "a child more": assign("last", nn.Tanh()),
    "a function for a child": assign("last", lambda x: x * 0.5), "global dict": lambda s: OPTIONS.update(gain=0.5),
    "global list": lambda s: SCALE.__setitem__(0, 2.0), "number": lambda s: setattr(s.net, "temperature", 2.0),
    "frozen": lambda s: s.block.lin.weight.requires_grad_(False), "free": lambda s: s.block.lin.weight.requires_grad_(True),
    "data": lambda s: setattr(s.block.lin.weight, "data", s.block.lin.weight.detach() * 0.5), "copied": copy_half,
    "momentum of a norm": assign("bn.momentum", 0.3), "eps": assign("bn.eps", 1e-2),
    "a group more": add_group, "decay": option("weight_decay", 0.01),
    "rate": option("lr", 0.1), "momentum": option("momentum", 0.1),
    "hook": hook(lambda s: s.block.register_forward_hook(lambda m, inputs, out: out * 0.5)),
    "hook of a parameter": hook(lambda s: s.block.lin.bias.register_hook(lambda g: g * 0.5)), "hooks gone": Session.close,
    "state": scaled_state,
    "no bias": lambda s: setattr(s.net.head, "bias", None), "closure": lambda s: s.weight_of_loss.__setitem__(0, 0.5),
    "gradients dropped": lambda s: s.net.zero_grad(),
    "gradients held": lambda s: s.held.extend(p.grad for p in s.net.parameters()),
    "method": lambda s: setattr(s.block, "scaled", types.MethodType(lambda self, x: x * 0.7, s.block)),
    "forward": lambda s: setattr(s.block, "forward", s.block.lin.forward), "places": swap,
    "one more": lambda s: s.net.blocks.append(Block()), "seed": lambda s: gradcore.manual_seed(5)}


def trained(seed: int, names: list[str], wrap: Callable[[Any], Any], module: bool) -> list[Any]:
    session, found = Session(seed, wrap, module), []
    for k, name in enumerate(names):
        CHANGES[name](session)
        found.append(session.run(k))
    session.close()
    session.held.clear()
    # It may refer to itself through what was added to it.
    vars(session.block).pop("forward", None)
    vars(session.block).pop("scaled", None)
    return found


@pytest.mark.parametrize("module", [False, True], ids=["step", "module"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str, module: bool) -> None:
    names = ["nothing"] * 3 + [name] + ["nothing"] * 3
    assert trained(1, names, gradcore.compile, module) == trained(1, names, lambda f: f, module)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.filterwarnings("ignore:.*runs eagerly from now on")
def test_changes_in_any_order(seed: int) -> None:
    names = random.Random(seed).choices([*CHANGES, *["nothing"] * 10], k=12)
    assert trained(seed, names, gradcore.compile, seed % 2 == 0) == trained(seed, names, lambda f: f, seed % 2 == 0), names


def test_a_methods_class_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block().eval()
    compiled, x = gradcore.compile(block), gradcore.ones(3, 4)
    compiled(x), compiled(x)
    monkeypatch.setattr(Block, "scaled", lambda self, x: x * 3)
    assert compiled(x).tolist() == block(x).tolist()
    monkeypatch.setattr(Block, "forward", lambda self, x: x + 1)
    assert compiled(x).tolist() == block(x).tolist() == [[2.0] * 4] * 3


def test_a_hook_of_a_parameter_sees_each_gradient_once() -> None:
    layer, seen = nn.Linear(2, 2), []
    layer.bias.register_hook(lambda g: seen.append(g.tolist()))
    compiled = gradcore.compile(layer)
    for k in range(4):
        layer.zero_grad()
        compiled(gradcore.ones(3, 2)).sum().backward()
        assert seen == [[3.0, 3.0]] * (k + 1) and layer.bias.grad.tolist() == [3.0, 3.0]


def test_gradients_that_lie_in_the_same_memory_when_traced_may_differ_later() -> None:
    p, q = gradcore.ones(2, requires_grad=True), gradcore.ones(2, requires_grad=True)

    @gradcore.compile
    def step() -> None:
        with gradcore.no_grad():
            p.sub_(p.grad)
            q.sub_(q.grad)

    shared, one, other = gradcore.ones(2), gradcore.full((2,), 2.0), gradcore.full((2,), 5.0)
    p.grad = q.grad = shared
    step()
    p.grad, q.grad = one, other
    step()
    assert p.tolist() == [-2.0, -2.0] and q.tolist() == [-5.0, -5.0]


def test_a_gradient_that_the_function_writes_to_and_then_replaces_may_be_the_users() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        p, found = gradcore.tensor([1.0, 2.0], requires_grad=True), []
        p.grad = gradcore.ones(2)

        def step(x: Any) -> None:
            with gradcore.no_grad():
                p.grad.mul_(2.0)
                p.sub_(p.grad)
            p.grad = None
            (p * x).sum().backward()

        f = wrap(step)
        for k in range(5):
            f(gradcore.tensor([1.0, float(k)]))
            found.append((p.tolist(), p.grad.tolist()))
            if k == 2:
                p.grad = gradcore.tensor([7.0, 8.0])
        return found

    assert trained(gradcore.compile) == trained(lambda f: f)


def test_counts_of_two_optimizers_in_one_step_stay_apart() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        p, q = gradcore.tensor([1.0, 2.0], requires_grad=True), gradcore.tensor([3.0, 4.0], requires_grad=True)
        first, second = gradcore.optim.Adam([p], lr=0.1), gradcore.optim.Adam([q], lr=0.1)
        for _ in range(3):
            first.zero_grad()
            (p * p).sum().backward()
            first.step()

        def step() -> None:
            first.zero_grad()
            second.zero_grad()
            (p * q * p).sum().backward()
            first.step()
            second.step()
            first.step()

        f = wrap(step)
        for _ in range(5):
            f()
        return [p.tolist(), q.tolist(), first.state[p]["step"], second.state[q]["step"]]

    assert trained(gradcore.compile) == trained(lambda f: f)


def test_an_argument_with_a_graph_that_the_function_writes_to() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        w, found = gradcore.tensor([1.0, 2.0], requires_grad=True), []

        def doubled(x: Any) -> Any:
            x.mul_(2.0)
            return (x * x).sum()

        f = wrap(doubled)
        for _ in range(3):
            y = w * 1
            loss = f(y)
            (loss + y.sum()).backward()
            found.append((loss.item(), w.grad.tolist()))
        return found

    assert trained(gradcore.compile) == trained(lambda f: f)


def test_every_fourth_replay_is_checked(capsys: Any) -> None:
    def doubled(x: Any) -> Any:
        print(1)
        return x * 2

    f = gradcore.compile(doubled, check_every=4)
    found = []
    for _ in range(9):
        f(gradcore.ones(1))
        found.append(len(capsys.readouterr().out.split()))
    assert found == [1, 0, 0, 0, 1, 0, 0, 0, 1]
