"""Optimizers that users write as for PyTorch, with a ``step`` of their own: their hooks, and the account of their bytes."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import nn, optim


class Heavy(optim.Optimizer):
    """SGD with momentum; ``average`` makes a new buffer in each step, in a list."""

    def __init__(self, params: Any, lr: float = 0.1, average: bool = False) -> None:
        super().__init__(params, {"lr": lr})
        self.average = average

    @gradcore.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with gradcore.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if self.average:
                    state["moments"] = [0.5 * state["moments"][0] + p.grad if state else p.grad + 0.0]
                else:
                    state.setdefault("moments", gradcore.zeros_like(p)).mul_(0.5).add_(p.grad)
                state["last"] = p.grad
                p.sub_(group["lr"] * (state["moments"][0] if self.average else state["moments"]))
        return loss


class Around(optim.Optimizer):
    """Wraps another optimizer, and does not call ``__init__``."""

    def __init__(self, base: Any) -> None:
        self.base, self.param_groups, self.state = base, base.param_groups, base.state

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)


def made(kind: str, params: Any) -> Any:
    return {"new": lambda: Heavy(params, average=True), "kept": lambda: Heavy(params),
            "around": lambda: Around(Heavy(params)),
            "lbfgs": lambda: optim.LBFGS(params, max_iter=2, line_search_fn="strong_wolfe")}[kind]()


@pytest.mark.parametrize("kind", ["new", "kept", "around", "lbfgs"])
def test_its_state_is_optimizer_state_of_the_parameters_layer(kind: str) -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 5))
    optimizer = made(kind, model.parameters())
    x = gradcore.ones(4, 30)

    def closure() -> Any:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        with gradcore.step() as s:
            optimizer.step(closure)
    tags = {}
    for p, state in optimizer.state.items():
        for name, value in state.items():
            for tensor in value if isinstance(value, list) else (value,):
                if isinstance(tensor, gradcore.Tensor):
                    tags[name, id(p)] = gradcore.events.TAGS[tensor.storage.block.tag]
    roles = {name: tag.role for (name, _), tag in tags.items()}
    if kind == "lbfgs":
        assert set(roles) >= {"d", "prev_flat_grad", "old_dirs", "old_stps", "ro"}
        assert set(roles.values()) == {"optimizer state"}
    else:
        assert roles == {"moments": "optimizer state", "last": "gradient"}
        assert [tags["moments", id(p)].layer for p in model.parameters()] == ["0", "0", "2", "2"]
    # The closure belongs to the caller: its forward and backward are no part of the update.
    phases = {(launch.tag.op, launch.tag.phase) for launch in s.recording.records
              if isinstance(launch, gradcore.events.Launch)}
    assert {("linear", "forward"), ("linear_grad", "backward")} <= phases
    assert not any(op in ("linear", "linear_grad", "tanh") and phase == "optimizer" for op, phase in phases)
    labels = [(r.what, r.label) for r in s.recording.records
              if isinstance(r, gradcore.events.Mark) and r.label == "optimizer"]
    assert labels == [("begin", "optimizer"), ("end", "optimizer")]


def test_its_hooks_are_called_around_the_step_and_may_replace_its_arguments() -> None:
    p = nn.Parameter(gradcore.ones(3))
    optimizer, seen = Heavy([p]), []
    p.grad = gradcore.ones(3)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: seen.append(("before", o is args[0], p.tolist())))
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o,), {"closure": lambda: 7}))
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append(("after", len(args), p.tolist())))
    assert optimizer.step() == 7
    assert [what for what, *_ in seen] == ["before", "after"]
    assert seen[0][1] is True and seen[0][2] == [1.0, 1.0, 1.0] and seen[1][2] == pytest.approx([0.9] * 3)


def test_an_error_in_it_ends_the_phase() -> None:
    class Broken(optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("no")

    broken = Broken([nn.Parameter(gradcore.ones(3))], {})
    with gradcore.step() as s:
        with pytest.raises(RuntimeError, match="no"):
            broken.step()
        gradcore.ones(3) * 2
    launches = [r for r in s.recording.records if isinstance(r, gradcore.events.Launch)]
    assert launches[-1].tag.phase == "forward"
    del Broken, broken
