"""bfloat16 on the CUDA device as users use it, without a GPU: the CPU's values, one log, and errors that name the op."""

from __future__ import annotations

import ctypes
import shutil
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import nn
from gradcore.devices.attention import build_attention
from gradcore.devices.gpu import device as gpu
from gradcore.devices.gpu import kernels as gpu_kernels
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu.kernels import KERNELS
from gradcore.devices.gpu.kernels import attention as gpu_attention
from gradcore.devices.gpu.kernels import elementwise as gpu_elementwise
from gradcore.devices.host.device import HOST_KERNELS
from gradcore.devices.meta import make_meta
from gradcore.errors import CaptureError
from gradcore.memory.driver import capturing
from tests.host.cuda.emulator import Copy, Emulator
from tests.host.cuda.graph_bed import Bed, emulator_of
from tests.host.ops.test_narrow import FIRST, Narrow
from tests.host.ops.test_ops import record
from tests.meta.simulated_cuda import HostCard
from tests.rows import Row

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

F = nn.functional
bfloat16 = gradcore.bfloat16
VALUES = [0.1, -2.5, 3e38, -0.0, float("inf"), 1 + 2**-8, 1 + 3 * 2**-8, 300.0]


class Net(nn.Module):
    """Layers of a language model and of an image model, without biases that a norm or a softmax cancels: Adam takes the sign
    of their gradients, which are only rounding errors."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.MaxPool2d(2),
                                    nn.AvgPool2d(2))
        self.embedding = nn.Embedding(7, 8)
        self.norm = nn.LayerNorm(8)
        self.mixed, self.out = nn.Linear(8, 24, bias=False), nn.Linear(11, 5)

    def forward(self, image: Any, words: Any) -> Any:
        x = self.norm(self.embedding(words))
        q, k, v = (part.reshape(2, 3, 2, 4).transpose(1, 2) for part in self.mixed(F.gelu(x)).split(8, 2))
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 3, 8).mean(1)
        return self.out(gradcore.cat([x, self.images(image).reshape(2, 3)], 1))


def trained(device: str, kind: str, steps: int = 4) -> list[Any]:
    """The losses, the parameters and their gradients after some steps."""
    gradcore.manual_seed(1)
    net = Net().bfloat16().to(device)
    optimizer = getattr(gradcore.optim, kind)(net.parameters(), lr=0.03)
    generator = np.random.default_rng(0)
    image = gradcore.tensor(generator.normal(size=(2, 1, 4, 4)).astype(np.float32)).to(device, bfloat16)
    words, labels = (gradcore.tensor(generator.integers(0, high, shape), device=device)
                     for high, shape in ((7, (2, 3)), (5, (2,))))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(image, words), labels)
        loss.backward()
        total = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.float().item())
        assert loss.dtype == total.dtype == bfloat16
    assert all(p.dtype == p.grad.dtype == bfloat16 for p in net.parameters())
    return [losses, *(t.detach().float().cpu().numpy() for p in net.parameters() for t in (p, p.grad))]


def converted() -> list[Any]:
    x = gradcore.tensor(VALUES, device="cuda")
    y = x.bfloat16()
    whole = gradcore.tensor([0, 1, -3, 257, 1 << 40], device="cuda")
    return [y, y.float(), y.half(), y.double(), whole.to(bfloat16), whole.bfloat16().long(), y == 0.1, y != 0.1, y.bool(),
            gradcore.tensor([0.1, 2.0], dtype=bfloat16, device="cuda") + 1,
            gradcore.full((3,), 0.1, dtype=bfloat16, device="cuda"), gradcore.nan_to_num(y)]


def together(x: Any, w: Any) -> Any:
    with gradcore.autocast("cuda", dtype=bfloat16):
        return F.linear(x, w).float().square().sum()


def drawn(device: str) -> list[Any]:
    gradcore.manual_seed(5)
    return [f(1000, dtype=bfloat16, device=device).float().cpu().numpy() for f in (gradcore.rand, gradcore.randn)]


def launched(bed: Bed) -> None:
    """All kernels that the tests launch."""
    trained("cuda", "SGD", 1)
    converted()
    drawn("cuda")
    step = gradcore.compile(together)
    for _ in range(3):
        step(gradcore.ones(3, 4, device="cuda"), gradcore.ones(5, 4, device="cuda"))
    bed.use_cublas()
    trained("cuda", "AdamW", 1)


@pytest.fixture(scope="module")
def captured_kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return emulator_of(tmp_path_factory.mktemp("bfloat16"), launched)


@pytest.mark.parametrize("cublas", [False, True], ids=["cublasLt", "cuBLAS"])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_network_trains_as_on_the_cpu(bed: Bed, kind: str, cublas: bool) -> None:
    if cublas:
        bed.use_cublas()
    compare_training(kind)


def compare_training(kind: str) -> None:
    found, expected = trained("cuda", kind), trained("cpu", kind)
    np.testing.assert_allclose(found[0], expected[0], rtol=0.03)
    for a, b in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(a, b, atol=0.1 * max(np.abs(b).max(), 0.1))


def test_conversions_and_numbers_are_as_on_the_cpu(bed: Bed) -> None:
    y, single, half, double, whole, back, same, other, true, sums, full, numbers = converted()
    wide = np.array(VALUES, np.float32)
    expected = wide.astype(bfloat16).astype(np.float32)
    assert y.dtype == bfloat16 and str(y.cpu().dtype) == "bfloat16"
    for x in (y, single, double):
        np.testing.assert_array_equal(x.cpu().numpy().astype(np.float64), expected)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half.cpu().numpy(), expected.astype(np.float16))
    assert whole.tolist() == [0, 1, -3, 256, 1 << 40] and back.tolist() == [0, 1, -3, 256, 1 << 40]
    assert same.tolist() == [True] + [False] * 7 and other.tolist() == [False] + [True] * 7, "as what the dtype makes of 0.1"
    assert true.tolist() == [True] * 3 + [False] + [True] * 4
    assert str(sums) == "tensor([1.1016, 3.0000], device='cuda:0', dtype=gradcore.bfloat16)"
    assert full.tolist() == [float(np.float32(0.1).astype(bfloat16))] * 3
    assert numbers.tolist()[4] == gradcore.finfo(bfloat16).max


def test_the_same_random_numbers_as_on_the_cpu(bed: Bed) -> None:
    for ours, theirs in zip(drawn("cuda"), drawn("cpu"), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_region_of_autocast_is_captured(bed: Bed) -> None:
    step = gradcore.compile(together)
    x, w = (gradcore.tensor(np.random.default_rng(k).normal(size=(3 + 2 * k, 4)).astype(np.float32)) for k in range(2))
    found = [step(x.cuda(), w.cuda()).item() for _ in range(3)]
    assert found == [(x.bfloat16().float() @ w.bfloat16().float().T).bfloat16().float().square().sum().item()] * 3
    assert "are captured in one graph" in step.explain()


@pytest.mark.parametrize("row", [r for r in FIRST if r.op in gpu_kernels.KERNELS], ids=str)
def test_every_op_takes_it_and_writes_the_log_of_meta(row: Row) -> None:
    narrow = Narrow(**{f.name: getattr(row, f.name) for f in fields(row)})
    # Without libraries no kernel runs; other tests compare their results.
    with Emulator(Path()).in_place():
        found, expected = (record(narrow, device) for device in (gpu.CudaDevice(0, cuda=HostCard(), strict=True), make_meta()))
    assert found[1] == expected[1]
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours == theirs


@pytest.mark.parametrize("op", ["attention", "attention_grad"])
def test_attention_of_wide_heads_computes_in_single_precision(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's part is computed by NumPy: what it is given and what becomes of its results."""
    rng, made = np.random.default_rng(0), []
    q, k, v, mask, out, dy = (rng.standard_normal(shape, np.float32).astype(bfloat16) for shape in (
        (1, 2, 3, 160), (1, 2, 5, 160), (1, 2, 5, 130), (3, 5), (1, 2, 3, 130), (1, 2, 3, 130)))
    lse = rng.standard_normal((1, 2, 3), np.float32)
    given = [q, k, v, mask, None, None, out, lse] if op == "attention" else [dy, q, k, v, mask, out, lse, None, None, q, k, v]
    how, on_host = {"causal": True, "scale": 0.1}, build_attention(np, HOST_KERNELS["uniform"])[op]

    def seen(a: Any) -> Any:
        held = (ctypes.c_char * a.nbytes).from_address(a.data.ptr)
        return np.ndarray(a.shape, a.dtype, held)

    def over_cupy(*arrays: Any, **how: Any) -> None:
        on_host(*[a if a is None else seen(a) for a in arrays], **how)

    def run() -> list[Any]:
        copies = [a if a is None else Copy(a) for a in (*given, np.zeros(1 << 15, np.uint8))]
        KERNELS[op](*[c if c is None else c.cupy() for c in copies], **how)
        return [c if c is None else c.array for c in copies[:-1]]

    def reserved(index: int, nbytes: int, *names: str) -> Any:
        made.append(Copy(np.zeros(nbytes, np.uint8)))
        return made[-1].cupy().data.mem

    monkeypatch.setitem(gpu_attention._WIDER, op, over_cupy)
    monkeypatch.setattr(gpu_attention, "on_stream", nullcontext)
    monkeypatch.setattr(gpu_attention, "reserve", reserved)
    monkeypatch.setattr(gpu_attention, "runtime", SimpleNamespace(getDevice=lambda: 0))
    emulator = Emulator(tmp_path)
    with emulator.in_place():
        run()
        emulator.compile()
        found = run()
    single = [a.astype(np.float32) if a is not None and a.dtype == bfloat16 else a for a in given]
    expected = [a if a is None else a.copy() for a in single]
    on_host(*expected, np.zeros(1 << 16, np.uint8), **how)
    for ours, theirs, before in zip(found, expected, given, strict=True):
        assert ours is None or np.array_equal(ours, theirs.astype(before.dtype))
    with capturing, pytest.raises(CaptureError, match=f"op '{op}' allocates .* bytes for copies in float32"):
        run()


def test_arrays_of_it_cross_to_the_card_and_back() -> None:
    device = gpu.CudaDevice(0, cuda=HostCard(), strict=True)
    values = np.arange(12, dtype=np.float32).reshape(3, 4).astype(bfloat16)
    x = Copy(np.zeros((3, 4), bfloat16)).cupy()
    device.copy_in(x, values.astype(np.float32))
    assert x.dtype == bfloat16 and x.T[1:].dtype == bfloat16
    found = device.copy_out(x.T[1:])
    assert found.dtype == bfloat16 and found.tolist() == values.T[1:].tolist()


def test_its_name_and_what_it_is_computed_in() -> None:
    assert gpu_launch.name_of(bfloat16) == gpu_launch.name_of(bfloat16) == "bfloat"
    assert gpu_elementwise.wide(bfloat16) == np.float32
