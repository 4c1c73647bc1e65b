"""Kernels that use tensor cores, on the emulator as they are compiled for a device whose tensor cores cannot do it."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices.gpu.sources import source_of
from gradcore.dtypes import bfloat16
from tests.host.cuda.cuda_rows import Both, calls, noted
from tests.host.cuda.emulator import Emulator

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

#: By family: the ops that launch nothing else.
OPS = {"attention": ("attention", "attention_grad"), "convolution": ("conv2d", "conv2d_input_grad")}
CONDITION = "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    emulator = Emulator(tmp_path_factory.mktemp("emulator"), watch="races")
    for family in OPS:
        source = source_of(family)
        assert source.count(CONDITION) == 1
        emulator.wanted[family] = {name for name in noted().wanted[family] if "half" in name or "bfloat" in name}
        emulator.libraries[family] = emulator._compile(family, source.replace(CONDITION, "#if 1"))
    with emulator.in_place():
        yield emulator


@pytest.mark.parametrize("op", [op for ops in OPS.values() for op in ops])
def test_without_tensor_cores_the_same_launches_give_the_same_results(emulated: Any, op: str) -> None:
    both, count = Both(emulated, orders=(False,)), 0
    for row, dtype in calls():
        if row.op == op and dtype in (np.float16, bfloat16()):
            both.run(row, dtype, max(row.tolerance / 1e-5, 1))
            count += 1
    assert count > 8
