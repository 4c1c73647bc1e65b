"""Launches on large arrays have several blocks for every multiprocessor of a large GPU, since each waits for its reads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import cupy
from cupy.cuda import memory

from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu.kernels import KERNELS

#: Multiprocessors of an H200, and blocks that 256 threads with four loads of 4 bytes each take to keep its memory busy.
_MULTIPROCESSORS, _EACH = 132, 6


def nowhere(*shape: int, dtype: Any = np.float32) -> cupy.ndarray:
    """An array that must not be read."""
    place = memory.UnownedMemory(1 << 40, math.prod(shape) * np.dtype(dtype).itemsize, None, 0)
    return cupy.ndarray(shape, dtype, memory.MemoryPointer(place, 0))


def launches(op: str, *arrays: Any, **attrs: Any) -> list[tuple[str, int]]:
    """Instances and numbers of blocks of an op's launches."""
    tape: list[Any] = []
    gpu_launch.noted.tape = tape
    try:
        KERNELS[op](*arrays, **attrs)
    finally:
        gpu_launch.noted.tape = None
    return [(head[1], head[2]) for function, head, _ in tape if function is gpu_launch.launch]


@pytest.mark.parametrize(("shape", "dims"), [((1 << 24,), (0,)), ((1 << 14, 1 << 10), (1,)), ((1 << 14, 1 << 10), (0,)),
                                             ((1 << 18, 64), (0,)), ((1 << 10, 1 << 14), (0,)), ((64, 1 << 18), (1,)),
                                             ((300, 55_924), (1,))])
def test_sums_of_64_mib(shape, dims):
    result = [n for d, n in enumerate(shape) if d not in dims]
    (name, blocks), = launches("sum", nowhere(*shape), nowhere(*result), dims=dims, keepdim=False)
    # Blocks that combine what they have stored have more loads under way each, and an H200 is fastest with some 512 of them.
    assert blocks >= (512 if name.startswith(("fold_split", "fold_columns")) else _EACH * _MULTIPROCESSORS)


@pytest.mark.parametrize(("lies", "turned"), [
    (lambda x: x.T, "turn_squares"), (lambda x: x.reshape(16, 64, 128, 128).transpose(0, 2, 3, 1), "turn_squares"),
    (lambda x: x[:, :1022].T, "turn"), (lambda x: x.reshape(16, 64, 128, 128).swapaxes(1, 2), "map_strided"),
    (lambda x: x[:, ::2], "map_strided")])
def test_a_transposed_copy_goes_by_tiles(lies, turned):
    """If both are contiguous along one dimension, or one is strided, there is nothing to gain."""
    x = lies(nowhere(1 << 14, 1 << 10))
    (name, _), = launches("clone", x, nowhere(*x.shape))
    assert name.startswith(f"{turned}<")


@pytest.mark.parametrize(("op", "arrays", "length"), [
    ("clone", (nowhere(8, 128, 12, 64).swapaxes(1, 2),), 4), ("mul", (nowhere(512, 256), nowhere(512, 1)), 4),
    ("add", (nowhere(512, 256)[:, 64:128], nowhere(64)), 4), ("clone", (nowhere(512, 256)[:, 2:130],), 1),
    ("add", (nowhere(512, 258)[:, :256], nowhere(512, 256)), 1), ("clone", (nowhere(512, 256)[:, ::-1],), 1)])
def test_strided_neighbors_are_read_16_bytes_at_a_time(op, arrays, length):
    """If accesses are aligned to their length in every row."""
    (name, _), = launches(op, *arrays, nowhere(*arrays[0].shape))
    assert name.split(", ")[:3] == [f"map_strided<{'Copy' if op == 'clone' else op.capitalize()}", "float", str(length)]


@pytest.mark.parametrize(("width", "most"), [(3, 1 << 14), (10, 1 << 15), (32, 1 << 15), (64, 1 << 16)])
def test_narrow_rows_share_a_warp(width, most):
    """If each had its own, most threads would be idle."""
    for op, result, more in (("sum", (1 << 20,), {"dims": (1,), "keepdim": False}), ("softmax", (1 << 20, width), {"dim": 1})):
        workspace = () if op == "sum" else (None,)
        (_, blocks), = launches(op, nowhere(1 << 20, width), nowhere(*result), *workspace, **more)
        assert blocks <= most


def test_labels_are_counted_by_many_blocks():
    """One alone would take longer than the gradient itself, if there are few classes."""
    rows = 1 << 17
    given = nowhere(), nowhere(rows, 64), nowhere(rows, dtype=np.int64), None
    found = dict(launches("cross_entropy_grad", *given, nowhere(rows, 64), nowhere(64, dtype=np.uint8), reduction="mean",
                          ignore_index=-100))
    assert found["whole_weight<float, long long>"] == 32
