"""The command as a shell runs it: errors of a user's model, where modules are found, a reader that closes the pipe."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.cli import steps, train
from gradcore.cli.common import RATES, make_optimizer
from gradcore.cli.main import main
from gradcore.models.workload import Workload, as_workload, classification

MODEL = """import numpy as np
from gradcore import nn

def build(b):
    return nn.Linear(4, 2), (np.zeros((b, 4), np.float32), np.zeros(b, np.int64))

def raises(b):
    raise RuntimeError("my own error")

def in_the_loss(b):
    return *build(b), loss

def loss(module, x, y):
    return module(x.view(-1, 3)).sum()

def in_the_example(n):
    return nn.Linear(4, 2), lambda n: {}[n]

def bare(n):
    assert n < 0

def labels(n):
    return nn.Linear(4, 2), (np.zeros((n, 4), np.float32), np.full(n, 5))
"""


def shell(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    path = str(Path(gradcore.__file__).parents[1])
    return subprocess.run([sys.executable, "-c", f"import sys; sys.path[:1] = [{path!r}]\nfrom gradcore.cli.main import main\n"
                           "sys.exit(main())", *argv], cwd=folder, capture_output=True, text=True, timeout=120,
                          env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})


@pytest.mark.parametrize(("function", "words"), [
    ("raises", "RuntimeError at mine.py:8: my own error"), ("in_the_loss", "SpecError at mine.py:14: "),
    ("in_the_example", "KeyError at mine.py:17: 4"), ("bare", "AssertionError at mine.py:20 (--traceback")])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_error_of_the_model_has_its_type_and_line(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     function: str, words: str, device: str) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for argv in (["measure", f"mine.py:{function}", "--batch-sizes", "4"], ["find-batch", f"mine.py:{function}", "--memory",
                                                                           "4MiB"]):
        assert main([*argv, "--device", device]) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"gradcore: {words}"[:-1 if "KeyError" in words else None]), err
        assert err.endswith(" (--traceback prints the traceback)\n") and len(err.splitlines()) == 1
    name, _, message = words.partition(" at mine.py:")
    with pytest.raises(getattr(builtins, name, gradcore.SpecError), match=message.partition(": ")[2] or None):
        main(["measure", f"mine.py:{function}", "--batch-sizes", "4", "--device", device, "--traceback"])
    capsys.readouterr()


def test_labels_that_the_default_loss_refuses_are_an_error_of_the_model(capsys: Any, tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for argv in (["measure", "--batch-sizes", "4", "mine.py:labels"], ["find-batch", "--memory", "4MiB", "mine.py:labels"]):
        assert main([*argv, "--device", "cpu"]) == 1
        assert capsys.readouterr().err == (
            "gradcore: IndexError in mine.py:labels: Target 5 is out of bounds: expected class indices from 0 to 1, or "
            "ignore_index=-100 (--traceback prints the traceback)\n")
        with pytest.raises(IndexError, match="Target 5"):
            main([*argv, "--device", "cpu", "--traceback"])
    # Trained on digits, of which there are ten.
    (tmp_path / "mine.py").write_text("from gradcore import nn\nimport numpy as np\n\ndef few(n):\n"
                                      "    return nn.Linear(64, 2), (np.zeros((n, 64), np.float32), np.zeros(n, np.int64))\n")
    capsys.readouterr()
    assert main(["train", "--model", "mine.py:few", "--device", "cpu", "--quiet", "--out", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("gradcore: IndexError in mine.py:few: Target ") and len(err.splitlines()) == 1


@pytest.mark.parametrize("loss", ["F.cross_entropy", "nn.CrossEntropyLoss()", "lambda scores, y: F.cross_entropy(scores, y)"])
@pytest.mark.parametrize("made", ["{model}, batch, {loss}", "Workload({model}, lambda n: batch, {loss})"])
def test_a_loss_that_takes_other_arguments(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str,
                                           made: str) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom gradcore import nn\nfrom gradcore.models import Workload\nF = nn.functional\n"
        "def build(n):\n    batch = np.zeros((n, 4), np.float32), np.zeros(n, np.int64)\n"
        f"    return {made.format(model='nn.Linear(4, 2)', loss=loss)}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert main(["measure", "mine.py", "--batch-sizes", "4", "--device", "cpu"]) == 1
    name = {"F": "cross_entropy", "n": "CrossEntropyLoss", "l": "<lambda>"}[loss[0]]
    assert capsys.readouterr().err == (
        f"gradcore: mine.py: the loss is called as loss(module, batch[0], batch[1]), but {name} takes other arguments; for one "
        "of scores and labels, return lambda module, x, y: loss(module(x), y)\n")


def test_losses_that_can_be_called() -> None:
    class Own(nn.Module):
        def forward(self, module: Any, x: Any, y: Any, weight: float = 1.0) -> Any:
            return module(x).sum() * weight

    for loss in (Own(), classification, partial(lambda scale, *rest: classification(*rest), 2.0), min):
        workload = as_workload((nn.Linear(4, 2), lambda n: None, loss), "mine", 4)
        workload.require_fit((None, None), "mine")
    with pytest.raises(TypeError, match=r"mine: the loss must be a function of the module and the parts .*, but is int"):
        as_workload(Workload(nn.Linear(4, 2), Any, 3), "mine", 4)  # type: ignore[arg-type]


def test_out_of_memory_in_backward_has_a_line(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("""import numpy as np
from gradcore import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 512), nn.Linear(512, 2)
        self.apart = nn.ModuleDict({"a, b, c": nn.LayerNorm(512)})

    def forward(self, x):
        return self.last(self.apart["a, b, c"](self.first(x)))

def build(n):
    return Net(), (np.zeros((n, 64), np.float32), np.zeros(n, np.int64))
""")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    phases = set()
    limit = gradcore.device("cpu").stack.limit
    for mib in range(4, 20):
        monkeypatch.setattr(limit, "limit", mib << 20)
        main(["measure", "mine.py", "--batch-sizes", "2048", "--device", "cpu", "--steps", "1"])
        first = capsys.readouterr().err.partition("\n")[0]
        if "for layer_norm" in first:
            assert first.startswith("gradcore: OutOfMemory at mine.py:11: out of memory: cannot allocate ")
            phases.add(first.partition("a, b, c, ")[2].split(", ")[0])
    assert phases == {"forward", "backward"}


def test_a_file_that_is_no_python(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("import numpy\n\ndef build(b:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert main(["measure", "mine.py"]) == 1
    assert "gradcore: SyntaxError at mine.py:3: '(' was never closed" in capsys.readouterr().err


def test_an_error_that_is_not_the_model_s_is_as_it_was(capsys: Any) -> None:
    assert main(["measure", "resnet", "--device", "cpu"]) == 1
    assert capsys.readouterr().err.startswith("gradcore: unknown model 'resnet': expected one of")


def test_a_module_of_the_present_folder_or_of_the_model_s_is_found(tmp_path: Path) -> None:
    """With its imports from there, and with a file name for its lines."""
    (tmp_path / "beside.py").write_text(MODEL)
    (tmp_path / "mymodel.py").write_text("from beside import build, raises\n")
    for folder, name in ((tmp_path, "mymodel:build"), (tmp_path.parent, f"{tmp_path.name}/mymodel.py")):
        done = shell(folder, "measure", name, "--batch-sizes", "4", "--device", "meta", "--json")
        assert done.returncode == 0 and json.loads(done.stdout)["rows"][0]["batch_size"] == 4, done.stderr
    done = shell(tmp_path, "measure", "mymodel:raises")
    assert done.returncode == 1 and "RuntimeError at beside.py:8: my own error" in done.stderr


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "gradcore", "--version"], capture_output=True, text=True, timeout=120,
                          cwd=Path(gradcore.__file__).parents[1])
    assert (done.returncode, done.stdout) == (0, f"gradcore {gradcore.__version__}\n")


@pytest.mark.parametrize("command", ["diff", "report", "measure"])
def test_a_reader_that_leaves_is_no_growth(tmp_path: Path, command: str) -> None:
    """Status 141, which a shell reports for a command ended by SIGPIPE, and nothing on standard error."""
    files = []
    for width in (8, 800):
        with gradcore.step(batch_size=4, device="meta") as step:
            gradcore.zeros(4, width, device="meta").exp()
        files.append(tmp_path / f"{width}.json")
        files[-1].write_text(json.dumps(step.recording.to_dict()))
    argv = {"diff": ["diff", *map(str, files), "--fail-above", "0"], "report": ["report", str(files[0])],
            "measure": ["measure", "mlp", "--device", "meta"]}[command]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([sys.executable, "-m", "gradcore", *argv], stdout=writing, stderr=subprocess.PIPE, timeout=120,
                              cwd=Path(gradcore.__file__).parents[1], check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_batch_that_the_host_cannot_hold_is_one_line(capsys: Any) -> None:
    assert main(["measure", "mlp", "--batch-sizes", str(10**14), "--device", "cpu"]) == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith("gradcore: ") and "allocate" in said and len(said.splitlines()) == 1


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = ("import os, sys\nfrom gradcore.cli.main import main\nos.rmdir(os.getcwd())\n"
            f"sys.exit(main(['measure', {str(tmp_path / 'mine.py')!r}, '--device', 'meta', '--batch-sizes', '4']))")
    (tmp_path / "mine.py").write_text(MODEL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "gone", capture_output=True, text=True, timeout=120,
                          env=os.environ | {"PYTHONPATH": str(Path(gradcore.__file__).parents[1])})
    assert done.returncode == 0 and "the peak is reached by" in done.stdout, done.stderr


def test_a_loss_that_is_nan_before_any_step_is_not_the_rate_s(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL + """
def nan(b):
    return *build(b), lambda module, x, y: module(x[:, :4]).sum() * float("nan")
""")
    assert main(["train", "--model", f"{tmp_path}/mine.py:nan", "--device", "cpu", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "the loss became nan at step 1" in said and "look at the data and at the model" in said and "--lr" not in said


def test_a_run_that_does_not_exist(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 1
    assert capsys.readouterr().err == ("gradcore: runs not found: gradcore train writes a run to the folder runs, or to --out "
                                       "FOLDER; a loop of your own, where its report.RunWriter says\n")


def test_the_folder_for_runs_is_no_file(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    assert main(["train", "--steps", "1", "--device", "cpu", "--out", str(tmp_path / "runs")]) == 1
    assert f"--out must be a folder, but {tmp_path / 'runs'} is a file" in capsys.readouterr().err


@pytest.mark.parametrize("loss, what", [
    ("module(x)", "float32[4, 3]"), ("module(x).sum().detach()", "float32[] without a gradient"),
    ("module(x).sum().item()", "a float")])
@pytest.mark.parametrize("command", ["measure", "train"])
def test_a_loss_is_one_number_with_a_gradient(capsys: Any, tmp_path: Path, command: str, loss: str, what: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import numpy as np\nfrom gradcore import nn\n\n\ndef build(batch_size, dataset=None):\n"
                    "    x, y = np.zeros((batch_size, 64), np.float32), np.zeros(batch_size, np.int64)\n"
                    f"    return nn.Linear(64, 3), (x, y), lambda module, x, y: {loss}\n")
    given = {"measure": [str(path), "--batch-sizes", "4"],
             "train": ["--model", str(path), "--batch-size", "4", "--steps", "1", "--out", str(tmp_path / "runs")]}[command]
    assert main([command, *given, "--device", "cpu"]) == 1
    assert f"the model's loss must be one number that requires a gradient, but is {what}\n" in capsys.readouterr().err


def test_the_environment_chooses_what_train_records(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["train", "--steps", "1", "--json", "--device", "cpu", "--out", str(tmp_path)]
    monkeypatch.setenv("GRADCORE_RECORD", "counts")
    assert main(argv) == 0
    assert not json.loads(capsys.readouterr().out)["report"]["records"]
    assert main([*argv, "--record", "events"]) == 0
    assert json.loads(capsys.readouterr().out)["report"]["records"]
    for level in ("off", "everything"):
        monkeypatch.setenv("GRADCORE_RECORD", level)
        assert main(argv) == 1
        assert f"must be counts, events or stacks for gradcore train, but is '{level}'" in capsys.readouterr().err


def test_a_batch_is_no_larger_than_the_data_and_that_is_said(capsys: Any, tmp_path: Path) -> None:
    words = ["train", "--steps", "1", "--device", "cpu", "--out", str(tmp_path), "--batch-size"]
    assert main([*words, "100000", "--json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["batch_size"] == told["report"]["batch_size"] == 1437
    line = "gradcore: --batch-size 100,000 is more than the 1,437 samples of digits: each step takes all of them\n"
    assert said.err == line
    assert main([*words, "1438", "--quiet"]) == 0
    assert capsys.readouterr().err == line.replace("100,000", "1,438")
    assert main([*words, "1437", "--quiet"]) == 0
    assert not capsys.readouterr().err


def test_steps_beyond_the_run_have_no_events(capsys: Any, tmp_path: Path) -> None:
    assert main(["train", "--steps", "2", "--events", "1,99", "--device", "cpu", "--out", str(tmp_path)]) == 1
    assert "--events asks for step 99, but the run has 2 steps" in capsys.readouterr().err


#: Arrays that a model of a test holds.
KEPT: list[Any] = []


def test_bytes_that_other_libraries_hold_have_a_column(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import numpy as np\nfrom gradcore import nn\nfrom tests.host.commands.test_command_line import KEPT\n\n\n"
                    "def build(n):\n"
                    "    x, y = np.zeros((n, 64), np.float32), np.zeros(n, np.int64)\n"
                    "    return nn.Linear(64, 3), (x, y), loss\n\n\n"
                    "def loss(module, x, y):\n    out = module(x)\n    KEPT.append(out.detach().exp().numpy())\n"
                    "    return out.sum()\n")
    assert main(["measure", str(path), "--batch-sizes", "100", "--device", "cpu", "--json"]) == 0
    row, = json.loads(capsys.readouterr().out)["rows"]
    KEPT.clear()
    assert row["by_role"]["held outside"] > 0 and sum(row["by_role"].values()) == row["allocated"]


def test_optimizers_are_those_of_their_names() -> None:
    layer = gradcore.nn.Linear(1, 1)
    made = {name: make_optimizer(name, layer.parameters()) for name in RATES}
    assert [type(o).__name__ for o in made.values()] == ["SGD", "Adam", "AdamW"]
    assert made["sgd"].param_groups[0]["momentum"] == 0.9
    assert [o.param_groups[0]["lr"] for o in made.values()] == [0.1, 1e-3, 1e-3]
    assert make_optimizer("adam", layer.parameters(), 0.5).param_groups[0]["lr"] == 0.5


def test_a_seed_makes_a_run(capsys: Any, tmp_path: Path) -> None:
    losses = []
    for seed in ("1", "1", "2"):
        assert main(["train", "--steps", "3", "--seed", seed, "--device", "cpu", "--json", "--out", str(tmp_path)]) == 0
        losses.append([step["loss"] for step in json.loads(capsys.readouterr().out)["steps"]])
    assert losses[0] == losses[1] and all(a != b for a, b in zip(losses[0], losses[2], strict=True))


def test_the_rate_decays_to_zero_over_the_run(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates, step = [], train.train_step

    def noted(workload: Any, optimizer: Any, *rest: Any) -> Any:
        rates.append(optimizer.param_groups[0]["lr"])
        return step(workload, optimizer, *rest)

    monkeypatch.setattr(train, "train_step", noted)
    assert main(["train", "--steps", "4", "--lr", "0.8", "--device", "cpu", "--quiet", "--out", str(tmp_path)]) == 0
    assert rates == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_measure_takes_as_many_steps_as_it_is_told(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, step = [], steps.train_step

    def noted(*given: Any, **options: Any) -> Any:
        seeds.append(gradcore.initial_seed())
        return step(*given, **options)

    monkeypatch.setattr(steps, "train_step", noted)
    assert main(["measure", "mlp", "--batch-sizes", "4", "--device", "meta", "--steps", "5", "--seed", "7"]) == 0
    assert seeds == [7] * 5
