"""The CUDA kernels compared with NumPy's without a GPU: every sample call runs with both, on the same values.

The device's own Python code picks instances, layouts and grids; the C++ runs on the CPU, thread by thread, in two orders.
"""

from __future__ import annotations

import itertools
import math
import shutil
import warnings
from functools import partial

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore.devices import precision
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu.kernels import elementwise as gpu_elementwise
from gradcore.devices.gpu.kernels import optimizers as gpu_optimizers
from gradcore.devices.host.device import host_table
from gradcore.ops import all_ops
from tests.host.cuda.cuda_rows import OWN, Both, calls, emulate, views
from tests.host.cuda.emulator import Copy
from tests.host.cuda.fake_cublas import narrowed, widened
from tests.host.ops.test_factors import check as check_factors
from tests.rows import Operand

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              # The first test compiles every kernel.
              pytest.mark.timeout(1200), pytest.mark.xdist_group("emulator")]

CALLS = calls()


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    emulator = emulate(tmp_path_factory.mktemp("emulator"))
    with emulator.in_place():
        yield emulator


@pytest.fixture(scope="module")
def both(emulated):
    return Both(emulated)


@pytest.mark.parametrize(("row", "dtype"), CALLS, ids=[f"{row}-{np.dtype(dtype).name}" for row, dtype in CALLS])
def test_cuda_kernels_agree_with_numpys(both, row, dtype):
    assert row.op in both.run(row, dtype, max(row.tolerance / 1e-5, 1))


@pytest.mark.parametrize("name", sorted(OWN))
def test_inputs_may_lie_anywhere(emulated, name):
    both = Both(emulated, off=True)
    for row in views():
        if row.op == name:
            both.run(row, np.float32, max(row.tolerance / 1e-5, 1))


#: Ops whose kernels treat NaN and infinity as NumPy's do not, and why.
NOT_NUMPYS = {
    **dict.fromkeys(("chance", "sampling_weights", "bce"), "the CPU refuses probabilities that are none"),
    **dict.fromkeys(("poisson", "binomial"), "the CPU refuses rates, counts and probabilities that are none"),
    **dict.fromkeys(("slogdet", "det", "inv", "solve", "cholesky"), "the CPU refuses some matrices, and has other pivots"),
    **dict.fromkeys(("eigh", "svd", "qr", "pinv"), "LAPACK refuses some of these matrices"),
    **dict.fromkeys(("conv2d_input_grad", "conv2d_weight_grad"), "0 times infinity where a window reaches over an edge"),
    **dict.fromkeys(("attention", "attention_grad"), "what is masked is not read, or counts as -inf"),
    "ctc_loss_grad": "the CPU reads columns that no label has, where alpha is -inf",
    "group_norm_grad": "a row of two is padded with its mean, and no row with an infinite mean has an rstd that is not NaN",
    "recurrence": "the factors of several elements are multiplied first"}


@pytest.mark.parametrize("name", sorted(OWN.keys() - NOT_NUMPYS))
def test_nan_and_infinity_come_out_where_numpys_do(emulated, monkeypatch, name):
    usual, both = Operand.values, Both(emulated, orders=(False,))

    def values(self, rng, dtype):
        array = usual(self, rng, dtype)
        if self.kind == "float" and array.size > 8:
            some = np.random.default_rng(array.size).random(array.shape) < 0.15
            array[some] = np.resize((np.nan, np.inf, -np.inf, -0.0, 0.0), some.sum())
        return array

    monkeypatch.setattr(Operand, "values", values)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row in views():
            if row.op == name:
                both.run(row, np.float32, max(row.tolerance / 1e-5, 10))


def test_an_update_without_decay_keeps_infinite_parameters(both):
    """0 times an infinite parameter would be NaN, in the gradient and in what the optimizer keeps."""
    for name, optimizer in (("sgd_", partial(gradcore.optim.SGD, momentum=0.9)), ("adam_", gradcore.optim.Adam),
                            ("rmsprop_", gradcore.optim.RMSprop), ("radam_", gradcore.optim.RAdam)):
        p = gradcore.tensor([math.inf, -math.inf, 1.0], device=both.device, requires_grad=True)
        p.grad = gradcore.tensor([1.0, 1.0, -1.0], device=both.device)
        both.compared = []
        optimizer([p], lr=0.1).step()
        assert both.compared[-1] == name
        assert p.tolist()[:2] == [math.inf, -math.inf]


def test_the_largest_numbers_are_factored(both):
    """The power of two that scales them is subnormal, which counts as 0 on a GPU, and the sum of a row is infinite."""
    check_factors("the largest numbers", both.device)


def test_every_declared_input_gives_its_place_to_a_result(emulated):
    both = Both(emulated)
    for row, dtype in CALLS:
        if any((row.op, name) not in both.aliased for name in row.declared.may_alias):
            both.run(row, dtype, max(row.tolerance / 1e-5, 1))
    assert both.aliased == {(name, place) for name, op in all_ops().items() for place in op.may_alias}


@pytest.mark.parametrize("name, place", [("flip", "x"), ("roll", "x")])
def test_a_wrong_declaration_is_seen(both, monkeypatch, name, place):
    monkeypatch.setattr(all_ops()[name], "may_alias", (place,))
    with pytest.raises(AssertionError, match=f"{name} cannot be written over {place}"):
        for row, dtype in CALLS:
            if row.op == name and dtype == np.float32:
                both.run(row, dtype, max(row.tolerance / 1e-5, 1))


def test_every_op_has_a_kernel():
    assert [name for name, op in all_ops().items() if name not in OWN and not op.view] == []


def test_every_kernel_of_our_own_has_a_row():
    assert {row.op for row, _ in CALLS} == set(OWN)


@pytest.mark.parametrize("name, writes, attrs", [
    ("take", False, {"dim": 0, "wrap": False}), ("take_along", False, {"dim": 0, "wrap": False}),
    ("embedding", False, {"padding": None}), ("put_", True, {"dim": 0, "wrap": False}),
    ("add_at_", True, {"dim": 0, "wrap": False}), ("put_along_", True, {"dim": 0})])
@pytest.mark.parametrize("outside", [-1, 3])  # as is the length
def test_a_negative_position_is_outside_where_it_does_not_count_from_the_end(emulated, name, writes, attrs, outside):
    x, index = np.arange(1, 7, dtype=np.float32).reshape(3, 2), np.array([[outside, 1], [2, 0]])
    index = index if "along" in name else index[:, 0].copy()
    out = np.zeros((*index.shape, *x.shape[1:])[:2], np.float32)
    rest = [np.full(out.shape, 9, np.float32) if writes else out]
    rest += [np.empty(64, np.uint8)] * (name in ("take", "embedding", "put_"))
    copies = [Copy(a) for a in (x, index, *rest)]
    OWN[name](*[c.cupy() for c in copies], **attrs)
    expected = {"put_": [[1, 2], [3, 4], [9, 9]], "add_at_": [[1, 2], [3, 4], [14, 15]], "put_along_": [[1, 9], [3, 9], [9, 6]],
                "take_along": [[math.nan, 4], [5, 2]]}.get(name, [[math.nan, math.nan], [5, 6]])
    np.testing.assert_array_equal(copies[0 if writes else 2].array, expected)


@pytest.mark.parametrize("dtype, largest", [("float32", True), ("float32", False), ("float64", True), ("float16", True)])
def test_an_extreme_at_a_position_has_the_same_bits_whatever_comes_first(emulated, dtype, largest):
    """Zeros of both signs are equal, so that each would leave the other where it is."""
    values = np.array([0.0, -0.0, -1.0, 1e-40, 2e-40] if largest else [0.0, -0.0, 1.0, 1e-40, -2e-40], dtype)
    for some in itertools.permutations(values.tolist(), 3):
        found = []
        for emulated.falling in (False, True):
            copies = [Copy(a) for a in (np.full(1, -np.inf if largest else np.inf, dtype), np.zeros(3, np.int64),
                                        np.array(some, dtype))]
            OWN["extreme_along_"](*[c.cupy() for c in copies], dim=0, largest=largest)
            found.append(copies[0].array)
        assert found[0].tobytes() == found[1].tobytes(), some
        expected = sorted(some, key=lambda x: (x, math.copysign(1, x)))[-1 if largest else 0]
        assert found[0].tobytes() == np.array([expected], dtype).tobytes(), some


# -- what no op launches yet ---------------------------------------------------------------------------------------------


def launch(emulator, family, name, blocks, *arguments):
    """Run a kernel on copies of the arrays, and return the copies."""
    copies = [Copy(a) if isinstance(a, np.ndarray) and a.dtype.names is None else a for a in arguments]
    emulator.launch(family, name, blocks, 256, tuple(c.cupy() if isinstance(c, Copy) else c for c in copies))
    for copy in copies:
        if isinstance(copy, Copy):
            copy.check(name)
    return [c.array for c in copies if isinstance(c, Copy)]


RNG = np.random.default_rng(5)
X, Y = (RNG.normal(size=(37, 40)).astype(np.float32) for _ in range(2))


def test_bfloat16_rounds_to_nearest_and_computes_in_single(emulated):
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 3e38, 1e-40], np.float32)
    out = launch(emulated, "elementwise", "map_strided<Copy, float, 1, bfloat, const float*>", 1, np.int64(9),
                 gpu_launch.axes((9,), (1,), (1,)), np.zeros(9, np.uint16), special)[0]
    assert np.isnan(widened(out)[0])
    np.testing.assert_array_equal(out[1:], narrowed(special)[1:])
    a, b = narrowed(X), narrowed(Y)
    out = launch(emulated, "elementwise", "map<Add, float, 8, bfloat, const bfloat*, const bfloat*>", 1, np.int64(X.size),
                 np.zeros(X.shape, np.uint16), a, b)[0]
    np.testing.assert_array_equal(out, narrowed(widened(a) + widened(b)))
    where = gpu_launch.layout((1,), a, a)
    out = launch(emulated, "softmax", "softmax<bfloat, false, 8>", 5, a, np.zeros_like(a), where, np.int32(32))[1]
    e = np.exp(widened(a) - widened(a).max(1, keepdims=True))
    np.testing.assert_allclose(widened(out), e / e.sum(1, keepdims=True), rtol=2**-8)
    where = gpu_launch.layout_of(a.shape, (1,), (40, 1), (1, 0))
    out = launch(emulated, "reduce", "fold<Sum, bfloat, bfloat>", 5, a, np.zeros(37, np.uint16), where, np.float64(1),
                 np.float64(0), None, np.int32(32))[1]
    np.testing.assert_allclose(widened(out), widened(a).sum(1), rtol=2**-8, atol=1e-5)
    zeros, numbers = np.zeros_like(X), (np.zeros(37, np.float32) for _ in range(2))
    ones = narrowed(np.ones(40))
    out = launch(emulated, "norm", "layer_norm<bfloat, 8>", 5, a, ones, narrowed(zeros[0]), np.zeros_like(a), *numbers,
                 np.int64(37), np.int64(40), np.float64(0), None, None, np.int64(0), np.int64(0), np.int32(32))[3]
    x = widened(a)
    np.testing.assert_allclose(widened(out), (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("names, width", [("Gelu, GeluGrad", 4), ("GeluTanh, GeluTanhGrad", 1)])
def test_gelu_and_its_gradient_in_one_pass(emulated, names, width):
    # The last access is partial.
    x, dy = X.reshape(-1)[:1478], Y.reshape(-1)[:1478]
    out, slopes, _ = launch(emulated, "elementwise", f"with_slopes<{names}, float, {width}, float>", 2, np.int64(x.size),
                            np.zeros_like(x), dy, x)
    table, room, tanh = host_table(), np.zeros(8 * x.nbytes, np.uint8), "Tanh" in names
    expected = np.zeros_like(x), np.zeros_like(x)
    table["gelu"](x.copy(), expected[0], room, tanh=tanh)
    table["gelu_grad"](dy.copy(), x.copy(), expected[1], room, tanh=tanh)
    np.testing.assert_allclose(out, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes, expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", ["Relu", "Gelu"])
def test_a_bias_and_its_activation_in_one_pass(emulated, function):
    out = np.zeros_like(X)
    row = Copy(Y[0])
    repeated = np.array((row.array.ctypes.data, 40), np.dtype([("of", "u8"), ("width", "i8")]))
    out = launch(emulated, "elementwise", f"map<Then<{function}, Add>, float, 4, float, const float*, Row<float>>", 2,
                 np.int64(X.size), out, X, repeated)[0]
    z = X + Y[0]
    expected = np.maximum(z, 0) if function == "Relu" else z * 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["half", "bfloat"])
def test_adam_keeps_two_bytes_and_computes_in_four(emulated, kind):
    store, read = (lambda x: x.astype(np.float16), lambda x: x.astype(np.float32)) if kind == "half" else (narrowed, widened)
    copies = [Copy(store(a.reshape(-1))) for a in (X, Y, X * 0.5, Y * Y)]
    group = np.zeros((), gpu_optimizers.GROUP)
    group["count"], group["chunk"] = 1, X.size
    group["sizes"][0] = X.size
    group["tensors"][:4, 0] = [c.array.ctypes.data for c in copies]
    how = np.array((0.1, 0.5, 1.5, 0.9, 0.99, 1e-3, 0.01, 1, 0), gpu_optimizers.ADAM)
    p, g, m, v = (read(c.array) for c in copies)
    emulated.launch("optim", f"step<AdamOf<false>, {kind}>", 1, 256, (group, how, None, None, np.int32(0)))
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    p = p * (1 - 0.001) - 0.2 * m / (np.sqrt(v) * 1.5 + 1e-3)
    for copy, expected in zip(copies, (p, g, m, v), strict=True):
        copy.check("adam")
        np.testing.assert_allclose(read(copy.array), expected, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("outputs", [20, 70])
def test_convolutions_take_tf32_only_when_asked(emulated, monkeypatch, outputs):
    monkeypatch.setattr(precision, "_chosen", "highest")
    monkeypatch.setattr(precision, "_in_convolutions", True)
    random = np.random.default_rng(0)
    x, weight, dy = (random.standard_normal(shape, np.float32)
                     for shape in ((2, 12, 7, 9), (outputs, 12, 3, 3), (2, outputs, 7, 9)))
    how = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    calls = (("conv2d", (x, weight, None), {}, dy.shape), ("conv2d_input_grad", (dy, weight), {"shape": x.shape}, x.shape),
             ("conv2d_weight_grad", (dy, x), {"shape": weight.shape}, weight.shape))

    def computed(cupy, name, operands, attrs, shape, change=lambda a: a):
        out = np.zeros(shape, np.float32)
        operands = [None if a is None else change(a) for a in operands]
        if not cupy:
            host_table()[name](*operands, out, np.zeros(1 << 20, np.uint8), **attrs, **how)
            return out
        copies = [a if a is None else Copy(a).cupy() for a in operands]
        result = Copy(out)
        OWN[name](*copies, result.cupy(), Copy(np.zeros(1 << 20, np.uint8)).cupy(), **attrs, **how)
        return result.array

    def nearest(a):
        """Ten bits of mantissa beside the leading one, to nearest."""
        return ((a.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)

    for call in calls:
        exact, coarse = computed(False, *call), computed(False, *call, change=nearest)
        assert np.abs(exact - coarse).max() > 1e-4
        for chosen, allowed, expected in (("highest", True, exact), ("high", True, coarse), ("high", False, exact),
                                          ("medium", True, coarse)):
            gradcore.set_float32_matmul_precision(chosen)
            gradcore.backends.cudnn.allow_tf32 = allowed
            assert gradcore.backends.cudnn.allow_tf32 is allowed
            np.testing.assert_allclose(computed(True, *call), expected, rtol=2e-5, atol=2e-5,
                                       err_msg=f"{call[0]} {chosen} {allowed}")
            if call[0] == "conv2d_weight_grad":
                slopes, bias = (Copy(np.zeros(size, np.float32)) for size in (weight.shape, outputs))
                OWN[call[0]](*(Copy(a).cupy() for a in (dy, x)), slopes.cupy(), bias.cupy(),
                             Copy(np.zeros(1 << 20, np.uint8)).cupy(), shape=weight.shape, bias=True, **how)
                np.testing.assert_allclose(slopes.array, expected, rtol=2e-5, atol=2e-5)
                np.testing.assert_allclose(bias.array, dy.sum((0, 2, 3)), rtol=2e-5, atol=2e-5)


def test_convolutions_in_double_precision_take_no_tf32(both, monkeypatch):
    monkeypatch.setattr(precision, "_chosen", "high")
    for row in [row for row, dtype in CALLS if row.op.startswith("conv2d") and dtype == np.float64]:
        both.run(row, np.float64, max(row.tolerance / 1e-5, 1))


def test_attention_over_rows_whose_elements_lie_apart(both):
    given = gradcore.tensor(np.random.default_rng(0).normal(size=(3, 1, 2, 5, 16)).astype(np.float32), device=both.device)
    both.compared, both.relaxed = [], 10
    gradcore.nn.functional.scaled_dot_product_attention(*(x[..., ::2] for x in given))
    assert both.compared == ["attention"]


def test_a_write_that_reads_what_it_writes_is_refused():
    x = Copy(np.arange(12, dtype=np.float32)).cupy()
    for write in (OWN["add_"], OWN["copy_"]):
        with pytest.raises(RuntimeError, match=r"single memory location. Please clone\(\)"):
            write(x[1:], x[:-1])
    matrix = Copy(np.zeros((6, 4), np.float32)).cupy()
    for written, read in ((matrix[:, :3], matrix[:, 2:3]), (matrix, matrix[2:3]), (matrix[:, ::-1], matrix[:, 1:2])):
        with pytest.raises(RuntimeError, match="single memory location"):
            OWN["add_"](written, read)
    with pytest.raises(NotImplementedError, match="no instance for complex64: expected one of float32"):
        gpu_launch.name_of(np.complex64)
    with pytest.raises(NotImplementedError, match="8 dimensions that cannot be merged, but got 9"):
        gpu_launch.axes((2,) * 9, [3 ** k for k in range(9)])


def test_columns_of_one_matrix_may_be_written_from_each_other(emulated):
    matrix = np.arange(24, dtype=np.float32).reshape(6, 4)
    copy = Copy(matrix)
    whole = copy.cupy()
    OWN["add_"](whole[:, 1:3], whole[:, 3:4])
    np.testing.assert_array_equal(copy.array[:, 1:3], matrix[:, 1:3] + matrix[:, 3:4])
    OWN["copy_"](whole[:, 0], whole[:, 3])
    np.testing.assert_array_equal(copy.array[:, 0], matrix[:, 3])
    line = whole.reshape(-1)
    pairs = line[:18].reshape(3, 3, 2)
    for turned in (pairs[..., 1], pairs[..., 1].T):
        gpu_elementwise.check_apart(pairs[..., 0], turned)
    gpu_elementwise.check_apart(whole[:, ::2], whole[:, 1::2])
    # Records with fields of several dtypes.
    gpu_elementwise.check_apart(whole[:, 2:], whole.view(np.int16)[:, 1:4])
    with pytest.raises(RuntimeError, match="single memory location"):
        gpu_elementwise.check_apart(pairs[..., 1], pairs[..., 1].T)
    gpu_elementwise.check_apart(line[::2], line[3].reshape(()))
    gpu_elementwise.check_apart(line[3].reshape(()), 1.0)
