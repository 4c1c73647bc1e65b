"""The largest batch that fits: a larger one does not, and the prediction equals the measurement."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace

import pytest

import gradcore
from gradcore.cli.find_batch import MOST, find
from gradcore.cli.main import main
from gradcore.cli.steps import measured
from gradcore.errors import OutOfMemory
from gradcore.units import format_bytes
from tests.conftest import raises
from tests.host.commands.test_cli import run


@pytest.mark.parametrize(("model", "optimizer", "memory"), [
    ("mlp", "sgd", "3MiB"), ("mlp", "adam", "6MiB"), ("cnn", "sgd", "16MiB")])
def test_one_more_does_not_fit(capsys, model, optimizer, memory):
    status, out, err = run(capsys, "find-batch", model, "--memory", memory, "--optimizer", optimizer, "--json", "--margin",
                           "0%")
    assert (status, err) == (0, "")
    found = json.loads(out)
    best, budget = found["batch_size"], found["budget"]
    assert found["confirmed"] is True and found["reserved"] <= budget == found["memory"]
    limit = gradcore.device("cpu").stack.limit
    before, limit.limit = limit.limit, budget
    try:
        measured(model, best, "cpu", optimizer)
        with raises(OutOfMemory, "out of memory"):
            measured(model, best + 1, "cpu", optimizer)
    finally:
        limit.limit = before
    assert found["one_more"] == measured(model, best + 1, "meta", optimizer).report.peak.allocated > found["allocated"]


def test_power_of_two_and_margin(capsys):
    sizes = {}
    for mode, margin in (("binsearch", "0%"), ("power", "0%"), ("binsearch", "40%")):
        status, out, _ = run(capsys, "find-batch", "mlp", "--memory", "100 MiB", "--mode", mode, "--margin", margin, "--device",
                             "meta", "--json")
        found = json.loads(out)
        assert status == 0 and found["confirmed"] is None and found["reserved"] <= found["budget"]
        sizes[mode, margin] = found["batch_size"]
    best, power, margin = sizes.values()
    assert power <= best < 2 * power and power & (power - 1) == 0
    assert 0.5 < margin / best < 0.7


def test_the_budget_is_exact(capsys):
    _, out, _ = run(capsys, "find-batch", "mlp", "--memory", "50 MiB", "--margin", "56%", "--device", "meta", "--json")
    found = json.loads(out)
    assert (found["budget"], found["margin"]) == (22 << 20, 0.56)


def test_the_text_says_what_was_done(capsys):
    status, out, _ = run(capsys, "find-batch", "mlp", "--memory", "4MiB", "--device", "cpu")
    assert status == 0
    for words in ("in 3.80 MiB (4.00 MiB minus 5.0%): ", "one more sample adds ", "phase backward, gradcore/models/mlp.py:",
                  "run on cpu: it fits, and its peak is as predicted"):
        assert words in out
    if not gradcore.cuda.is_available():
        _, out, _ = run(capsys, "find-batch", "mlp", "--memory", "4GiB")
        assert "; not run on cpu, as it reserves more than 1.00 GiB\n" in out


def test_a_terminal_shows_what_is_tried(capsys, monkeypatch):
    for terminal, options in ((False, ()), (True, ("--json",)), (True, ())):
        if terminal:
            # Rich takes any output for a terminal then.
            monkeypatch.setenv("FORCE_COLOR", "1")
        _, out, err = run(capsys, "find-batch", "mlp", "--memory", "4MiB", "--device", "meta", *options)
        assert err == "" and ("batch 1 on meta" in out) == (terminal and not options)


@pytest.mark.parametrize(("argv", "words"), [
    (("--memory", "4 KiB"), "out of memory: a batch of one sample reserves 2.00 MiB"),
    (("--memory", "4 XiB"), "'4 XiB'"), (("--memory", "0"), "at least one byte"),
    (("--memory", "1GiB", "--margin", "100%"), "below 100%, such as '5%', but got '100%'"), ((), "--memory")])
def test_what_cannot_be_found(capsys, argv, words):
    try:
        status = main(["find-batch", "mlp", *argv])
    except SystemExit as exit:
        status = exit.code
    assert status in (1, 2) and words in capsys.readouterr().err


def test_a_model_of_which_no_batch_fits_says_what_takes_the_memory(capsys):
    assert main(["find-batch", "mlp", "--memory", "4 KiB", "--optimizer", "adam", "--device", "meta"]) == 1
    roles = measured("mlp", 1, "meta", "adam").report.by_role
    assert f"live at the peak, mostly optimizer state {format_bytes(roles['optimizer state'])}, " in capsys.readouterr().err


def test_a_model_that_refuses_a_single_sample(capsys, tmp_path):
    model = tmp_path / "model.py"
    model.write_text("""
import numpy as np
from gradcore import nn

def build(batch_size):
    module = nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.Linear(50, 3))
    return module, (np.zeros((batch_size, 20), np.float32), np.zeros(batch_size, np.int64))

def broken(batch_size):
    return nn.Linear(3, 3), (np.zeros((batch_size, 20), np.float32), np.zeros(batch_size, np.int64))
""")
    status, out, err = run(capsys, "find-batch", model, "--memory", "4MiB", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "") and found["confirmed"] is True and found["tried"][:3] == [1, 2, 4]
    assert found["allocated"] == measured(str(model), found["batch_size"], "meta").report.peak.allocated
    status, _, err = run(capsys, "find-batch", model, "--memory", "4KiB")
    assert status == 1 and "a batch of two samples reserves 2.00 MiB" in err
    status, _, err = run(capsys, "find-batch", f"{model}:broken", "--memory", "4MiB")
    assert status == 1 and "linear got input [1, 20] and weight [3, 3]" in err


@pytest.mark.parametrize(("layers", "status", "words"), [
    ("nn.Linear(20, 512), nn.Tanh(), nn.Linear(512, 3)", 1,
     "run on cpu: it does not fit there: out of memory: cannot allocate [0-9,]+ bytes .* for tanh in layer 1, .*"),
    ("nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)", 0,
     "run on cpu: it fits, but allocated is [0-9,]+ there")])
def test_a_run_that_is_not_as_predicted(capsys, tmp_path, layers, status, words):
    path = tmp_path / "mine.py"
    # A region for a GPU is in force on meta, and not on the CPU.
    path.write_text(f"""
import numpy as np
import gradcore
from gradcore import nn

def loss(module, x, y):
    with gradcore.autocast("cuda"):
        return nn.functional.cross_entropy(module(x), y)

def build(batch_size):
    x, y = np.zeros((batch_size, 20), np.float32), np.zeros(batch_size, np.int64)
    return nn.Sequential({layers}), (x, y), loss
""")
    found, out, _ = run(capsys, "find-batch", path, "--memory", "8MiB", "--mode", "power", "--device", "cpu")
    assert found == status and out.startswith("The largest batch of ") and re.search(f"attempts; {words}\n$", out)
    found, out, _ = run(capsys, "find-batch", path, "--memory", "8MiB", "--mode", "power", "--device", "cpu", "--json")
    assert found == status and json.loads(out)["confirmed"] is False


def test_a_search_ends(capsys):
    """If everything fits, the largest batch that is tried; otherwise the exact one, with few attempts."""
    report = measured("mlp", 1, "meta").report
    found = find(lambda n, limit: report, 1 << 30)
    assert found.batch_size == MOST and len(found.tried) == 41
    for most in (1, 2, 3, 5, 1000, 1023, 1024):
        def attempt(n, limit, most=most):
            if limit is not None and n > most:
                raise OutOfMemory("out of memory")
            return report if n <= most else replace(report, peak=replace(report.peak, allocated=1 << 31))

        found = find(attempt, 1 << 30)
        assert found.batch_size == most and len(found.tried) <= 2 * most.bit_length() + 1
        assert find(attempt, 1 << 30, "power").batch_size == 1 << (most.bit_length() - 1)


@pytest.mark.parametrize("mode", ["binsearch", "power"])
@pytest.mark.parametrize(("fitting", "most"), [
    ([(1, 100)], 100), ([(1, 100)], 117), ([(1, 100), (115, 115)], 117), ([(1, 1536), (1970, 2035)], 2040),
    ([(1, 3), (16, 40)], 50), ([(1, 1000), (1024, 1030), (4000, 5000)], 5000), ([(1, 900)], MOST), ([(1, 1)], 9)])
def test_a_larger_batch_may_fit_above_one_that_gaps_stop(fitting, most, mode):
    """A simulated pool: live bytes are the batch's, up to ``most``, and all that is not in ``fitting`` is stopped by gaps."""
    report = measured("mlp", 1, "meta").report

    def attempt(n, limit):
        if limit is not None and not any(low <= n <= high for low, high in fitting):
            raise OutOfMemory("out of memory")
        return replace(report, peak=replace(report.peak, allocated=n, reserved=n))

    found = find(attempt, most, mode)
    powers = [1 << k for k in range(41) if any(low <= 1 << k <= high for low, high in fitting)]
    first = 1030 if len(fitting) == 3 else fitting[0][1]
    if mode == "power":
        assert found.batch_size == powers[-1] and found.fits_up_to == max(p for p in powers if p <= first)
    else:
        assert found.batch_size == fitting[-1][1] and found.one_more == found.batch_size + 1
        assert found.fits_up_to == first
        assert len(found.tried) <= 3 * most.bit_length() + 32


@pytest.mark.parametrize(("model", "memory", "first", "last"), [("mlp", "6MiB", 2047, 2565), ("cnn", "8MiB", 256, 348)])
def test_the_answer_is_above_batches_that_do_not_fit(capsys, model, memory, first, last):
    optimizer = "adam" if model == "mlp" else "sgd"
    options = ("find-batch", model, "--memory", memory, "--optimizer", optimizer)
    found = json.loads(run(capsys, *options, "--json")[1])
    assert (found["batch_size"], found["fits_up_to"], found["confirmed"]) == (last, first, True)
    limit = gradcore.device("meta").stack.limit
    before, limit.limit = limit.limit, found["budget"]
    try:
        for stopped in (first + 1, last + 1):
            with raises(OutOfMemory, "out of memory"):
                measured(model, stopped, "meta", optimizer, settle=True)
    finally:
        limit.limit = before
    assert found["one_more"] <= found["budget"]
    text = run(capsys, *options)[1]
    assert "bytes to the peak; what stops it is not the peak, but gaps between blocks\n  smaller batches fit up to "\
           f"{first:,}; above that, gaps between blocks stop some of them\n" in text
    _, text, _ = run(capsys, *options, "--mode", "power")
    assert "gaps" not in text


def test_measure_fits_a_line(capsys):
    status, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", "64,128,256,512", "--device", "meta", "--json")
    data = json.loads(out)
    line = data["line"]
    errors = [line["fixed"] + line["per_sample"] * r["batch_size"] - r["allocated"] for r in data["rows"]]
    assert status == 0 and line["largest_error"] == max(abs(round(e)) for e in errors) < 0.05 * data["rows"][0]["allocated"]
    # Least squares: the residuals have no slope.
    assert abs(sum(errors)) < 4 and abs(sum(e * r["batch_size"] for e, r in zip(errors, data["rows"], strict=True))) < 4 * 512
    _, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", "64,128", "--device", "meta")
    assert "per sample, within " not in out
    _, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", "64,128,256", "--device", "meta")
    assert "per sample, within " in out
    _, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", "64", "--device", "meta")
    assert "per sample, within" not in out
    _, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", "16,32,64", "--device", "meta")
    assert out.splitlines()[-1] == "allocated is 382,464 bytes plus 256 per sample"


def test_measure_says_once_what_reaches_the_peak_of_batches_in_a_row(capsys):
    _, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", "16,64,1000000", "--device", "meta")
    small, large, _ = out.partition("\n\n")[2].splitlines()[-3:]
    assert small.startswith("batches 16, 64: the peak is reached by sgd_ in layer (root), phase optimizer, ")
    assert large.startswith("batch 1,000,000: the peak is reached by linear_grad in layer layers.2, phase backward, ")


def test_the_bars_of_measure_begin_below_each_other(capsys):
    for batches in ((1, 64), (1, 100_000_000)):
        _, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", ",".join(map(str, batches)), "--device", "meta")
        sizes = [line[:line.index("iB") + 2] for line in out.splitlines() if "iB" in line]
        assert [size.split()[0] for size in sizes] == [f"{batch:,}" for batch in batches]
        assert len({*map(len, sizes)}) == 1


#: A model whose blocks find their places only after some steps.
TEXT = """
import numpy as np
import gradcore
from gradcore import nn

class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(37, 12)
        self.lstm = nn.LSTM(12, 20, num_layers=2, batch_first=True, dropout=0.2, bidirectional=True)
        self.out = nn.Linear(40, 37)

    def forward(self, x):
        return self.out(self.lstm(self.embedding(x))[0])

def text(n):
    words = np.zeros((n, 11), np.int64)
    return Text(), (words, words), lambda m, x, y: nn.functional.cross_entropy(m(x).flatten(0, 1), y.flatten())
"""


def test_a_batch_that_fits_fits_in_later_steps_too(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(TEXT)
    model, budget = f"{tmp_path}/mine.py:text", 4 << 20
    _, out, _ = run(capsys, "find-batch", model, "--memory", budget, "--margin", "0%", "--device", "meta", "--json")
    found = json.loads(out)["batch_size"]
    limit = gradcore.device("meta").stack.limit
    before, limit.limit = limit.limit, budget
    try:
        measured(model, found, "meta", steps=40)
        # What fits in three steps only is larger: of such the search must not stop at one.
        fits = 0
        for more in range(1, 30):
            with contextlib.suppress(OutOfMemory):
                measured(model, found + more, "meta")
                fits += 1
        assert fits
    finally:
        limit.limit = before


def test_reserved_is_the_most_of_all_steps(monkeypatch):
    made = iter([(0, 10), (0, 30), (50, 20), (0, 4)])

    def taken(*args, **kwargs):
        cached, used = next(made)
        gradcore.empty_cache("meta")
        gradcore.empty(cached << 18, device="meta")
        with gradcore.step(device="meta") as step:
            gradcore.empty(used << 18, device="meta")
        return 0.0, step

    monkeypatch.setattr("gradcore.cli.steps.train_step", taken)
    peak = measured("mlp", 2, "meta", steps=4).report.peak
    # With the parameters, and their segment of two.
    assert (peak.allocated >> 20, peak.reserved >> 20) == (30, 50 + 2)


GROWING = """
import numpy as np
from gradcore import nn

def grow(batch_size):
    model, kept = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10)), []

    def loss(model, x, y):
        out = model(x)
        kept.append(out)
        return nn.functional.cross_entropy(out, y)

    return model, lambda n: (np.zeros((n, 64), np.float32), np.zeros(n, np.int64)), loss
"""


def test_a_model_that_keeps_tensors_of_every_step_is_promised_nothing(tmp_path, capsys):
    """Its peak is that of the steps that were tried, and the next one may be the first that does not fit."""
    (tmp_path / "lines.py").write_text(GROWING)
    argv = ("find-batch", f"{tmp_path}/lines.py:grow", "--memory", "4MiB", "--device", "cpu")
    status, out, _ = run(capsys, *argv, "--json")
    found = json.loads(out)
    assert status == 0 and found["settled"] is found["confirmed"] is False
    # One sample more keeps 40 bytes more of each step's output, in blocks of 512.
    assert 0 <= found["one_more"] - found["allocated"] < 40_000
    status, out, _ = run(capsys, *argv)
    assert "one more sample adds -" not in out and "This holds for 35 steps: live bytes change with each of them" in out


WANDERING = """
import numpy as np
from gradcore import nn

def wander(batch_size):
    block = lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU())
    x, y = np.zeros((batch_size, 16), np.float32), np.zeros(batch_size, np.int64)
    return nn.Sequential(*(block() for _ in range(12))), (x, y)
"""


def test_blocks_that_lie_elsewhere_after_each_step_are_not_said_to_grow(tmp_path, capsys):
    """Its gradients find other gaps in every step, while as many bytes are live after each."""
    (tmp_path / "lines.py").write_text(WANDERING)
    status, out, _ = run(capsys, "find-batch", f"{tmp_path}/lines.py:wander", "--memory", "3MiB", "--device", "meta")
    assert status == 0 and "This holds for 35 steps: blocks lie elsewhere after each of them" in out
    assert "live bytes change" not in out
