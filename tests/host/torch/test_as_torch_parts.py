"""What packages get as ``torch`` that is not gradcore's by that name: dtypes, functions of lists, operators; safetensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host.torch.test_as_torch import run

DTYPES = """
import copy, pickle
import numpy as np
from gradcore.utils import as_torch
as_torch.install()
import torch
x = torch.zeros(2, dtype=torch.float16)
assert x.dtype is torch.half and str(x.dtype).split(".") == ["torch", "float16"] and x.dtype.is_floating_point
assert isinstance(x.dtype, torch.dtype) and isinstance(np.dtype("f4"), torch.dtype) and not isinstance(3, torch.dtype)
assert torch.int64.is_signed and not torch.uint8.is_signed and torch.complex64.is_complex and torch.float.itemsize == 4
assert x.dtype == np.float16 and {torch.float16: 1}[x.dtype] == 1 and np.zeros(1, x.dtype).dtype == np.float16
assert torch.get_default_dtype() is torch.float32 is torch.promote_types(torch.float16, torch.float32)
assert torch.result_type(x, 2.5) is torch.float16 and torch.finfo(x.dtype).bits == 16
assert pickle.loads(pickle.dumps(x.dtype)) is copy.deepcopy(x.dtype) is torch.float16
for kind in (torch.float64, torch.int32, torch.bool, torch.bfloat16):
    assert x.to(kind).dtype is x.type(kind).dtype is torch.ones(2, dtype=kind).dtype is x.new_ones(2, dtype=kind).dtype is kind
assert torch.nn.Linear(2, 2, dtype=torch.float64).to(x.dtype).weight.dtype is torch.float16
f = torch.compile(lambda x: x.to(torch.float64) * 2 if x.dtype == torch.float32 else x)
print([str(f(torch.ones(1, dtype=kind)).dtype) for kind in (torch.float32, torch.float16, torch.float32)], len(f.traces))
"""


def test_dtypes_have_pytorchs_attributes(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install -e '.[bfloat16]'")
    assert run(DTYPES, tmp_path) == ["['torch.float64', 'torch.float16', 'torch.float64'] 2"]


LISTS = """
from gradcore.utils import as_torch
as_torch.install()
import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype
x, y = [torch.ones(2), torch.full((3,), 2.0)], [torch.ones(2) * 3, torch.ones(3) * 4]
assert torch._foreach_add_(x, y, alpha=2) is None
print([t.tolist() for t in x])
print([t.tolist() for t in torch._foreach_addcmul(x, y, y, value=0.5)], torch._foreach_norm(y, 1)[1].item())
# As optimizers call them.
print([[t.tolist() for t in torch._foreach_addcdiv(x, y, y, value)] for value in (-1.0, [2.0, 3.0])])
torch._foreach_mul_(x, [2.0, 3.0])
torch._foreach_maximum_(x, 15.0)
print([t.tolist() for t in torch._foreach_sqrt(x)])
groups = _group_tensors_by_device_and_dtype([[x[0], x[1].double(), x[1]], [y[0], y[1], y[1]], []], with_indices=True)
print([(str(dtype), [len(part) for part in lists], places) for (_, dtype), (lists, places) in groups.items()])
"""


def test_functions_of_lists(tmp_path: Path) -> None:
    assert run(LISTS, tmp_path) == [
        "[[7.0, 7.0], [10.0, 10.0, 10.0]]", "[[11.5, 11.5], [18.0, 18.0, 18.0]] 12.0",
        "[[[6.0, 6.0], [9.0, 9.0, 9.0]], [[9.0, 9.0], [13.0, 13.0, 13.0]]]",
        f"[{[15 ** 0.5 for _ in range(2)]}, {[30 ** 0.5 for _ in range(3)]}]".replace("3.872983346207417", "3.872983455657959")
        .replace("5.477225575051661", "5.4772257804870605"),
        "[('torch.float32', [2, 2, 0], [0, 2]), ('torch.float64', [1, 1, 0], [1])]"]


FILES = """
from gradcore.utils import as_torch
as_torch.install()
import safetensors, torch
from safetensors import safe_open
from safetensors.torch import load, load_file, load_model, save, save_file, save_model, storage_size
tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
save_file(tensors, "x.safetensors", {"k": "v"})
with safe_open("x.safetensors", framework="pt") as file:
    part = file.get_slice("a")
    print(file.keys(), file.metadata(), part.get_shape(), part.get_dtype(), part[1:].tolist())
for found in (load_file("x.safetensors"), load(save(tensors))):
    assert all(torch.equal(found[k], tensors[k]) and found[k].dtype is tensors[k].dtype for k in tensors)
assert load_file("x.safetensors", device="meta")["a"].device.type == "meta" and storage_size(tensors["a"][1:]) == 24
from concurrent.futures import ThreadPoolExecutor
many = {f"{k}": torch.full((50 + k,), float(k)) for k in range(60)}
save_file(many, "many.safetensors")
with safe_open("many.safetensors", framework="pt") as file, ThreadPoolExecutor(8) as threads:
    assert file.metadata() is None
    for _ in range(10):
        assert all(torch.equal(x, many[k]) for k, x in zip(many, threads.map(lambda k: file.get_slice(k)[...], many)))
with safe_open("x.safetensors", framework="np") as file:
    print(type(file.get_tensor("a")).__name__)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.b = torch.nn.Linear(2, 2)
        self.b.weight = self.a.weight


one, two = Tied(), Tied()
save_model(one, "m.safetensors")
print(sorted(load_file("m.safetensors")), load_model(two, "m.safetensors"), torch.equal(one.b.weight, two.b.weight))
try:
    load_model(torch.nn.Linear(2, 2), "m.safetensors")
except RuntimeError as error:
    print(error)
"""


def test_files_of_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install -e '.[bfloat16]'")
    pytest.importorskip("safetensors", reason="safetensors is not installed: pip install -e '.[oracle]'")
    assert run(FILES, tmp_path) == [
        "['a', 'b'] {'k': 'v'} [2, 3] F32 [[3.0, 4.0, 5.0]]", "ndarray",
        "['a.bias', 'a.weight', 'b.bias'] (set(), []) True",
        "m.safetensors does not fit Linear: missing ['bias', 'weight'], in excess ['a.bias', 'a.weight', 'b.bias']"]


OPERATORS = """
from gradcore.utils import as_torch
as_torch.install()
import torch


@torch.library.custom_op("package::double", mutates_args=())
def double(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by


@double.register_kernel("cuda")
@double.register_fake
def fake(x, by=2.0):
    return torch.empty_like(x)


def setup(ctx, inputs, output):
    ctx.by = inputs[1]


x = torch.ones(3, requires_grad=True)
assert fake(x).shape == x.shape
double(x).sum().backward()
print(x.grad.tolist())
torch.library.register_autograd("package::double", lambda ctx, g: (g * ctx.by * 10, None), setup_context=setup)
x.grad = None
torch.ops.package.double(x, by=3.0).sum().backward()
print(x.grad.tolist())
torch.library.custom_op("package::one", lambda x: x + 1, mutates_args=())
print(torch.ops.package.one(torch.zeros(1)).item())
for use in (lambda: torch.library.custom_op("double", lambda x: x, mutates_args=()),
            lambda: torch.library.register_autograd("package::none", None)):
    try:
        use()
    except ValueError as error:
        print(error)
"""


def test_operators_of_a_package(tmp_path: Path) -> None:
    assert run(OPERATORS, tmp_path) == [
        "[2.0, 2.0, 2.0]", "[30.0, 30.0, 30.0]", "1.0",
        "custom_op(): expected a name such as 'package::name', but got 'double'",
        "there is no operator 'package::none': custom_op makes one"]


INTERNALS = """
from gradcore.utils import as_torch
as_torch.install()
import torch
from torch import _assert
from torch.utils.dlpack import from_dlpack, to_dlpack
from torch.utils.flop_counter import FlopCounterMode
x = torch.arange(6.0).reshape(2, 3)
view, other = x[1:], torch.ones(6)
storage = view.untyped_storage()
assert storage == x.untyped_storage() != other.untyped_storage() and len({storage, x.untyped_storage()}) == 1
from numpy import ones
assert len(torch.from_numpy(ones(3)).untyped_storage()) == 24
assert view.storage() and view.storage().untyped() == storage and view.storage().data_ptr() == x.data_ptr()
print(storage.nbytes(), len(storage), storage.device, storage.data_ptr() == x.data_ptr() == view.data_ptr() - 12)
print(torch._C._nn._parse_to("cpu", torch.float16, True), torch._C._nn._parse_to(other, memory_format=torch.preserve_format))
print(from_dlpack(to_dlpack(x)).tolist(), torch.onnx.is_in_onnx_export(), torch._dynamo.is_compiling())
_assert(True, "never")
try:
    _assert(x is None, "x is a tensor")
except AssertionError as error:
    print(error)
from torch._subclasses.fake_tensor import FakeTensor
assert isinstance(torch.ones(2, device="meta"), FakeTensor) and not isinstance(x, torch._subclasses.FakeTensor)
from torch.nn.modules.module import _addindent
assert _addindent("a\\nb", 2) == "a\\n  b" and torch.is_storage(storage) and not torch.is_storage(x)
with torch.autocast("cpu", dtype=torch.float16):
    assert torch.get_autocast_cpu_dtype() is torch.float16 is torch.get_autocast_gpu_dtype() is torch.get_autocast_dtype("cpu")
layer = torch.nn.Linear(3, 2)
assert not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
seen = []
handle = layer.register_forward_hook(lambda *given: seen.append("after"))
layer.register_forward_pre_hook(lambda *given: seen.append("before"))
print(len(layer._forward_hooks), [*layer._forward_hooks] == [handle.id], len(layer._backward_hooks))
del layer._forward_hooks[handle.id]
layer(x)
layer._forward_pre_hooks = {}
layer(x)
print(seen)
with FlopCounterMode(display=False) as counted:
    layer(x)
print(counted.get_total_flops(), counted.get_flop_counts()["Linear"])
"""


CHECKED = """
from gradcore.utils import as_torch
as_torch.install()
import torch
from torch.distributions import LKJCholesky
from torch.distributions.utils import _standard_normal, broadcast_all, lazy_property
from torch.linalg import cholesky_ex, inv_ex
two = torch.stack([torch.eye(2) * 4, torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.ones(2, 2)])
for call in cholesky_ex, inv_ex:
    found, info = call(two[None])
    assert (info.dtype, found.shape) == (torch.int32, (1, 3, 2, 2)) and call(two[0]).info.shape == ()
    print(info.tolist(), found[0, 0].tolist(), call(torch.ones(0, 2, 2)).info.shape == (0,), call(two[0].to("meta")).info.shape)
    try:
        call(two, check_errors=True)
    except torch.linalg.LinAlgError:
        print("raised")


class Prior(LKJCholesky):
    def __init__(self):
        self.calls = 0

    @lazy_property
    def scale(self):
        self.calls += 1
        return broadcast_all(torch.ones(2), 3.0)[1]


prior = Prior()
print(prior.scale.tolist(), prior.scale is prior.scale, prior.calls, _standard_normal((3,), torch.float64, "cpu").dtype)
try:
    LKJCholesky(3)
except NotImplementedError as error:
    print(error)
"""


def test_decompositions_that_say_whether_they_exist(tmp_path: Path) -> None:
    assert run(CHECKED, tmp_path) == [
        "[[0, 1, 1]] [[2.0, 0.0], [0.0, 2.0]] True gradcore.Size([])", "raised",
        "[[0, 0, 1]] [[0.25, 0.0], [0.0, 0.25]] True gradcore.Size([])", "raised", "[3.0, 3.0] True 1 torch.float64",
        "torch.distributions.LKJCholesky is not implemented by gradcore: it can be mentioned, not used"]


ANSWERS = """
from gradcore.utils import as_torch
as_torch.install()
import torch
from torch.linalg import inv_ex
from torch.distributions import Kumaraswamy
from torch.optim import SparseAdam
from torch.utils.cpp_extension import load
x = torch.tensor([1.0, -2.0])
assert x.to_dense() is x.conj() is x.real is torch.real(x) is torch.conj(x).resolve_conj() and torch.torch is torch
mps = torch.device("mps")
assert x.device != mps and (mps.type, torch.device("xpu:1").index) == ("mps", 1) and x.dtype != torch.complex32
assert isinstance(mps, torch.device) and not isinstance("mps", torch.device) and str(torch.device(99)) == "cuda:99"
torch.serialization.clear_safe_globals()
assert torch.serialization.get_safe_globals() == [] and not torch.backends.mkldnn.is_available()
assert torch.get_device_module("cuda") is torch.cuda and torch.get_device_module(x.device).device_count() == 1
assert torch.get_device_module() is torch.cuda if torch.cuda.is_available() else torch.cpu
assert torch.autograd.forward_ad.unpack_dual(x).tangent is None and not torch._C._are_functorch_transforms_active()
assert torch._C._nn._parse_to(torch.half)[:2] == (None, torch.float16)
torch._assert_async(torch.isfinite(x).all())
for wrong in (lambda: torch._assert_async(torch.zeros(1), "zero"), lambda: torch.get_device_module("mps"), lambda: x.to(mps),
              lambda: mps.__enter__()):
    try:
        wrong()
    except (RuntimeError, ValueError) as error:
        print(error)


class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner):
        self._patch_step_function()
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step(closure)


w = torch.nn.Parameter(torch.ones(1))
w.sum().backward()
Lookahead(torch.optim.SGD([w], lr=0.5)).step()
print(w.item())
"""


def test_what_packages_ask_about_tensors_and_devices(tmp_path: Path) -> None:
    assert run(ANSWERS, tmp_path) == [
        "zero", "Invalid device module 'mps': expected 'cpu' or 'cuda'",
        *["unknown device 'mps': expected one of cpu, cuda, meta, pinned, or cuda:N"] * 2, "0.5"]


def test_what_packages_call_of_pytorchs_internals(tmp_path: Path) -> None:
    assert run(INTERNALS, tmp_path) == [
        "24 24 cpu True", "(device(type='cpu'), torch.float16, True, None) (device(type='cpu'), torch.float32, False, None)",
        "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] False False", "x is a tensor", "1 True 0", "['before']", "24 {'linear': 24}"]


IMPORTS = """
from gradcore.utils import as_torch
as_torch.install()
from typing import Optional
import torch.distributed as dist
from torch.distributed import TCPStore
from torch.distributions.multinomial import Multinomial
from torch.distributions.multivariate_normal import Distribution
from torch.distributions.transforms import _InverseTransform
from torch.nn.common_types import _size_2_t
from torch.nn.modules.transformer import _get_activation_fn
from torch.quasirandom import SobolEngine
from torch.utils.data.dataloader import _collate_fn_t, _worker_init_fn_t
import torch
assert Multinomial is torch.distributions.Multinomial and Distribution is torch.distributions.Distribution
assert isinstance(torch.distributions.ExpTransform().inv, _InverseTransform)
from torch.distributions.utils import _sum_rightmost, clamp_probs, logits_to_probs, probs_to_logits
p = torch.tensor([[0.0, 0.25, 0.75], [0.5, 0.0, 0.5]])
assert _sum_rightmost(p, 1).tolist() == [1, 1] and _sum_rightmost(p, 0) is p and clamp_probs(p).min() == 2.0 ** -23
assert torch.allclose(logits_to_probs(probs_to_logits(p)), p, atol=1e-6)
assert torch.allclose(logits_to_probs(probs_to_logits(p, True), is_binary=True), p, atol=1e-6)
assert _get_activation_fn("relu")(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]
assert not dist.is_gloo_available() and not dist.is_nccl_available() and Optional[_collate_fn_t]
for use in (lambda: SobolEngine(2), lambda: TCPStore("127.0.0.1", 1), lambda: torch.complex(torch.ones(1), torch.ones(1))):
    try:
        use()
    except NotImplementedError:
        pass
    else:
        raise AssertionError
assert torch.default_generator is torch.random.default_generator
torch.default_generator.manual_seed(3)
first = torch.rand(2, generator=torch.default_generator).tolist()
torch.random.default_generator.manual_seed(3)
print(torch.rand(2).tolist() == first)
"""


def test_what_packages_import_by_the_way(tmp_path: Path) -> None:
    assert run(IMPORTS, tmp_path) == ["True"]
