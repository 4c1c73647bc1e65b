"""Products of small matrices by gradcore's own kernel, on the CPU, beside NumPy's."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices.gpu import products as gpu_products
from gradcore.devices.gpu.gemm import CublasLt
from gradcore.devices.gpu.kernels.linalg import linear, linear_grad, product
from gradcore.devices.gpu.problems import Matrix, Problem
from tests.host.cuda.emulator import Copy, Emulator
from tests.host.cuda.fake_cublas import FakeLt
from tests.host.cuda.test_gemm import BATCHES, LAYOUTS, laid_out

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]
RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: the emulator cannot be compiled")
    found = Emulator(tmp_path_factory.mktemp("small"))
    found.wanted = {"product": {f"small_product<{then}>" for then in range(len(gpu_products.THEN))}}
    found.compile()
    return found


@pytest.fixture(params=[False, True], ids=["rising", "falling"])
def small(emulator, request):
    """A library that refuses what is not small, with threads in one of two orders."""
    emulator.falling, emulator.library = request.param, CublasLt(FakeLt(), 1 << 20, lambda size: None, small=True)
    with emulator.in_place():
        yield emulator
        assert emulator.library._lt.calls == []


def multiplied(a, b):
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    copies = [Copy(a), Copy(b), Copy(np.full(shape, np.nan, np.float32))]
    product(*(c.cupy() for c in copies))
    for copy in copies:
        copy.check("product")
    return copies[2].array


@pytest.mark.parametrize("k", [1, 3, 127, 128, 129, 256])
def test_products_of_all_sizes_are_numpys(small, k):
    for m, n in itertools.product((1, 5, 16, 17, 40), (1, 10, 16, 33)):
        a, b = laid_out("plain", (m, k), "float32"), laid_out("transposed", (k, n), "float32")
        np.testing.assert_allclose(multiplied(a, b), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-6 * k)


def test_every_layout_and_batch_is_read_in_place(small):
    layouts = [name for name in LAYOUTS if name not in ("every other column", "expanded")]
    for (lead_a, lead_b), one, two in itertools.product(BATCHES, layouts, layouts):
        a, b = laid_out(one, (*lead_a, 5, 7), "float32"), laid_out(two, (*lead_b, 7, 3), "float32")
        np.testing.assert_allclose(multiplied(a, b), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 20, 64])
@pytest.mark.parametrize("width", [10, 130])
def test_a_linear_layer_and_its_gradients(small, rows, width):
    x, w, bias, dy = (RNG.normal(size=shape).astype(np.float32)
                      for shape in ((rows, 24), (width, 24), (width,), (rows, width)))
    out = Copy(np.full((rows, width), np.nan, np.float32))
    linear(Copy(x).cupy(), Copy(w).cupy(), Copy(bias).cupy(), out.cupy())
    np.testing.assert_allclose(out.array, x @ w.T + bias, rtol=1e-5, atol=1e-5)
    found = [Copy(np.full(shape, np.nan, np.float32)) for shape in (x.shape, w.shape, bias.shape)]
    linear_grad(Copy(dy).cupy(), Copy(x).cupy(), Copy(w).cupy(), *(c.cupy() for c in found), needs=(True, True, True))
    for copy, expected in zip(found, (dy @ w, dy.T @ x, dy.sum(0)), strict=True):
        copy.check("a gradient")
        np.testing.assert_allclose(copy.array, expected, rtol=1e-4, atol=1e-4)


def test_relu_keeps_nan_and_needs_no_trial(small):
    problem = Problem("float32", 4, 3, 5, 1, Matrix(0, 4, 0, 256), Matrix(0, 5, 0, 256), Matrix(0, 4, 0, 256), "relu_bias")
    plan = small.library.plan(problem)
    x, y = RNG.normal(size=(5, 4)).astype(np.float32), RNG.normal(size=(3, 5)).astype(np.float32)
    y[1, 2] = np.nan
    bias = RNG.normal(size=4).astype(np.float32)
    copies = [Copy(a) for a in (x, y, np.zeros((3, 4), np.float32), bias)]
    addresses = [c.array.ctypes.data for c in copies]
    assert small.library.exact(plan, *addresses)
    small.library.run(plan, *addresses)
    np.testing.assert_allclose(copies[2].array, np.maximum(y @ x + bias, 0), rtol=1e-5, atol=1e-6)
    assert np.isnan(copies[2].array[1]).all() and (copies[2].array[0] >= 0).all()


def test_large_products_and_other_numbers_go_to_the_library():
    of = Matrix(0, 64, 0, 256)
    assert gpu_products.suits(Problem("float32", 64, 64, 64, 1, of, of, of))
    for other in ({"kind": "float16"}, {"kind": "float64"}, {"k": 257}, {"m": 1024, "n": 1024}, {"batch": 9},
                  {"batch": 2, "then": "bias"}, {"added": True}):
        assert not gpu_products.suits(Problem("float32", 64, 64, 64, 1, of, of, of)._replace(**other))
