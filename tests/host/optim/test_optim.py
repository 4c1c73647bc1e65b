"""Optimizers: PyTorch's steps, in one op, with state that has an owner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.events import ALLOC, LAUNCH, MARK, typed
from tests.conftest import raises


@pytest.fixture
def oracle(torch: Any) -> Any:
    """torch after its first step, which imports more of it and leaves frames in cycles, which must not be a test's."""
    p = torch.zeros(1, requires_grad=True)
    p.grad = torch.ones(1)
    torch.optim.Adam([p]).step()
    return torch


SHAPES = ((7, 5), (7,), (3, 7))

CONFIGS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1, "maximize": True}),
    ("AdamW", {"lr": 0.05}),
    ("AdamW", {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1, "maximize": True, "amsgrad": True}),
    ("AdamW", {"lr": 0.05, "amsgrad": True}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
]

#: Optimizers other than SGD and Adam.
FAMILY: list[tuple[str, dict[str, Any]]] = [
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.02, "alpha": 0.9, "centered": True, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "maximize": True}),
    ("RMSprop", {"momentum": 0.5, "centered": True, "eps": 1e-5}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1, "momentum_decay": 0.01, "maximize": True}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.05}),
    ("RAdam", {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1, "maximize": True}),
    ("RAdam", {"betas": (0.8, 0.9), "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adamax", {}),
    ("Adamax", {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.05, "etas": (0.4, 1.5), "step_sizes": (0.01, 0.2), "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.1, "beta2_decay": -0.5, "eps": (1e-3, 1e-2), "d": 1.5, "weight_decay": 0.1, "maximize": True}),
    ("ASGD", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1, "lambd": 0.02, "alpha": 0.5, "t0": 3, "weight_decay": 0.1, "maximize": True}),
]
LION: tuple[str, dict[str, Any]] = ("Lion", {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1, "maximize": True})


def start(k: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(k).normal(size=SHAPES[k]).astype(np.float32)


def parameters(library: Any) -> list[Any]:
    return [library.tensor(start(k), requires_grad=True) for k in range(len(SHAPES))]


def give_gradients(library: Any, params: list[Any], step: int) -> None:
    rng = np.random.default_rng(100 + step)
    for p in params:
        p.grad = library.tensor(rng.normal(size=tuple(p.shape)).astype(np.float32))


def compare(ours: list[Any], theirs: list[Any]) -> None:
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "options"), [*CONFIGS, *FAMILY], ids=lambda v: str(v))
def test_twenty_steps_are_pytorchs(oracle: Any, name: str, options: dict[str, Any]) -> None:
    ours, theirs = parameters(gradcore), parameters(oracle)
    a, b = getattr(optim, name)(ours, **options), getattr(oracle.optim, name)(theirs, **options)
    for step in range(20):
        give_gradients(gradcore, ours, step)
        give_gradients(oracle, theirs, step)
        if step % 5 == 3:  # a parameter without a gradient in one step
            ours[1].grad = theirs[1].grad = None
        if step == 10:  # a schedule
            a.param_groups[0]["lr"] = b.param_groups[0]["lr"] = 0.02
        a.step()
        b.step()
    compare(ours, theirs)


@pytest.mark.parametrize(("name", "options"), [*CONFIGS, *FAMILY, LION], ids=lambda v: str(v))
def test_a_loaded_optimizer_goes_on_as_the_saved_one(name: str, options: dict[str, Any]) -> None:
    first = parameters(gradcore)
    a = getattr(optim, name)(first, **options)
    for step in range(2):
        give_gradients(gradcore, first, step)
        a.step()
    second = [p.detach().clone().requires_grad_() for p in first]
    b = getattr(optim, name)(second)
    b.load_state_dict(a.state_dict())
    for params, optimizer in ((first, a), (second, b)):
        give_gradients(gradcore, params, 2)
        optimizer.step()
    for p, q in zip(first, second, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())
        assert p.storage is not q.storage


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("name", "options"), [*CONFIGS[:2], *((name, {}) for name in (
    "Adam", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Lion", "Adamax", "Rprop", "ASGD"))], ids=lambda v: str(v))
def test_one_launch_updates_all(name: str, options: dict[str, Any], count: int) -> None:
    params = parameters(gradcore)[:count]
    optimizer = getattr(optim, name)(params, **options)
    give_gradients(gradcore, params, 0)
    optimizer.step()
    ledger = gradcore.device("cpu").ledger
    ledger.log = log = []
    try:
        optimizer.step()
    finally:
        ledger.log = None
    launches = [typed(r) for r in log if r[0] == LAUNCH]
    assert [r.invocation.op for r in launches] == [f"{name.lower()}_"]
    assert launches[0].tag.phase == "optimizer"
    assert [typed(r)[:2] for r in log if r[0] == MARK] == [("begin", "optimizer"), ("end", "optimizer")]
    assert {typed(r).tag.role for r in log if r[0] == ALLOC} == {"workspace"}


def test_state_belongs_to_the_layer_of_its_parameter() -> None:
    m = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    adam = optim.Adam(m.parameters())
    m(gradcore.ones(2, 4)).sum().backward()
    adam.step()
    for name, p in m.named_parameters():
        for key in ("exp_avg", "exp_avg_sq"):
            t = adam.state[p][key].storage.block.tag
            assert (t.role, t.layer, t.phase) == ("optimizer state", name.partition(".")[0], "optimizer")


def test_after_training_nothing_is_left() -> None:
    """The fixture compares live memory; this does the same within one test, by name."""
    ledger = gradcore.device("cpu").ledger
    before = set(ledger.live)
    m = nn.Sequential(nn.Linear(4, 30), nn.Dropout(0.5), nn.LayerNorm(30), nn.GELU(), nn.Linear(30, 2))
    sgd = optim.SGD(m.parameters(), momentum=0.9)
    for _ in range(3):
        sgd.zero_grad()
        nn.functional.cross_entropy(m(gradcore.ones(8, 4)), gradcore.tensor([0, 1] * 4)).backward()
        sgd.step()
    del m, sgd
    assert set(ledger.live) == before


def test_groups_have_options_of_their_own() -> None:
    a, b, c = parameters(gradcore)
    sgd = optim.SGD([{"params": [a]}, {"params": b, "lr": 0.0}], lr=1.0)
    sgd.add_param_group({"params": [c], "lr": 0.5})
    assert [g["lr"] for g in sgd.param_groups] == [1.0, 0.0, 0.5]
    before = [p.detach().numpy().copy() for p in (a, b, c)]
    give_gradients(gradcore, [a, b, c], 0)
    sgd.step()
    for p, old, lr in zip((a, b, c), before, (1.0, 0.0, 0.5), strict=True):
        np.testing.assert_allclose(p.detach().numpy(), old - np.float32(lr) * p.grad.numpy(), rtol=1e-6)
    assert repr(sgd).startswith("SGD (\nParameter Group 0\n    dampening: 0\n")


def test_mixed_types_and_strided_gradients() -> None:
    a = gradcore.tensor(np.ones((3, 4)), requires_grad=True)
    b = gradcore.tensor(np.ones((3, 4), np.float32), requires_grad=True)
    a.grad = gradcore.tensor(np.arange(12.0).reshape(4, 3)).T
    b.grad = gradcore.tensor(np.arange(12, dtype=np.float32).reshape(4, 3)).T
    optim.SGD([a, b], lr=0.5).step()
    expected = 1 - 0.5 * np.arange(12).reshape(4, 3).T
    np.testing.assert_allclose(a.detach().numpy(), expected)
    np.testing.assert_allclose(b.detach().numpy(), expected)


def test_zero_grad_and_closure() -> None:
    p = gradcore.tensor([3.0], requires_grad=True)
    sgd = optim.SGD([p], lr=0.5)

    def closure() -> Any:
        sgd.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with gradcore.no_grad():
        assert sgd.step(closure).item() == 9
    assert p.item() == 0 and p.grad.item() == 6
    sgd.zero_grad(set_to_none=False)
    assert p.grad.item() == 0
    sgd.zero_grad()
    assert p.grad is None
    sgd.step()
    assert p.item() == 0


def test_errors_have_pytorchs_words() -> None:
    p = gradcore.ones(2, requires_grad=True)
    for make, kind, text in (
            (lambda: optim.SGD([p], lr=-1), ValueError, "Invalid learning rate: -1"),
            (lambda: optim.SGD([p], momentum=-0.5), ValueError, "Invalid momentum value: -0.5"),
            (lambda: optim.SGD([p], weight_decay=-2), ValueError, "Invalid weight_decay value: -2"),
            (lambda: optim.SGD([p], nesterov=True), ValueError, "Nesterov momentum requires a momentum and zero "),
            (lambda: optim.Adam([p], eps=-1), ValueError, "Invalid epsilon value: -1"),
            (lambda: optim.Adam([p], betas=(0.9, 1.0)), ValueError, "Invalid beta parameter at index 1: 1.0"),
            (lambda: optim.Adam([p], differentiable=True), NotImplementedError, "Adam(differentiable=True) is not supported"),
            (lambda: optim.SGD([]), ValueError, "optimizer got an empty parameter list"),
            (lambda: optim.SGD(p), TypeError, "should be an iterable of Tensors or dicts, but got Tensor"),
            (lambda: optim.SGD([1.0]), TypeError, "can only optimize Tensors, but one of the params is float"),
            (lambda: optim.SGD([p * 2]), ValueError, "can't optimize a non-leaf Tensor"),
            (lambda: optim.SGD([p, p]), ValueError, "appear in more than one parameter group"),
            (lambda: optim.SGD([{"params": {p}}]), TypeError, "ordered collections")):
        with raises(kind, text):
            make()


@pytest.mark.oracle
def test_names_and_options_stand_in_the_state_dict(oracle: Any) -> None:
    groups = []
    for library in (gradcore, oracle):
        named = [(str(k), p) for k, p in enumerate(parameters(library))]
        adam = library.optim.Adam(named[:2])
        with pytest.raises(ValueError, match="all optimizer param groups should be with/without names"):
            adam.add_param_group({"params": [named[2][1]]})
        with pytest.raises(ValueError, match="Some param names are missing"):
            library.optim.SGD([named[0], named[1][1]])
        adam.add_param_group({"params": named[2:], "lr": 7})
        unnamed = [{"params": [p for _, p in of]} for of in (named[:2], named[2:])]
        adam.load_state_dict(library.optim.AdamW(unnamed).state_dict())
        plain = library.optim.AdamW([p for _, p in named])
        plain.load_state_dict(library.optim.Adam(named).state_dict())
        groups.append([*adam.state_dict()["param_groups"], *plain.state_dict()["param_groups"]])
    assert groups[0] == groups[1] and groups[0][0]["param_names"] == ["0", "1"]


def test_loading_what_does_not_fit_changes_nothing() -> None:
    a, b, _ = parameters(gradcore)
    adam = optim.Adam([a, b])
    give_gradients(gradcore, [a, b], 0)
    adam.step()
    state = adam.state_dict()
    with raises(ValueError, "different number of parameter groups: 1", "has 2"):
        optim.Adam([{"params": [a]}, {"params": [b]}]).load_state_dict(state)
    with raises(ValueError, "doesn't match the size of optimizer's group: 2 and 1"):
        optim.Adam([a]).load_state_dict(state)
    other = optim.Adam([b, a], lr=7)
    with raises(ValueError, "loaded state 'exp_avg' has shape [7, 5]", "[7]"):
        other.load_state_dict(state)
    assert not other.state and other.param_groups[0]["lr"] == 7


def test_an_update_that_runs_out_of_memory_leaves_the_step_count() -> None:
    p = gradcore.ones(3, requires_grad=True)
    adam = optim.Adam([p])
    p.grad = gradcore.ones(3)
    adam.step()
    memory = p.device.memory
    p.device.memory = _Full()
    try:
        with raises(MemoryError, "full"):
            adam.step()
    finally:
        p.device.memory = memory
    assert adam.state[p]["step"] == 1


class _Full:
    def allocate(self, *args: Any) -> Any:
        raise MemoryError("full")


def test_hooks_around_a_step(oracle: Any) -> None:
    seen: list[tuple[Any, ...]] = []
    for library in (gradcore, oracle):
        p = library.ones(2, requires_grad=True)
        optimizer = library.optim.SGD([p], lr=0.5)

        def doubled(optimizer: Any, args: Any, kwargs: Any) -> None:
            for group in optimizer.param_groups:
                group["lr"] *= 2

        def loss(p: Any = p) -> Any:
            p.grad = None
            total = (p * p).sum()
            total.backward()
            return total

        before = optimizer.register_step_pre_hook(doubled)
        optimizer.register_step_post_hook(lambda o, args, kwargs, p=p: seen.append((len(args), len(kwargs), p.tolist())))
        assert optimizer.step(loss).item() == 2
        before.remove()
        optimizer.step()
    assert seen[:2] == seen[2:] and [found[0] for found in seen[:2]] == [2, 1]


def test_a_hook_may_give_the_step_another_closure() -> None:
    p = nn.Parameter(gradcore.ones(1))
    optimizer = optim.SGD([p])
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o,), {"closure": lambda: 2}))
    assert optimizer.step(lambda: 1) == 2 == optimizer.step()
    optimizer.register_step_pre_hook(lambda o, args, kwargs: 3)
    with raises(RuntimeError, "a pre-hook of SGD.step must return None or a tuple of (new_args, new_kwargs), but got 3"):
        optimizer.step()


def test_gradients_are_filled_with_zeros_where_there_are_any() -> None:
    p, q = (nn.Parameter(gradcore.ones(1)) for _ in range(2))
    p.grad = gradcore.ones(1)
    optim.SGD([p, q]).zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0.0] and q.grad is None


def test_a_state_dict_keeps_its_counts_and_state_of_no_parameter_is_left_out() -> None:
    p = nn.Parameter(gradcore.ones(1))
    p.grad = gradcore.ones(1)
    optimizer = optim.Adam([p])
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.step()
    assert state["state"][0]["step"] == 1 and optimizer.state[p]["step"] == 2
    state["state"][7] = {"step": 5}
    optimizer.load_state_dict(state)
    assert [*optimizer.state] == [p] and optimizer.state[p]["step"] == 1
