"""The lifetime of a graph: what it keeps can be listed, and after a failure or out of memory nothing stays allocated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import OutOfMemory
from gradcore.events import UNTAGGED, Tag
from gradcore.report.step import load_report
from tests.conftest import raises


def network() -> Any:
    gradcore.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def loss_of(model: Any) -> Any:
    x = gradcore.tensor(np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32))
    return nn.functional.cross_entropy(model(x), gradcore.tensor(np.array([0, 1, 2, 1, 0])))


# -- what can be seen --------------------------------------------------------------------------------------------------


def test_a_graph_is_seen_as_it_is() -> None:
    model = network()
    loss = loss_of(model)
    seen = gradcore.graph(loss)
    assert [n.name for n in seen] == ["CrossEntropyBackward0", "LinearBackward0", "ReluBackward0", "LinearBackward0",
                                      "GeluBackward0", "LinearBackward0"]
    assert [n.layer for n in seen] == ["", "4", "3", "2", "1", "0"]
    assert {n.state for n in seen} == {"held"} and all("test_life.py" in n.line for n in seen)
    assert seen.nodes[-1].inputs == (None, "0.weight", "0.bias")
    third = seen.nodes[3]
    assert [(r.name, r.how, r.nbytes) for r in third.residuals] == [("x", "recomputed", 0), ("weight", "kept", 256)]
    # The input, what GELU and ReLU keep, the scores and the labels; the weights are parameters.
    assert seen.nbytes == 5 * 6 * 4 + 2 * 5 * 8 * 4 + 5 * 3 * 4 + 5 * 8
    assert seen.parameter_nbytes == (8 * 8 + 8 * 3) * 4
    loss.backward(retain_graph=True)
    assert {n.state for n in gradcore.graph(loss)} == {"retained"}
    loss.backward()
    after = gradcore.graph(loss)
    assert {n.state for n in after} == {"released"} and after.nbytes == 0 == after.parameter_nbytes
    with raises(RuntimeError, "directly access saved tensors after they have already been freed"):
        loss.grad_fn.saved_tensors  # noqa: B018


def test_a_node_that_keeps_a_number_keeps_nothing() -> None:
    x = gradcore.ones(3, requires_grad=True)
    y = x * 2.0
    assert [n.state for n in gradcore.graph(y)] == ["keeps nothing"]
    y.sum().backward()
    assert [n.state for n in gradcore.graph(y)] == ["released"]


def test_looking_holds_nothing() -> None:
    live = gradcore.memory_requested()
    model = network()
    seen = gradcore.graph(loss_of(model))
    del model
    assert gradcore.memory_requested() == live and len(seen) == 6


def test_a_graph_as_text_as_dot_and_as_json() -> None:
    a = gradcore.ones(3, requires_grad=True)
    b = a * 2
    c = (b * b).sum() + b.exp().sum()
    seen = gradcore.graph(c)
    text = str(seen)
    assert text.count("MulBackward0") == 4 and text.count("(above)") == 2
    assert "keeps nothing" in text and "leaf float32[3]" in text
    assert {str(node) for node in seen} == {line.strip() for line in text.splitlines()[1:] if ": " in line}
    dot = seen.dot()
    assert dot.startswith("digraph gradcore {") and dot.count(" -> ") == 8 and dot.endswith("}")
    assert "SumBackward0\\n(root)\\n" in dot and dot.count("held, 12 bytes") == 2
    assert json.loads(seen.to_json())["nbytes"] == seen.nbytes
    assert str(gradcore.graph(a)) == "0 nodes keep 0 bytes, and 0 of parameters"
    assert str(gradcore.graph(b)).startswith("1 node keeps 0 bytes, and 0 of parameters\n")
    with raises(TypeError, "graph() takes a Tensor, but got int"):
        gradcore.graph(3)  # type: ignore[arg-type]
    assert b.grad_fn.saved_tensors == ()
    tensors = (b * b).grad_fn.saved_tensors
    assert [(t.tolist(), t.requires_grad) for t in tensors] == [([2.0] * 3, False)] * 2
    leaf = (a + 1).grad_fn.next_functions[0][0]
    assert b.grad_fn.next_functions == ((leaf, 0), (None, 0)), "a number has no function"
    assert str(leaf) == "<AccumulateGrad>" and leaf.next_functions == ()


def test_the_table_of_what_ops_keep() -> None:
    table = gradcore.autograd.kept_by_ops()
    assert table["mul"] == {"x": ("y",), "y": ("x",)} and table["add"] == {"x": (), "y": ()}


def test_a_long_chain_is_built_run_seen_and_released() -> None:
    x = gradcore.ones(1, device="meta", requires_grad=True)
    y = x
    for _ in range(100_000):
        y = y * x
    seen = gradcore.graph(y)
    assert len(seen) == 100_000 and "nodes more" in str(seen)
    del seen
    y.sum().backward()
    live = gradcore.device("meta").ledger.requested
    del y
    assert gradcore.device("meta").ledger.requested < live


def test_what_is_left_alive_and_by_whom() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    with gradcore.step() as s:
        mine = gradcore.ones(500) * 2
        kept = w.exp().sum()
    assert [(x.op, x.held_by) for x in s.report.left] == [("exp", "graph"), ("mul", "you"), ("sum", "you")]
    text = str(s.report)
    assert "bytes of exp in (root)" in text and "kept by the graph" in text and "referenced by your code" in text
    assert load_report(json.loads(s.report.to_json())) == s.report
    del mine, kept


def grow(step: Any, count: int = 6) -> Any:
    """The report of the last of some steps, which is unchanged after a round trip through JSON."""
    with gradcore.step():
        high = gradcore.zeros(1_000_000)  # ends above all of them; otherwise growth would begin with a step of an earlier test
    del high
    for _ in range(count):
        with gradcore.step() as s:
            step()
    assert load_report(json.loads(s.report.to_json())) == s.report
    return s.report


def line(of: str) -> int:
    """The number of the line of this file that holds a text."""
    return next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if of in text)


def test_growth_names_what_piles_up_the_line_that_made_it_and_the_chain() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    total: Any = 0.0

    def summing() -> None:
        nonlocal total
        loss = w.exp().sum()  # made here
        total = total + loss  # tied here

    report = grow(summing)
    growth = report.growth
    assert growth.steps >= 5 and growth.requested == 4000
    assert [(g.op, g.count, g.allocated, g.held_by) for g in growth.grown] == [("exp", 6, 6 * 4096, "graph")]
    assert f"test_life.py:{line('# made here')} in " in growth.grown[0].line and growth.grown[0].keeper.startswith("exp")
    tied = f"test_life.py:{line('# tied here')} in "
    assert [(c.op, c.reader) for c in growth.carried] == [("add", "add")]
    assert tied in growth.carried[0].line and tied in growth.carried[0].reader_line
    assert "Did you mean loss.item() or detach()?" in str(report)


def test_growth_through_an_update_in_place_and_through_a_list() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    total = gradcore.zeros(())
    losses: list[Any] = []

    def summing() -> None:
        nonlocal total
        total += w.exp().sum()

    growth = grow(summing).growth
    assert [(c.op, c.reader) for c in growth.carried] == [("full", "add_")]
    del total
    growth = grow(lambda: losses.append(w.tanh().sum())).growth
    assert not growth.carried
    assert [(g.op, g.count, g.held_by) for g in growth.grown] == [("tanh", 6, "graph"), ("sum", 6, "you")]


def test_steps_that_keep_a_number_do_not_grow() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    total = 0.0

    def summing() -> None:
        nonlocal total
        total += w.exp().sum().item()

    assert grow(summing).growth is None


# -- failures ----------------------------------------------------------------------------------------------------------


class Failing:
    """A device's memory of which one allocation fails."""

    def __init__(self, device: Any, number: int) -> None:
        self._memory = device.memory
        self._left = number
        self.release = device.memory.release

    def allocate(self, nbytes: int, stream: Any, tag: Tag = UNTAGGED, node: int = 0) -> Any:
        self._left -= 1
        if self._left == 0:
            raise OutOfMemory("out of memory: planted", asked=nbytes)
        return self._memory.allocate(nbytes, stream, tag, node)


def train(model: Any, optimizer: Any) -> float:
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    return float(loss.item())


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_failure_at_every_allocation_of_a_step(kind: str) -> None:
    """Whichever allocation of the first step fails, the rest of the run equals one without a failure, bit for bit."""
    device = gradcore.device("cpu")

    def start() -> tuple[Any, Any]:
        model = network()
        settings = {"lr": 0.1, "momentum": 0.9} if kind == "SGD" else {"lr": 0.01}
        return model, getattr(gradcore.optim, kind)(model.parameters(), **settings)

    model, optimizer = start()
    expected = [train(model, optimizer) for _ in range(3)]
    points = 0
    while True:
        points += 1
        model, optimizer = start()
        real, device.memory = device.memory, Failing(device, points)
        failed = False
        try:
            train(model, optimizer)
        except OutOfMemory as error:
            failed = "planted" in str(error)
        finally:
            device.memory = real
        if not failed:
            break
        optimizer.zero_grad()
        held = gradcore.memory_requested()
        moments = sum(t.nbytes for s in optimizer.state.values() for t in s.values() if hasattr(t, "nbytes"))
        assert held == sum(p.nbytes for p in model.parameters()) + moments + BEFORE[0], points
        assert [train(model, optimizer) for _ in range(3)] == expected, points
    assert points >= 30


#: Requested bytes that are live before the test: the default generators.
BEFORE = [0]


@pytest.fixture(autouse=True)
def outside() -> None:
    BEFORE[0] = gradcore.memory_requested()


def test_out_of_memory_names_the_holders_and_a_smaller_batch_trains_on() -> None:
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    gradcore.empty_cache()
    gradcore.set_memory_limit("24MiB")
    try:
        def step(batch: int) -> None:
            x = gradcore.ones(batch, 256)
            model.zero_grad()
            nn.functional.cross_entropy(model(x), gradcore.zeros(batch, dtype=gradcore.int64)).backward()

        step(64)
        with raises(OutOfMemory, "out of memory: cannot allocate ", " bytes (32.0 MiB) for linear in layer 0, forward, ",
                    " are live, ", " cached (largest free block ", "limit 25,165,824 (24.0 MiB); a segment of ",
                    "exceed the limit of 25,165,824 bytes", "The ", " largest holders:",
                    "parameter of empty in layer 0", "test_life.py"):
            step(8192)
        step(64)
    finally:
        gradcore.set_memory_limit(None)
    model.zero_grad()


def test_what_a_graph_keeps_is_a_residual_among_the_holders() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    y = (w * 3).exp()
    assert "residual of exp in layer (root)" in gradcore.memory_summary()
    y.sum().backward()
    assert "residual of exp" not in gradcore.memory_summary() and "output of exp" in gradcore.memory_summary()


LIMITED = """
import gradcore
from gradcore.cli.main import main
words = ["train", "--model", "cnn", "--device", "cpu", "--steps", "2", "--quiet", "--out", sys.argv[1], "--batch-size"]
assert main([*words, "512"]) == 1
assert main([*words, "32"]) == 0
assert gradcore.memory_reserved() <= 8 << 20
"""


def test_the_environment_limits_a_process_in_which_a_smaller_batch_trains(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", "import sys" + LIMITED, str(tmp_path)], capture_output=True, text=True,
                           env={**os.environ, "GRADCORE_MEMORY_LIMIT": "8MiB"}, timeout=120)
    assert found.returncode == 0, found.stderr[-2000:]
    assert "out of memory: " in found.stderr and "limit 8,388,608" in found.stderr and "in layer features." in found.stderr


FORKED = """
import multiprocessing
from gradcore.events import Tag, UNTAGGED
import gradcore

def weights(model):
    return [p.tolist() for p in model.parameters()]

def step(model, optimizer):
    optimizer.zero_grad()
    model(gradcore.ones(4, 64)).square().mean().backward()
    optimizer.step()
    return weights(model)

def work(model, optimizer, results):
    results.put(step(model, optimizer))

model = gradcore.nn.Sequential(gradcore.nn.Linear(64, 32), gradcore.nn.ReLU(), gradcore.nn.Linear(32, 1))
optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
step(model, optimizer)
before, live = weights(model), gradcore.memory_allocated()
processes = multiprocessing.get_context("fork")
results = processes.Queue()
children = [processes.Process(target=work, args=(model, optimizer, results)) for _ in range(2)]
for child in children:
    child.start()
theirs = [results.get(timeout=60) for _ in children]
for child in children:
    child.join(60)
    assert child.exitcode == 0
assert weights(model) == before and gradcore.memory_allocated() == live
assert theirs[0] == theirs[1] == step(model, optimizer) != before
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_processes_train_on_bytes_of_their_own() -> None:
    found = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-2000:]
