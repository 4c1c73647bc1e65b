"""Packages that import PyTorch, on gradcore."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

import gradcore
from gradcore.utils import _pytree, as_torch
from tests.conftest import raises

#: A package as others write them: a layer, a loss of its own, a step, what a library asks about versions and devices.
PACKAGE = {"__init__.py": "from .model import Net, loss_of\n", "model.py": '''
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, TensorDataset
import torch.backends.cudnn

try:
    import torch.fx
    traced = True
except ImportError:
    traced = False


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * (x.abs() <= 1)


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.GELU())
        self.out = nn.Linear(width, 3)
        self.norms = [m for m in self.modules() if isinstance(m, _BatchNorm)]
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(Clamp.apply(self.layers(x)) * self.scale)


def loss_of(model: Net, batch: dict) -> Tensor:
    batch = tree_map(lambda t: t.to(next(model.parameters()).device), batch)
    return F.cross_entropy(model(batch["x"]), batch["y"])
'''}
USE = '''
from gradcore.utils import as_torch
as_torch.install()
as_torch.install()
import gradcore
import package, torch, torch.nn as nn
from package import model as of
assert torch is gradcore and nn is gradcore.nn and not of.traced
assert torch.nn.__spec__.name == "gradcore.nn" and gradcore.nn.__name__ == "gradcore.nn"
for device in ("cpu", "meta"):
    with torch.device(device):
        model = package.Net(16)
        optimizer = torch.optim.AdamW(model.parameters())
    assert len(model.norms) == 1
    with gradcore.step() as step:
        loss = package.loss_of(model, {"x": torch.randn(4, 8), "y": torch.tensor([0, 1, 2, 0])})
        loss.backward()
        optimizer.step()
    print(step.report.peak.allocated)
try:
    import torch.distributed.tensor
except ImportError as error:
    print(error)
'''


def run(code: str, folder: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder,
                          env={**os.environ, "PYTHONPATH": str(Path(gradcore.__file__).parents[1])})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_package_written_for_pytorch_runs_on_gradcore(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "package" / name).write_text(text)
    cpu, meta, missing = run(USE, tmp_path)
    assert int(cpu) == int(meta) > 0
    assert "torch.distributed.tensor is not implemented by gradcore" in missing


def test_layers_of_einops_for_pytorch(tmp_path: Path) -> None:
    """A package that others wrote: its own module for PyTorch, not gradcore's."""
    pytest.importorskip("einops", reason="einops is not installed: pip install -e '.[oracle]'")
    found = run('''
import warnings
from gradcore.utils import as_torch
as_torch.install()
import gradcore.utils.einops
warnings.simplefilter("ignore")
from einops.layers.torch import Rearrange, Reduce
import gradcore
x = gradcore.arange(24.0).reshape(2, 3, 4).requires_grad_()
y = gradcore.nn.Sequential(Rearrange("a b c -> a (b c)"), Reduce("a d -> d", "max"))(x)
y.sum().backward()
print(y.shape[0], int(x.grad.sum()))
''', tmp_path)
    assert found == ["12 12"]


def test_pytorch_itself_cannot_be_replaced() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install -e '.[oracle]'")
    before = sys.modules.get("torch")
    importlib.import_module("torch")
    with raises(RuntimeError, "before the first import of PyTorch"):
        as_torch.install()
    assert before is None or sys.modules["torch"] is before


def test_trees() -> None:
    pair = namedtuple("pair", "a b")
    tree = {"x": [1, (2, 3)], "y": pair(4, None), "z": []}
    leaves, spec = _pytree.tree_flatten(tree)
    assert leaves == [1, 2, 3, 4, None] == _pytree.tree_leaves(tree) and spec.num_leaves == 5
    assert _pytree.tree_unflatten(leaves, spec) == tree
    assert spec == _pytree.tree_structure(_pytree.tree_map(str, tree)) != _pytree.tree_structure([1])
    assert _pytree.tree_map(lambda a, b: a + b, [1, {"k": 2}], [10, {"k": 20}]) == [11, {"k": 22}]
    assert _pytree.tree_map_only(int, lambda n: -n, ["a", 1]) == ["a", -1]
    with raises(ValueError, "expected 5 leaves, but got 1"):
        _pytree.tree_unflatten([0], spec)
