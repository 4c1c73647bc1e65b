"""On a real GPU: products by both libraries, TF32, epilogues, a captured product, and where the workspace is allocated."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import gradcore
from gradcore import nn

RNG = np.random.default_rng(3)
TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 2e-3}


@pytest.fixture(params=["cublasLt", "cupy"])
def gemm(request, monkeypatch):
    """The module of the interface, with one of the two libraries installed."""
    from gradcore.devices.gpu import gemm as gpu_gemm

    # It determines where workspaces are allocated.
    gradcore.device("cuda")
    if request.param == "cupy" and "tests.card.session" in sys.modules:
        pytest.skip("the tests' own card has no cuBLAS for CuPy")
    monkeypatch.setenv("GRADCORE_GEMM", "cupy" if request.param == "cupy" else "")
    library = gpu_gemm.make_library(0)
    if request.param == "cublasLt" and library.unseen:
        pytest.skip(library.unseen)
    monkeypatch.setattr(gpu_gemm, "library", lambda: library)
    # Calls that were written out name the library that they were recorded with.
    gradcore.device("cuda").calls.clear()
    yield SimpleNamespace(name=request.param, library=library)
    gradcore.cuda.synchronize()
    gradcore.device("cuda").calls.clear()
    if request.param == "cublasLt":
        library.workspaces.release()


@pytest.mark.parametrize("kind", TOLERANCE)
def test_products_of_any_layout_are_numpys(gemm, kind):
    sizes = [(1, 1, 1), (5, 7, 3), (64, 128, 32), (129, 65, 33), (1, 512, 1)]
    batches: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ()), ((3,), (3,)), ((2, 3), (3,)), ((3,), ())]
    for (m, k, n), (lead_a, lead_b) in itertools.product(sizes, batches):
        a, b = RNG.normal(size=(*lead_a, m, k)).astype(kind), RNG.normal(size=(*lead_b, k, n)).astype(kind)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        for turn_a, turn_b in itertools.product((False, True), repeat=2):
            x, y = (gradcore.tensor(np.ascontiguousarray(v.swapaxes(-1, -2)) if turn else v, device="cuda")
                    for v, turn in ((a, turn_a), (b, turn_b)))
            found = (x.transpose(-1, -2) if turn_a else x) @ (y.transpose(-1, -2) if turn_b else y)
            np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=30 * TOLERANCE[kind],
                                       atol=10 * TOLERANCE[kind] * k ** 0.5)


@pytest.mark.parametrize("kind", TOLERANCE)
def test_linear_and_its_gradients_are_numpys(gemm, kind):
    x, w, bias, dy = (RNG.normal(size=shape).astype(kind) for shape in ((300, 64), (32, 64), (32,), (300, 32)))
    tensors = [gradcore.tensor(v, device="cuda", requires_grad=True) for v in (x, w, bias)]
    out = nn.functional.linear(*tensors)
    out.backward(gradcore.tensor(dy, device="cuda"))
    x, w, bias, dy = (v.astype(np.float64) for v in (x, w, bias, dy))
    for found, expected in zip((out.detach(), *(t.grad for t in tensors)), (x @ w.T + bias, dy @ w, dy.T @ x, dy.sum(0)),
                               strict=True):
        np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=30 * TOLERANCE[kind], atol=300 * TOLERANCE[kind])


@pytest.mark.parametrize("kind", TOLERANCE)
def test_relu_behind_a_linear_layer_has_the_values_of_two_launches(gemm, kind):
    import cupy

    from gradcore.devices.gpu.kernels.elementwise import apply, wide
    from gradcore.devices.gpu.kernels.linalg import linear, linear_relu

    for rows, inner, columns in ((300, 64, 32), (5, 7, 3), (1, 512, 1000), (2048, 1024, 256)):
        shapes = (rows, inner), (columns, inner), (columns,)
        x, w, bias = (cupy.asarray(RNG.normal(size=shape).astype(kind)) for shape in shapes)
        x[-1] = np.nan
        apart, together = (cupy.empty((rows, columns), kind) for _ in range(2))
        linear(x, w, bias, apart)
        apply("Relu", wide(apart.dtype), apart, apart)
        linear_relu(x, w, bias, together)
        np.testing.assert_array_equal(cupy.asnumpy(together), cupy.asnumpy(apart))
        assert cupy.isnan(together[-1]).all()


def test_tf32_only_when_asked(gemm):
    # cuBLAS computes small products in single precision all the same (below 512 columns on an H100).
    a, b = (RNG.normal(size=(1024, 1024)).astype(np.float32) for _ in range(2))
    expected = a.astype(np.float64) @ b.astype(np.float64)

    def worst():
        found = gradcore.tensor(a, device="cuda") @ gradcore.tensor(b, device="cuda")
        return float(np.abs(found.cpu().numpy() - expected).max())

    exact = worst()
    assert exact < 1e-3
    try:
        gradcore.set_float32_matmul_precision("high")
        coarse = worst()
    finally:
        gradcore.set_float32_matmul_precision("highest")
    from cupy.cuda import runtime

    if runtime.getDeviceProperties(0)["major"] >= 8:
        assert 1e-3 < coarse < 1
    assert worst() == exact


def test_the_same_product_twice_has_the_same_bits(gemm):
    a = gradcore.tensor(RNG.normal(size=(257, 1023)).astype(np.float32), device="cuda")
    first = (a @ a.transpose(0, 1)).cpu().numpy()
    for _ in range(20):
        np.testing.assert_array_equal((a @ a.transpose(0, 1)).cpu().numpy(), first)


def test_a_product_can_be_captured_with_a_workspace_of_ours(gemm):
    if gemm.name == "cupy":
        pytest.skip("CuPy refuses cuBLAS during a capture")
    import cupy

    from gradcore.devices.gpu.kernels.linalg import product
    from gradcore.devices.gpu.workspaces import launched_on

    a, b = (cupy.asarray(RNG.normal(size=(64, 64)).astype(np.float32)) for _ in range(2))
    out = cupy.zeros_like(a)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with launched_on(stream):
        product(a, b, out)
        stream.synchronize()
        out.fill(0)
        stream.begin_capture()
        product(a, b, out)
        graph = stream.end_capture()
    stream.synchronize()
    assert not out.any()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_allclose(cupy.asnumpy(out), cupy.asnumpy(a) @ cupy.asnumpy(b), rtol=1e-4, atol=1e-4)


def test_products_allocate_nothing_that_is_not_declared(gemm):
    device = gradcore.device("cuda")
    x = gradcore.rand(512, 512, device="cuda")
    x @ x
    before, library = dict(device.bridge.seen), device.bridge.ledger.allocated
    for _ in range(20):
        x @ x
    assert device.bridge.seen == before
    assert device.bridge.ledger.allocated == library
    if gemm.name == "cublasLt":
        # None, if the algorithm needs no workspace.
        held = [block.requested for block in device.bridge.ledger.live.values() if block.tag.op == "matmul"]
        assert set(held) <= {gemm.library.workspace}
