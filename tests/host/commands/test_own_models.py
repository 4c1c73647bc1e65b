"""A user's model: its batch is used on every device, or an error says why not."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gradcore import _step
from gradcore.cli.main import main

HEAD = """
import numpy as np
import gradcore
from gradcore import nn

def scores(module, x, y):
    return module(x).sum()

def zeros(*shape):
    return np.zeros(shape, np.float32)

def build(b):
    module = nn.Sequential(nn.Linear(10, 3))
"""


def measured(capsys: Any, tmp_path: Path, result: str, device: str, sizes: str, command: str = "measure") -> Any:
    """The printed rows, or the error message."""
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}    return module, {result}\n")
    rest = ("--batch-sizes", sizes, "--steps", "2") if command == "measure" else ("--memory", sizes)
    status = main([command, f"{path}:build", "--device", device, "--json", *rest])
    out, err = capsys.readouterr()
    return json.loads(out)["rows"] if status == 0 and command == "measure" else err or json.loads(out)


LAYOUTS = {
    "two rows a sample": "lambda n: (zeros(2 * n, 10), np.zeros(2 * n, np.int64))",
    "time first": "lambda n: (zeros(20, n, 10), zeros(20, n)), scores",
    "a table of all pairs": "lambda n: (zeros(n, 10), zeros(n, n)), lambda m, x, y: (m(x).sum(1) * y).exp().sum()",
    "as tensors": "lambda n: (gradcore.zeros(n, 10), gradcore.zeros(n, dtype=gradcore.int64))",
    "a row more": "lambda n: (zeros(n + 1, 10), zeros(n)), scores",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_function_s_arrays_are_taken_as_they_are(capsys: Any, tmp_path: Path, layout: str) -> None:
    rows = {d: measured(capsys, tmp_path, LAYOUTS[layout], d, "1,32,300") for d in ("cpu", "meta")}
    assert rows["cpu"] == rows["meta"] and [r["batch_size"] for r in rows["cpu"]] == [1, 32, 300]


def test_what_the_file_itself_makes_is_counted_once(capsys: Any, tmp_path: Path) -> None:
    """It runs for each batch size."""
    path = tmp_path / "mine.py"
    text = HEAD.replace("def scores", "table = gradcore.zeros(1000)\n\ndef scores")
    path.write_text(f"{text}    return module, (zeros(b, 10), np.zeros(b, np.int64))\n")
    assert main(["measure", str(path), "--batch-sizes", "4,4,4", "--device", "cpu", "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["rows"]
    assert others == [first] * 2
    del sys.modules["gradcore_model_mine"]
    gc.collect()


def test_a_batch_that_fits_no_machine(capsys: Any, tmp_path: Path) -> None:
    row, = measured(capsys, tmp_path, LAYOUTS["two rows a sample"], "meta", str(10**9))
    assert row["batch_size"] == 10**9 and row["by_role"]["input"] == 2 * 10**9 * (40 + 8)


def test_what_is_no_line_cannot_be_told(capsys: Any, tmp_path: Path) -> None:
    pairs = "lambda n: (zeros(n * n, 10), zeros(n)), scores"
    told = measured(capsys, tmp_path, pairs, "meta", "32,65")
    assert "mine.py:build returned batch[0] of shapes [1, 10], [4, 10], [9, 10], [4096, 10] for batches of 1, 2, 3 and 64: " \
           "to predict the shapes of a batch of 65, each dimension must be linear in the number of samples" in told
    assert measured(capsys, tmp_path, pairs, "cpu", "32,64") == measured(capsys, tmp_path, pairs, "meta", "32,64")
    shrinks = "lambda n: (zeros(100 - n, 10), zeros(n)), scores"
    assert "returned batch[0] of shapes [99, 10], [98, 10]" in measured(capsys, tmp_path, shrinks, "meta", "200")


@pytest.mark.parametrize(("device", "sizes"), [("cpu", "50"), ("meta", "50"), ("cpu", "100"), ("meta", "100")])
def test_a_data_set_that_ends_is_told(capsys: Any, tmp_path: Path, device: str, sizes: str) -> None:
    short = "lambda n: (zeros(40, 10)[:n], np.zeros(40, np.int64)[:n])"
    told = measured(capsys, tmp_path, short, device, sizes)
    assert "[40, 10]" in told and ("expected" in told or "linear in the number of samples" in told), told
    assert len(measured(capsys, tmp_path, short, device, "40")) == 1


def test_what_small_batches_cannot_make_is_measured_as_made(capsys: Any, tmp_path: Path) -> None:
    many = "lambda n: (zeros(n // 2, 10), np.zeros(n // 2, np.int64))"
    assert measured(capsys, tmp_path, many, "cpu", "32") == measured(capsys, tmp_path, many, "meta", "32")
    assert "a batch of 100" in measured(capsys, tmp_path, many, "meta", "100")


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("command", ["measure", "find-batch"])
def test_a_tuple_has_a_row_a_sample(capsys: Any, tmp_path: Path, device: str, command: str) -> None:
    """Nothing is truncated: 64 rows for a batch of 32 are an error that says what to do."""
    for result, shape in (("(zeros(2 * b, 10), np.zeros(2 * b, np.int64))", "[{0}, 10]"),
                          ("(zeros(20, b, 10), zeros(20, b)), scores", "[20, {1}, 10]")):
        told = measured(capsys, tmp_path, result, device, "32" if command == "measure" else "8MiB", command)
        n = 32 if command == "measure" else 1
        assert f"the arrays of a batch must have one row per sample, {n} for a batch of {n}, but batch[0] has shape " \
               f"{shape.format(2 * n, n)}; for another layout, return a function of the batch size" in told


def test_find_batch_tells_the_batch_of_a_function(capsys: Any, tmp_path: Path) -> None:
    found = measured(capsys, tmp_path, LAYOUTS["two rows a sample"], "cpu", "8MiB", "find-batch")
    assert found["confirmed"] is True and found["batch_size"] > 64


def test_a_model_in_a_reference_cycle_is_not_counted_with_the_next(capsys: Any, tmp_path: Path) -> None:
    hooked = "(zeros(b, 10), zeros(b)), module.register_forward_hook(lambda *_: module and None) and scores"
    for device in ("cpu", "meta"):
        first, second, _ = measured(capsys, tmp_path, hooked, device, "8,8,8")
        assert first == second
    gc.collect()


RECURRENT = """
import numpy as np
import gradcore
from gradcore import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.recurrent = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 50)

    def forward(self, x):
        return self.head(self.recurrent(self.table(x))[0])

def loss(module, x, y):
    return nn.functional.cross_entropy(module(x).view(-1, 50), y.view(-1))

def build(b):
    return Net(), (np.zeros((b, 20), np.int64), np.zeros((b, 20), np.int64)), loss

# It reads a value.
def reads(b):
    net = Net()
    assert float(net.head.bias.sum().item()) < 10 and net.head.bias.detach().numpy().shape == (50,)
    return net, lambda n: (np.zeros((n, 20), np.int64), np.zeros((n, 20), np.int64)), loss

# It names the CPU, and puts what it makes there beside what it makes without a name.
def names_the_cpu(b):
    net = Net()
    with gradcore.no_grad():
        net.head.bias.copy_(net.head.bias * gradcore.ones(50, device="cpu"))
    net.head.weight = nn.Parameter(gradcore.zeros(50, 64, device="cpu"))
    return net, (np.zeros((b, 20), np.int64), np.zeros((b, 20), np.int64)), loss

# Its function shows tensors of the builder's to NumPy.
def shows(b):
    known = gradcore.zeros(9, 20, dtype=gradcore.int64)
    return Net(), lambda n: (known.numpy()[np.arange(n) % 9], known.numpy()[np.arange(n) % 9]), loss

# Its batch is of tensors, and so are the weights of its loss.
def of_tensors(b):
    weight = gradcore.ones(50)
    x = gradcore.zeros(b, 20, dtype=gradcore.int64)
    return Net(), (x, x), lambda m, x, y: nn.functional.cross_entropy(m(x).view(-1, 50), y.view(-1), weight=weight)
"""


def test_a_prediction_reserves_what_a_run_does(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "recurrent.py"
    path.write_text(RECURRENT)
    rows = {}
    for device in ("cpu", "meta"):
        assert main(["measure", f"{path}:build", "--batch-sizes", "8,819", "--device", device, "--json"]) == 0
        rows[device] = json.loads(capsys.readouterr().out)["rows"]
    assert rows["cpu"] == rows["meta"]


@pytest.mark.parametrize("function", ["reads", "names_the_cpu", "shows", "of_tensors"])
def test_what_cannot_be_made_on_meta_is_moved_there(capsys: Any, tmp_path: Path, function: str) -> None:
    path = tmp_path / "recurrent.py"
    path.write_text(RECURRENT)
    rows = {}
    for device in ("cpu", "meta"):
        assert main(["measure", f"{path}:{function}", "--batch-sizes", "8", "--device", device, "--json"]) == 0
        rows[device], = json.loads(capsys.readouterr().out)["rows"]
    assert rows["meta"]["batch_size"] == 8
    # The tensors of the two others' builders are themselves live on the CPU, where a run finds them.
    if function in ("reads", "names_the_cpu"):
        assert rows["cpu"]["allocated"] == rows["meta"]["allocated"]


def test_a_model_that_fits_no_machine_is_made_of_shapes(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "vast.py"
    path.write_text("import numpy as np\nfrom gradcore import nn\n\ndef build(b):\n    return nn.Linear(1 << 20, 1 << 20), "
                    "lambda n: (np.zeros((n, 1 << 20), np.float32), np.zeros(n, np.int64))\n")
    assert main(["measure", str(path), "--batch-sizes", "4", "--device", "meta", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["by_role"]["parameter"] > 1 << 42
    assert main(["find-batch", str(path), "--memory", "1GiB", "--device", "meta"]) == 1
    assert "a batch of one sample reserves" in capsys.readouterr().err


def test_a_model_for_text_says_so_where_it_gets_images_and_short_texts_have_no_test_loss(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines.py"
    path.write_text("""from gradcore import nn
from gradcore.data.text import Windows
from gradcore.models import Workload
from gradcore.models.tasks import TextTask

def loss(module, x, y):
    return nn.functional.cross_entropy(module(x).flatten(0, 1), y.flatten())

def build(batch_size, dataset):
    module = nn.Sequential(nn.Embedding(dataset.classes, 8), nn.Linear(8, dataset.classes))
    return Workload(module, lambda n: Windows(dataset.train, 4, n).draw(), loss, TextTask(dataset, 4, loss))
""")
    for argv in (["measure", str(path), "--batch-sizes", "4"], ["train", "--model", str(path), "--out", str(tmp_path)]):
        assert main([*argv, "--device", "cpu", "--data", "digits"]) == 1
        error = capsys.readouterr().err
        assert "lines.py:11: the model is trained on text, but digits holds images: try --data python-docs" in error
        assert len(error.splitlines()) == 1
    short = tmp_path / "short.txt"
    short.write_text("of 16 characters")
    assert main([*argv, "--device", "cpu", "--data", str(short), "--steps", "1", "--json"]) == 0
    # Two characters at least would be needed to test with.
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["test_loss"] is None


@pytest.mark.parametrize("command", [["measure", "--batch-sizes", "2"], ["find-batch", "--memory", "8MiB"]])
def test_a_data_set_that_would_not_be_used_is_refused(capsys: Any, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "mine.py"
    result = "nn.Linear(10, 3), (zeros({0}, 10), np.zeros({0}, np.int64))"
    path.write_text(f"{HEAD}    return {result.format('b')}\n\ndef other(n, dataset):\n    return {result.format('n')}\n")
    words = [*command, "--device", "meta", "--data", "digits"]
    assert main([*words, str(path)]) == 1
    assert capsys.readouterr().err == (
        f"gradcore: --data has no effect on {path}, which makes its own batches and has no parameter 'dataset'\n")
    assert main([*words, f"{path}:other"]) == 0


def test_what_a_model_keeps_of_every_step_is_named_at_the_end_of_training(
        capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step, "_ends", {})
    path = tmp_path / "keeps.py"
    path.write_text("""import numpy as np
from gradcore import nn

def build(b):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    module.seen = []
    module[2].register_forward_hook(lambda module_, given, out: module.seen.append(out.detach()))
    return module, (np.zeros((b, 64), np.float32), np.zeros(b, np.int64))
""")
    assert main(["train", "--model", str(path), "--out", str(tmp_path), "--device", "cpu", "--steps", "8", "--quiet"]) == 0
    grown = capsys.readouterr().out.partition("Live bytes have grown for 7 steps, typically by 8,192 ")[2].splitlines()
    assert " in 8 results of relu in 2, " in grown[1] and "held by " in grown[2] and ".seen[0] in " in grown[2]
    # The hook refers to its module.
    gc.collect()


@pytest.mark.keeps_bytes("the file's own tensor")
def test_a_tensor_that_the_file_makes_on_the_cpu_is_told_of(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "top_level.py"
    path.write_text(HEAD + "\nweight = gradcore.ones(3)\n\ndef build(b):\n    return nn.Linear(2, 3), (np.zeros((b, 2), "
                    "np.float32), np.zeros(b, int)), lambda m, x, y: nn.functional.cross_entropy(m(x), y, weight)\n")
    assert main(["measure", str(path), "--batch-sizes", "4", "--device", "meta"]) == 1
    text = capsys.readouterr().err
    assert "two devices, meta and cpu!; tensors that the model's file makes outside of the function are on the CPU" in text
    assert "with meta as the default device, or move them, as x.to(y.device) does" in text
    assert main(["measure", str(path), "--batch-sizes", "4", "--device", "cpu", "--json"]) == 0
    capsys.readouterr()
    sys.modules.pop("gradcore_model_top_level")
