"""The layers to checkpoint: the step fits with them and with none fewer, and its peak is as predicted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gradcore.cli.find_checkpoints import Cost, Found, find
from gradcore.cli.main import main
from gradcore.cli.steps import limited, measured
from gradcore.devices.device import get_device
from gradcore.errors import OutOfMemory
from tests.conftest import raises
from tests.host.commands.test_cli import run

MODELS = """
import numpy as np
import gradcore
from gradcore import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 256), nn.Linear(256, 32)
    def forward(self, x):
        return x + self.down(self.up(x).tanh().sin())

class Counting(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(32, 2048)
    def forward(self, x):
        self.calls += 1
        return self.wide(x).exp().sin()[:, :32] if self.calls % 2 else x.sin()

def build(batch_size):
    net = nn.Sequential(nn.LazyLinear(32), *(Block() for _ in range(4)))
    return net, (np.zeros((batch_size, 8), np.float32),), lambda m, x: m(x).square().mean()

def counting(batch_size):
    net = nn.Sequential(nn.Linear(8, 32), Counting(), Block())
    return net, (np.zeros((batch_size, 8), np.float32),), lambda m, x: m(x).square().mean()

def part():
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh())

class Staged(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage, self.others = nn.Sequential(*(part() for _ in range(4))), nn.ModuleList(part() for _ in range(4))
    def forward(self, x):
        x = self.stage(x)
        for other in self.others:
            x = other(x)
        return x

def staged(batch_size):
    return Staged(), (np.zeros((batch_size, 32), np.float32),), lambda m, x: m(x).square().mean()

def beside_another(batch_size):
    net, batch, loss = staged(batch_size)
    other = nn.Linear(32, 1)
    return net, batch, lambda m, x: loss(m, x) + other(x).mean()

def wrapped(batch_size):
    net, batch, loss = staged(batch_size)
    whole = nn.ModuleDict({"inner": net})
    return net, batch, lambda m, x: loss(whole["inner"], x)

def small(batch_size):
    return nn.Linear(8, 1), (np.zeros((batch_size, 8), np.float32),), lambda m, x: m(x).square().mean()

def own(batch_size):
    return lambda x: x.sum(), (np.zeros((batch_size, 8), np.float32),)
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(MODELS)
    return path


def found_in(capsys: Any, *argv: Any) -> tuple[int, Any]:
    status, out, err = run(capsys, "find-checkpoints", *argv, "--json")
    assert err == ""
    return status, json.loads(out)


def test_the_step_fits_with_these_layers_and_without_none_of_them(capsys: Any, models: Path) -> None:
    name = f"{models}:build"
    whole = measured(name, 4096, "meta").report.peak
    status, found = found_in(capsys, name, "--batch-size", 4096, "--memory", f"{whole.reserved * 2 // 3} B", "--margin", "0%")
    budget, layers = found["budget"], found["layers"]
    assert status == 0 and found["fits"] is True and found["reserved"] <= budget and 0 < len(layers) < 4
    peak = limited(budget, "cpu", lambda: measured(name, 4096, "cpu", checkpoints=layers)).report.peak
    assert (peak.requested, peak.allocated) == (found["requested"], found["allocated"])
    for layer in layers:
        fewer = [other for other in layers if other != layer]
        with raises(OutOfMemory, "out of memory"):
            limited(budget, "cpu", partial(measured, name, 4096, "cpu", checkpoints=fewer))
    allocated = [row["allocated"] for row in found["path"]]
    assert allocated == sorted(allocated, reverse=True) and allocated[0] == whole.allocated
    flops = [row["flops"] for row in found["path"]]
    assert flops == sorted(flops) and found["path"][0]["layers"] == [] and found["refused"] == {}


def test_without_a_limit_it_goes_on_while_the_peak_falls(capsys: Any, models: Path) -> None:
    status, found = found_in(capsys, f"{models}:build", "--batch-size", 1024)
    # Backward begins with the last block, which needs all at once.
    assert status == 0 and found["layers"] == ["1", "2", "3"] and found["fits"] is found["memory"] is found["budget"] is None
    status, found = found_in(capsys, f"{models}:build", "--batch-size", 1024, "--memory", "3MiB")
    assert status == 1 and found["layers"] == ["1", "2", "3"] and found["fits"] is False


def test_a_step_that_fits_needs_none(capsys: Any, models: Path) -> None:
    status, found = found_in(capsys, f"{models}:build", "--batch-size", 8, "--memory", "1GiB")
    assert (status, found["layers"], found["fits"]) == (0, [], True)
    assert found["path"] == [{"layers": [], "allocated": found["allocated"], "flops": found["flops"]}]


def test_a_large_layer_is_divided_whatever_its_path_begins_with(capsys: Any, models: Path) -> None:
    of_one = found_in(capsys, f"{models}:staged", "--batch-size", 4096)[1]
    assert ["stage"] in [row["layers"] for row in of_one["path"]] and "stage.0" in of_one["layers"]
    for name in "beside_another", "wrapped":
        assert found_in(capsys, f"{models}:{name}", "--batch-size", 4096)[1]["layers"] == of_one["layers"], name


def test_attempts_leave_nothing_for_the_next_ones_to_look_through(models: Path) -> None:
    calls = []
    for _ in range(3):
        measured(f"{models}:build", 64, "meta", checkpoints=["1"])
        calls.append(len(get_device("meta").calls))
    assert len({*calls}) == 1


def test_a_layer_that_does_another_thing_when_it_runs_again_is_left_alone(capsys: Any, models: Path) -> None:
    status, out, _ = run(capsys, "find-checkpoints", f"{models}:counting", "--batch-size", 64)
    assert status == 0 and "\n1 cannot run twice: checkpoint: " in out and "checkpoint_layers(model, ['1" not in out


def test_what_it_prints(capsys: Any, models: Path) -> None:
    status, out, _ = run(capsys, "find-checkpoints", f"{models}:build", "--batch-size", 4096, "--memory", "36MiB")
    assert status == 0
    for words in ("with sgd, batch 4,096, predicted from shapes, as more layers are checkpointed\n", "(none)",
                  "The step fits in 34.2 MiB (36.0 MiB minus 5.0%) with 2 checkpoints:\n  peak requested ",
                  "\n  reached by ", "\n  gradcore.utils.checkpointed.checkpoint_layers(model, ['1', '2'])\n"):
        assert words in out, (words, out)
    for given, status, words in (
            (("--memory", "1GiB"), 0, "The step fits in 972.8 MiB (1.00 GiB minus 5.0%) with no checkpoint:\n  peak"),
            (("--memory", "1KiB"), 1, "No checkpoints let the step fit in 972 B (1.00 KiB minus 5.0%); it takes least with "),
            ((), 0, "No checkpoint lowers the peak:\n  peak")):
        found, out, _ = run(capsys, "find-checkpoints", f"{models}:small", "--batch-size", 1, *given)
        assert found == status and words in out and "checkpoint_layers" not in out, out
    assert main(["find-checkpoints", f"{models}:own"]) == 1
    assert "own returned a training step, whose layers are not known: return a module" in capsys.readouterr().err


def search(saved: dict[str, int], flops: dict[str, int], enough: int, again: dict[str, int] | None = None,
           refused: Sequence[str] = (), nothing: Sequence[str] | None = None) -> tuple[Found, int]:
    """The search among layers that save so many bytes of 1,000, and whose second runs take so many bytes. If ``nothing`` says
    which have made nothing of what is live at the peak, the others have made what they save."""
    tried = []

    def cost(names: Sequence[str]) -> Cost:
        tried.append(names)
        if {*names} & {*refused}:
            return Cost(1 << 60, 0)
        held = None if nothing is None else {k: 0 if k in nothing else n for k, n in saved.items()}
        most, layer = max(((again or {}).get(name, 0), name) for name in (*names, ""))
        begins = 1000 - sum(saved[name] for name in names)
        return Cost(max(begins, most), sum(flops[name] for name in names), f"{layer}.op" if most > begins else "last", held)

    return find(cost, {name: name for name in saved}, lambda names, cost: cost.allocated <= enough), len(tried)


def test_the_search_takes_what_saves_most_for_an_operation() -> None:
    found, _ = search({"a": 100, "b": 100, "c": 300}, {"a": 50, "b": 40, "c": 100}, 600)
    assert [names for names, _ in found.path] == [[], ["c"], ["c", "b"]]
    assert (found.layers, found.cost, found.fits) == (["b", "c"], Cost(600, 140, "last"), True)
    found, _ = search({"a": 100, "b": 100, "c": 300}, {"a": 50, "b": 40, "c": 100}, 100)
    assert (found.layers, found.fits) == (["a", "b", "c"], False)


def test_a_whole_layer_takes_the_place_of_those_in_it() -> None:
    found, _ = search({"a": 500, "a.x": 200, "a.y": 100}, {"a": 90, "a.x": 10, "a.y": 10}, 550)
    assert [names for names, _ in found.path] == [[], ["a.x"], ["a.x", "a.y"], ["a"]]


def test_parts_of_a_layer_are_tried_if_the_peak_is_in_its_second_run() -> None:
    saved, flops = {"a": 700, "a.x": 290, "a.y": 300, "b": 100}, {"a": 15, "a.x": 10, "a.y": 10, "b": 50}
    found, _ = search(saved, flops, 400, again={"a": 500, "a.x": 200, "a.y": 200})
    assert [names for names, _ in found.path] == [[], ["a"], [], ["a.y"], ["a.y", "a.x"], ["a.y", "a.x", "b"]]
    assert found.fits and found.layers == ["a.x", "a.y", "b"]
    # Of what does not fit, the lowest.
    found, _ = search(saved, flops, 100, again={"a": 500, "a.x": 600, "a.y": 600})
    assert (found.layers, found.cost.allocated, found.fits) == (["a"], 500, False)


def test_what_the_step_fits_without_is_left_out() -> None:
    found, _ = search({"a": 50, "b": 450}, {"a": 1, "b": 100}, 550)
    assert [names for names, _ in found.path] == [[], ["a"], ["a", "b"]] and found.layers == ["b"]


def test_few_are_tried_and_none_that_saves_a_thousandth_or_cannot_run_twice() -> None:
    found, tried = search({f"l{k}": 10 for k in range(50)} | {"small": 0, "never": 90}, dict.fromkeys(
        [*(f"l{k}" for k in range(50)), "small", "never"], 1), 800, refused=["never"])
    assert found.fits and found.layers == [f"l{k}" for k in range(20)]
    # One attempt for each at first, one for each that is taken, and one for each that could be left out.
    assert tried <= 1 + 52 + 20 + 20
    saved = {"a": 300, **{f"b{k}": 0 for k in range(50)}}
    found, tried = search(saved, dict.fromkeys(saved, 1), 800, nothing=[*saved][1:])
    assert found.layers == ["a"] and tried == 1 + 1 + 1
