"""The traffic of the CUDA kernels, as the emulator counts it (traffic.cpp): sectors of global and wavefronts of shared memory.

The table of all kernels is printed (``pytest -s``) and written to ``traffic.txt`` in pytest's temporary folder, which
``--basetemp`` chooses: for each, in bytes, what threads asked for, what was moved, and what would be moved if every sector were
moved once; and the wavefronts of shared memory over those without conflicts of banks.
"""

from __future__ import annotations

import functools
import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from bench.gpu.speed import CASES
from gradcore.ops import all_ops
from tests.host.cuda.cuda_rows import Both
from tests.host.cuda.emulator import Copy, Emulator, view_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("races")]

#: Rows of 1024 floats that the memory-bound calls of ``bench.gpu`` are counted with; more where so few would stay in a cache.
ROWS, MANY = 64, {"batch norm of rows": 512, "batch norm of rows' gradient": 512}
#: How many times the operand's bytes a kernel asks for where that is more than ``Case.passes``: caches have the rest.
CACHED = {"add a row": 3, "layer norm": 4, "layer norm's gradient": 7.6, "RMS norm": 3, "RMS norm's gradient": 7.3,
          "embedding": 2.1, "embedding's gradient": 4.1, "rows added at positions": 4.3, "batch norm of rows": 3.6,
          "batch norm of rows' gradient": 5.9, "RNN, a step": 3.3, "LSTM, a step": 3.6, "GRU, a step": 3.6}
WINDOW = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
IMAGES, WEIGHT, HEADS = (4, 64, 16, 16), (64, 64, 3, 3), (1, 2, 256, 64)
#: Calls that compute more than they move: operands, attributes, and the most bytes that may be moved for one that is asked for.
#: Halves are gathered one by one, and those of a window may begin anywhere in a sector.
PRODUCTS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], float]] = {
    "convolution": ("conv2d", (IMAGES, WEIGHT, (64,)), WINDOW, 1.9),
    "convolution, 1 x 1": ("conv2d", (IMAGES, (64, 64, 1, 1), (64,)), {**WINDOW, "padding": (0, 0)}, 1.7),
    "its input's gradient": ("conv2d_input_grad", (IMAGES, WEIGHT), {**WINDOW, "shape": IMAGES}, 2.2),
    "its weight's gradient": ("conv2d_weight_grad", (IMAGES, IMAGES), {**WINDOW, "shape": WEIGHT}, 3.2),
    "attention": ("attention", (HEADS, HEADS, HEADS, None), {"causal": False, "scale": 0.125}, 1.05),
    "attention's gradient": ("attention_grad", (HEADS, HEADS, HEADS, HEADS, None, HEADS, "lse"),
                             {"causal": False, "scale": 0.125}, 1.05)}

PLANTED = """
struct alignas(16) Four { float of[4]; };
extern "C" __global__ void neighbors(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void apart(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x * 8]; }
extern "C" __global__ void every_other(const Four* x, Four* out) { out[threadIdx.x] = x[threadIdx.x * 2]; }
extern "C" __global__ void one(const float* x, float* out) { out[threadIdx.x] = x[0]; }
extern "C" __global__ void banks(const float* x, float* out) {
    __shared__ float room[1024];
    room[threadIdx.x * 32] = x[threadIdx.x];
    __syncwarp();
    out[threadIdx.x] = room[threadIdx.x * 32];
}
extern "C" __global__ void quarters(const float* x, float* out) {
    __shared__ Four room[32];
    room[threadIdx.x].of[0] = 1;
    __syncwarp();
    ((Four*)out)[threadIdx.x] = room[threadIdx.x];
}
"""
#: Bytes read and written, their sectors, and wavefronts' bytes in shared memory with and without conflicts, of a warp.
EXPECTED = {"neighbors": (128, 128, 128, 128, 0, 0), "apart": (128, 128, 1024, 128, 0, 0),
            "every_other": (512, 512, 1024, 512, 0, 0), "one": (4, 128, 32, 128, 0, 0),
            "banks": (128, 128, 128, 128, 2 * 32 * 128, 2 * 128), "quarters": (0, 512, 0, 512, (4 + 4) * 128, (1 + 4) * 128)}
NAMES = ("read", "written", "read_sectors", "written_sectors", "shared", "shared_needed")


def test_traffic_that_is_known_is_counted(tmp_path: Any) -> None:
    emulator = Emulator(tmp_path, watch="traffic")
    emulator.wanted["planted"] = set(EXPECTED)
    emulator.libraries["planted"] = emulator._compile("planted", PLANTED)
    for name, expected in EXPECTED.items():
        room = np.zeros(8192 + 128, np.uint8)
        start = -room.ctypes.data % 128
        x, out = (view_of(room[k:k + 4096].view(np.float32), room) for k in (start, start + 4096))
        emulator.launch("planted", name, 1, 32, (x, out))
        assert tuple(emulator.traffic[-1][1][k] for k in NAMES) == expected, name


class Alone(Both):
    """Runs NumPy's kernels, and for one op ours beside."""

    op = ""

    def both(self, name: str, kernel: Any) -> Any:
        def run(*values: Any, **attrs: Any) -> None:
            if name == self.op:
                self.ours(name, values, attrs, falling=False)
            kernel(*values, **attrs)

        return run


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By call: its traffic in all launches."""
    emulator = Emulator(tmp_path_factory.mktemp("emulator"), watch="traffic")
    found: dict[str, dict[str, Any]] = {}

    def call(both: Alone, name: str, op: str, args: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        both.op = op
        emulator.traffic.clear()
        all_ops()[op](*args, **attrs)
        both.op = ""
        found[name] = {k: sum(each[k] for _, each in emulator.traffic) for k in (*NAMES, "sectors_once")}
        found[name]["worst"] = [f"{kernel}{line} {moved:,} bytes for {asked:,}" for kernel, each in emulator.traffic
                                for line, moved, asked in each["worst"]]

    # The first time, launches only note what is to be compiled.
    with emulator.in_place(), gradcore.no_grad():
        for _ in range(2):
            both = Alone(emulator, copy=functools.partial(Copy, unit=128))
            on = {"device": both.device}
            for case in CASES:
                call(both, case.name, case.op, case.make(MANY.get(case.name, ROWS), on), case.attrs)
            for name, (op, shapes, attrs, _) in PRODUCTS.items():
                for dtype in (np.float32, np.float16):
                    args = tuple(None if s is None else gradcore.rand(*HEADS[:3], **on) if s == "lse"
                                 else gradcore.rand(*s, **on).to(dtype=dtype) for s in shapes)
                    call(both, f"{name}, {np.dtype(dtype).name}", op, args, attrs)
            if not emulator.libraries:
                emulator.compile()
    lines = [f"{'kernel':36} {'asked':>12} {'moved':>12} {'once':>12} {'conflicts':>9}"]
    for name, t in found.items():
        lines.append(f"{name:36} {t['read'] + t['written']:12,} {t['read_sectors'] + t['written_sectors']:12,} "
                     f"{t['sectors_once']:12,} " + (f"{t['shared'] / t['shared_needed']:9.2f}" if t["shared"] else f"{'':>9}"))
    (tmp_path_factory.mktemp("traffic") / "traffic.txt").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")
    return found


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_memory_bound_kernel_moves_whole_sectors_and_each_as_often_as_counted_on(counted: Any, case: Any) -> None:
    t = counted[case.name]
    asked, moved = t["read"] + t["written"], t["read_sectors"] + t["written_sectors"]
    size = MANY.get(case.name, ROWS) * 4096
    assert 0 < asked <= 1.03 * max(case.passes, CACHED.get(case.name, 0)) * size
    # Statistics of rows or channels, one element each, take a part of a sector.
    assert moved <= 1.12 * asked, t["worst"]
    assert t["shared"] <= 1.03 * t["shared_needed"], t["worst"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_read_few_sectors_in_vain_and_have_no_conflicts_of_banks(counted: Any, name: str, dtype: str) -> None:
    t = counted[f"{name}, {dtype}"]
    assert t["read_sectors"] + t["written_sectors"] <= PRODUCTS[name][3] * (t["read"] + t["written"]), t["worst"]
    assert t["shared"] <= 1.07 * t["shared_needed"], t["worst"]
