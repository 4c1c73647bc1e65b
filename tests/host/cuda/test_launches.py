"""How many kernels an op or a step launches on CUDA, counted without a GPU: joining tensors, losses, small steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from bench.launches import counted, cupy_arrays, host, noting
from gradcore.devices.gpu.kernels import KERNELS
from gradcore.ops.convolution import conv2d_weight_grad
from gradcore.spec import TensorSpec
from tests.host.cuda.emulator import view_of

F4 = np.float32


def launched(name: str, *operands: Any, **attrs: Any) -> Counter[str]:
    """The launches of a kernel on arrays of the given shapes."""
    def array(x: Any) -> Any:
        if isinstance(x, list):
            return [array(part) for part in x]
        if isinstance(x, tuple):
            # The host's allocator may align large blocks differently: aligned to 16 bytes, as the pool's blocks are.
            size = int(np.prod(x))
            room = np.zeros(4 * size + 16, np.uint8)
            start = -room.ctypes.data % 16
            return view_of(room[start:start + 4 * size].view(F4).reshape(x), room)
        return view_of(x) if isinstance(x, np.ndarray) else x

    with noting() as noted:
        KERNELS[name](*[array(x) for x in operands], **attrs)
    return noted


@pytest.mark.parametrize("shapes, dim, expected", [
    ([(8, 128, 192)] * 3, 2, {"index: cat<int, 4>": 1}), ([(8, 3, 5), (8, 1, 5)], 1, {"index: cat<int, 1>": 1}),
    ([(4, 4)] * 6, 0, {"index: cat<int, 4>": 1}), ([(4, 4)] * 7, 0, {"index: cat<int, 4>": 2}),
    ([(0, 4), (3, 4), (0, 4)], 0, {"elementwise: map<Copy, float, 4, float, const float*>": 1}), ([(0, 4)] * 2, 0, {}),
    ([(3, 1, 4)] * 5, 1, {"index: cat<int, 4>": 1})])
def test_tensors_are_joined_by_one_launch(shapes: Any, dim: int, expected: dict[str, int]) -> None:
    out = (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1:])
    assert launched("cat", shapes, out, dim=dim) == expected


@pytest.mark.parametrize("channels, outputs, shapes", [
    (3, 32, (32, 32, 32)), (32, 64, (64, 32, 64)), (20, 100, (64, 32, 64)), (64, 96, (32, 64, 32)), (16, 5, (32, 32, 32))])
def test_a_convolution_takes_tiles_that_few_elements_lie_outside(channels: int, outputs: int, shapes: tuple[int, ...]) -> None:
    x, weight, out = (2, channels, 32, 32), (outputs, channels, 3, 3), (2, outputs, 32, 32)
    how = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    found = (launched("conv2d", x, weight, None, out, (0,), **how),
             launched("conv2d_input_grad", out, weight, x, (0,), shape=x, **how),
             launched("conv2d_weight_grad", out, x, weight, np.zeros(0, np.uint8), shape=weight, **how))
    names = ("conv2d<float, {}, 0>", "conv2d_input_grad<float, {}, 0, 1>", "conv2d_weight_grad<float, {}, 0>")
    expected = [f"convolution: {name.format(height)}" for name, height in zip(names, shapes, strict=True)]
    assert [list(f) for f in found] == [[name] for name in expected]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("images, channels, outputs", [(1, 3, 1024), (1, 16, 512), (1, 8, 129), (0, 16, 64), (2, 4, 256)])
def test_a_workspace_has_room_for_the_sums_of_one_share(images: int, channels: int, outputs: int, dtype: str) -> None:
    """A weight and a bias in the precision of the computation, of few windows and many outputs."""
    weight = (outputs, channels, 1, 1)
    specs = [TensorSpec.of((images, n, 1, 1), dtype) for n in (outputs, channels)]
    found = conv2d_weight_grad.infer(*specs, shape=weight, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, bias=True)
    assert found.workspace >= (outputs * channels + outputs) * max(specs[0].dtype.itemsize, 4)


def test_a_depthwise_convolution_takes_no_tiles() -> None:
    x, weight = (2, 16, 32, 32), (16, 1, 3, 3)
    how = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 16}
    for name, operands, shape, expected in (
            ("conv2d", (x, weight, None, x), {}, "conv2d<float, 1, 0>"),
            ("conv2d_input_grad", (x, weight, x), {"shape": x}, "conv2d_input_grad<float, 1, 0, 1>"),
            ("conv2d_weight_grad", (x, x, weight), {"shape": weight}, "conv2d_weight_grad<float, 1, 0>")):
        assert launched(name, *operands, np.zeros(0, np.uint8), **shape, **how) == {f"convolution: {expected}": 1}


def test_a_convolution_of_too_large_an_image_is_refused() -> None:
    x, weight, out = (np.broadcast_to(np.zeros(1, F4), shape) for shape in (
        (1, 1 << 12, 1 << 10, 1 << 10), (1, 1 << 12, 1, 1), (1, 1, 1 << 10, 1 << 10)))
    with pytest.raises(NotImplementedError, match=r"fewer than 2\^32 elements in an image.* but got 4,294,967,296 and 1,024"):
        launched("conv2d", x, weight, None, out, (0,), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)


@pytest.mark.parametrize("size, how, most, longest", [
    ((1, 65536), {"padding": (65536, 0), "stride": (65536, 1), "dilation": (65536, 1)}, "4,295,032,832", "131,073"),
    ((4, 4), {"padding": (1 << 29, 0), "stride": (1 << 29, 1), "dilation": (1, 1)}, "20", "1,073,741,828")])
def test_a_convolution_that_reaches_too_far_is_refused(size: Any, how: Any, most: str, longest: str) -> None:
    with pytest.raises(NotImplementedError, match=f"but got {most} and {longest}"):
        launched("conv2d", (1, 1, *size), (8, 1, 2, 1), None, (1, 8, 2, 1), (0,), groups=1, **how)


def test_tensors_of_several_dtypes_are_copied_one_by_one() -> None:
    whole = np.zeros(4, np.int64)
    assert sum(launched("cat", [whole, (3,)], (7,), dim=0).values()) == 2


@pytest.mark.parametrize("rows, classes, reduction, loss, slopes", [
    (64, 10, "mean", 1, 1), (512, 10, "mean", 1, 1), (1537, 10, "sum", 1, 1), (4096, 256, "mean", 1, 1),
    (4097, 256, "mean", 1, 2), (4097, 256, "sum", 1, 1), (64, 10, "none", 1, 1), (0, 10, "mean", 1, 0), (0, 10, "none", 0, 0)])
def test_losses_and_their_gradients(rows: int, classes: int, reduction: str, loss: int, slopes: int) -> None:
    labels, room = np.zeros(rows, np.int64), np.zeros(8 * rows + 64 + 4 * classes, np.uint8)
    result = (rows,) if reduction == "none" else ()
    given = ((rows, classes), labels, None)
    assert sum(launched("cross_entropy", *given, result, room, reduction=reduction).values()) == loss
    assert sum(launched("cross_entropy_grad", result, *given, (rows, classes), room, reduction=reduction,
                        ignore_index=-100).values()) == slopes


@pytest.mark.parametrize("name, eager, replayed", [("small", 16, 10), ("large", 21, 16), ("cnn", 62, 41), ("gpt", 186, 135)])
def test_launches_of_a_step(name: str, eager: int, replayed: int) -> None:
    """A replay's loss and its gradient are one launch, layers are fused with their relu, and norms with what is beside them."""
    found = counted(name)
    assert {how: sum(kernels.values()) for how, kernels in found.items()} == {"eager": eager, "replayed": replayed}
    assert [count for kernel, count in found["replayed"].items() if kernel.startswith("loss: cross_entropy<float")] == [1]


def test_the_hosts_share_is_timed_in_its_parts() -> None:
    found = host("small", rounds=3)
    assert list(found) == ["the engine", "kernels as written", "written out"] and min(found.values()) > 0


def test_the_engine_is_timed_with_arrays_of_cupys() -> None:
    import cupy

    with cupy_arrays():
        x = gradcore.empty(3, 4, device="meta")
        assert isinstance(x.t().array, cupy.ndarray) and x.t().array.strides == (4, 16)
    assert gradcore.empty(3, 4, device="meta").array is None
