"""Recorded launches of a kernel: repeated on other arrays without its Python code, on an emulated GPU."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore  # noqa: E402
from gradcore.devices import precision  # noqa: E402
from gradcore.devices.gpu import again as gpu_again  # noqa: E402
from gradcore.devices.gpu import device as gpu  # noqa: E402
from gradcore.devices.gpu import gemm as gpu_gemm  # noqa: E402
from gradcore.devices.gpu import launch as gpu_launch  # noqa: E402
from gradcore.devices.gpu.again import again  # noqa: E402
from gradcore.devices.gpu.kernels import KERNELS  # noqa: E402
from gradcore.devices.gpu.kernels import attention as gpu_attention  # noqa: E402
from gradcore.devices.gpu.kernels.linalg import product  # noqa: E402
from gradcore.devices.gpu.problems import COMPUTE_32F, COMPUTE_32F_FAST_TF32  # noqa: E402
from gradcore.errors import KernelError  # noqa: E402
from tests.host.cuda import emulator as emulation  # noqa: E402
from tests.host.cuda.captured_steps import KINDS, Training  # noqa: E402
from tests.host.cuda.cuda_rows import OWN, Both, calls, flat  # noqa: E402
from tests.host.cuda.emulator import Emulator, reach_of, view_of  # noqa: E402

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]


class Elsewhere(Both):
    """A CPU device with the CUDA device's kernels: their launches are recorded on some copies of the operands, and compared
    with their launches on others."""

    def __init__(self, emulator):
        super().__init__(emulator)
        self.given = []
        self.alone = []

    def both(self, name, kernel):
        def run(*values, **attrs):
            ran = []

            def ours(*arrays):
                ran.append(name)
                OWN[name](*regrouped(values, arrays), **attrs)

            written_out = again(ours)
            for _ in range(3):
                arrays = [moved(v) if isinstance(v, np.ndarray) else v for v in flat(values)]
                assert self.noted(written_out, arrays) == self.noted(ours, arrays)
            # Each time to compare, the first time, and twice on arrays without memory.
            self.alone += [name] * (len(ran) != 3 + 1 + 2)
            self.compared.append(name)

        return run

    def noted(self, kernel, arrays):
        """The arguments that a kernel passes to the device, by value."""
        self.given.clear()
        self.emulator.library._lt.calls.clear()
        kernel(*arrays)
        return [*self.given], [*self.emulator.library._lt.calls]


def moved(array):
    """An array like this one in other memory, at the same offset modulo 512 bytes, as in a block of the pool."""
    below, above = reach_of(array)
    held = np.zeros(below + above + 1024, np.uint8)
    start = below + (array.ctypes.data - below - held.ctypes.data) % 512
    return view_of(np.ndarray(array.shape, array.dtype, held, start, array.strides), held)


def regrouped(values, arrays):
    left = iter(arrays)
    return [[next(left) for _ in v] if isinstance(v, (list, tuple)) else next(left) for v in values]


@pytest.fixture
def elsewhere(tmp_path):
    emulator = Emulator(tmp_path)
    # Undone before the emulator's own patches, unlike those of the fixture monkeypatch.
    with emulator.in_place(), pytest.MonkeyPatch.context() as patch:
        found = Elsewhere(emulator)
        patch.setattr(gpu_launch, "launch", lambda *what: found.given.append(
            (*what[:4], [emulation._as_bytes(a).tobytes() for a in what[4]])))
        patch.setattr(gpu_launch, "clear", lambda pointer, nbytes: found.given.append((pointer.ptr, nbytes)))
        yield found


def test_what_is_written_out_is_what_every_kernel_launches(elsewhere):
    for row, dtype in calls():
        assert row.op in elsewhere.run(row, dtype)
    # Optimizers of too many tensors, and kernels that use CuPy.
    assert set(elsewhere.alone) == set(), Counter(elsewhere.alone)


# -- what might be taken for the same --------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch):
    """Arguments of launches, without a GPU; arrays by address."""
    found = []
    monkeypatch.setattr(gpu_launch, "launch", lambda *what: found.append(
        tuple([getattr(getattr(a, "data", None), "ptr", a) for a in what[-1]])))
    return found


class Scaled:
    """A kernel of one launch, which counts how often its Python runs."""

    def __init__(self):
        self.ran = 0

    def __call__(self, x, factor, out):
        self.ran += 1
        gpu_launch.run("elementwise", "scaled", (x.dtype,), x.size, x, np.float64(factor), out)


def arrays(count, place=0):
    """Arrays whose addresses are ``place`` modulo 512."""
    held = [np.zeros(1024, np.uint8) for _ in range(count)]
    return [view_of(np.ndarray(4, np.float32, h, (place - h.ctypes.data) % 512), h) for h in held]


def test_the_python_runs_once_and_then_twice_over_nothing(launched):
    scaled = Scaled()
    kernel = again(scaled)
    for k in range(6):
        x, out = arrays(2)
        kernel(x, 2.0, out)
        assert launched[-1] == (x.data.ptr, 2.0, out.data.ptr) and len(launched) == k + 1
    assert scaled.ran == 3 and kernel.__wrapped__ is scaled


def test_another_number_is_another_launch(launched):
    scaled, (x, out) = Scaled(), arrays(2)
    kernel = again(scaled)
    for factor in (2.0, 2, 3.0, 0.0, -0.0, True, 1) * 4:
        kernel(x, factor, out)
        assert launched[-1] == (x.data.ptr, factor, out.data.ptr)
        assert np.signbit(launched[-1][1]) == np.signbit(float(factor))
    assert scaled.ran == 7 * 3


def test_numbers_that_never_come_back_are_forgotten(launched):
    scaled, (x, out) = Scaled(), arrays(2)
    kernel = again(scaled)
    for factor in range(200):
        kernel(x, factor, out)
    assert scaled.ran == len(launched) == 200
    assert [given[1] for given in launched] == list(range(200))


def test_what_is_left_out_is_another_launch(launched):
    """Two batch norms of a replay share a kernel: one passes relu's result, the other the bias for recomputing it."""
    def kernel(x, bias, shown):
        gpu_launch.run("elementwise", "either", (x.dtype,), x.size, x, bias, shown)

    kernel = again(kernel)
    for _ in range(4):
        x, y = arrays(2)
        kernel(x, y, None)
        assert launched[-1] == (x.data.ptr, y.data.ptr, None)
        kernel(x, None, y)
        assert launched[-1] == (x.data.ptr, None, y.data.ptr)


def test_another_place_is_another_launch(launched):
    def kernel(x, out):
        ran.append(gpu_launch.packed(x, out))
        gpu_launch.run("elementwise", f"moved_by_{16 if ran[-1] else 4}", (x.dtype,), x.size, x, out)

    ran = []
    moving = again(kernel)
    for place in (0, 4, 16) * 3:
        x, out = *arrays(1, place), *arrays(1)
        moving(x, out)
        assert launched[-1] == (x.data.ptr, out.data.ptr)
    assert len(ran) == 9 and ran.count(False) == 3


def test_arguments_that_change_in_place_are_asked_each_time(launched):
    class Moving:
        value = 1.0

        def __float__(self):
            return self.value

    scaled, (x, out), number = Scaled(), arrays(2), Moving()
    kernel = again(scaled)
    for k in range(4):
        number.value = float(k)
        kernel(x, number, out)
        assert launched[-1][1] == k
    assert scaled.ran == 4


def test_what_cupy_launches_is_not_written_out(launched, monkeypatch):
    """Attention of wide heads would launch CuPy's own kernels on arrays without memory."""
    ran = []

    def over_cupy(q, *others, causal, scale):
        ran.append(gpu_launch.noted.tape)
        gpu_launch.run("elementwise", "half_of_it", (q.dtype,), q.size, q)

    monkeypatch.setitem(gpu_attention._WIDER, "attention", over_cupy)
    monkeypatch.setattr(gpu_attention, "on_stream", nullcontext)
    wide = again(partial(KERNELS["attention"], causal=True, scale=1.0))
    for _ in range(5):
        held = np.zeros(1 << 12, np.uint8)
        q = view_of(np.ndarray((1, 1, 2, 160), np.float32, held, -held.ctypes.data % 512), held)
        wide(q, q, q, None, None, None, q, q, q)
    assert ran == [None] * 5 and len(launched) == 5 and gpu_launch.noted.tape is None


@pytest.mark.parametrize("argument", [lambda x: np.uint64(x.data.ptr // 2), lambda x: np.array((1, x.data.ptr), "i4, i8"),
                                      lambda x: np.float32(x.data.ptr)], ids=["half an address", "not in its place", "rounded"])
def test_what_is_made_of_addresses_is_not_written_out(launched, argument):
    ran = []

    def kernel(x):
        ran.append(x)
        gpu_launch.run("elementwise", "odd", (x.dtype,), x.size, argument(x))

    odd = again(kernel)
    for _ in range(4):
        x, = arrays(1)
        odd(x)
        assert launched[-1] == (argument(x),)


def test_what_takes_memory_of_cupys_is_not_written_out(bed, launched):
    """It would launch a kernel on arrays without memory."""
    taken = []

    def kernel(x):
        taken.append(bed.device.bridge.allocate(512))
        gpu_launch.run("elementwise", "copied", (x.dtype,), x.size, x)

    bed.device.bridge.strict = False
    copying = again(kernel)
    for _ in range(5):
        copying(*arrays(1))
    assert len(taken) == len(launched) == 5


def test_overlap_is_looked_for_each_time(launched):
    kernel = again(OWN["add_"])
    held = np.zeros(4096, np.uint8)
    start = -held.ctypes.data % 512
    x, apart, over = (view_of(np.ndarray(256, np.float32, held, start + at), held) for at in (0, 2048, 512))
    for _ in range(3):
        kernel(x, apart)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            kernel(x, over)
    assert len(launched) == 3


def test_another_precision_of_products_is_another_product(elsewhere, monkeypatch):
    monkeypatch.setattr(precision, "_chosen", "highest")
    ran, library = [], elsewhere.emulator.library._lt

    def kernel(*given):
        ran.append(precision.get_float32_matmul_precision())
        product(*given)

    multiplied = again(kernel)
    computed = []
    for chosen in ("highest", "high", "highest"):
        gradcore.set_float32_matmul_precision(chosen)
        for _ in range(4):
            multiplied(*[moved(np.zeros((8, 8), np.float32)) for _ in range(3)])
            computed.append(library.calls[-1]["compute"])
    assert computed == [COMPUTE_32F] * 4 + [COMPUTE_32F_FAST_TF32] * 4 + [COMPUTE_32F] * 4


def test_a_launch_that_fails_is_tried_again(monkeypatch):
    failing, made = [True], []

    def launch(family, instance, *rest):
        if failing:
            raise KernelError(f"kernel {instance} of {family}.cu cannot be launched")
        made.append(rest[-1])

    monkeypatch.setattr(gpu_launch, "launch", launch)
    kernel = again(Scaled())
    for fails in (True, True, True, False, False, True, False):
        failing[:] = [True] * fails
        if fails:
            with pytest.raises(KernelError, match=r"scaled<float> of elementwise\.cu"):
                kernel(*arrays(1), 1.0, *arrays(1))
        else:
            kernel(*arrays(1), 1.0, *arrays(1))
    assert len(made) == 3 and gpu_launch.noted.tape is None


def test_a_trial_of_a_plan_is_no_part_of_what_is_written_out():
    """A plan that the library tries on the device is tried on allocated memory."""
    gpu_launch.noted.tape = []
    try:
        with pytest.raises(gpu_launch.Unnoted):
            gpu_gemm.CublasLt.exact(SimpleNamespace(), SimpleNamespace(exact=None, kind="float32"), 1, 2, 3, 4)
        assert gpu_gemm.CublasLt.exact(SimpleNamespace(), SimpleNamespace(exact=True), 1, 2, 3, 4)
    finally:
        gpu_launch.noted.tape = None


# -- whole steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "settings"), KINDS[:2], ids=lambda x: x if isinstance(x, str) else "")
def test_steps_written_out_have_the_same_bits(bed, monkeypatch, kind, settings):
    runs, wrap = Counter(), gpu.Bridge.wrap

    def counting(bridge, op, kernel):
        inner = wrap(bridge, op, kernel)
        return lambda *given: (runs.update([op]), inner(*given))

    monkeypatch.setattr(gpu.Bridge, "wrap", counting)
    monkeypatch.setattr(gpu, "again", lambda kernel, any_strides: kernel)
    bed.device.calls.clear()
    plain = Training(kind, **settings)
    expected = [(plain.step(k), plain.state()) for k in range(7)]
    every = Counter(runs)
    monkeypatch.setattr(gpu, "again", gpu_again.again)
    bed.device.calls.clear()
    del plain
    runs.clear()
    found = Training(kind, **settings)
    for k in range(7):
        if k == 3:
            runs.clear()
        assert (found.step(k), found.state()) == expected[k]
    # Uploads of new batches and seeds get new addresses, and the schedule changes the rate.
    assert runs["linear"] == runs["linear_grad"] == runs["tanh"] == 0 and every["linear"] == 14, runs
