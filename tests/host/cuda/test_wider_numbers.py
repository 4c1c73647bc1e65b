"""A 0-d tensor beside ones with dimensions counts as a number: CUDA kernels read it in their dtype, as the CPU's do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from tests.host.cuda.cuda_rows import OWN
from tests.host.cuda.emulator import Copy, Emulator

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.xdist_group("emulator")]

BYTES = np.array([1, 5, 7, 20, 253, 255], np.uint8)
#: 0.1 in single precision, and a number that is not.
SINGLE = np.array([0.1, 0.5], np.float32)
#: In bytes, 261 is 5, and -3 is 253.
CALLS = [(name, BYTES, np.array(number)) for number in (261, -3)
         for name in ("floor_divide", "remainder", "fmod", "maximum", "minimum", "add", "eq", "lt", "pow")] + [
    ("floor_divide", BYTES.view(np.int8), np.array(255, np.uint8)), ("add", BYTES[:1], np.array(261)),
    ("eq", SINGLE, np.array(0.1)), ("lt", SINGLE, np.array(0.1))]


def launched(name: str, x: np.ndarray, number: np.ndarray) -> np.ndarray:
    out = Copy(np.zeros(x.shape, np.bool_ if name in ("eq", "lt") else x.dtype))
    OWN[name](Copy(x).cupy(), Copy(number).cupy(), out.cupy())
    return out.array


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    noting, emulator = Emulator(Path()), Emulator(tmp_path_factory.mktemp("emulator"))
    with noting.in_place():
        for call in CALLS:
            launched(*call)
    emulator.wanted = noting.wanted
    emulator.compile()
    with emulator.in_place():
        yield


@pytest.mark.oracle
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]} {call[1].dtype} {call[2]}")
def test_it_is_read_in_the_dtype_of_the_others(emulated: Any, call: Any, torch: Any) -> None:
    name, x, number = call
    cpu, theirs = (getattr(t, name)(t.tensor(x), t.tensor(number)).numpy() for t in (gradcore, torch))
    np.testing.assert_array_equal(cpu, theirs)
    np.testing.assert_array_equal(launched(*call), cpu)
