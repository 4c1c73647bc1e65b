"""The commands as users type them."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds
from gradcore.cli import train
from gradcore.cli.main import main, parser
from gradcore.cli.measure import in_words
from gradcore.devices import availability
from gradcore.report import load_report, load_run


def run(capsys: Any, *argv: object) -> tuple[int, str, str]:
    """A command's status, and what it wrote to standard output and to standard error."""
    status = main([str(a) for a in argv])
    return status, *capsys.readouterr()


def test_train_reaches_the_accuracy_and_writes_a_run(capsys, tmp_path):
    status, out, _ = run(capsys, "train", "--out", tmp_path)
    assert status == 0
    accuracy = re.search(r"^After 440 steps in [\d.]+ m?s: test accuracy ([\d.]+)%$", out, re.MULTILINE)
    assert accuracy is not None
    assert "440/440" not in out, "a bar is for terminals"
    assert float(accuracy[1]) >= 97
    lines = re.findall(r"^step +\d+  loss .* peak requested ([\d,]+) allocated ([\d,]+) reserved ([\d,]+)  kept ([\d,]+) "
                       r"freed ([\d,]+)$", out, re.MULTILINE)
    assert len(lines) == 440
    assert all(kept == back for *_, kept, back in lines)
    assert re.search("Device memory of one step on (cpu|cuda:0), batch 64", out)
    assert "models/mlp.py" in out and "cli/steps.py" in out, "the model's and the loop's own lines are named"
    path, = tmp_path.glob("*.jsonl")
    written = load_run(path)
    assert len(written.steps) == 440 and written.result["accuracy"] >= 0.97
    assert [f"{s.allocated:,}" for s in written.steps] == [allocated for _, allocated, *_ in lines]
    number, top = written.find("peak")
    assert top.report.peak.allocated == max(s.allocated for s in written.steps)
    assert written.recordings.keys() == {1, number, 440} and number == written.peak_step
    assert folds.peak(top.records).allocated == top.report.peak.allocated


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_train_prints_one_json_object(capsys, tmp_path, optimizer):
    status, out, err = run(capsys, "train", "--json", "--steps", 3, "--batch-size", 16, "--optimizer", optimizer,
                           "--out", tmp_path)
    assert (status, err) == (0, "")
    printed = json.loads(out)
    assert printed["optimizer"] == optimizer
    assert len(printed["steps"]) == 3
    run_ = load_run(printed["file"])
    assert [asdict(s) for s in run_.steps] == printed["steps"]
    assert run_.find(printed["peak_step"])[1].report == load_report(printed["report"])


def test_train_the_convolutional_network_on_digits(capsys, tmp_path):
    status, out, _ = run(capsys, "train", "--model", "cnn", "--steps", 60, "--out", tmp_path)
    assert status == 0 and "cnn on digits" in out and "models/cnn.py" in out
    assert float(re.search(r"test accuracy ([\d.]+)%", out)[1]) >= 90


def test_train_the_gpt_on_text(capsys, tmp_path):
    """The loss ends below the bigram entropy, and the run prints a sample of text."""
    text = tmp_path / "verse.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 80)
    status, out, _ = run(capsys, "train", "--model", "chargpt", "--data", text, "--steps", 120, "--batch-size", 8, "--lr",
                         "0.005", "--out", tmp_path)
    assert status == 0 and "bigram entropy" in out and "A sample of text:" in out
    path, = tmp_path.glob("*.jsonl")
    written = load_run(path).result
    assert written["test_loss"] < written["bigram_entropy"]
    assert len(written["sample"]) > 300 and written["sample"] in out


@pytest.mark.parametrize(("argv", "rate"), [
    (("--model", "mlp"), 0.1), (("--model", "mlp", "--optimizer", "adam"), 1e-3), (("--model", "chargpt"), 2e-3),
    (("--model", "chargpt", "--optimizer", "sgd"), 0.1), (("--model", "chargpt", "--lr", "0.5"), 0.5)])
def test_the_learning_rate_is_the_usual_one_and_decays_to_zero(capsys, tmp_path, monkeypatch, argv, rate):
    made, rates = train.make_optimizer, []

    def make_optimizer(*args):
        optimizer = made(*args)
        optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
        return optimizer

    monkeypatch.setattr(train, "make_optimizer", make_optimizer)
    text = tmp_path / "verse.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 80)
    data = ("--data", text) if "chargpt" in argv else ()
    assert run(capsys, "train", *argv, *data, "--steps", 4, "--batch-size", 2, "--out", tmp_path)[0] == 0
    assert rates == pytest.approx([rate, 0.75 * rate, 0.5 * rate, 0.25 * rate])


def test_train_a_model_of_ones_own_on_text(capsys, tmp_path):
    """As docs/questions.md says; only the task knows how many characters the model takes."""
    model, text = tmp_path / "lines.py", tmp_path / "verse.txt"
    page = (Path(__file__).parents[3] / "docs" / "questions.md").read_text(encoding="utf-8")
    code = page.partition("## How do I train a model of my own on text?")[2].partition("```python\n")[2]
    model.write_text(code.partition("workload = ")[0], encoding="utf-8")
    text.write_text("the quick brown fox jumps over the lazy dog. " * 80)
    status, out, _ = run(capsys, "train", "--model", model, "--data", text, "--steps", 3, "--out", tmp_path)
    assert status == 0 and "bigram entropy" in out and "A sample of text:" in out


@pytest.mark.parametrize("model", ["cnn", "chargpt"])
def test_measure_predicts_the_larger_models(capsys, model):
    rows = {}
    for device in ("cpu", "meta"):
        status, out, _ = run(capsys, "measure", model, "--batch-sizes", "1,4", "--device", device, "--json")
        assert status == 0
        rows[device] = json.loads(out)["rows"]
    assert rows["cpu"] == rows["meta"]
    status, out, _ = run(capsys, "measure", model, "--batch-sizes", "1000000", "--device", "meta", "--json")
    assert status == 0 and json.loads(out)["rows"][0]["requested"] > 10**10


@pytest.mark.parametrize(("argv", "text"), [
    (("--model", "cnn", "--data", "python-docs"), "the model cnn is trained on images, but python-docs is a text"),
    (("--model", "chargpt", "--data", "digits"), "the model chargpt is trained on text, but digits holds images"),
    (("--model", "mlp", "--data", "python-docs"), "the model mlp is trained on images, but python-docs is a text")])
def test_data_that_a_model_cannot_learn(capsys, tmp_path, argv, text):
    status, _, err = run(capsys, "train", *argv, "--out", tmp_path)
    assert status != 0 and text in err


def test_a_prediction_is_the_measurement(capsys):
    rows = {}
    for device in ("cpu", "meta"):
        status, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", "1,16,512", "--device", device, "--json",
                             "--optimizer", "adam")
        assert status == 0
        rows[device] = json.loads(out)["rows"]
    assert rows["cpu"] == rows["meta"]
    for row in rows["cpu"]:
        assert sum(row["by_role"].values()) == row["allocated"] <= row["reserved"]
        assert row["requested"] <= row["allocated"]


def test_meta_answers_for_a_batch_that_fits_no_machine(capsys):
    status, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", 10**9, "--device", "meta", "--json")
    assert status == 0
    row, = json.loads(out)["rows"]
    assert row["allocated"] > 10**12
    assert row["peak"]["phase"] == "backward"


def test_meta_answers_for_any_size_that_can_be_counted(capsys):
    status, out, _ = run(capsys, "measure", "mlp", "--batch-sizes", 10**15, "--device", "meta", "--json")
    assert status == 0 and json.loads(out)["rows"][0]["allocated"] > 10**18
    for batch, said in ((10**16, "out of memory.* a segment has less than"), (10**22, "is too large, with more bytes than")):
        status, _, error = run(capsys, "measure", "mlp", "--batch-sizes", batch, "--device", "meta")
        assert status == 1 and re.search(said, error) and "Traceback" not in error


def test_measure_takes_a_model_of_ones_own(capsys, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("""
import numpy as np
from gradcore import nn

def build(batch_size):
    module = nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 3))
    x, y = np.zeros((batch_size, 20), np.float32), np.zeros(batch_size, np.int64)
    return module, (x, y), lambda module, x, y: nn.functional.cross_entropy(module(x), y)
""")
    status, out, _ = run(capsys, "measure", f"{path}:build", "--batch-sizes", "4,8")
    assert status == 0
    assert re.search(r"^ +4 ", out, re.MULTILINE) and re.search(r"^ +8 ", out, re.MULTILINE)
    assert "mine.py" in out or "cli/steps.py" in out


def test_a_model_that_cannot_take_the_samples_of_the_data_set_is_told_where_they_are_from(capsys, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("""
import numpy as np
from gradcore import nn

def build(batch_size):
    x, y = np.zeros((batch_size, 3, 8, 8), np.float32), np.zeros(batch_size, np.int64)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10)), (x, y)
""")
    status, _, _ = run(capsys, "measure", path, "--batch-sizes", "4")
    assert status == 0
    status, _, err = run(capsys, "train", "--model", path, "--device", "cpu", "--out", tmp_path)
    assert status == 1 and len(err.strip().splitlines()) == 1
    assert "takes samples of --data, here [64] each, and not those that the model's function returns, [3, 8, 8]" in err


@pytest.mark.parametrize(("argv", "words"), [
    (["train", "--model", "resnet"], "unknown model 'resnet': expected one of mlp"),
    (["train", "--data", "imagenet"], "unknown data set 'imagenet'"),
    (["train", "--data", "fashion-mnist"], "dataset-fashion-mnist"),
    (["measure", "missing.py:build"], "model file not found: missing.py"),
    (["train", "--lr", "1e9", "--steps", "50"], "the loss became"),
])
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradcore.data.registry.DEBIAN", tmp_path)
    monkeypatch.delenv("GRADCORE_DATA", raising=False)
    status, _, err = run(capsys, *argv, "--device", "cpu")
    assert status == 1
    assert words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(("option", "value"), [("--batch-size", "0"), ("--steps", "x"), ("--device", "tpu")])
def test_bad_options_are_usage_errors(capsys, option, value):
    with pytest.raises(SystemExit) as exit_:
        main(["train", option, value])
    assert exit_.value.code == 2
    assert value in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "measure", "report", "diff", "export", "find-batch", "find-checkpoints",
                                     "collect-env"])
def test_help_fits_the_terminal(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    said = capsys.readouterr().out
    assert exit_.value.code == 0 and max(map(len, said.splitlines())) <= 80
    # The lines of code stay as they are.
    assert ("\n    def build(batch_size):\n        net = nn." in said) == (command == "measure")


def test_without_a_command_there_is_a_choice(capsys):
    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert all(command in said for command in ("train", "measure", "report", "diff", "export", "find-batch", "find-checkpoints",
                                                    "collect-env"))
    assert "Begin with\n  gradcore train" in said
    # Each with what it does beside it.
    assert re.search(r"\n    train +train a network", said) and re.search(r"\n    find-batch +the largest", said)


@pytest.mark.parametrize(("argv", "word"), [(["train", "mlp"], "mlp"), (["train", "--modl", "mlp"], "--modl mlp"),
                                            (["measure", "mlp", "--batch-sizes", "16", "32"], "32")])
def test_an_argument_that_a_command_does_not_know_shows_what_it_takes(capsys, argv, word):
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: gradcore {argv[0]} [-h]")
    assert said.endswith(f"gradcore {argv[0]}: error: unrecognized arguments: {word}\n")


def test_a_driver_without_cupy(capsys, tmp_path, monkeypatch):
    reason = "a driver for CUDA 13.0 is present, but CuPy is not installed: pip install 'gradcore[cuda13]'"
    monkeypatch.setattr(availability, "cuda_status", lambda: availability.CudaStatus((13, 0), 0, reason))
    status, out, _ = run(capsys, "train", "--steps", 2, "--out", tmp_path)
    assert status == 0
    assert reason in out
    status, _, err = run(capsys, "train", "--steps", 2, "--device", "cuda")
    assert status == 1
    assert reason in err
    assert availability.install_line((12, 4)) == "pip install 'gradcore[cuda12]'"


def test_fashion_mnist_from_idx_files(capsys, tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    for part, count in (("train", 64), ("t10k", 16)):
        images = generator.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, count, dtype=np.uint8)
        labels[:10] = np.arange(10)
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            (tmp_path / name).write_bytes(head + array.tobytes())
    monkeypatch.setenv("GRADCORE_DATA", str(tmp_path))
    status, out, _ = run(capsys, "train", "--data", "fashion-mnist", "--steps", 2, "--batch-size", 8, "--json", "--out",
                         tmp_path / "runs", "--device", "cpu")
    assert status == 0
    assert json.loads(out)["report"]["by_role"]["parameter"] > 4 * 784 * 1024


def test_a_run_leaves_no_memory(capsys, tmp_path):
    before = set(gradcore.device("cpu").ledger.live)
    run(capsys, "train", "--steps", 2, "--quiet", "--device", "cpu", "--out", tmp_path)
    assert set(gradcore.device("cpu").ledger.live) == before


def test_an_output_that_knows_ascii_alone_gets_what_it_can_show(tmp_path):
    """As with LC_ALL=C, and with a pipe on a system whose encoding is not UTF-8."""
    text = tmp_path / "verse.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 80)
    for arguments in (["train", "--steps", "2", "--out", str(tmp_path)],
                      ["train", "--steps", "1", "--model", "chargpt", "--data", str(text), "--out", str(tmp_path)]):
        found = subprocess.run([sys.executable, "-m", "gradcore.cli.main", *arguments], capture_output=True, timeout=120,
                               env={**os.environ, "PYTHONIOENCODING": "ascii"})
        assert found.returncode == 0 and not found.stderr, found.stderr[-2000:]
        assert b"Largest tensors at the peak" in found.stdout and b"%  ####" in found.stdout and found.stdout.isascii()


def test_the_help_of_a_command_says_what_each_of_its_options_does() -> None:
    commands = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    for name, command in commands.items():
        for action in command._actions:
            assert action.help, (name, action.option_strings)
            # A command's help is about that command.
            assert not any(other in action.help for other in {"find-batch", "diff"} - {name}), (name, action.help)


@pytest.mark.parametrize("command", [["measure"], ["find-batch", "--memory", "64MiB"]])
def test_a_batch_of_numpys_default_dtype(capsys, tmp_path, command):
    path = tmp_path / "mine.py"
    path.write_text("import numpy as np\nfrom gradcore import nn\n"
                    "def build(n):\n    return nn.Linear(3, 2), (np.zeros((n, 3)), np.zeros(n, int))\n")
    for device in ("cpu", "meta"):
        status, _, err = run(capsys, *command, path, "--device", device)
        assert status == 1 and len(err.splitlines()) == 1
        assert err.endswith("; the batch has float64, which NumPy makes unless it is told dtype=np.float32\n")


def test_an_error_about_other_dtypes_says_nothing_of_the_batch(capsys, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import gradcore\nimport numpy as np\nfrom gradcore import nn\n"
                    "def build(n):\n    x = np.zeros((n, 3), np.float32)\n"
                    "    return nn.Linear(3, 2).to(gradcore.float16), (x, np.zeros((n, 2)))\n")
    status, _, err = run(capsys, "measure", path, "--device", "meta")
    assert status == 1 and err.endswith("got input float32, weight float16, bias float16\n")


def test_a_line_of_measure_is_exact_if_its_figures_are():
    third = {"fixed": 488, "per_sample": 512 / 3, "largest_error": 0}
    assert in_words(third) == "allocated is about 488 bytes plus 170.7 per sample, within 0 bytes of each of these"
    assert in_words({**third, "per_sample": 170.5}) == "allocated is 488 bytes plus 170.5 per sample"
    assert in_words({**third, "per_sample": 169.99999999999997}) == "allocated is 488 bytes plus 170 per sample"
