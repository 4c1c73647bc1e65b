"""No kernel's threads race, and the detector (races.cpp) finds races that are planted."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices.gpu.kernels.losses import cross_entropy_with_slopes
from tests.conftest import raises
from tests.host.cuda.cuda_rows import Both, accesses
from tests.host.cuda.emulator import Copy, Emulator

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              # The first test compiles every kernel.
              pytest.mark.timeout(1200), pytest.mark.xdist_group("races")]

PLANTED = """
extern "C" __global__ void reversed(int* out, int wait) {
    __shared__ int room[64];
    room[threadIdx.x] = threadIdx.x;
    if (wait) __syncthreads();
    out[threadIdx.x] = room[63 - threadIdx.x];
}
extern "C" __global__ void again(int* out, int wait) {
    __shared__ int room[64];
    for (int k = 0; k < 3; ++k) {
        room[threadIdx.x] = k;
        __syncthreads();
        out[threadIdx.x] = room[63 - threadIdx.x];
        if (wait) __syncthreads();
    }
}
extern "C" __global__ void overwritten(int* out, int wait) {
    __shared__ int room;
    if (!threadIdx.x) room = 1;
    __syncthreads();
    out[threadIdx.x] = room;
    if (wait) __syncthreads();
    if (threadIdx.x == 63) room = 2;
}
extern "C" __global__ void shuffled(int* out, int wait) {
    __shared__ int room[64];
    room[threadIdx.x] = __shfl_sync(0xffffffffu, (int)threadIdx.x, 0);
    if (wait) __syncwarp();
    else __shfl_sync(0xffffffffu, 0, 0);
    out[threadIdx.x] = room[threadIdx.x ^ 1];
}
extern "C" __global__ void warps(int* out, int wait) {
    __shared__ int room[64];
    room[threadIdx.x] = threadIdx.x;
    if (wait) __syncthreads();
    else __syncwarp();
    out[threadIdx.x] = room[threadIdx.x ^ 32];
}
extern "C" __global__ void same(int* out, int apart) { out[apart ? threadIdx.x : 0] = 1; }
extern "C" __global__ void grid(int* out, int apart) {
    if (!threadIdx.x) out[apart ? blockIdx.x : 0] = 1;
}
extern "C" __global__ void beside(int* out, int apart) {
    if (!threadIdx.x) out[blockIdx.x] = out[apart ? blockIdx.x : gridDim.x - 1 - blockIdx.x];
}
extern "C" __global__ void unwritten(int* out, int all) {
    __shared__ int room[64];
    if (all || threadIdx.x) room[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = room[threadIdx.x];
}
extern "C" __global__ void blank(int* out, int write) {
    if (write) out[threadIdx.x] = 1;
    else out[threadIdx.x] = out[threadIdx.x] + 1;
}
// What the last block does in reductions over several blocks; it needs the barrier only if others write than who counts.
template <bool Fence, bool Wait, bool After>
__device__ void arrive(int* out) {
    __shared__ unsigned before;
    if (threadIdx.x == 1) out[1 + blockIdx.x] = 1;
    if (Fence) __threadfence();
    if (Wait) __syncthreads();
    if (!threadIdx.x) before = atomicInc((unsigned*)out, gridDim.x - 1);
    __syncthreads();
    if (After) __threadfence();
    if (before == gridDim.x - 1 && threadIdx.x < gridDim.x) out[1 + gridDim.x + threadIdx.x] = out[1 + threadIdx.x];
}
extern "C" __global__ void counted(int* out, int fence) {
    if (fence) arrive<true, true, true>(out);
    else arrive<false, true, true>(out);
}
extern "C" __global__ void waited(int* out, int wait) {
    if (wait) arrive<true, true, true>(out);
    else arrive<true, false, true>(out);
}
extern "C" __global__ void fenced(int* out, int after) {
    if (after) arrive<true, true, true>(out);
    else arrive<true, true, false>(out);
}
extern "C" __global__ void counter_fences(int* out, int fence) {
    __shared__ unsigned before;
    if (threadIdx.x == 1) out[1 + blockIdx.x] = 1;
    __syncthreads();
    if (!threadIdx.x) {
        if (fence) __threadfence();
        before = atomicInc((unsigned*)out, gridDim.x - 1);
        __threadfence();
    }
    if (!threadIdx.x && before == gridDim.x - 1) out[1 + gridDim.x] = out[1] + out[2];
}
"""
#: What is found where the last argument is 0, with threads in ascending order; nothing is where it is 1.
RACES = {
    "reversed": "a read of what was not written: nobody at 0, then block 0, thread 0 at planted.cpp:",
    "again": "a read races with a write: block 0, thread 31 at planted.cpp:",
    "overwritten": "a write races with a read: block 0, several threads at planted.cpp:",
    "shuffled": "a read races with a write: block 0, thread 1 at planted.cpp:",
    "warps": "a read of what was not written: nobody at 0, then block 0, thread 0 at planted.cpp:",
    "same": "two writes race: block 0, thread 0 at planted.cpp:",
    "grid": "two writes race: block 0, thread 0 at planted.cpp:",
    "beside": "a read races with a write: block 1, thread 0 at planted.cpp:",
    "unwritten": "a read of what was not written: nobody at 0, then block 0, thread 0",
    "counted": "a read races with a write: block 0, thread 1 at planted.cpp:",
    "fenced": "a read races with a write: block 0, thread 1 at planted.cpp:",
    "counter_fences": "a read races with a write: block 0, thread 1 at planted.cpp:",
    "waited": "a read races with a write: block 0, thread 1 at planted.cpp:",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    emulator = Emulator(tmp_path_factory.mktemp("planted"), watch="races")
    emulator.wanted["planted"] = {*RACES, "blank"}
    emulator.libraries["planted"] = emulator._compile("planted", PLANTED)
    return emulator


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("name", RACES)
def test_a_planted_race_is_found(planted, name, falling):
    planted.falling = falling

    def launch(last):
        blocks = 4 if name in ("grid", "beside", "counted", "waited", "fenced", "counter_fences") else 1
        planted.launch("planted", name, blocks, 64, (Copy(np.zeros(64, np.int32)).cupy(), np.int32(last)))

    launch(1)
    with pytest.raises(AssertionError) as raised:
        launch(0)
    found = str(raised.value)
    assert re.match(rf"{name}: (two writes race|a (read|write) races with a (write|read)|a read of what was not written): ",
                    found)
    if not falling:
        assert RACES[name] in found, found
    # It is forgotten by the next launch.
    launch(1)


def test_a_read_of_memory_that_nobody_has_written_is_found(planted):
    copy = Copy(np.zeros(64, np.int32))
    address = copy.bytes.ctypes.data + copy.start

    def launch(write):
        planted.launch("planted", "blank", 1, 64, (copy.cupy(), np.int32(write)))

    def forget():
        planted.blanks = [(address, np.zeros(copy.nbytes, np.uint8))]

    launch(0)
    try:
        forget()
        with raises(AssertionError, "a read of what was not written: nobody at 0, then block 0, thread", "in global memory"):
            launch(0)
        for fill in (lambda: launch(1), lambda: planted.clear(copy.cupy().data, copy.nbytes), planted.library_in_use):
            forget()
            fill()
            launch(0)
    finally:
        planted.blanks = []


def test_no_kernel_races(tmp_path):
    """What an op allocates must be written before it is read, too."""
    emulator, rows = Emulator(tmp_path, watch="races"), accesses()
    with emulator.in_place():
        # The first time, launches only note what is to be compiled: not the instances of what is left out.
        both = Both(emulator, orders=(True,))
        for row, dtype in rows:
            both.run(row, dtype)
        emulator.compile()
        both = Both(emulator, orders=(True,))
        for row, dtype in rows:
            assert row.op in both.run(row, dtype, max(row.tolerance / 1e-5, 1))


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize(("rows", "classes"), [(37, 10), (37, 40), (5, 1500)], ids=["a thread", "a warp", "a block"])
def test_a_loss_that_writes_its_gradient_over_its_scores_does_not_race(tmp_path, rows, classes, falling):
    """A row's own score is read by one thread of the team that writes its slopes."""
    emulator = Emulator(tmp_path, watch="races")
    emulator.falling = falling
    with emulator.in_place():
        for _ in range(2):
            scores, labels = (Copy(a) for a in (np.ones((rows, classes), np.float32), np.arange(rows) % classes))
            one, out, workspace = (Copy(np.zeros(n, np.float32)).cupy() for n in ((), (), 64))
            cross_entropy_with_slopes(one, scores.cupy(), labels.cupy(), None, scores.cupy(), workspace, out, reduction="mean",
                                      ignore_index=-100)
            if not emulator.libraries:
                emulator.compile()
    np.testing.assert_allclose(scores.array, (1 / classes - np.eye(classes)[labels.array]) / rows, rtol=1e-5)
