"""The emulator detects errors: accesses out of bounds or misaligned, missing barriers, barriers that not all threads reach."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu import launch as gpu_launch
from tests.conftest import replaceable
from tests.host.cuda.emulator import Copy, Emulator

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              # The first test compiles every kernel.
              pytest.mark.timeout(1200), pytest.mark.xdist_group("emulator")]

PLANTED = """
extern "C" __global__ void shift(const int* x, int* out, int n, int off) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i + off] = x[i];
}
extern "C" __global__ void reversed(const int* x, int* out, int wait) {
    __shared__ int room[256];
    room[threadIdx.x] = x[threadIdx.x];
    if (wait) __syncthreads();
    out[threadIdx.x] = room[255 - threadIdx.x];
}
extern "C" __global__ void parted(int* out) {
    if (threadIdx.x & 1) __syncthreads();
    else __syncwarp();
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
}
inline int sum_of_warp(int v) {
    for (int k = 16; k; k >>= 1) v += __shfl_xor_sync(0xffffffffu, v, k);
    return v;
}
extern "C" __global__ void met(int* out, int apart) {
    int v = threadIdx.x;
    if (apart && v & 1) v = sum_of_warp(v);
    else v = sum_of_warp(v);
    if (v < 0 || threadIdx.x > 47) return;
    out[threadIdx.x] = sum_of_warp(v);
}
extern "C" __global__ void ended(int* out, int by) {
    int lane = threadIdx.x & 31, votes = 0;
    for (int k = 0; k < 2; ++k) votes += __popc(__ballot_sync(0xffffffffu, 1));
    if (lane > 19) return;
    votes = __popc(__ballot_sync(0xffffffffu, 1));
    out[threadIdx.x] = votes + __shfl_xor_sync(0xffffffffu, lane, by);
}
extern "C" __global__ void some(int* out, unsigned mask) { out[threadIdx.x] = __shfl_sync(mask, (int)threadIdx.x, 3); }
extern "C" __global__ void square_and(const float* x, const float* y, float* out) {
    out[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x] + y[threadIdx.x];
}
extern "C" __global__ void rounded(const float* x, const float* y, float* out) {
    out[threadIdx.x] = __fadd_rn(x[threadIdx.x] * x[threadIdx.x], y[threadIdx.x]);
}
struct alignas(16) Four { float of[4]; };
extern "C" __global__ void packed(const Four* x, Four* out) { out[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void product(const float* x, const float* y, float* out) {
    out[threadIdx.x] = x[threadIdx.x] * y[threadIdx.x];
}
extern "C" __global__ void summed(const int* x, int* out) {
    int v = x[threadIdx.x];
    for (int k = 16; k; k >>= 1) v += __shfl_xor_sync(0xffffffffu, v, k);
    out[threadIdx.x] = v;
}
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    emulator = Emulator(tmp_path_factory.mktemp("planted"))
    emulator.wanted["planted"] = {"shift", "reversed", "parted", "met", "ended", "product", "summed", "packed", "some"}
    emulator.libraries["planted"] = emulator._compile("planted", PLANTED)
    return emulator


def in_a_process(folder, script, **environment):
    root = Path(__file__).resolve().parents[3]
    return subprocess.run([sys.executable, "-c", script, str(folder)], cwd=root, capture_output=True, text=True, timeout=900,
                          env={**os.environ, "PYTHONPATH": str(root), **environment})


def arrays(n):
    return Copy(np.arange(n, dtype=np.int32)), Copy(np.zeros(n, np.int32))


@pytest.mark.parametrize("off", [0, 1, -1])
def test_a_planted_write_outside_fails(planted, off):
    x, out = arrays(1000)
    planted.launch("planted", "shift", 4, 256, (x.cupy(), out.cupy(), np.int32(1000), np.int32(off)))
    x.check("shift")
    if off:
        with pytest.raises(AssertionError, match="shift wrote outside an array"):
            out.check("shift")
    else:
        out.check("shift")
        np.testing.assert_array_equal(out.array, x.array)


@pytest.mark.parametrize("more", [(np.int64(1000), np.int32(0)), (np.int32(1000),), (np.int32(1000), np.int32(0), np.int32(0))])
def test_arguments_that_are_not_the_parameters_fail(planted, more):
    """The driver copies the parameter's number of bytes from the argument's address."""
    x, out = arrays(1000)
    with pytest.raises(AssertionError, match="are not its parameters"):
        planted.launch("planted", "shift", 4, 256, (x.cupy(), out.cupy(), *more))


@pytest.mark.parametrize("wait", [True, False])
def test_a_planted_missing_barrier_fails(planted, wait):
    found = []
    for falling in (False, True):
        planted.falling = falling
        x, out = arrays(256)
        planted.launch("planted", "reversed", 1, 256, (x.cupy(), out.cupy(), np.int32(wait)))
        found.append(out.array)
    assert (found[0] == found[1]).all() == wait
    assert (found[0] == np.arange(256)[::-1]).all() == wait


def test_a_barrier_that_not_all_reach_fails(planted):
    with pytest.raises(AssertionError, match="parted: threads wait where others never come"):
        planted.launch("planted", "parted", 1, 64, (arrays(64)[1].cupy(),))


def test_threads_that_exchange_by_different_calls_fail(planted):
    """Those of a warp that have ended take part in none."""
    out = arrays(64)[1]
    planted.launch("planted", "met", 1, 64, (out.cupy(), np.int32(0)))
    with pytest.raises(AssertionError, match="or meet by other calls"):
        planted.launch("planted", "met", 1, 64, (out.cupy(), np.int32(1)))


def test_an_exchange_between_some_threads_of_a_warp_fails(planted):
    """The emulator lets all of them arrive, and a GPU only those in the mask."""
    out = arrays(32)[1]
    planted.launch("planted", "some", 1, 32, (out.cupy(), np.uint32(0xffffffff)))
    assert (out.array == 3).all()
    with pytest.raises(AssertionError, match="or without some of their warp"):
        planted.launch("planted", "some", 1, 32, (out.cupy(), np.uint32(0xffff)))


def fuses():
    """Has this machine fused multiply-adds?"""
    listed = Path("/proc/cpuinfo")
    return platform.machine() == "aarch64" or (listed.exists() and " fma " in listed.read_text())


@pytest.mark.skipif(not fuses(), reason="the processor has no fused multiply-adds")
@pytest.mark.parametrize("contracted", [False, True])
def test_a_product_is_fused_with_a_sum_if_asked_to_but_where_the_kernel_rounds(contracted, tmp_path):
    emulator = Emulator(tmp_path, contracted=contracted)
    emulator.wanted["planted"] = {"square_and", "rounded"}
    emulator.libraries["planted"] = emulator._compile("planted", PLANTED)
    x, y = np.full(4, 1 + 2.0**-12, np.float32), np.full(4, -1 - 2.0**-11, np.float32)
    for name, rest in (("square_and", 2.0**-24 if contracted else 0), ("rounded", 0)):
        out = Copy(np.ones(4, np.float32))
        emulator.launch("planted", name, 1, 4, (Copy(x).cupy(), Copy(y).cupy(), out.cupy()))
        assert out.array.tolist() == [rest] * 4


@pytest.mark.parametrize("by", [3, 16])
def test_what_a_thread_that_has_ended_exchanges_is_no_number(planted, by):
    """It has no vote either; nor have the threads that the block's last warp lacks."""
    out = arrays(48)[1]
    planted.launch("planted", "ended", 1, 48, (out.cupy(), np.int32(by)))
    for first, there in ((0, 20), (32, 16)):
        other = np.arange(there) ^ by
        np.testing.assert_array_equal(out.array[first:first + there], there + np.where(other < there, other, -1))


def test_a_warp_folds_its_own_lanes(planted):
    for falling in (False, True):
        planted.falling = falling
        x, out = arrays(64)
        planted.launch("planted", "summed", 1, 64, (x.cupy(), out.cupy()))
        np.testing.assert_array_equal(out.array, np.repeat(x.array.reshape(2, 32).sum(1), 32))


@pytest.mark.skipif(platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc", reason="only x86's numbers are")
def test_subnormal_numbers_count_as_zero_in_a_kernel_alone(planted):
    x, y, expected = np.array([[1e-30, 1e-40, -1e-40, 1e-30], [1e-10, 1e10, 1e10, 1e-5], [0, 0, 0, 1e-35]], np.float32)
    out = Copy(np.ones(4, np.float32))
    planted.launch("planted", "product", 1, 4, (Copy(x).cupy(), Copy(y).cupy(), out.cupy()))
    np.testing.assert_allclose(out.array, expected, rtol=1e-6, atol=0)
    assert (x[:2] * y[:2]).all()


def test_a_planted_access_that_is_not_aligned_fails(tmp_path):
    script = """
import sys, numpy as np
from pathlib import Path
from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu import launch as gpu_launch
from tests.conftest import replaceable
from tests.host.cuda.emulator import Copy, Emulator
from tests.host.cuda.test_emulator import PLANTED
emulator = Emulator(Path(sys.argv[1]))
emulator.wanted["planted"] = {"packed"}
emulator.libraries["planted"] = emulator._compile("planted", PLANTED)
for off in (4, 1):
    x, out = Copy(np.zeros(64, np.float32), off=off), Copy(np.zeros(64, np.float32))
    emulator.launch("planted", "packed", 1, 16, (x.cupy(), out.cupy()))
    print("done", off, flush=True)
"""
    done = in_a_process(tmp_path, script)
    assert "done 4" in done.stdout, done.stderr
    assert "done 1" not in done.stdout
    assert "misaligned address" in done.stderr


# -- address sanitizer ---------------------------------------------------------------------------------------------------


def sanitizer():
    """The path of g++'s address sanitizer, None without one."""
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    return found if os.path.isabs(found) and Path(found).exists() else None


def sanitized(folder, script, **environment):
    return in_a_process(folder, script, LD_PRELOAD=sanitizer(), PYTHONMALLOC="malloc",
                        ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0", **environment)


@pytest.mark.skipif(shutil.which("g++") is None or sanitizer() is None, reason="g++ has no address sanitizer")
def test_a_planted_read_outside_fails(tmp_path):
    script = """
import sys, numpy as np
from pathlib import Path
from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu import launch as gpu_launch
from tests.conftest import replaceable
from tests.host.cuda.emulator import Copy, Emulator
from tests.host.cuda.test_emulator import PLANTED
emulator = Emulator(Path(sys.argv[1]), sanitize=True)
emulator.wanted["planted"] = {"shift"}
emulator.libraries["planted"] = emulator._compile("planted", PLANTED)
for n in (1000, 1001):
    x, out = Copy(np.zeros(1000, np.int32), exact=True), Copy(np.zeros(1001, np.int32), exact=True)
    emulator.launch("planted", "shift", 4, 256, (x.cupy(), out.cupy(), np.int32(n), np.int32(0)))
    print("done", n, flush=True)
"""
    done = sanitized(tmp_path, script)
    assert "done 1000" in done.stdout, done.stderr
    assert "done 1001" not in done.stdout
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


@pytest.mark.skipif(shutil.which("g++") is None or sanitizer() is None, reason="g++ has no address sanitizer")
def test_no_kernel_reads_or_writes_outside(tmp_path):
    """Sample calls in single precision on copies of exactly the operands' size."""
    script = """
import sys, numpy as np
from pathlib import Path
from tests.host.cuda.cuda_rows import Both, accesses
from tests.host.cuda.emulator import Emulator
rows = [(row, dtype) for row, dtype in accesses() if dtype is np.float32]
emulator = Emulator(Path(sys.argv[1]), sanitize=True)
with emulator.in_place():
    # The first time, launches only note what is to be compiled, whatever the order.
    both = Both(emulator, orders=(False,))
    for row, dtype in rows:
        both.run(row, dtype)
    emulator.compile()
    both = Both(emulator)
    for row, dtype in rows:
        print(row, flush=True)
        both.run(row, dtype, 1e9)
print("all", len(rows))
"""
    done = sanitized(tmp_path, script)
    assert "AddressSanitizer" not in done.stderr, f"{done.stdout.splitlines()[-1]}:\n{done.stderr[:4000]}"
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all" in done.stdout


def test_what_a_test_leaves_replaced_is_found(monkeypatch):
    before = replaceable()
    monkeypatch.setattr(gpu_launch, "launch", None)
    monkeypatch.setattr(gpu_gemm, "library", None)
    found = [name for name, function in replaceable().items() if function is not before[name]]
    assert found == ["launch.launch", "gemm.library"]
