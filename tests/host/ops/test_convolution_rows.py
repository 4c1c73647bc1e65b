"""The CPU's convolutions by rows and by single channels equal the general kernels, and are used for the intended geometries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcore.devices.host.kernels import columns as host_columns
from gradcore.devices.host.kernels import convolution as own
from gradcore.ops.convolution import conv2d, conv2d_input_grad, conv2d_weight_grad
from gradcore.spec import TensorSpec

#: x, weight, padding, dilation: several pieces of rows, wide and narrow padding, rows without a window inside, all batch sizes.
GEOMETRIES = [
    ((3, 4, 20, 20), (5, 4, 3, 3), (1, 1), (1, 1)),
    ((2, 3, 17, 30), (4, 3, 5, 2), (0, 3), (1, 2)),
    ((1, 64, 40, 60), (8, 64, 3, 3), (1, 0), (1, 1)),
    ((2, 2, 3, 40), (3, 2, 3, 1), (4, 0), (1, 1)),
    ((2, 1, 16, 16), (1, 1, 1, 7), (0, 9), (1, 1)),
    ((0, 2, 16, 16), (3, 2, 3, 3), (1, 1), (1, 1)),
]


def launched(op: Any, arrays: list[Any], attrs: dict[str, Any], module: Any) -> np.ndarray:
    """The results of a kernel of ``module``, with the workspace that the op declares."""
    made = op.infer(*(None if a is None else TensorSpec.of(a.shape, str(a.dtype)) for a in arrays), **attrs)
    out = np.full(made.outputs[0].shape, np.nan, made.outputs[0].dtype)
    getattr(module, op.name)(*arrays, out, np.full(made.workspace, 0xFF, np.uint8), **attrs)
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("x", "weight", "padding", "dilation"), GEOMETRIES)
def test_rows_make_what_the_general_kernels_make(x: Any, weight: Any, padding: Any, dilation: Any, dtype: str,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0).standard_normal
    xs, ws, bias = (draw(s).astype(dtype) for s in (x, weight, weight[:1]))
    how = {"stride": (1, 1), "padding": padding, "dilation": dilation, "groups": 1}
    dy = draw(launched(conv2d, [xs, ws, bias], how, host_columns).shape).astype(dtype)
    calls: list[tuple[Any, list[Any], dict[str, Any]]] = [
        (conv2d, [xs, ws, bias], how), (conv2d, [xs, ws, None], how), (conv2d_input_grad, [dy, ws], {**how, "shape": x}),
        (conv2d_weight_grad, [dy, xs], {**how, "shape": weight})]
    wanted = [launched(op, arrays, attrs, host_columns) for op, arrays, attrs in calls]
    fallen = []
    for op, *_ in calls:
        monkeypatch.setattr(host_columns, op.name, lambda *a, name=op.name, **k: fallen.append(name))
    monkeypatch.setattr(own, "_short_rows", lambda *_: False)
    for (op, arrays, attrs), expected in zip(calls, wanted, strict=True):
        found = launched(op, arrays, attrs, own)
        if op.name not in fallen:
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 if dtype == "float64" else 1e-3)
    assert "conv2d" not in fallen or not x[0], "these are geometries for rows"


@pytest.mark.parametrize(("x", "weight", "general"), [
    ((2, 1, 28, 28), (8, 1, 3, 3), True), ((2, 6, 14, 14), (16, 6, 5, 5), True), ((1, 1, 28, 28), (8, 1, 3, 3), False),
    ((2, 16, 28, 28), (16, 16, 3, 3), False)], ids=str)
def test_short_rows_of_several_images_are_one_product(x: Any, weight: Any, general: bool,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    fallen = []
    monkeypatch.setattr(host_columns, "conv2d", lambda *a, **k: fallen.append(a))
    launched(conv2d, [np.ones(x, "f4"), np.ones(weight, "f4"), None],
             {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}, own)
    assert bool(fallen) == general


#: x, kernel, stride, padding, dilation: one channel a group, in several pieces of channels, of images, and of rows.
DEPTHWISE = [
    ((3, 70, 20, 20), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((40, 2, 30, 31), (5, 2), (1, 1), (0, 3), (1, 2)),
    ((2, 3, 300, 250), (7, 7), (1, 1), (3, 3), (1, 1)),
    ((2, 3, 300, 250), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((3, 7, 12, 11), (5, 3), (2, 3), (4, 1), (2, 1)),
    ((2, 70, 41, 40), (5, 5), (2, 2), (2, 2), (1, 1)),
    ((1, 4, 20, 20), (3, 2), (3, 1), (0, 2), (1, 4)),
    ((2, 8, 20, 20), (2, 2), (3, 3), (5, 5), (1, 1)),
    ((1, 1, 9, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("x", "kernel", "stride", "padding", "dilation"), DEPTHWISE)
def test_depthwise_makes_what_general_kernels_make(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, dtype: str,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0).standard_normal
    weight = (x[1], 1, *kernel)
    xs, ws, bias = (draw(s).astype(dtype) for s in (x, weight, weight[:1]))
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": x[1]}
    dy = draw(launched(conv2d, [xs, ws, bias], how, host_columns).shape).astype(dtype)
    calls: list[tuple[Any, list[Any], dict[str, Any]]] = [
        (conv2d, [xs, ws, bias], how), (conv2d, [xs, ws, None], how), (conv2d_input_grad, [dy, ws], {**how, "shape": x}),
        (conv2d_weight_grad, [dy, xs], {**how, "shape": weight})]
    monkeypatch.setattr(own, "_slow_by_products", lambda *_: True)
    wanted = [launched(op, arrays, attrs, host_columns) for op, arrays, attrs in calls]
    for op, *_ in calls:
        monkeypatch.delattr(host_columns, op.name, raising=False)
    for (op, arrays, attrs), expected in zip(calls, wanted, strict=True):
        most = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(launched(op, arrays, attrs, own), expected, rtol=0, atol=most * abs(expected).max())
