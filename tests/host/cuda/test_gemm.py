"""Matrix products of the CUDA device without a GPU: the libraries' calls are computed on the host, compared with NumPy's."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu import workspaces as gpu_workspaces
from gradcore.devices.gpu.gemm import Cublas, CublasLt
from gradcore.devices.gpu.kernels import linalg as gpu_linalg
from gradcore.devices.gpu.kernels.linalg import linear, linear_grad, product
from gradcore.devices.gpu.problems import Matrix, Problem, alignment
from gradcore.errors import CaptureError, KernelError, SpecError
from tests.host.cuda.emulator import Copy, Emulator, products
from tests.host.cuda.fake_cublas import Epilogue, FakeCublas, FakeLt, narrowed, tf32, widened

RNG = np.random.default_rng(3)
KINDS = {"float32": 2e-6, "float64": 1e-14, "float16": 1e-3}
ROUTES = ("cublasLt", "cupy")
#: Leading dimensions of the two operands, and whether they are expanded from one matrix.
BATCHES = [((), ()), ((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 3), (2, 3)), ((2, 1), (1, 3)), ((2, 3), (3,)), ((1, 3), (2, 3))]
SIZES = [(1, 1, 1), (5, 7, 3), (1, 6, 4), (6, 1, 4), (4, 6, 1), (2, 33, 17)]


def laid_out(layout, shape, dtype):
    """A matrix, or a batch, of this shape, in one of several memory layouts."""
    *lead, rows, columns = shape
    if layout == "transposed":
        return RNG.normal(size=(*lead, columns, rows)).astype(dtype).swapaxes(-1, -2)
    if layout == "sliced":
        return RNG.normal(size=(*lead, rows + 2, columns + 3)).astype(dtype)[..., 1:rows + 1, 2:columns + 2]
    if layout == "every other column":
        return RNG.normal(size=(*lead, rows, 2 * columns)).astype(dtype)[..., ::2]
    if layout == "heads":
        # (time, head, width) in a transposed view, as attention keeps it.
        return np.moveaxis(RNG.normal(size=(rows, *lead, columns)).astype(dtype), 0, -2)
    if layout == "expanded":
        return np.broadcast_to(RNG.normal(size=(rows, columns)).astype(dtype), shape)
    return RNG.normal(size=shape).astype(dtype)


LAYOUTS = ("plain", "transposed", "sliced", "every other column", "heads", "expanded")


def library_of(route, runs=lambda: True):
    if route == "cupy":
        return Cublas("a test", FakeCublas(runs), lambda: 7)
    return products(FakeLt(runs))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """An emulator with the kernels used besides the libraries: the plain product, adding a bias, summing its gradient."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: the emulator cannot be compiled")
    emulator = Emulator(tmp_path_factory.mktemp("products"))
    emulator.library = library_of("cupy", lambda: False)
    with emulator.in_place():
        for kind in (*KINDS, "int64"):
            multiplied(laid_out("every other column", (3, 4), kind), laid_out("plain", (4, 2), kind))
            multiplied(laid_out("plain", (3, 0), kind), laid_out("plain", (0, 2), kind))
        for kind, rows in itertools.product(KINDS, ROWS):
            through_linear(kind, rows)
        for taken in AWKWARD:
            awkward_bias(taken)
        emulator.compile()
        emulator.library = library_of("cublasLt")
        yield emulator


def multiplied(a, b, out=None, added=False):
    """The result of ``product`` for copies of two arrays; nothing is written outside it."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    copies = [Copy(a), Copy(b), Copy(np.full(shape, np.nan if a.dtype.kind == "f" else -1, a.dtype) if out is None else out)]
    product(*(c.cupy() for c in copies), added=added)
    for copy in copies:
        copy.check("product")
    return copies[2].array


def compare(found, a, b, kind):
    expected = a.astype(np.float64) @ b.astype(np.float64) if kind != "int64" else a @ b
    np.testing.assert_allclose(found, expected, rtol=10 * KINDS.get(kind, 0), atol=20 * KINDS.get(kind, 0))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", [*KINDS, "int64"])
def test_every_layout_gives_numpys_product(plain, route, kind, monkeypatch):
    monkeypatch.setattr(plain, "library", library_of(route))
    for (lead_a, lead_b), (m, k, n) in itertools.product(BATCHES, SIZES):
        for one, two in itertools.product(LAYOUTS, LAYOUTS):
            a, b = laid_out(one, (*lead_a, m, k), kind), laid_out(two, (*lead_b, k, n), kind)
            compare(multiplied(a, b), a, b, kind)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", [*KINDS, "int64"])
def test_a_product_is_added_to_what_is_there(plain, route, kind, monkeypatch):
    monkeypatch.setattr(plain, "library", library_of(route))
    for (lead_a, lead_b), (m, k, n) in itertools.product(BATCHES, [(5, 7, 3), (1, 6, 4), (5, 0, 3)]):
        for one, two in itertools.product(("plain", "transposed", "every other column"), ("plain", "expanded")):
            a, b = laid_out(one, (*lead_a, m, k), kind), laid_out(two, (*lead_b, k, n), kind)
            there = RNG.integers(-3, 4, (*np.broadcast_shapes(lead_a, lead_b), m, n)).astype(kind)
            found = multiplied(a, b, there, added=True)
            exact = there + (a.astype(np.float64) @ b.astype(np.float64) if kind != "int64" else a @ b)
            np.testing.assert_allclose(found, exact, rtol=10 * KINDS.get(kind, 0), atol=50 * KINDS.get(kind, 0))


@pytest.mark.parametrize("route", ROUTES)
def test_what_can_be_read_by_columns_goes_to_the_library(route, monkeypatch, plain):
    """Transposed, sliced and head-split operands are passed without copies, in one call per batch, and nothing is launched."""
    monkeypatch.setattr(plain, "library", library_of(route))
    monkeypatch.setattr(gpu_launch, "launch", None)
    for one, two in itertools.product(("plain", "transposed", "sliced", "heads"), repeat=2):
        a, b = laid_out(one, (3, 5, 7), "float32"), laid_out(two, (3, 7, 4), "float32")
        before = len(calls_of(plain.library))
        compare(multiplied(a, b), a, b, "float32")
        call, = calls_of(plain.library)[before:]
        assert call["count"] == 3
        assert call["transposed"] == (int(two == "transposed"), int(one == "transposed"))


def test_a_batch_that_shares_a_matrix_is_one_product(monkeypatch, plain):
    monkeypatch.setattr(plain, "library", library_of("cublasLt"))
    for shape, other, sizes, count in (((3, 5, 7), (7, 4), (4, 15, 7), 1), ((3, 1, 7), (7, 4), (4, 3, 7), 1),
                                       ((5, 7), (3, 7, 4), (4, 5, 7), 3)):
        a, b = laid_out("plain", shape, "float32"), laid_out("plain", other, "float32")
        compare(multiplied(a, b), a, b, "float32")
        assert (calls_of(plain.library)[-1]["sizes"], calls_of(plain.library)[-1]["count"]) == (sizes, count)


def calls_of(library):
    return (library._lt if isinstance(library, CublasLt) else library._calls).calls


def test_a_result_that_lies_by_columns_is_written_there(plain):
    a, b = laid_out("plain", (3, 5, 7), "float32"), laid_out("plain", (3, 7, 4), "float32")
    out = multiplied(a, b, laid_out("transposed", (3, 5, 4), "float32"))
    assert out.strides[-2] == 4
    compare(out, a, b, "float32")
    with pytest.raises(AssertionError, match="neither the rows nor the columns"):
        multiplied(a, b, np.zeros((3, 10, 8), np.float32)[:, ::2, ::2])


def test_a_row_times_a_batch_as_numpy_has_it(plain):
    a, b = laid_out("plain", (1, 7), "float32")[0], laid_out("plain", (3, 7, 4), "float32")
    copies = [Copy(x) for x in (a, b, np.zeros((3, 4), np.float32))]
    gpu_linalg.CupyWithProducts.matmul(*(c.cupy() for c in copies))
    np.testing.assert_allclose(copies[2].array, a @ b, rtol=1e-5, atol=1e-6)


# -- bfloat16, TF32, what follows a product ---------------------------------------------------------------------------------


def row_major(array, columns):
    """As ``Problem`` has a contiguous matrix."""
    return Matrix(0, columns, 0, alignment(array.ctypes.data, 0))


@pytest.mark.parametrize("route", ROUTES)
def test_bfloat16_is_multiplied_and_summed_in_single(route, plain):
    a, b = narrowed(RNG.normal(size=(5, 64))), narrowed(RNG.normal(size=(64, 3)))
    out, library = np.zeros((5, 3), np.uint16), library_of(route)
    problem = Problem("bfloat16", 3, 5, 64, 1, row_major(b, 3), row_major(a, 64), row_major(out, 3))
    library.run(library.plan(problem), b.ctypes.data, a.ctypes.data, out.ctypes.data, 0)
    np.testing.assert_array_equal(out, narrowed(widened(a) @ widened(b)))
    assert (calls_of(library)[-1]["data"], calls_of(library)[-1]["compute"]) == (14, 68)


@pytest.fixture
def precise():
    yield
    gradcore.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("route", ROUTES)
def test_tf32_only_when_asked(route, plain, precise, monkeypatch):
    monkeypatch.setattr(plain, "library", library_of(route))
    a, b = laid_out("plain", (5, 7), "float32"), laid_out("plain", (7, 3), "float32")
    exact, coarse = a @ b, tf32(a) @ tf32(b)
    assert np.abs(exact - coarse).max() > 1e-4
    assert gradcore.get_float32_matmul_precision() == "highest"
    for precision, expected in (("highest", exact), ("high", coarse), ("medium", coarse), ("highest", exact)):
        gradcore.set_float32_matmul_precision(precision)
        np.testing.assert_allclose(multiplied(a, b), expected, rtol=1e-5, atol=1e-6)
        assert calls_of(plain.library)[-1]["compute"] == (68 if precision == "highest" else 77)
        for kind, compute in (("float64", 70), ("float16", 68)):
            multiplied(a.astype(kind), b.astype(kind))
            assert calls_of(plain.library)[-1]["compute"] == compute
    with pytest.raises(SpecError, match="expected one of highest, high, medium, but got 'low'"):
        gradcore.set_float32_matmul_precision("low")
    gradcore.backends.cuda.matmul.allow_tf32 = True
    assert gradcore.get_float32_matmul_precision() == "high"
    gradcore.backends.cuda.matmul.allow_tf32 = False
    assert gradcore.get_float32_matmul_precision() == "highest"
    assert gradcore.backends.cuda.matmul.allow_tf32 is False


def test_where_tf32_has_no_algorithm_single_precision_has(plain, precise, monkeypatch):
    monkeypatch.setattr(plain, "library", library_of("cublasLt"))
    plain.library._lt.without = {77}
    gradcore.set_float32_matmul_precision("high")
    a, b = laid_out("plain", (5, 7), "float32"), laid_out("plain", (7, 3), "float32")
    np.testing.assert_allclose(multiplied(a, b), a @ b, rtol=1e-5, atol=1e-6)
    assert calls_of(plain.library)[-1]["compute"] == 68


ROWS = (1, 6, 300)


def through_linear(kind, rows):
    """``linear`` and its gradients by the CUDA device's kernels, and NumPy's."""
    x, w, bias, dy = (RNG.normal(size=shape).astype(kind) for shape in ((rows, 5), (4, 5), (4,), (rows, 4)))
    copies = [Copy(a) for a in (x, w, bias, dy, np.zeros((rows, 4), kind), np.zeros((rows, 5), kind), np.zeros((4, 5), kind),
                                np.zeros(4, kind))]
    x_, w_, bias_, dy_, *outs = [c.cupy() for c in copies]
    linear(x_, w_, bias_, outs[0])
    linear_grad(dy_, x_, w_, *outs[1:], needs=(True, True, True))
    for copy in copies:
        copy.check("linear")
    x, w, bias, dy = (a.astype(np.float64) for a in (x, w, bias, dy))
    return [c.array for c in copies[4:]], [x @ w.T + bias, dy @ w, dy.T @ x, dy.sum(0)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", [*ROUTES, "cublasLt without epilogues"])
def test_linears_bias_and_its_gradient_follow_in_the_same_launch(route, kind, rows, plain, monkeypatch):
    monkeypatch.setattr(plain, "library", library_of(route.split()[0]))
    launches = []
    monkeypatch.setattr(gpu_launch, "launch", lambda *what: (launches.append(what[1]), plain.launch(*what)))
    if "without" in route:
        plain.library._lt.without = {Epilogue.BIAS, Epilogue.BGRADB}
    for found, expected in zip(*through_linear(kind, rows), strict=True):
        np.testing.assert_allclose(found, expected, rtol=20 * KINDS[kind], atol=rows ** 0.5 * 10 * KINDS[kind])
    fused = route == "cublasLt"
    assert [call.get("epilogue", 1) for call in calls_of(plain.library)] == ([4, 512, 1] if fused else [1, 1, 1])
    assert bool(launches) is not fused


#: The elements of a bias whose address is not a multiple of 16, and of one that lie apart.
AWKWARD = (slice(1, 5), slice(0, 8, 2))


def awkward_bias(taken):
    """``linear`` with a bias that no library takes: the result, and the expected one."""
    x, w, bias, out = (Copy(a) for a in (np.ones((6, 5), np.float32), np.ones((4, 5), np.float32),
                                         np.arange(8, dtype=np.float32)[taken], np.zeros((6, 4), np.float32)))
    linear(x.cupy(), w.cupy(), bias.cupy(), out.cupy())
    return out.array, np.broadcast_to(5 + bias.array, (6, 4))


@pytest.mark.parametrize("taken", AWKWARD)
def test_a_vector_that_lies_awkwardly_is_added_by_a_kernel_of_its_own(plain, taken):
    np.testing.assert_array_equal(*awkward_bias(taken))
    assert calls_of(plain.library)[-1]["epilogue"] == 1


# -- plans and workspaces ---------------------------------------------------------------------------------------------------


def test_a_product_is_planned_once_and_descriptors_go_with_their_plans(plain, monkeypatch):
    lt = FakeLt()
    monkeypatch.setattr(plain, "library", products(lt))
    a, b = laid_out("plain", (5, 7), "float32"), laid_out("plain", (7, 3), "float32")
    for _ in range(3):
        multiplied(a, b)
    assert (lt.planned, len(lt.calls)) == (1, 3)
    monkeypatch.setattr(gpu_gemm, "_MOST_PLANS", 2)
    for n in range(2, 12):
        multiplied(a, laid_out("plain", (7, n), "float32"))
        # The handle, and a descriptor with three layouts for each of two plans at most.
        assert len(lt.made) <= 1 + 2 * 4
    plain.library._plans.clear()
    assert [made["what"] for made in lt.made.values()] == ["handle"]


@pytest.mark.parametrize("k, offered, taken", [
    (64, [132, 16, 1, 8], 1), (256, [2, 1], 1), (128, [16, 8], 8), (7, [1, 2], 1),
    (512, [264, 33, 16], 16), (512, [264, 33], 33), (512, [32, 1], 32), (1024, [8, 1], 8), (1024, [65, 1], 1)])
def test_short_sums_are_not_split(plain, monkeypatch, k, offered, taken):
    lt = FakeLt()
    lt.offered = offered
    monkeypatch.setattr(plain, "library", products(lt))
    multiplied(laid_out("plain", (5, k), "float32"), laid_out("plain", (k, 3), "float32"))
    assert [call["shares"] for call in lt.calls] == [taken]


@pytest.mark.parametrize("call", ["matmul_algo_get_heuristic", "matmul_algo_check", "matmul_desc_create"])
def test_a_plan_that_fails_for_now_is_made_later(call, monkeypatch):
    """During a capture cuBLASLt of CUDA 13.3 finds no algorithm for anything (INTERNAL_ERROR)."""
    lt = FakeLt()
    library = products(lt)

    def fails(*arguments):
        raise lt.cuBLASLtError("CUBLAS_STATUS_INTERNAL_ERROR (14)", 14)

    problem = Problem("float32", 4, 5, 6, 1, *[Matrix(0, 8, 0, 256)] * 3, "relu_bias")
    with monkeypatch.context() as during:
        during.setattr(lt, call, fails)
        with pytest.raises(KernelError, match=r"could not plan a matrix product: CUBLAS_STATUS_INTERNAL_ERROR \(14\); with GR"):
            library.plan(problem)
    assert library.plan(problem) is not None
    library._plans.clear()
    assert [made["what"] for made in lt.made.values()] == ["handle"]


def test_a_stream_has_one_workspace_made_before_a_capture(plain, monkeypatch):
    reserved, stream, capturing = [], [7], [False]

    class Held:
        def __init__(self, nbytes):
            reserved.append(nbytes)
            self.ptr = 512 * len(reserved)

    library = CublasLt(FakeLt(lambda: False), 1 << 20, Held)
    monkeypatch.setattr(plain, "library", library)
    monkeypatch.setattr(gpu_gemm, "current_stream", lambda: stream[0])
    monkeypatch.setattr(gpu_workspaces.runtime, "streamIsCapturing", lambda handle: capturing[0])
    a, b = laid_out("plain", (5, 7), "float32"), laid_out("plain", (7, 3), "float32")
    multiplied(a, b)
    multiplied(b.T, a.T)
    assert reserved == [1 << 20]
    assert {(call["workspace"], call["stream"]) for call in calls_of(library)} == {(512, 7)}
    stream[0], capturing[0] = 8, True
    with pytest.raises(CaptureError, match=r"1,048,576 bytes\) was not allocated before the capture"):
        multiplied(a, b)
    capturing[0] = False
    library.workspaces.of(8)
    capturing[0] = True
    multiplied(a, b)
    assert calls_of(library)[-1]["workspace"] == 1024
    assert len(reserved) == 2
    library.workspaces.release()
    capturing[0] = False
    multiplied(a, b)
    assert len(reserved) == 3
