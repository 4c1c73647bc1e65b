"""Saved programs whose optimizer has a learning rate that is a tensor: the program reads its memory in every run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import nn, optim
from gradcore.errors import ProgramError, TraceError
from tests.conftest import raises
from tests.host.graph_mode.test_shipping_hostile import changed, instruction

X, Y = [[1.0, 2.0, -1.0], [0.5, -2.0, 3.0]], [0, 1]


def training(kind: str, *rates: Any) -> tuple[Any, Callable[[], Any]]:
    """A compiled step of two layers, each with a rate, and a call of it; it has been replayed."""
    gradcore.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = getattr(optim, kind)([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": rates[-1]}],
                                     lr=rates[0])

    @gradcore.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        step(gradcore.tensor(X), gradcore.tensor(Y))
    return step, lambda: step(gradcore.tensor(X), gradcore.tensor(Y)).item()


@pytest.mark.parametrize("dims", [0, 1])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop",
                                  "Rprop"])
def test_a_rate_that_is_a_tensor_goes_on_as_one(kind: str, dims: int, tmp_path: Path) -> None:
    rates = [gradcore.full((1,) * dims, k) for k in (0.1, 0.2)]
    step, run = training(kind, *rates)
    step.save(tmp_path / "a")
    loaded = gradcore.load_program(tmp_path / "a")
    loaded.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert gradcore.load_program(tmp_path / "b").program == loaded.program
    x, y = gradcore.tensor(X), gradcore.tensor(Y)
    for _ in range(3):
        assert loaded(x, y).item() == run()
    loaded.learning_rate = 0.5
    for rate in rates:
        rate.fill_(0.5)
    for _ in range(3):
        assert loaded(x, y).item() == run()
    assert loaded.learning_rate == 0.5
    if kind != "Rprop":
        # Its rate is that of the first step alone, and no op of the program reads it.
        assert loaded.state["lr"].tolist() == loaded.state["lr.2"].tolist() == rates[0].tolist()
        assert loaded.param_groups[1]["lr"].storage is loaded.state["lr.2"].storage


def test_groups_may_have_one_tensor_or_a_number_beside_it(tmp_path: Path) -> None:
    one = gradcore.tensor(0.1)
    for rates, expected in (((one, one), ["lr"]), ((one, 0.2), ["lr"]), ((0.2, one), ["lr"])):
        step, run = training("Adam", *rates)
        step.save(tmp_path / "a")
        loaded = gradcore.load_program(tmp_path / "a")
        assert [name for name in loaded.state if name.startswith("lr")] == expected
        assert loaded(gradcore.tensor(X), gradcore.tensor(Y)).item() == run()


def test_another_tensor_or_number_in_its_place_is_refused(tmp_path: Path) -> None:
    step, _ = training("SGD", gradcore.tensor(0.1), 0.2)
    step.save(tmp_path / "a")
    loaded, x, y = gradcore.load_program(tmp_path / "a"), gradcore.tensor(X), gradcore.tensor(Y)
    own = loaded.param_groups[0]["lr"]
    for other in (0.1, gradcore.tensor(0.1)):
        loaded.param_groups[0]["lr"] = other
        with raises(TraceError, "'lr' of param_groups[0] is", "and was tensor(0.1000): the program reads that tensor"):
            loaded(x, y)
    loaded.param_groups[0]["lr"], loaded.param_groups[1]["lr"] = own, own
    with raises(TraceError, "'lr' of param_groups[1] is tensor(0.1000), and was 0.2: the program reads a number"):
        loaded(x, y)
    loaded.param_groups[1]["lr"] = 0.3
    loaded(x, y)


def rate(p: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(o for o in p["optimizers"][0][1][0] if o[0] == "lr")[1]
    return found


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "of several elements": (lambda p: rate(p)["at"].__setitem__(1, [[2], "float32", [1], 0]), "is not one number in"),
    "beside its buffer": (lambda p: rate(p)["at"].__setitem__(1, [[], "float32", [], 1]), "is not one number in"),
    "in no captured buffer": (lambda p: rate(p)["at"].__setitem__(0, p["inputs"][0]["at"][0]), "is not one number in"),
    "in no buffer": (lambda p: rate(p)["at"].__setitem__(0, 999), "expected an integer"),
    "of an update": (lambda p: rate(p).update(update=[0, 0]), "expected an object with at"),
    "a number of the update": (
        lambda p: instruction(p, "adam_")[1].__setitem__(-3, {"update": [0, 0]}), "a number is bool, int or float"),
    "a number that is another": (lambda p: instruction(p, "adam_")[1].__setitem__(-2, {"update": [0, 2]}), "has 3 numbers"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_rate_is_refused(case: str, tmp_path: Path) -> None:
    change, text = HOSTILE[case]
    training("Adam", gradcore.tensor(0.1))[0].save(tmp_path / "a")
    (tmp_path / "b").write_bytes(changed((tmp_path / "a").read_bytes(), change))
    with raises(ProgramError, text):
        gradcore.load_program(tmp_path / "b")
