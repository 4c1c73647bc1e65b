"""The CUDA random numbers, compiled for the CPU: NumPy's bits, position by position."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

SOURCE = Path(__file__).parent.parent.parent / "kernels" / "random.cu"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the shim cannot be compiled")

#: What the file needs of CUDA, on a CPU: one thread, rounding as IEEE 754 has it.
SHIM = """
#include <cmath>
#define __device__
#define __global__
#define __forceinline__ inline
using std::sqrt; using std::log;
struct Index { unsigned x; };
static Index gridDim{1}, blockDim{1}, blockIdx{0}, threadIdx{0};
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
static inline float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
static inline double __dmul_rn(double a, double b) { volatile double r = a * b; return r; }
static inline double __dadd_rn(double a, double b) { volatile double r = a + b; return r; }
"""
CALLS = """
extern "C" void uniform_float(const u64* s, double low, double width, float* out, long long n) {
    uniform(s, low, width, out, n);
}
extern "C" void uniform_double(const u64* s, double low, double width, double* out, long long n) {
    uniform(s, low, width, out, n);
}
extern "C" void normal_double(const u64* s, double mean, double std, double* out, long long n) {
    normal(s, mean, std, out, n);
}
extern "C" void dropout_float(const float* x, const u64* s, float p, double scale, float* out, long long n) {
    dropout(x, s, p, scale, out, n);
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("philox")
    code = folder / "random.cpp"
    code.write_text(SHIM + SOURCE.read_text() + CALLS)
    library = folder / "random.so"
    subprocess.run(["g++", "-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-fpermissive", "-w",
                    str(code), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def state(seed, counter=0):
    return np.array([seed, 0, counter, 0], np.uint64)


@pytest.mark.parametrize(("seed", "counter"), [(0, 0), (1, 7), (2**64 - 1, 2**40), (67280421310721, 3)])
@pytest.mark.parametrize("length", [1, 7, 8, 1001])
def test_uniforms_have_numpys_bits(compiled, seed, counter, length):
    def numpys(dtype):
        philox = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=[counter, 0, 0, 0])
        return np.random.Generator(philox).random(length, dtype=dtype)

    for dtype, call in ((np.float32, compiled.uniform_float), (np.float64, compiled.uniform_double)):
        out = np.empty(length, dtype)
        call(pointer(state(seed, counter)), ctypes.c_double(0), ctypes.c_double(1), pointer(out), ctypes.c_longlong(length))
        np.testing.assert_array_equal(out, numpys(dtype))


def test_the_device_kernel_and_the_cpus_agree(compiled):
    """Through gradcore's own kernels: the range, Box and Muller's pairs, the mask of a dropout."""
    from gradcore.devices.host_random import dropout, normal, uniform

    length = 70_001
    words = state(99, 5).view(np.int64)
    ours, theirs = np.empty(length, np.float32), np.empty(length, np.float32)
    uniform(words, -0.3, 0.7, ours, shape=None, dtype=None)
    compiled.uniform_float(pointer(words), ctypes.c_double(-0.3), ctypes.c_double(0.7 - -0.3), pointer(theirs),
                           ctypes.c_longlong(length))
    np.testing.assert_array_equal(ours, theirs)

    workspace = np.empty(2 * (32768 * 8 + 16), np.uint8)
    first, second = np.empty(length), np.empty(length)
    normal(words, 1.0, 2.0, first, workspace, shape=None, dtype=None)
    compiled.normal_double(pointer(words), ctypes.c_double(1), ctypes.c_double(2), pointer(second), ctypes.c_longlong(length))
    np.testing.assert_allclose(first, second, rtol=1e-12, atol=1e-14)

    x = np.ones(length, np.float32)
    dropout(x, words, 0.25, ours, np.empty(32768 * 5, np.uint8))
    compiled.dropout_float(pointer(x), pointer(words), ctypes.c_float(0.25), ctypes.c_double(1 / 0.75), pointer(theirs),
                           ctypes.c_longlong(length))
    np.testing.assert_array_equal(ours == 0, theirs == 0)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
