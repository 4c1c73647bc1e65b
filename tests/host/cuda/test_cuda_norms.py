"""Norms fused with the next instruction, emulated: the bits of separate launches, and the number of launches."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from bench.launches import noting
from gradcore.devices.gpu import kernels as gpu_kernels
from gradcore.devices.gpu.kernels.norms import meeting_first
from gradcore.devices.gpu.launch import SHARED, columns_of
from gradcore.dtypes import bfloat16
from gradcore.ops.op import get_op
from gradcore.spec import TensorSpec
from tests.host.cuda.emulator import Copy, Emulator

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

TABLE = gpu_kernels.KERNELS
DTYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), bfloat16()]
#: One block per channel, several that combine their results themselves, and separate launches to combine them.
IMAGES = [(2, 3, 5, 7), (9, 4), (9, 40), (2, 3, 43, 61), (2, 1, 33800), (8001, 33)]
#: Rows for a warp, for a block, and more rows than the workspace has room for.
ROWS = [(9, 33), (1, 5), (70, 300), (5, 1025), (260, 1025)]


def normal(seed: int, dtype: Any, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def statistics(dtype: Any, *shape: int) -> list[Any]:
    """A mean and an rstd, which are in float32 beside floats of 16 bits."""
    return [normal(seed, np.float32 if dtype.itemsize == 2 else dtype, *shape) for seed in (4, 5)]


def room(name: str, *values: Any, **attrs: Any) -> Any:
    """The workspace that an op declares, filled with NaN."""
    specs = [None if v is None else TensorSpec.of(v.shape, v.dtype) for v in values]
    return np.full(get_op(name).infer(*specs, **attrs).workspace, 0xff, np.uint8)


def made(name: str, *values: Any, more: tuple[Any, ...] = (), **attrs: Any) -> list[Any]:
    """Run a kernel on copies of the arrays, and return the copies."""
    copies = [Copy(v) if isinstance(v, np.ndarray) else v for v in (*values, *more)]
    TABLE[name](*[c.cupy() if isinstance(c, Copy) else c for c in copies], **attrs)
    for copy in copies:
        if isinstance(copy, Copy):
            copy.check(name)
    return [None if c is None else c.array if isinstance(c, Copy) else c for c in copies]


def channels(shape: tuple[int, ...], dtype: Any, own: Any = None) -> list[Any]:
    """An input with NaN in the last of several channels, and the operands per channel, in another dtype if that is given."""
    x = normal(1, dtype, *shape)
    if shape[1] > 1:
        x[0, -1] = np.nan
    weight = normal(2, dtype, shape[1])
    # In half precision the results are rounded to zeros of both signs.
    weight[0] = 1e-9
    bias = normal(3, dtype, shape[1])
    bias[0] = 0
    return [x, weight.astype(own or dtype), bias.astype(own or dtype)]


def batch_norm(shape: tuple[int, ...], dtype: Any, own: Any = None) -> tuple[list[Any], list[Any]]:
    """Batch norm and relu, separate and fused."""
    given = channels(shape, dtype, own)
    running = [normal(k, dtype, shape[1]).astype(own or dtype) for k in (4, 5)]
    how = {"momentum": 0.1, "eps": 1e-5}
    results = [np.zeros_like(given[0]), *statistics(dtype, shape[1])]
    workspace = room("batch_norm", *given, *running, **how)
    count = np.array(41)
    apart = made("batch_norm", *given, *running, *results, workspace, **how)
    apart[5] = made("relu", apart[5], results[0])[1]
    together = made("batch_norm", *given, *running, *results, workspace, more=(True, count), **how)
    return [*apart[:8], np.array(42)], [*together[:8], together[-1]]


def batch_norm_apply(shape: tuple[int, ...], dtype: Any, own: Any = None) -> tuple[list[Any], list[Any]]:
    """The map, relu, and its gradient."""
    given = [*channels(shape, dtype, own), *statistics(dtype, shape[1])]
    out, dy, workspace = np.zeros_like(given[0]), normal(6, dtype, *shape), room("batch_norm_apply", *given)
    relu = made("relu", made("batch_norm_apply", *given, out, workspace)[5], out)[1]
    slopes = made("relu_grad", dy, relu, out)[2]
    return [relu, slopes], [made("batch_norm_apply", *given, out, workspace, more=more)[5] for more in ((True,), (True, dy))]


def batch_norm_grad(shape: tuple[int, ...], dtype: Any, own: Any = None) -> tuple[list[Any], list[Any]]:
    """The gradients of relu, recomputed or kept, and of batch norm; dx is separate, or overwrites the cotangent."""
    x, weight, bias = channels(shape, dtype, own)
    (mean, rstd), dy = statistics(dtype, shape[1]), normal(6, dtype, *shape)
    how = {"needs": (True, True, True)}
    workspace, out = room("batch_norm_grad", dy, x, weight, mean, rstd, **how), np.zeros_like(x)
    shown = made("relu", made("batch_norm_apply", x, weight, bias, mean, rstd, out, workspace)[5], out)[1]
    slopes = made("relu_grad", dy, shown, out)[2]
    results = [out, np.zeros_like(weight), np.zeros_like(weight), workspace]
    apart = made("batch_norm_grad", slopes, x, weight, mean, rstd, *results, **how)[5:8]
    again, held = (made("batch_norm_grad", dy, x, weight, mean, rstd, *results, more=(True, *more), **how)[5:8]
                   for more in ((bias, None), (None, shown)))
    copies = [Copy(a) for a in (dy, x, weight, mean, rstd, *results[1:], shown)]
    given = [c.cupy() for c in copies]
    TABLE["batch_norm_grad"](*given[:5], given[0], *given[5:8], True, None, given[8], **how)
    return apart * 3, [*again, *held, *[copies[k].array for k in (0, 5, 6)]]


def rms_norm(shape: tuple[int, ...], dtype: Any) -> tuple[list[Any], list[Any]]:
    """A sum and its RMS norm."""
    x, y, weight = normal(1, dtype, *shape), normal(2, dtype, *shape), normal(3, dtype, shape[1])
    how: dict[str, Any] = {"dims": 1, "eps": 1e-5}
    results = [np.zeros_like(x), statistics(dtype, shape[0], 1)[1]]
    total = made("add", x, y, results[0])[2]
    return made("rms_norm", total, weight, *results, **how)[:4], made("rms_norm", results[0], weight, *results, x, y, **how)[:4]


def rms_norm_grad(shape: tuple[int, ...], dtype: Any) -> tuple[list[Any], list[Any]]:
    """Two gradients, of which the first is added to another one."""
    rows, width = shape
    given = [normal(1, dtype, *shape), normal(2, dtype, *shape), normal(3, dtype, width), statistics(dtype, rows, 1)[1]]
    how: dict[str, Any] = {"dims": 1, "needs": (True, True)}
    other = normal(6, dtype, *shape)
    results = [np.zeros_like(given[2]), room("rms_norm_grad", *given, **how)]
    apart = made("rms_norm_grad", *given, np.zeros_like(other), *results, **how)
    apart[4] = made("add_", other, apart[4])[0]
    return apart[:6], made("rms_norm_grad", *given, other, *results, more=(True,), **how)[:6]


def layer_norm(shape: tuple[int, ...], dtype: Any) -> tuple[list[Any], list[Any]]:
    """A sum and its layer norm, with separate results, and with results that overwrite their inputs."""
    x, y, weight = normal(1, dtype, *shape), normal(2, dtype, *shape), normal(3, dtype, shape[1])
    how: dict[str, Any] = {"dims": 1, "eps": 1e-5}
    results = [np.zeros_like(x), *statistics(dtype, shape[0], 1), room("layer_norm", x, weight, weight, **how)]
    total = made("add", x, y, results[0])[2]
    apart = made("layer_norm", total, weight, weight, *results, **how)
    together = made("layer_norm", results[0], weight, weight, *results, more=(x, y), **how)
    copies = [Copy(a) for a in (x, weight, weight, y, *results[1:])]
    given = [c.cupy() for c in copies]
    TABLE["layer_norm"](*given, given[0], given[3], **how)
    return [*apart[:6], *apart[:6]], [*together[:6], *[c.array for c in copies[:6]]]


def layer_norm_grad(shape: tuple[int, ...], dtype: Any) -> tuple[list[Any], list[Any]]:
    """Three gradients, of which the first is added to another one."""
    rows, width = shape
    given = [normal(1, dtype, *shape), normal(2, dtype, *shape), normal(3, dtype, width), *statistics(dtype, rows, 1)]
    how: dict[str, Any] = {"dims": 1, "needs": (True, True, True)}
    other = normal(6, dtype, *shape)
    results = [np.zeros_like(given[2]), np.zeros_like(given[2]), room("layer_norm_grad", *given, **how)]
    apart = made("layer_norm_grad", *given, np.zeros_like(other), *results, **how)
    apart[5] = made("add_", other, apart[5])[0]
    together = made("layer_norm_grad", *given, other, *results, more=(True,), **how)
    return apart[:8], together[:8]


def layer_norm_again(shape: tuple[int, ...], dtype: Any) -> tuple[list[Any], list[Any]]:
    """Layer norm and its gradients."""
    dy, x, weight, bias = (normal(k, dtype, *(shape if k < 3 else shape[1:])) for k in range(1, 5))
    how: dict[str, Any] = {"dims": 1}
    given = [x, weight, *statistics(dtype, shape[0], 1)]
    results = [np.zeros_like(x), weight, weight, room("layer_norm_grad", dy, *given, needs=(True, True, True), **how)]
    again = made("layer_norm_apply", *given[:2], bias, *given[2:], results[0], **how)[5]
    how["needs"] = True, True, True
    apart = made("layer_norm_grad", dy, *given, *results, **how)
    together = made("layer_norm_grad", dy, *given, *results, more=(False, np.zeros_like(x), bias), **how)
    return [*apart[:8], again], [*together[:8], together[-2]]


def rms_norm_again(shape: tuple[int, ...], dtype: Any) -> tuple[list[Any], list[Any]]:
    """RMS norm and its gradients, of which the first is added to another one."""
    dy, x, other, weight = (normal(k, dtype, *(shape if k < 4 else shape[1:])) for k in range(1, 5))
    how: dict[str, Any] = {"dims": 1}
    given = made("rms_norm", x, weight, np.zeros_like(x), statistics(dtype, shape[0], 1)[1], eps=1e-5, **how)
    again = given.pop(2)
    results = [other, weight, room("rms_norm_grad", dy, *given, needs=(True, True), **how)]
    apart = made("rms_norm_grad", dy, *given, *results, more=(True,), needs=(True, True), **how)
    together = made("rms_norm_grad", dy, *given, *results, more=(True, np.zeros_like(x)), needs=(True, True), **how)
    return [*apart[:6], again], [*together[:6], together[-1]]


BOTH = [(f, shape, dtype) for f, shapes in ((batch_norm, IMAGES), (batch_norm_apply, IMAGES[:4]),
                                               (batch_norm_grad, IMAGES), (layer_norm, ROWS), (layer_norm_grad, ROWS),
                                            (rms_norm, ROWS), (rms_norm_grad, ROWS))
        for shape in shapes for dtype in DTYPES]
BOTH += [(f, shape, dtype) for f in (layer_norm_again, rms_norm_again) for shape in ROWS for dtype in DTYPES
         if dtype.itemsize < 8]


#: Rows, their width, blocks, which meet in groups if there are more than 16, and the threads that hold a row of this width.
SUMS = ((45, 40, 45, 32), (20, 300, 17, 32), (150, 40, 1, 32), (150, 40, 3, 32), (33, 300, 2, 32), (70, 256, 2, 32),
        (5, 1000, 2, 256), (40, 600, 19, 256), (7, 1100, 3, 256), (1, 3, 1, 32), (0, 5, 1, 32), (2, 33, 5, 32),
        (9, 131, 2, 256), (9, 1023, 2, 256), (3, 8188, 2, 256))


def slopes(emulator: Emulator, rows: int, width: int, parts: int, lanes: int) -> tuple[list[Any], Any]:
    """Layer norm's gradients with this many blocks, and their input arrays."""
    dy, x, weight = (normal(k, np.float32, *shape) for k, shape in enumerate(((rows, width), (rows, width), (width,))))
    mean, rstd = normal(3, np.float32, rows), np.abs(normal(4, np.float32, rows)) + np.float32(0.5)
    given = [Copy(a) for a in (dy, x, weight, mean, rstd)]
    results = [Copy(np.full(shape, np.nan, np.float32)) for shape in ((rows, width), (2, parts, width), (width,), (width,))]
    sizes, length = (np.int64(rows), np.int64(width), np.int32(parts)), 1 if width % 4 else 4
    found = columns_of(width, length)
    assert found is not None and lanes == found[0]
    before, (dx, *sums) = [c.cupy() for c in given], [c.cupy() for c in results]
    emulator.launch("norm_grad", f"layer_norm_grads<float, {length}, {found[1]}, {found[2]}>", parts, 256, (
        *before[:3], None, *before[3:], dx, None, *sums, *sizes, np.int32(0), np.int32(lanes), np.int32(meeting_first(parts)),
        SHARED))
    for copy in (*given, *results):
        copy.check("layer_norm_grads")
    return [results[k].array for k in (0, 2, 3)], (dy, x, weight, mean, rstd)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    emulator = Emulator(tmp_path_factory.mktemp("norms"))
    with emulator.in_place():
        for f, shape, dtype in BOTH:
            f(shape, dtype)
        for shape in IMAGES:
            large(shape)
        for rows, width, parts, lanes in SUMS:
            slopes(emulator, rows, width, parts, lanes)
        emulator.compile()
        yield emulator


@pytest.fixture(params=[False, True], ids=["rising", "falling"])
def emulator(emulated: Emulator, request: pytest.FixtureRequest) -> Emulator:
    emulated.falling = request.param
    return emulated


@pytest.mark.parametrize("f, shape, dtype", BOTH, ids=[f"{f.__name__} {shape} {dtype.name}" for f, shape, dtype in BOTH])
def test_one_launch_has_the_bits_of_two(emulator: Emulator, f: Any, shape: Any, dtype: Any) -> None:
    for one, other in zip(*f(shape, dtype), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("f", [batch_norm, batch_norm_apply, batch_norm_grad], ids=lambda f: f.__name__)
def test_a_16_bit_input_may_have_float32_channels(emulator: Emulator, f: Any, shape: Any, dtype: Any) -> None:
    narrow, wide = f(shape, dtype)[1], f(shape, dtype, np.float32)
    for own, one, other in zip(narrow, *wide, strict=True):
        assert one.tobytes() == other.tobytes()
        np.testing.assert_array_equal(other.astype(own.dtype).astype(float), own.astype(float))


@pytest.mark.parametrize("rows, width, parts, lanes", SUMS)
def test_each_block_makes_dx_and_its_part_of_the_sums(emulator: Emulator, rows: int, width: int, parts: int,
                                                      lanes: int) -> None:
    found, given = slopes(emulator, rows, width, parts, lanes)
    dy, x, weight, mean, rstd = (a.astype(float) for a in given)
    hat, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    dx = (g - g.mean(1, keepdims=True) - hat * (g * hat).mean(1, keepdims=True)) * rstd[:, None]
    for one, expected in zip(found, (dx, (dy * hat).sum(0), dy.sum(0)), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)


def large(shape: tuple[int, ...]) -> list[Any]:
    """Batch norm of numbers whose squares overflow, and whose sum is exact."""
    x, of = np.full(shape, 2.0**66, np.float32), [np.ones(shape[1], np.float32) for _ in range(4)]
    results, how = [np.empty_like(x), of[0], of[0]], {"momentum": 0.1, "eps": 1e-4}
    return made("batch_norm", x, *of, *results, room("batch_norm", x, *of, **how), **how)


@pytest.mark.parametrize("shape", IMAGES)
def test_equal_numbers_whose_squares_overflow_have_no_variance(emulator: Emulator, shape: tuple[int, ...]) -> None:
    _, _, bias, _, _, out, mean, rstd, _ = large(shape)
    for found, expected in ((out, bias[0]), (mean, 2.0**66), (rstd, 100)):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def names(name: str, shape: tuple[int, ...], **attrs: Any) -> list[str]:
    """The kernels that an op launches on inputs of these shapes, in order."""
    x = np.empty(shape, np.float32)
    vector = np.empty(shape[1], np.float32)
    rows = np.empty((shape[0], 1), np.float32)
    given = {"batch_norm": [x, vector, vector, vector, vector], "batch_norm_grad": [x, x, vector, vector, vector],
             "layer_norm_grad": [x, x, vector, rows, rows]}[name]
    with noting() as noted:
        made(name, *given, x, vector, vector, room(name, *given, **attrs), **attrs)
    return [found.split(": ")[1].split("<")[0] for found in noted]


APART = ["batch_parts", "batch_statistics", "affine"], ["batch_grad_parts", "batch_grad_total", "batch_norm_dx"]
BESIDE = ["batch_columns", "batch_statistics", "affine_columns"], ["batch_grad_columns", "batch_grad_total", "batch_dx_columns"]


@pytest.mark.parametrize("shape, forward, backward", [
    # A block a channel; several, which put the shares together themselves; what only launches of their own do well: few
    # channels of many elements, and many channels beside each other.
    ((64, 128, 8, 8), ["batch_norm"], ["batch_norm_grads"]),
    ((32, 1024), ["batch_norm"], ["batch_norm_grads"]),
    ((64, 32, 32, 32), ["batch_parts", "batch_norm"], ["batch_grad_parts", "batch_norm_grads"]),
    ((2, 1, 200, 100), ["batch_parts", "batch_norm"], ["batch_grad_parts", "batch_norm_grads"]),
    ((2, 1, 200, 400), *APART), ((512, 1024), *BESIDE), ((512, 512, 2), *APART)])
def test_launches_of_batch_norm(shape: tuple[int, ...], forward: list[str], backward: list[str]) -> None:
    assert names("batch_norm", shape, momentum=0.1, eps=1e-5) == forward
    assert names("batch_norm_grad", shape, needs=(True, True, True)) == backward
    unwanted = names("batch_norm_grad", shape, needs=(False, True, True))
    assert unwanted == [name for name in backward if name not in ("batch_norm_dx", "batch_dx_columns")]


@pytest.mark.parametrize("shape, launched", [
    ((8, 192), ["layer_norm_grads"]), ((0, 192), ["layer_norm_grads"]), ((1024, 192), ["layer_norm_grads"]),
    ((40_000, 192), ["layer_norm_grads"]), ((1024, 1024), ["layer_norm_grads"]),
    ((8192, 1024), ["layer_norm_grads"]), ((2000, 4096), ["layer_norm_dx", "affine_parts"])])
def test_launches_of_layer_norms_gradients(shape: tuple[int, ...], launched: list[str]) -> None:
    assert names("layer_norm_grad", shape, dims=1, needs=(True, True, True)) == launched
