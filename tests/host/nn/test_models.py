"""Models: the included ones, and a user's in six lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import _random, data, models, nn, optim
from gradcore.devices.host.device import make_host
from gradcore.devices.meta import make_meta
from gradcore.events import MARK, UPLOAD
from gradcore.models import registry
from gradcore.models.mlp import MLP
from tests.conftest import raises
from tests.logs import normalized


def test_mlp_for_digits() -> None:
    w = models.load("mlp", 32)
    assert [tuple(p.shape) for p in w.module.parameters()] == [(128, 64), (128,), (128, 128), (128,), (10, 128), (10,)]
    assert next(iter(w.module.state_dict())) == "layers.0.weight"
    x, y = w.example(32)
    assert x.shape == (32, 64) and y.shape == (32,)
    loss = w.loss(w.module, gradcore.tensor(x), gradcore.tensor(y))
    assert loss.shape == () and 1.5 < loss.item() < 3
    assert w.example(2000)[0].shape == (2000, 64)


def test_mlp_for_large_images() -> None:
    d = data.load("digits")
    wide = data.Dataset("wide", np.zeros((4, 784), np.float32), d.train_y[:4], np.zeros((1, 784), np.float32),
                        d.test_y[:1], 10, "", (28, 28))
    w = models.load("mlp", 2, wide, device="meta")
    assert [tuple(p.shape)[::-1] for n, p in w.module.named_parameters() if n.endswith("weight")] == [
        (784, 1024), (1024, 1024), (1024, 1024), (1024, 10)]
    with raises(ValueError, "an MLP needs the size of its input"):
        MLP((3,))


def test_the_models_own_lines_are_named() -> None:
    w = models.load("mlp", 4)
    x, _ = w.example(4)
    y = w.module(gradcore.tensor(x))
    tag = y.storage.block.tag
    assert tag.site.file.endswith("models/mlp.py") and tag.layer == "layers.2"


def test_training_on_digits_learns() -> None:
    _random.manual_seed(0)
    d = data.load("digits")
    w = models.load("mlp", 64)
    sgd = optim.SGD(w.module.parameters(), lr=0.1, momentum=0.9)
    batches = data.Batches(d.train_x, d.train_y, batch_size=64)
    for _ in range(12):
        for x, y in batches:
            sgd.zero_grad()
            w.loss(w.module, gradcore.tensor(x), gradcore.tensor(y)).backward()
            sgd.step()
    with gradcore.no_grad():
        found = w.module(gradcore.tensor(d.test_x)).numpy().argmax(1)
    assert (found == d.test_y).mean() > 0.95


@pytest.mark.parametrize("make", [lambda p: optim.SGD(p, lr=0.1, momentum=0.9), lambda p: optim.AdamW(p)],
                         ids=["sgd", "adamw"])
def test_meta_writes_the_log_that_the_cpu_writes(make: Any) -> None:
    """Every record of building, training and freeing: equal on all devices, since no record names a device."""
    logs = []
    for kind in (make_host, make_meta):
        device = kind()
        device.ledger.log = log = []
        _train(device, make)
        device.ledger.log = None
        assert {b.tag.op for b in device.ledger.live.values()} == {"generator"}
        logs.append(normalized(r for r in log if r[0] not in (MARK, UPLOAD)))
    assert len(logs[0]) > 300 and logs[0] == logs[1]


def _train(device: Any, make: Any) -> None:
    generator = _random.Generator(device).manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = MLP((64, 32, 16), device)
            self.norm = nn.LayerNorm(16, device=device)

        def forward(self, x: Any) -> Any:
            return nn.functional.dropout(nn.functional.gelu(self.norm(self.body(x))), 0.2, generator=generator)

    module = Net()
    optimizer = make(module.parameters())
    x, y = models.load("mlp", 8).example(8)
    for _ in range(3):
        optimizer.zero_grad()
        scores = module(gradcore.tensor(x, device=device))
        nn.functional.cross_entropy(scores, gradcore.tensor(y, device=device)).backward()
        optimizer.step()


EXAMPLE = registry.__doc__ or ""


def test_the_example_of_the_documentation_works(tmp_path: Path) -> None:
    lines = [line[4:] for line in EXAMPLE.splitlines() if line.startswith("    ")]
    path = tmp_path / "model.py"
    path.write_text("\n".join(lines))
    for name in (f"{path}:build", str(path)):
        w = models.load(name, 5)
        x, y = w.example(5)
        w.loss(w.module, gradcore.tensor(x), gradcore.tensor(y)).backward()
        assert w.module[0].weight.grad is not None
    meta = models.load(str(path), 5, device="meta")
    assert meta.module[0].weight.device == "meta"
    with raises(ValueError, "returned a batch of 5 samples, but expected 6"):
        meta.example(6)


def test_other_forms_of_a_users_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gc_own_models.py").write_text("""
import numpy as np
from gradcore import nn
from gradcore.models import Workload

def callable_batch(batch_size, dataset, device):
    assert device == "cpu"
    return nn.Linear(dataset.features, 10, device=device), lambda n: (dataset.train_x[:n], dataset.train_y[:n])

def whole(n):
    return Workload(nn.Identity(), lambda n: (np.zeros(n), np.zeros(n)), lambda m, x, y: (m(x) - y).sum())

def wrong(n):
    return nn.Identity()

def wrong_inputs(n):
    return nn.Identity(), 3

def wrong_loss(n):
    return nn.Identity(), (np.zeros(n), np.zeros(n)), "mse"

def uneven(n):
    return nn.Identity(), (np.zeros(n), np.zeros(n + 1))

def masked(n):
    return nn.Identity(), (np.zeros(n), np.ones(n), np.zeros(n)), lambda module, x, mask, y: (module(x * mask) - y).sum()

def no_size():
    return nn.Identity(), (np.zeros(3), np.zeros(3))

class Linear:
    __module__ = "torch.nn.modules.linear"

def foreign(n):
    return Linear(), (np.zeros(n), np.zeros(n))

class Derived(Linear):
    __module__ = __name__
    def __call__(self, x, y):
        return x

def derived(n):
    return Derived(), (np.zeros(n), np.zeros(n))

instance = nn.Identity()
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    w = models.load("gc_own_models:callable_batch", 3, device="cpu")
    x, y = (gradcore.tensor(a) for a in w.example(3))
    assert w.loss(w.module, x, y).shape == ()
    assert isinstance(models.load("gc_own_models:whole", 3).module, nn.Identity)
    with raises(TypeError, "gc_own_models:wrong returned Identity", "(module, batch, loss), (step, batch) or a Workload"):
        models.load("gc_own_models:wrong", 3)
    with raises(TypeError, "the batch must be a tuple, a dict with names as keys, or an array, but is int"):
        models.load("gc_own_models:wrong_inputs", 3)
    w = models.load("gc_own_models:masked", 3)
    assert w.loss(w.module, *map(gradcore.tensor, w.example(2))).item() == 0 and len(w.example(2)[1]) == 2
    with raises(TypeError, "gc_own_models:no_size is called with the batch size, but its arguments do not fit: too many"):
        models.load("gc_own_models:no_size", 3)
    for name, given in (("foreign", "torch.nn.modules.linear.Linear"), ("derived", "Derived")):
        with raises(TypeError, f"gc_own_models:{name} returned ({given}, tuple): PyTorch's modules do not run here: import "):
            models.load(f"gc_own_models:{name}", 3)
    with raises(TypeError, "gc_own_models:instance is a module: expected a function of the batch size that returns a module"):
        models.load("gc_own_models:instance", 3)
    with raises(TypeError, "the loss must be a function of the module and the parts of the batch, but is str"):
        models.load("gc_own_models:wrong_loss", 3)
    with raises(ValueError, "must have one row per sample, 3 for a batch of 3, but batch[1] has shape [4]"):
        models.load("gc_own_models:uneven", 3)
    with raises(AttributeError, "has no function 'absent'; it has callable_batch, whole"):
        models.load("gc_own_models:absent", 3)


def test_a_path_with_a_colon_as_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "C:mine.py").write_text("from gradcore import nn\ndef build(n):\n    return nn.Identity(), lambda n: ()\n")
    for name in ("C:mine.py", "C:mine.py:build"):
        assert type(models.load(str(tmp_path / name), 3).module) is nn.Identity


def test_unknown_models(tmp_path: Path) -> None:
    with raises(ValueError, "unknown model 'resnet'", "expected one of mlp", "path/to/file.py:function"):
        models.load("resnet", 8)
    (tmp_path / "mine.py").write_text("")
    with raises(ValueError, f"package.module:function; did you mean {tmp_path / 'mine'}.py?"):
        models.load(str(tmp_path / "mine"), 8)
    with raises(FileNotFoundError, "model file not found", "absent.py"):
        models.load(str(tmp_path / "absent.py:build"), 8)
    with raises(ModuleNotFoundError, "gc_no_such_package"):
        models.load("gc_no_such_package:build", 8)
    with raises(ValueError, "batch_size must be a positive integer, but got 0"):
        models.load("mlp", 0)
