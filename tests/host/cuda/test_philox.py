"""The CUDA random numbers, run on the CPU: NumPy's bits, position by position."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices.gpu.kernels import KERNELS
from gradcore.devices.host.kernels import random as host_random
from tests.host.cuda.emulator import Copy, Emulator

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled")


@pytest.fixture(scope="module", autouse=True)
def emulated(tmp_path_factory):
    emulator = Emulator(tmp_path_factory.mktemp("philox"))
    emulator.wanted["random"] = {"uniform<float>", "uniform<double>", "normal<double>", "dropout<float>"}
    emulator.compile()
    with emulator.in_place():
        yield


def run(name, *arguments, **attrs):
    """Run a kernel of the CUDA device on copies, and return the last array."""
    copies = [Copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
    KERNELS[name](*[c.cupy() if isinstance(c, Copy) else c for c in copies], **attrs)
    return [c for c in copies if isinstance(c, Copy)][-1].array


def state(seed, counter=0):
    return np.array([seed, 0, counter, 0], np.uint64).view(np.int64)


@pytest.mark.parametrize(("seed", "counter"), [(0, 0), (1, 7), (2**64 - 1, 2**40), (67280421310721, 3)])
@pytest.mark.parametrize("length", [1, 7, 8, 1001])
def test_uniforms_have_numpys_bits(seed, counter, length):
    for dtype in (np.float32, np.float64):
        philox = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=[counter, 0, 0, 0])
        expected = np.random.Generator(philox).random(length, dtype=dtype)
        found = run("uniform", state(seed, counter), 0.0, 1.0, np.empty(length, dtype), shape=None, dtype=None)
        np.testing.assert_array_equal(found, expected)


def test_the_device_kernel_and_the_cpus_agree():
    """Through gradcore's own kernels: the range, Box and Muller's pairs, the mask of a dropout, past the CPU's pieces."""
    length, words = 70_001, state(99, 5)
    ours = np.empty(length, np.float32)
    host_random.uniform(words, -0.3, 0.7, ours, shape=None, dtype=None)
    np.testing.assert_array_equal(run("uniform", words, -0.3, 0.7, np.empty_like(ours), shape=None, dtype=None), ours)

    normals = np.empty(length)
    host_random.normal(words, 1.0, 2.0, normals, np.empty(2 * (32768 * 8 + 16), np.uint8), shape=None, dtype=None)
    found = run("normal", words, 1.0, 2.0, np.empty(length), None, shape=None, dtype=None)
    np.testing.assert_allclose(found, normals, rtol=1e-12, atol=1e-14)

    x = np.ones(length, np.float32)
    host_random.dropout(x, words, 0.25, ours, np.empty(32768 * 5, np.uint8))
    found = run("dropout", x, words, 0.25, np.empty_like(x), None)
    np.testing.assert_array_equal(found == 0, ours == 0)
    np.testing.assert_allclose(found, ours, rtol=1e-6)
