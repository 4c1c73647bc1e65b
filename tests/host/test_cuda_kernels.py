"""The CUDA kernels against NumPy's with no GPU: every sample call goes through both, over the same values.

The device's own Python code picks instances, layouts and grids; the C++ runs on the CPU, thread by thread, in two orders.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices import gpu_kernels
from gradcore.ops import all_ops
from tests.host.cuda_rows import OWN, Both, calls, emulate

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled")

CALLS = calls()


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    emulator = emulate(tmp_path_factory.mktemp("emulator"))
    with emulator.in_place():
        yield emulator


@pytest.mark.parametrize(("row", "dtype"), CALLS, ids=[f"{row}-{np.dtype(dtype).name}" for row, dtype in CALLS])
def test_cuda_kernels_agree_with_numpys(emulated, row, dtype):
    assert row.op in Both(emulated, max(row.tolerance / 1e-5, 1)).run(row, dtype)


def test_every_op_has_a_kernel():
    table = gpu_kernels.build_cuda_kernels()
    assert [name for name, op in all_ops().items() if name not in table and not op.view] == []


def test_every_kernel_of_our_own_has_a_row():
    assert {row.op for row, _ in CALLS} == set(OWN)
