"""Whatever a training loop does between calls, in any order, a compiled function equals the plain one bit for bit."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn

F = nn.functional


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 6), nn.LayerNorm(6), nn.Dropout(0.3)
        self.batch, self.last = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.scale, self.skip, self.act, self.extra = 1.0, False, "relu", None

    def forward(self, x: Any) -> Any:
        h = getattr(F, self.act)(self.first(x))
        h = self.drop(self.batch(h if self.skip else self.norm(h)))
        return self.last(h if self.extra is None else h + self.extra) * self.scale


#: The functions that are compiled; each gets the world, and a batch.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
#: The changes between calls; each gets the world, a random generator, and a parameter.
ACTIONS: dict[str, Callable[..., Any]] = {}


def function(fn: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[fn.__name__] = fn
    return fn


def action(fn: Callable[..., Any]) -> Callable[..., Any]:
    ACTIONS[fn.__name__] = fn
    return fn


class World:
    """A network in training, with all possible changes."""

    def __init__(self, made: Callable[[Any], Any], name: str, kind: Any) -> None:
        gradcore.manual_seed(0)
        self.model, self.options = Net(), {"weight": 1.0}
        self.optimizer = kind(self.model.parameters(), lr=0.05)
        self.schedule = gradcore.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        self.held: list[Any] = []
        self.hooks: list[Any] = []
        self.losses: list[float] = []
        body, self.name = FUNCTIONS[name], name
        self.call = made(lambda x, y: body(self, x, y))
        self.update = made(lambda: self.optimizer.step())

    def loss(self, x: Any, y: Any) -> Any:
        return F.cross_entropy(self.model(x), y) * self.options["weight"]

    def seen(self) -> list[Any]:
        """All visible state, as bytes."""
        def bytes_of(x: Any) -> Any:
            return x.numpy().tobytes() if isinstance(x, gradcore.Tensor) else x

        kept = [(k, bytes_of(v)) for group in self.optimizer.param_groups for p in group["params"]
                for k, v in sorted(self.optimizer.state.get(p, {}).items())]
        return [repr(self.losses), *[(n, bytes_of(p.detach()), bytes_of(p.grad)) for n, p in self.model.named_parameters()],
                *[(n, bytes_of(b)) for n, b in self.model.named_buffers()], *kept, *map(bytes_of, self.held)]


@function
def steps(w: World, x: Any, y: Any) -> Any:
    w.optimizer.zero_grad()
    loss = w.loss(x, y)
    loss.backward()
    w.optimizer.step()
    return loss


@function
def clips(w: World, x: Any, y: Any) -> Any:
    w.optimizer.zero_grad()
    loss = w.loss(x, y)
    loss.backward()
    return loss + 0 * nn.utils.clip_grad_norm_(w.model.parameters(), 0.5)


@function
def accumulates(w: World, x: Any, y: Any) -> Any:
    for k in range(2):
        loss = w.loss(x[k::2], y[k::2]) / 2
        loss.backward()
    return loss


@function
def is_differentiated(w: World, x: Any, y: Any) -> Any:
    return w.loss(x, y)


@function
def drops_and_is_differentiated(w: World, x: Any, y: Any) -> Any:
    w.optimizer.zero_grad()
    return w.loss(x, y)


@function
def asks_for_gradients(w: World, x: Any, y: Any) -> Any:
    found = gradcore.autograd.grad(w.loss(x, y), [p for p in w.model.parameters() if p.requires_grad], allow_unused=True)
    return sum(g.sum() for g in found if g is not None)


@action
def call(w: World, r: Any, p: Any) -> None:
    count = int(r.choice([4, 4, 4, 6]))
    x, y = gradcore.tensor(r.standard_normal((count, 4)).astype(np.float32)), gradcore.tensor(r.integers(0, 3, (count,)))
    loss = w.call(x, y)
    if "differentiated" in w.name:
        loss.backward()
    w.losses.append(loss.item())


@action
def update(w: World, r: Any, p: Any) -> None:
    if w.name != "steps":
        w.update()


def like(p: Any, r: Any) -> Any:
    return gradcore.tensor(r.standard_normal(p.shape).astype(np.float32))


@action
def scale_state(w: World, r: Any, p: Any) -> None:
    state = w.optimizer.state.get(p, {})
    state.update({k: v * 0.5 for k, v in state.items() if isinstance(v, gradcore.Tensor) and v.dim()})


@action
def write(w: World, r: Any, p: Any) -> None:
    with gradcore.no_grad():
        p.copy_(like(p, r))


@action
def scale_gradient(w: World, r: Any, p: Any) -> None:
    if p.grad is not None:
        p.grad.mul_(2.0)


@action
def hook_gradient(w: World, r: Any, p: Any) -> None:
    if p.requires_grad:
        w.hooks.append(p.register_hook(lambda g: g * 0.5))


@action
def remove_hooks(w: World, r: Any, p: Any) -> None:
    while w.hooks:
        w.hooks.pop().remove()


@action
def another_child(w: World, r: Any, p: Any) -> None:
    w.model.last = nn.Linear(6, 3)
    w.optimizer.add_param_group({"params": list(w.model.last.parameters()), "lr": 0.02})


def put(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


ACTIONS |= {
    "drop gradients": lambda w, r, p: w.optimizer.zero_grad(),
    "fill gradients with 0": lambda w, r, p: w.optimizer.zero_grad(set_to_none=False),
    "drop a gradient": lambda w, r, p: put(p, "grad", None),
    "set a gradient": lambda w, r, p: put(p, "grad", like(p, r)),
    "hold a gradient": lambda w, r, p: w.held.append(p.grad),
    "hold none": lambda w, r, p: w.held.clear(),
    "freeze": lambda w, r, p: p.requires_grad_(False),
    "thaw": lambda w, r, p: [q.requires_grad_() for q in w.model.parameters()],
    "other memory": lambda w, r, p: put(p, "data", like(p, r)),
    "without bias": lambda w, r, p: put(w.model.first, "bias", None),
    "with bias": lambda w, r, p: put(w.model.first, "bias", nn.Parameter(gradcore.zeros(6))),
    "an extra tensor": lambda w, r, p: put(w.model, "extra", None if "extra" in w.model._parameters else gradcore.ones(6)),
    "an extra parameter": lambda w, r, p: put(w.model, "extra", nn.Parameter(gradcore.ones(6))),
    "load": lambda w, r, p: w.model.load_state_dict({k: v.clone() for k, v in w.model.state_dict().items()}),
    "load the optimizer": lambda w, r, p: w.optimizer.load_state_dict(w.optimizer.state_dict()),
    "clear the state": lambda w, r, p: w.optimizer.state.clear(),
    "rate": lambda w, r, p: w.optimizer.param_groups[0].update(lr=float(r.choice([0.01, 0.1]))),
    "decay": lambda w, r, p: w.optimizer.param_groups[0].update(weight_decay=float(r.choice([0.0, 0.01]))),
    "schedule": lambda w, r, p: w.schedule.step(),
    "train": lambda w, r, p: w.model.train(),
    "eval": lambda w, r, p: w.model.eval(),
    "eval of a child": lambda w, r, p: w.model.drop.eval(),
    "a number": lambda w, r, p: put(w.model, "scale", float(r.choice([0.5, 1.0]))),
    "a switch": lambda w, r, p: put(w.model, "skip", not w.model.skip),
    "a name": lambda w, r, p: put(w.model, "act", str(r.choice(["relu", "gelu", "tanh"]))),
    "an option": lambda w, r, p: w.options.update(weight=float(r.choice([1.0, 2.0]))),
    "an option of a layer": lambda w, r, p: put(w.model.drop, "p", float(r.choice([0.0, 0.5]))),
    "a seed": lambda w, r, p: gradcore.manual_seed(int(r.integers(100))),
    "hook": lambda w, r, p: w.hooks.append(w.model.last.register_forward_hook(lambda m, given, out: out * 1.5)),
    "hook before": lambda w, r, p: w.hooks.append(w.model.first.register_forward_pre_hook(lambda m, given: (given[0] + 1,))),
}
OPTIMIZERS = (gradcore.optim.SGD, gradcore.optim.Adam, lambda p, lr: gradcore.optim.SGD(p, lr, momentum=0.9))


@pytest.mark.filterwarnings("ignore:.*was traced 64 times", "ignore:Detected call of")
@pytest.mark.parametrize("seed", range(18))
def test_any_order(seed: int) -> None:
    draw = random.Random(seed)
    name, kind = list(FUNCTIONS)[seed % len(FUNCTIONS)], OPTIMIZERS[seed // len(FUNCTIONS)]
    acts = ["call"] * 3
    for _ in range(20):
        acts += [draw.choice(list(ACTIONS)), *["call"] * draw.randrange(1, 4)]
    plain, compiled = World(lambda f: f, name, kind), World(partial(gradcore.compile, max_programs=64), name, kind)
    generator = gradcore.get_rng_state()
    states = [generator, generator]
    for k, act in enumerate(acts):
        for which, world in enumerate((plain, compiled)):
            gradcore.set_rng_state(states[which])
            r = np.random.default_rng([seed, k])
            params = list(world.model.parameters())
            ACTIONS[act](world, r, params[int(r.integers(len(params)))])
            states[which] = gradcore.get_rng_state()
        differ = [a[0] for a, b in zip(plain.seen(), compiled.seen(), strict=True) if a != b]
        assert not differ, (differ, acts[:k + 1], compiled.call.explain())
    assert len(compiled.call.traces) < acts.count("call"), "nothing was replayed"
    # Objects that a function reads refer to it, and are freed by the garbage collector.
    del plain, compiled, world, params
    gc.collect()
