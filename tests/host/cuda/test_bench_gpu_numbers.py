"""The parts of bench.gpu about numbers, rehearsed on the CPU: planted differences are problems."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gradcore
from bench.gpu import correct, errors, graphs, host, libraries, memory, ownership, speed, steps, training
from bench.gpu.part import Outcome, Setting
from bench.workloads import WORKLOADS


@pytest.fixture
def rehearsed(tmp_path):
    return Setting("cpu", True, tmp_path)


def test_an_error_far_beyond_numpys_is_a_problem(rehearsed, monkeypatch):
    asked, results = [], errors._results

    def planted(row, values, device):
        asked.append(device)
        # In float64, on the device, on the CPU.
        found = results(row, values, device)
        return [a + np.float32(0.01) for a in found] if row.op == "exp" and len(asked) % 3 == 2 else found

    monkeypatch.setattr(errors, "_results", planted)
    monkeypatch.setattr(errors, "ROWS", [row for row in errors.ROWS if row.op in ("exp", "sin")])
    outcome = errors.errors(dataclasses.replace(rehearsed, rehearsal=False))
    assert outcome.problems and all(problem.startswith("exp-") for problem in outcome.problems)
    assert outcome.table[1][0] == "exp" and outcome.summary == "2 ops; the largest error of 1 is more than twice NumPy's"


def test_errors_of_a_part_that_is_stopped_are_not_lost(rehearsed, monkeypatch):
    calls = iter(range(3 * 150))

    def stopped(row, values, device):
        if next(calls) > 3 * 120:
            raise KeyboardInterrupt
        return results(row, values, device)

    results = errors._results
    monkeypatch.setattr(errors, "_results", stopped)
    path = rehearsed.folder / "kept"
    with pytest.raises(KeyboardInterrupt):
        errors.errors(dataclasses.replace(rehearsed, rehearsal=False, path=path))
    kept = json.loads(path.read_text())
    assert kept["figures"] and kept["summary"].startswith(f"{len(kept['figures'])} ops")


@pytest.mark.extras
def test_a_check_of_ownership_that_breaks_does_not_take_the_others_with_it(rehearsed, monkeypatch):
    def breaks(setting):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(ownership, "_slices", breaks)
    monkeypatch.setattr(ownership, "_at_exit", lambda setting: "")
    outcome = ownership.ownership(rehearsed)
    assert outcome.problems == ["slices of slices: ZeroDivisionError: planted"]
    assert [row[1] == "as expected" or row[1].startswith("not run") for row in outcome.table[1:]] == [True, False, *[True] * 3]


def test_training_that_differs_between_devices_is_a_problem(rehearsed, monkeypatch):
    weight, runs = np.linspace(1, 2, 5, dtype=np.float32), iter(range(6))

    def run(name, device, steps):
        k = next(runs)
        return {"w": weight * np.float32(1 + (k == 0) * 1e-5)}, [1.0, 0.9 + (k == 2) * 0.01]

    masks = iter([np.ones(3), np.array([1, 0, 1])])
    monkeypatch.setattr(training, "_run", run)
    monkeypatch.setattr(training, "_mask", lambda device: next(masks))
    assert training.training(rehearsed).problems == [
        "dropout's mask differs in 1 of 3 elements", "mlp: initial w differs by up to 2.0e-05",
        "cnn: losses [1.0, 0.91], the CPU's [1.0, 0.9]"]


def test_the_weights_are_those_before_training():
    (first, losses), (later, _) = (training._run("mlp", "cpu", steps) for steps in (0, 3))
    assert not losses
    for name, weight in first.items():
        np.testing.assert_array_equal(later[name], weight)


def test_gradients_that_differ_between_runs_are_a_problem(rehearsed, monkeypatch):
    load, factors = training.registry.load, iter([1.0, 1.0, 1.000001])

    def planted(name, batch, device):
        made = load(name, batch, device=device)
        if name != "mlp":
            return made
        return dataclasses.replace(made, loss=lambda module, x, y: made.loss(module, x, y) * next(factors))

    monkeypatch.setattr(training.registry, "load", planted)
    outcome = training.determinism(rehearsed)
    assert [row[3] == "none" for row in outcome.table[1:]] == [False, True, True]
    assert len(outcome.problems) == 1 and "layers.0.weight" in outcome.problems[0]


def test_a_kernels_ceiling_is_the_product_of_its_own_kind_of_numbers(rehearsed):
    found = speed.arithmetic(rehearsed).figures
    products = {kind: found[f"product 128, {name}"]["operations a second"] for kind, name in (
        ("float32", "float32"), ("TF32", "float32 as TF32"), ("float16", "float16"), ("float64", "float64"))}
    assert len(found) > 12
    for name, figures in found.items():
        kind = next((kind for kind in ("TF32", "float16", "float64") if kind in name), "float32")
        assert figures["of its ceiling"] == figures["operations a second"] / products[kind], name


@pytest.mark.parametrize(("seconds", "rows", "words"), [(1e9, 20, "small 256: "), (0, 8, "; 8 of 20 were measured")])
def test_steps_are_timed_at_three_batch_sizes_if_there_is_time(rehearsed, monkeypatch, seconds, rows, words):
    asked = []

    def compare(name, workload, torch, setting, outcome, tolerance):
        asked.append((name, workload.batch))
        outcome.table.append([name, str(workload.batch), "1", "", "", "5", "0", "", ""])

    monkeypatch.setattr(steps, "_compare", compare)
    monkeypatch.setattr(steps, "torch_on", lambda setting: None)
    outcome = steps.steps(dataclasses.replace(rehearsed, rehearsal=False, seconds=seconds))
    assert len(asked) == len(set(asked)) == rows and words in outcome.summary
    assert {name.split(",")[0] for name, _ in asked[:8]} == set(steps.BATCHES)
    assert {batch for name, batch in asked if name == "gpt, TF32"} <= {8, 64}
    assert [len(set(sizes)) for sizes in steps.BATCHES.values()] == [3] * 4


@pytest.mark.parametrize(("seconds", "rows"), [(1e9, 12), (0, 4)])
def test_graphs_are_timed_as_tf32_where_a_gpu_is_busy(rehearsed, monkeypatch, seconds, rows):
    asked = []

    def compare(name, workload, torch, setting, outcome):
        asked.append((name, workload.batch, gradcore.get_float32_matmul_precision()))

    monkeypatch.setattr(graphs, "_compare", compare)
    monkeypatch.setattr(graphs, "torch_on", lambda setting: None)
    assert not graphs.graphs(dataclasses.replace(rehearsed, rehearsal=False, seconds=seconds)).problems
    assert len(asked) == len(set(asked)) == rows
    assert all((precision == "high") is name.endswith(", TF32") for name, _, precision in asked)
    assert seconds == 0 or ("gpt, TF32", 64, "high") in asked


def test_a_graph_of_pytorchs_that_fails_does_not_take_our_times_with_it(rehearsed, monkeypatch):
    def breaks(torch, workload, weights):
        raise RuntimeError("planted")

    monkeypatch.setattr(graphs, "torch_graph", breaks)
    monkeypatch.setattr(graphs, "step_on", lambda *what: (lambda x: x, (7,)))
    outcome = Outcome()
    runs = graphs._torch_runs("small", WORKLOADS["small"], None, None, dataclasses.replace(rehearsed, device="cuda"), outcome)
    assert runs["torch"]() == 7 and list(runs) == ["torch"]
    assert outcome.problems == ["small, torch graph: RuntimeError: planted"]


@pytest.mark.parametrize(("batch", "count"), [(64, 200), (512, 20)])
def test_losses_of_a_workloads_own_batch_are_recorded_for_longer(batch, count, rehearsed, monkeypatch):
    monkeypatch.setattr(steps, "training_step", lambda *what: lambda: SimpleNamespace(item=lambda: 1.0))
    monkeypatch.setattr(steps, "initial_weights", lambda *what: None)
    outcome = Outcome()
    steps._compare("small, TF32", WORKLOADS["small"].with_batch(batch), None, dataclasses.replace(rehearsed, rehearsal=False),
                   outcome, 1e-3)
    assert len(outcome.figures[f"small, TF32 {batch}"]["losses"]) == count


def test_losses_unlike_torchs_are_a_problem_beside_the_times(rehearsed, monkeypatch):
    losses = iter([2.0, math.nan])

    def step(library, workload, device, weights=None):
        loss = next(losses)
        return lambda: SimpleNamespace(item=lambda: loss)

    monkeypatch.setattr(steps, "training_step", step)
    monkeypatch.setattr(steps, "initial_weights", lambda *what: None)
    outcome = Outcome()
    steps._compare("small", WORKLOADS["small"], object(), rehearsed, outcome, 1e-3)
    assert outcome.problems == ["small, batch 64: losses [2.0, 2.0, 2.0], torch's [nan, nan, nan]"]
    assert [row[0] for row in outcome.table] == ["small"] and outcome.figures["small 64"]["seconds"] > 0


def test_the_ratio_of_peaks_counts_workspaces_of_libraries(rehearsed, monkeypatch):
    """PyTorch's peak includes its own."""
    device = gradcore.device("cpu")
    monkeypatch.setattr(device, "bridge", SimpleNamespace(ledger=SimpleNamespace(allocated=12345)), raising=False)
    outcome = Outcome()
    steps._compare("small", WORKLOADS["small"].with_batch(2), None, rehearsed, outcome, 1e-3)
    assert outcome.figures["small 2"]["libraries"] == 12345 and outcome.table[0][6] == "12,345"


def test_memory_runs_out_inside_a_layer_whose_name_the_error_has(rehearsed):
    outcome = memory.out_of_memory(rehearsed)
    assert not outcome.problems and "for linear in layer 0, forward" in outcome.figures["text"][0]


def test_a_route_that_fails_is_a_problem(rehearsed, monkeypatch):
    monkeypatch.setattr(libraries, "run_limited", lambda *what: (1, "no such library"))
    outcome = libraries.libraries(dataclasses.replace(rehearsed, seconds=9))
    assert [problem.split(": ", 1)[1] for problem in outcome.problems] == ["code 1: no such library"] * 3


TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def test_a_sanitizer_that_comes_to_no_call_is_a_problem(rehearsed, monkeypatch):
    def run(command, seconds, environment=None):
        path = Path(command[command.index("bench.gpu.rows") + 2])
        if path.stem != "racecheck":
            path.write_text(json.dumps({"call": 0, "name": "add", "error": None}) + "\n")
        return None, "still starting"

    monkeypatch.setattr(correct, "sanitizer_path", lambda: "compute-sanitizer")
    monkeypatch.setattr(correct, "run_limited", run)
    found = {name: getattr(correct, name)(dataclasses.replace(rehearsed, seconds=9)) for name in TOOLS}
    assert [outcome.figures for outcome in found.values()] == [{"calls": n, "complete": False} for n in (1, 0, 1, 1)]
    assert [name for name, outcome in found.items() if outcome.problems] == ["racecheck"]
    assert found["racecheck"].problems[0].startswith("it has checked no call: stopped before its verdict")


@pytest.mark.parametrize("line", [
    "Invalid __global__ read of size 4 bytes", "Error: Race reported between Write access at 0x1 and Read access at 0x2",
    "Uninitialized __global__ memory read of size 4 bytes", "Barrier error detected. Divergent thread(s) in block"])
def test_what_a_sanitizer_has_found_before_it_is_stopped_is_a_problem(line, rehearsed, monkeypatch):
    def run(command, seconds, environment=None):
        Path(command[command.index("bench.gpu.rows") + 2]).write_text('{"call": 0, "name": "add", "error": null}\n')
        return None, f"========= COMPUTE-SANITIZER\n========= {line}\n"

    monkeypatch.setattr(correct, "sanitizer_path", lambda: "compute-sanitizer")
    monkeypatch.setattr(correct, "run_limited", run)
    outcome = correct.initcheck(dataclasses.replace(rehearsed, seconds=9))
    assert len(outcome.problems) == 1 and line in outcome.problems[0] and outcome.figures == {"calls": 1, "complete": False}


def test_a_sanitizer_ends_by_itself_when_its_calls_take_too_long(rehearsed, monkeypatch):
    """Its verdict is of the calls so far; the number of the others is told."""
    def run(command, seconds, environment=None):
        path, until = Path(command[command.index("bench.gpu.rows") + 2]), float(command[-1])
        assert 0 < time.time() + seconds - until <= 20
        path.write_text('{"call": 0, "name": "add", "error": null}\n{"left": 7}\n')
        return 0, "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"

    monkeypatch.setattr(correct, "sanitizer_path", lambda: "compute-sanitizer")
    monkeypatch.setattr(correct, "run_limited", run)
    outcome = correct.synccheck(dataclasses.replace(rehearsed, seconds=60))
    assert outcome.summary == "1 calls: nothing found, no time for 7" and not outcome.problems
    assert outcome.figures == {"calls": 1, "complete": False}


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed: pip install -e '.[nodriver]'")
def test_no_call_begins_after_the_given_time(tmp_path):
    path = tmp_path / "calls.jsonl"
    subprocess.run([sys.executable, "-m", "bench.gpu.rows", "cpu", str(path), "0", "100", "0", "1"], check=True)
    left, = (json.loads(line) for line in path.read_text().splitlines())
    assert left["left"] > 500


def test_memcheck_reports_accesses_and_no_calls_that_the_runtime_tries(rehearsed, monkeypatch):
    """A runtime that is newer than the driver looks for functions that the driver lacks, which memcheck counts as errors."""
    commands = []

    def run(command, seconds, environment=None):
        commands.append(command)
        Path(command[command.index("bench.gpu.rows") + 2]).write_text('{"call": 0, "name": "add", "error": null}\n')
        quiet = command[3:5] == ["--report-api-errors", "no"]
        return (0, "") if quiet or command[2] != "memcheck" else (77, "========= Program hit CUDA_ERROR_NOT_FOUND (error 500)")

    monkeypatch.setattr(correct, "sanitizer_path", lambda: "compute-sanitizer")
    monkeypatch.setattr(correct, "run_limited", run)
    assert not any(getattr(correct, name)(dataclasses.replace(rehearsed, seconds=9)).problems for name in TOOLS)
    # The other tools have no such option.
    assert ["--report-api-errors" in command for command in commands] == [True, False, False, False]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.skipif(
    importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed"))])
def test_each_test_counts_once_and_skipped_ones_say_why(workers, rehearsed, monkeypatch):
    path = rehearsed.folder / "test_planted.py"
    path.write_text("import pytest\n\ndef test_a():\n    pass\n\ndef test_b():\n    pytest.skip('no library')\n\n"
                    "def test_c():\n    pytest.skip('no library')\n\ndef test_d():\n    assert 0\n")
    monkeypatch.setattr(correct, "_MANY_KERNELS", (str(path),))
    monkeypatch.setattr(correct.os, "cpu_count", lambda: workers)
    if not workers:
        monkeypatch.setattr(correct, "find_spec", lambda name: None)
    outcome = correct.forms(dataclasses.replace(rehearsed, rehearsal=False, seconds=60))
    assert outcome.figures == {"passed": 1, "failed": 1, "skipped": 2, "skipped because": {"Skipped: no library": 2}}
    assert outcome.table[1:] == [["2", "Skipped: no library"]]
    assert len(outcome.problems) == 1 and "test_d" in outcome.problems[0]


def test_kernels_are_the_devices_own_again_after_a_part_that_records_them(rehearsed):
    device = gradcore.device("cpu")
    before = device.kernels
    host.host_cost(rehearsed)
    assert device.kernels is before and not device.calls
