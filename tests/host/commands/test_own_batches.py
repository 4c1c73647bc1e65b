"""Batches of any structure, and training steps of one's own, are measured as they will run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gradcore.cli.main import main

HEAD = """
from collections import namedtuple

import numpy as np
import gradcore
from gradcore import nn

F = nn.functional
Pair = namedtuple("Pair", "ids weights")

def zeros(*shape):
    return np.zeros(shape, np.float32)

def ints(*shape):
    return np.zeros(shape, np.int64)

def three(module, a, b, y):
    return F.cross_entropy(module(a) + module(b), y)

def by_name(module, *, ids, y, scale=1.0):
    return F.cross_entropy(module(ids), y) * scale

def nested(module, images, targets):
    return F.cross_entropy(module(images), targets["labels"][0]) + targets["boxes"].ids.sum() * 0

def lists(module, images, labels):
    return sum(F.cross_entropy(module(x[None]), y[None]) for x, y in zip(images, labels, strict=True))

def repeated(module, x, n):
    assert x.shape[0] == n
    return module(x).sum()
"""


def command(capsys: Any, tmp_path: Path, body: str, *argv: str, name: str = "measure") -> tuple[Any, str]:
    """The object that a command prints with --json, and the error message."""
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}\ndef build(b):\n{body}\n")
    status = main([name, *(["--model"] if name == "train" else []), f"{path}:build", *argv, "--json"])
    out, err = capsys.readouterr()
    assert (status == 0) == bool(out), (status, out, err)
    return json.loads(out or "null"), err


#: What makes a batch, the loss, and the bytes of inputs for 70 samples.
BATCHES = {
    "three arrays": ("zeros(n, 10), zeros(n, 10), ints(n)", "three", 70 * (40 + 40 + 8)),
    "a list of them": ("[zeros(n, 10), zeros(n, 10), ints(n)]", "three", 70 * (40 + 40 + 8)),
    "by name": ("dict(ids=zeros(n, 10), y=ints(n), scale=0.5)", "by_name", 70 * (40 + 8)),
    "nested": ("zeros(n, 10), {'labels': [ints(n)], 'boxes': Pair(zeros(n, 4), None)}", "nested", 70 * (40 + 8 + 16)),
    "one array": ("zeros(n, 10)", "lambda module, x: module(x).sum()", 70 * 40),
    "tensors": ("gradcore.zeros(n, 10), gradcore.zeros(n, dtype=gradcore.int64)", "lambda m, x, y: F.cross_entropy(m(x), y)",
                70 * (40 + 8)),
    "lists of numbers": ("[[0.0] * 10] * n, [0] * n", "lambda m, x, y: F.cross_entropy(m(x.float()), y)", 70 * (80 + 8)),
    "the number of samples": ("zeros(n, 10), n", "repeated", 70 * 40),
    "a list with an array for each sample": ("[zeros(10)] * n, [ints()] * n", "lists", 70 * 512 * 2),
}


@pytest.mark.parametrize("given", BATCHES)
def test_a_batch_of_any_structure(capsys: Any, tmp_path: Path, given: str) -> None:
    made, loss, nbytes = BATCHES[given]
    body = f"    return nn.Linear(10, 3), lambda n: ({made}), {loss}"
    rows = {}
    for device in ("cpu", "meta"):
        found, err = command(capsys, tmp_path, body, "--device", device, "--batch-sizes", "1,70")
        assert not err
        rows[device] = found["rows"]
    assert rows["cpu"] == rows["meta"]
    assert -512 * 2 < rows["meta"][1]["by_role"]["input"] - nbytes < 512 * 4


def test_arrays_that_are_given_need_a_row_for_each_sample(capsys: Any, tmp_path: Path) -> None:
    fits = "    return nn.Linear(10, 3), dict(ids=zeros(b, 10), y=ints(b)), by_name"
    assert command(capsys, tmp_path, fits, "--device", "meta", "--batch-sizes", "5")[0]["rows"][0]["by_role"]["input"] == 1024
    _, err = command(capsys, tmp_path, "    return nn.Linear(10, 3), (zeros(b, 10), {'labels': [ints(b, 2), ints(3)]}), nested",
                     "--device", "meta", "--batch-sizes", "5")
    assert "must have one row per sample, 5 for a batch of 5, but batch[1]['labels'][1] has shape [3]; " in err


@pytest.mark.parametrize(("result", "told"), [
    ("zeros(b, 10), three", "the loss is called as loss(module, batch[0]), but three takes other arguments"),
    ("dict(ids=zeros(b, 10), z=ints(b)), by_name", "the loss is called as loss(module, ids=..., z=...), but by_name takes"),
    ("(zeros(b, 10), np.array([None] * b)), three", "batch[1] is an array of objects: expected one of numbers"),
    ("(zeros(b, 10), [[1, 2], [3]]), three", "batch[1] has lists of different lengths, which are no array"),
    ("{1: zeros(b, 10)}, three", "the batch must be a tuple, a dict with names as keys, or an array, but is dict"),
    ("(lambda n: (zeros(100 - n, 10), ints(n))), repeated",
     "returned batch[0] of shapes [99, 10], [98, 10], [97, 10], [36, 10] for batches of 1, 2, 3 and 64"),
    ("(lambda n: (zeros(n, 10), n * n)), repeated", "returned batch[1] as [1], [4], [9], [4096] for batches of 1, 2, 3 and 64"),
])
def test_a_batch_that_is_none(capsys: Any, tmp_path: Path, result: str, told: str) -> None:
    _, err = command(capsys, tmp_path, f"    return nn.Linear(10, 3), {result}", "--device", "meta", "--batch-sizes", "90")
    assert told in err and len(err.splitlines()) == 1


#: Two networks, each with an optimizer, noise made in the step, and gradients of two parts that add up.
ADVERSARIES = """
    maker, judge = nn.Linear(4, 10), nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    first, second = gradcore.optim.Adam(maker.parameters()), gradcore.optim.AdamW(judge.parameters())
    loss = nn.BCEWithLogitsLoss()

    def step(x):
        second.zero_grad()
        made = maker(gradcore.randn(x.shape[0], 4))
        loss(judge(x), gradcore.ones(x.shape[0], 1)).backward()
        loss(judge(made.detach()), gradcore.zeros(x.shape[0], 1)).backward()
        second.step()
        first.zero_grad()
        loss(judge(made), gradcore.ones(x.shape[0], 1)).backward()
        first.step()

    return step, lambda n: zeros(n, 10)
"""


def test_a_step_of_one_s_own(capsys: Any, tmp_path: Path) -> None:
    found = {device: command(capsys, tmp_path, ADVERSARIES, "--device", device, "--batch-sizes", "1,1000")[0]
             for device in ("cpu", "meta")}
    assert found["cpu"]["rows"] == found["meta"]["rows"] and found["meta"]["optimizer"] is None
    roles = found["meta"]["rows"][1]["by_role"]
    # Adam's state of ten tensors of less than 512 bytes, or a little more, each with two moments.
    assert roles["input"] == 40_448 and roles["optimizer state"] >= 12 * 512
    vast, _ = command(capsys, tmp_path, ADVERSARIES, "--device", "meta", "--batch-sizes", str(10**9))
    assert vast["rows"][0]["by_role"]["input"] == 40 * 10**9


def test_the_largest_batch_of_a_step_of_one_s_own(capsys: Any, tmp_path: Path) -> None:
    found, _ = command(capsys, tmp_path, ADVERSARIES, "--device", "cpu", "--memory", "16MiB", name="find-batch")
    assert found["confirmed"] is True and found["optimizer"] is None and found["batch_size"] > 10_000


def test_a_compiled_step(capsys: Any, tmp_path: Path) -> None:
    body = """
    module = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = gradcore.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    @gradcore.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, (zeros(b, 10), ints(b))
"""
    found, _ = command(capsys, tmp_path, body, "--device", "cpu", "--batch-sizes", "64", "--steps", "5")
    assert found["rows"][0]["by_role"]["input"] == 64 * 48


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_step_has_its_own_optimizers(capsys: Any, tmp_path: Path, device: str) -> None:
    for name, rest in (("measure", ("--batch-sizes", "4")), ("find-batch", ("--memory", "8MiB"))):
        _, err = command(capsys, tmp_path, ADVERSARIES, "--device", device, *rest, "--optimizer", "adam", name=name)
        assert "mine.py:build returned a training step, which has optimizers of its own: leave out --optimizer" in err


def test_what_a_step_cannot_be(capsys: Any, tmp_path: Path) -> None:
    _, err = command(capsys, tmp_path, "    return (lambda x, y: None), zeros(b, 10)", "--batch-sizes", "4")
    assert "the training step is called as step(batch[0]), but takes other arguments" in err
    _, err = command(capsys, tmp_path, "    return (lambda x, y: None), (zeros(b), zeros(b)), three", "--batch-sizes", "4")
    assert "returned (function, tuple, function): expected (module, batch), (module, batch, loss), (step, batch) or" in err
    _, err = command(capsys, tmp_path, "    return nn.Linear, (zeros(b), zeros(b))", "--batch-sizes", "4")
    assert ", tuple): expected (module, batch)" in err
    reads = "    net = nn.Linear(10, 3)\n    net.bias.sum().item()\n    return (lambda x: net(x).sum()), zeros(b, 10)"
    _, err = command(capsys, tmp_path, reads, "--batch-sizes", "4", "--device", "meta")
    assert re.search(r"^gradcore: DataDependentShape at \S*mine\.py:\d+: .* no values to read.*; .*mine\.py:build returns a "
                     "training step, whose tensors cannot be moved, so it is built with meta as the default device; ", err)
    assert command(capsys, tmp_path, reads, "--batch-sizes", "4", "--device", "cpu")[0]["rows"]
    _, err = command(capsys, tmp_path, reads, "--out", str(tmp_path), "--device", "cpu", name="train")
    assert "returned a training step, whose results gradcore train cannot evaluate" in err


def test_a_loss_of_other_parts_is_not_trained(capsys: Any, tmp_path: Path) -> None:
    body = "    return nn.Linear(64, 10), lambda n: (zeros(n, 64), zeros(n, 64), ints(n)), three"
    assert command(capsys, tmp_path, body, "--batch-sizes", "4")[0]["rows"]
    _, err = command(capsys, tmp_path, body, "--out", str(tmp_path), "--device", "cpu", name="train")
    assert "the loss is called as loss(module, batch[0], batch[1]), but three takes other arguments" in err
    assert "; gradcore train takes samples and labels of --data, and not the batch that the model's function returns\n" in err
