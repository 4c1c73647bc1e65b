"""Packages that import PyTorch, on gradcore."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path
from typing import Any

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
    import torch.sparse
    sparse = True
except ImportError:
    sparse = False


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
assert torch.Tensor is gradcore.Tensor and nn is gradcore.nn and not of.sparse
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
    import torch.masked
except ImportError as error:
    print(error)
'''


def run(code: str, folder: Path, *arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=folder,
                          env={**os.environ, "PYTHONPATH": str(Path(gradcore.__file__).parents[1])})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_package_written_for_pytorch_runs_on_gradcore(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "package" / name).write_text(text)
    cpu, meta, missing = run(USE, tmp_path)
    assert int(cpu) == int(meta) > 0
    assert "torch.masked is not implemented by gradcore" in missing


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


#: What packages write at the level of modules, of which they use nothing in the end.
MENTIONS = """
import importlib.metadata, importlib.util
import torch, torch._dynamo, torch.fft, torch.fx
from torch.cuda import CUDAGraph
from torch.distributed.tensor import DTensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils._pytree import _dict_flatten_with_keys, register_pytree_node
from torchvision import transforms
from torchvision.transforms.functional import resize

assert importlib.metadata.version("torch") == "2.8.1" == torch.__version__ and importlib.util.find_spec("torch") is not None
assert importlib.util.find_spec("torch.fx") and importlib.util.find_spec("torchvision")
SIZES = {torch.float8_e4m3fn: 1, torch.complex64: 8, torch.bfloat16: 2}
LARGEST = torch.finfo(torch.float8_e4m3fn).max
torch._C._log_api_usage_once("package")


class Sharded(DTensor):
    graph: CUDAGraph | None = None


@torch.fx.wrap
@torch._dynamo.allow_in_graph
def plain(x: torch.Tensor, mask: BlockMask | None = None, device=torch.device("cuda")) -> float:
    return 1.0


class Output(dict):
    pass


register_pytree_node(Output, lambda o: (o.values(), [*o]), lambda values, keys: Output(zip(keys, values)),
                     flatten_with_keys_fn=_dict_flatten_with_keys)
"""
MENTIONED = """
import gradcore
from gradcore.utils import as_torch
as_torch.install("2.8.1", unused=["torchvision"])
as_torch.install()
import package, torch
from torch.utils._pytree import tree_map
assert gradcore.__version__ != "2.8.1" and not hasattr(gradcore, "complex64") and not hasattr(torch, "xpu")
assert package.plain(3) == 1.0 and package.LARGEST == 448 and not isinstance(3, package.DTensor)
out = tree_map(lambda x: x + 1, package.Output(a=1, b=[2]))
assert type(out) is package.Output and out == {"a": 2, "b": [3]}, out
device = torch.device("cuda")
assert isinstance(device, torch.device) and isinstance(torch.device("meta"), torch.device) and device.type == "cuda"
for use in (lambda: package.transforms.Compose([1], 2), lambda: package.Sharded(), lambda: torch.fft.rfft(torch.ones(3)),
            lambda: package.create_block_mask(None, 1), lambda: torch.zeros(2, dtype=torch.complex64),
            lambda: torch.device("gpu")):
    try:
        use()
    except (NotImplementedError, TypeError, gradcore.DeviceError) as error:
        print(error)
    else:
        raise AssertionError
try:
    torch.ones(2).to(device)
except gradcore.DeviceError as error:
    assert not gradcore.cuda.is_available() and "cuda is not available" in str(error)
"""


def test_what_packages_only_mention(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install -e '.[bfloat16]'")
    (tmp_path / "package.py").write_text(MENTIONS)
    found = run(MENTIONED, tmp_path)
    assert found[:4] == [f"{name} is not implemented by gradcore: it can be mentioned, not used"
                         for name in ("torchvision.transforms.Compose", "package.Sharded", "torch.fft.rfft",
                                      "torch.nn.attention.flex_attention.create_block_mask")]
    assert "cannot be of dtype complex64" in found[4] and "unknown device 'gpu'" in found[5]


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
    assert [f(bool, [1, {"k": k}]) for f in (_pytree.tree_all, _pytree.tree_any) for k in (0, 2)] == [False, True, True, True]
    assert not _pytree.tree_any(bool, [0]) and {spec: 1}[_pytree.tree_structure(tree)] == 1 and spec != leaves
    assert [part.is_leaf() for part in (spec, _pytree.tree_structure(1))] == [False, True]
    with raises(ValueError, "expected 5 leaves, but got 1"):
        _pytree.tree_unflatten([0], spec)


def test_leaves_meet_what_other_trees_have_in_their_place() -> None:
    def both(*trees: Any) -> Any:
        return _pytree.tree_map(lambda *parts: parts, *trees)

    assert both({"a": 1, "b": 2}, OrderedDict(b=20, a=10)) == {"a": (1, 10), "b": (2, 20)}
    assert both(defaultdict(int, a=1), {"a": [2, 3]}, {"a": {}}) == {"a": (1, [2, 3], {})}
    assert both(deque([1, 2]), deque([3, (4,)], 5)) == deque([(1, 3), (2, (4,))])
    for tree, other in (([1, 2], [1]), ([1, 2], (1, 2)), ({"a": 1}, {"b": 1}), ([[]], [1])):
        with raises(ValueError, "expected a tree as TreeSpec("):
            both(tree, other)


def test_trees_with_nodes_of_other_classes() -> None:
    class Pair:
        def __init__(self, a: int, b: int) -> None:
            self.both = a, b

    _pytree.register_pytree_node(Pair, lambda p: (p.both, "pair"), lambda parts, context: Pair(*parts))
    tree = [Pair(1, 2), {"k": Pair(3, 4)}]
    leaves, spec = _pytree.tree_flatten(tree)
    assert leaves == [1, 2, 3, 4] and _pytree.tree_map(lambda x: x * 2, tree)[1]["k"].both == (6, 8)
    assert spec == _pytree.tree_structure([Pair(0, 0), {"k": Pair(0, 0)}]) != _pytree.tree_structure([Pair(0, 0), {"k": 1}])
    with raises(ValueError, "already registered"):
        _pytree.register_pytree_node(Pair, lambda p: (p.both, None), lambda parts, context: Pair(*parts))
    items = _pytree._dict_flatten({"a": 1, "b": 2})
    assert _pytree._dict_unflatten(*items) == {"a": 1, "b": 2}
    assert _pytree._dict_flatten_with_keys({"a": 1}) == ([("a", 1)], ["a"])
