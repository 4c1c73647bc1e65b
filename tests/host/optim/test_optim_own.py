"""Optimizers that users write as for PyTorch, with a ``step`` of their own: their hooks, and the account of their bytes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import gradcore
from gradcore import folds, nn, optim
from tests.conftest import raises


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
                if p.grad is not None and p.grad.is_sparse:
                    raise RuntimeError("this optimizer does not support sparse gradients")
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
                    tags[name, id(p)] = tensor.storage.block.tag
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


def test_the_state_of_a_step_that_fails_is_optimizer_state() -> None:
    model = nn.Linear(30, 20)
    optimizer = Heavy(model.parameters())
    model(gradcore.ones(4, 30)).sum().backward()
    # The weight is updated, and the bias has no gradient.
    model.bias.grad = None
    with raises(TypeError, ""), gradcore.step() as step:
        optimizer.step()
    live = folds.live_at(step.log, len(step.log) - 1)
    assert sum(h.requested for h in live if h.role == "optimizer state") == 4 * (30 * 20 + 20)
    assert not any(h.role == "temporary" for h in live)


def test_other_arguments_are_given_as_they_are() -> None:
    class Named(optim.Optimizer):
        def step(self, model: Any, kind: Any = None) -> Any:  # type: ignore[override]
            return len(list(model.named_parameters())), kind is float

    model = nn.Linear(2, 2)
    assert Named(model.parameters(), {}).step(model, kind=float) == (2, True)
    del Named


def test_a_step_of_a_mixin_and_one_that_calls_its_parents_run_the_hooks_once() -> None:
    class Mixin:
        def step(self, closure: Any = None) -> Any:
            return None

    class Mixed(Mixin, Heavy):
        pass

    class Further(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    for kind in (Mixed, Further):
        p = nn.Parameter(gradcore.ones(3))
        p.grad = gradcore.ones(3)
        optimizer, seen = kind([p], lr=0.1), []
        optimizer.register_step_pre_hook(lambda *_, seen=seen: seen.append("before"))
        optimizer.register_step_post_hook(lambda *_, seen=seen: seen.append("after"))
        with gradcore.step() as s:
            optimizer.step()
        assert seen == ["before", "after"]
        assert [r.what for r in s.recording.records if isinstance(r, gradcore.events.Mark) and r.label == "optimizer"] == [
            "begin", "end"]
    assert p.tolist() == pytest.approx([0.9] * 3)
    del Mixin, Mixed, Further, kind


def test_a_wrapper_without_state() -> None:
    class Bare(optim.Optimizer):
        def __init__(self, base: Any) -> None:
            self.base, self.param_groups = base, base.param_groups

        def step(self, closure: Any = None) -> Any:
            return self.base.step(closure)

    p = nn.Parameter(gradcore.ones(3))
    p.grad = gradcore.ones(3)
    Bare(optim.SGD([p], lr=0.5)).step()
    assert p.tolist() == [0.5] * 3
    del Bare


def test_nested_state_is_owned_and_makes_a_round_trip() -> None:
    class Nested(optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            self.state["shared"] = {"count": gradcore.zeros(2)}
            for p in self.param_groups[0]["params"]:
                self.state[p] = {"d": {"a": p.grad.clone()}, "h": [p.grad.clone()[0], 3], "n": gradcore.tensor(1.0)}

    model = nn.Linear(4, 3, bias=False)
    model(gradcore.ones(2, 4)).sum().backward()
    first, second = Nested(model.parameters(), {}), Nested(model.parameters(), {})
    first.step()
    state = first.state[model.weight]
    held = [state["d"]["a"], state["h"][0], state["n"], first.state["shared"]["count"]]
    assert {t.storage.block.tag.role for t in held} == {"optimizer state"}
    del first.state["shared"]
    second.load_state_dict(first.state_dict())
    loaded = second.state[model.weight]
    assert loaded["d"]["a"].tolist() == state["d"]["a"].tolist() and loaded["d"]["a"] is not state["d"]["a"]
    assert loaded["h"][1] == 3 and loaded["h"][0].shape == (4,) and loaded["n"].item() == 1.0 and loaded["n"].dim() == 0
    del Nested


def test_what_is_in_the_state_before_a_closure_counts_there() -> None:
    class Sharp(optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            for p in self.param_groups[0]["params"]:
                self.state[p]["old"] = p.detach().clone()
            closure()

    model = nn.Linear(100, 100)
    optimizer = Sharp(model.parameters(), {})

    def closure() -> Any:
        model.zero_grad()
        loss = model(gradcore.ones(400, 100)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        with gradcore.step() as s:
            optimizer.step(closure)
        assert s.report.by_role["optimizer state"] >= 40_000
    del Sharp


def layers_of_the_second_step(resume: str) -> Any:
    model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100))
    optimizer = optim.Adam(model.parameters())

    def step() -> Any:
        with gradcore.step() as s:
            optimizer.zero_grad()
            model(gradcore.ones(2, 100)).sum().backward()
            optimizer.step()
        return s.report.by_layer

    step()
    if resume == "copied":
        import copy

        model, optimizer = copy.deepcopy((model, optimizer))
    elif resume == "loaded":
        state = optimizer.state_dict()
        model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100))
        optimizer = optim.Adam(model.parameters())
        optimizer.load_state_dict(state)
        del state
    step()
    return step()


@pytest.mark.parametrize("resume", ["copied", "loaded"])
def test_state_that_is_loaded_before_the_first_forward_gets_its_layer(resume: str) -> None:
    found, fresh = layers_of_the_second_step(resume), layers_of_the_second_step("not")
    assert found["0"] == fresh["0"] and found["2"] == fresh["2"]


def test_an_option_without_a_default_is_required() -> None:
    from gradcore.optim.optimizer import Optimizer, required

    class Plain(Optimizer):
        def __init__(self, params: Any, lr: Any = required) -> None:
            super().__init__(params, {"lr": lr})

    p = nn.Parameter(gradcore.ones(2))
    assert repr(required) == "<required parameter>"
    assert Plain([{"params": [p], "lr": 0.1}]).param_groups[0]["lr"] == 0.1
    with raises(ValueError, "parameter group didn't specify a value of required optimization parameter lr"):
        Plain([p])


def test_one_without_a_step_says_so() -> None:
    class Stepless(optim.Optimizer):
        def stepp(self) -> None:
            """Not found by its name."""

    with raises(NotImplementedError, "Stepless has no step()"):
        Stepless([nn.Parameter(gradcore.ones(2))], {}).step()
    del Stepless


def reloaded(library: Any) -> list[Any]:
    """An optimizer that gives groups of older files the option that they lack, where PyTorch's own do."""

    class Later(library.optim.SGD):  # type: ignore[misc,name-defined]
        def __setstate__(self, state: dict[str, Any]) -> None:
            told.append(sorted(key for key in state if not key.startswith("_")))
            super().__setstate__(state)
            for group in self.param_groups:
                group.setdefault("scale", 2.0)

    told: list[Any] = []
    p = library.ones(1, requires_grad=True)
    optimizer = Later([p], lr=0.5, momentum=0.9)
    optimizer.register_step_pre_hook(lambda *_: told.append("step"))
    optimizer.register_load_state_dict_post_hook(lambda _: told.append("loaded"))
    p.sum().backward()
    optimizer.step()
    before = optimizer.state_dict()
    optimizer.load_state_dict(before)
    optimizer.step()
    return [*told, optimizer.param_groups[0]["scale"], "scale" in before["param_groups"][0], p.tolist()]


@pytest.mark.oracle
def test_loading_goes_through_setstate_as_in_pytorch(torch: Any) -> None:
    assert reloaded(gradcore) == reloaded(torch)


def copied(library: Any) -> list[Any]:
    class Counted(library.optim.SGD):  # type: ignore[misc,name-defined]
        def __setstate__(self, state: dict[str, Any]) -> None:
            self.copies = 1
            super().__setstate__(state)

    told: list[Any] = []
    p = library.ones(1, requires_grad=True)
    optimizer = Counted([p], lr=0.5)
    optimizer.register_step_post_hook(lambda *_: told.append("step"))
    again = copy.deepcopy(optimizer)
    again.step()
    return [*told, again.copies, len(again.param_groups)]


@pytest.mark.oracle
def test_a_copy_whose_class_sets_attributes_first_has_no_hooks(torch: Any) -> None:
    assert copied(gradcore) == copied(torch) == [1, 1]


def test_hooks_stay_where_an_optimizer_loads() -> None:
    assert reloaded(gradcore)[:-1] == ["step", ["param_groups", "state"], "loaded", "step", 2.0, False]
