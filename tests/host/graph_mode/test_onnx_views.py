"""Views as nodes: the steps from a contiguous tensor match NumPy's strided views, and common views need no gather."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.onnx.views import positions, view
from gradcore.spec import TensorSpec

BEFORE = -(1 << 61)


class Arrays:
    """What a graph would compute with the nodes of a view, by NumPy, and the kinds of those that change anything."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def _noted(self, kind: str, before: Any, after: Any) -> Any:
        if before.shape != after.shape or before.strides != after.strides:
            self.kinds.append(kind)
        return after

    def reshape(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self._noted("Reshape", x, np.ascontiguousarray(x).reshape(shape))

    def slice(self, x: Any, parts: Any) -> Any:
        return self._noted("Slice", x, x[tuple(slice(a, None if b < BEFORE else b, s) for a, b, s in parts)])

    def transpose(self, x: Any, perm: Any) -> Any:
        return self._noted("Transpose", x, x.transpose(perm))

    def expand(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self._noted("Expand", x, np.broadcast_to(x, shape))

    def constant(self, array: Any) -> Any:
        return array

    def node(self, kind: str, x: Any, places: Any, *, shape: tuple[int, ...], axis: int) -> Any:
        assert places.shape == shape and axis == 0
        self.kinds.append(kind)
        return x[places]


def check(shape: tuple[int, ...], spec: TensorSpec) -> list[str]:
    flat = np.arange(math.prod(shape))
    expected = np.zeros(spec.shape, np.int64)
    if spec.numel:
        expected = np.lib.stride_tricks.as_strided(flat[spec.offset:], spec.shape, [8 * s for s in spec.strides])
    arrays: Any = Arrays()
    found: Any = view(arrays, flat.reshape(shape), spec)
    assert found.shape == spec.shape
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(positions(spec), expected)
    return arrays.kinds


VIEWS = {
    "whole": (lambda x: x, ()), "reshaped": (lambda x: x.view(6, 20), ("Reshape",)), "transposed": (
        lambda x: x.permute(2, 0, 1), ("Transpose",)),
    "row": (lambda x: x[1], ("Slice", "Reshape")), "column": (lambda x: x[..., 3], ("Slice", "Reshape")),
    "narrowed": (lambda x: x[:, 1:3], ("Slice",)), "every second": (lambda x: x[..., ::2], ("Slice",)),
    "corner": (lambda x: x[:1, 1:, 2:4], ("Slice",)), "new dimension": (lambda x: x[:, None], ("Reshape",)),
    "expanded": (lambda x: x[:, :, :1].expand(4, 5, 7), ("Slice", "Expand")),
    "split heads": (lambda x: x.view(4, 5, 3, 2).transpose(1, 2), ("Reshape", "Transpose")),
    "part of heads": (lambda x: x.split(2, dim=2)[1].view(4, 5, 2, 1).transpose(1, 2), ("Slice", "Transpose", "Reshape")),
    "diagonal": (lambda x: x.view(4, 30)[:, :4].diagonal(), None), "windows": (lambda x: x.unfold(2, 3, 1), ("Gather",)),
    "scalar": (lambda x: x[1, 2, 3], ("Slice", "Reshape")), "empty": (lambda x: x[2:2], ("Gather",)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_usual_views(name: str) -> None:
    shown, kinds = VIEWS[name]
    found = check((4, 5, 6), shown(gradcore.zeros(4, 5, 6)).spec)
    if kinds is not None:
        assert set(kinds) <= set(found) and ("Gather" in found) == ("Gather" in kinds) and (kinds or not found), found


@pytest.mark.parametrize("seed", range(20))
def test_any_view(seed: int) -> None:
    """Views of views, also reversed and overlapping ones."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(0, 5)))
        array = np.arange(math.prod(shape)).reshape(shape)
        for _ in range(int(rng.integers(1, 4))):
            kind = rng.integers(5)
            if kind == 0 and array.ndim:
                array = array.transpose(rng.permutation(array.ndim))
            elif kind == 1 and array.ndim:
                array = array[tuple(slice(int(a), None, int(s)) for a, s in zip(
                    rng.integers(0, 2, array.ndim), rng.choice([1, 1, 2, -1, -2], array.ndim), strict=True))]
            elif kind == 2:
                array = np.expand_dims(array, int(rng.integers(array.ndim + 1)))
            elif kind == 3:
                array = np.broadcast_to(array, (int(rng.integers(1, 4)), *array.shape))
            elif array.ndim and array.shape[-1] > 1 and 0 not in array.shape:
                array = np.lib.stride_tricks.sliding_window_view(array, 2, axis=-1)
        if array.size:
            # Each element's value is its position.
            check(shape, TensorSpec.strided(array.shape, np.dtype("float32"), tuple(s // 8 for s in array.strides),
                                            int(array.flat[0])))
