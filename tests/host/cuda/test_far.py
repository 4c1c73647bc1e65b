"""Kernels on arrays of more than 2^31 and 2^32 elements: their first and last blocks find what lies at the ends.

The arrays' memory is reserved and hardly touched, and the emulator runs 64 blocks at either end of a grid, so that this takes
seconds. Positions between are not looked at.
"""

from __future__ import annotations

import mmap
import shutil
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu.kernels import KERNELS
from gradcore.ops.op import get_op
from gradcore.spec import TensorSpec
from tests.host.cuda.emulator import Emulator, view_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.skipif(sys.platform != "linux" or sys.maxsize < 1 << 40, reason="memory is reserved as on Linux"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("far")]

_EDGE, _THREADS = 64, 256
_NO_RESERVE = 0x4000  # MAP_NORESERVE
_LOOP = "for (unsigned b = 0; b < blocks; ++b) {"
PLANTED = """
extern "C" __global__ void near(const unsigned char* x, unsigned char* out, long long n, int wide) {
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        out[wide ? i : (long long)(unsigned)i] = x[i];
}
"""


class Ends(Emulator):
    """Runs the blocks at both ends of a grid alone, and keeps the last launch."""

    last = ("", 0)

    def _made_of(self, family: str, source: str | None = None) -> tuple[list[str], list[str], list[str]]:
        options, code, watch = super()._made_of(family, source)
        assert code[0].count(_LOOP) == 1
        ends = _LOOP.replace("++b", f"b = b + 1 < {_EDGE} || b + {_EDGE + 1} > blocks ? b + 1 : blocks - {_EDGE}")
        return options, [code[0].replace(_LOOP, ends), *code[1:]], watch

    def launch(self, family: str, instance: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
        assert 0 < blocks <= gpu_launch.GRID
        self.last = instance, blocks
        super().launch(family, instance, blocks, threads, arguments)

    def run(self, op: str, *values: Any, **attrs: Any) -> bool:
        """Run an op's kernel on arrays, with the workspace that it declares; False if it has only been noted."""
        def given(value: Any) -> Any:
            if isinstance(value, list):
                return [given(one) for one in value]
            return view_of(value) if isinstance(value, np.ndarray) else value

        KERNELS[op](*map(given, values), **attrs)
        return bool(self.libraries)

    def visited(self, count: int, neighbors: int) -> Any:
        """Some positions of the elements that a loop over all threads of the grid has come to, ``neighbors`` at once."""
        _, blocks = self.last
        at = np.r_[0:min(_EDGE, blocks), max(blocks - _EDGE, 0):blocks]
        own = (at[:, None] * _THREADS + np.arange(_THREADS)).ravel()
        turns = np.arange(-(-count // (neighbors * blocks * _THREADS))) * blocks * _THREADS
        found = (own + turns[:, None]).ravel()
        return (found[found < count // neighbors][::37, None] * neighbors + np.arange(neighbors)).ravel()


def far(*shape: int, dtype: Any = np.uint8) -> Any:
    """Zeros that take no memory until they are touched."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        held = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except OSError as error:
        pytest.skip(f"{nbytes:,} bytes of address space are not to be had: {error}")
    return np.frombuffer(held, dtype).reshape(shape)


def room(op: str, *values: Any, **attrs: Any) -> Any:
    return np.zeros(get_op(op).infer(*[TensorSpec.of(v.shape, v.dtype) for v in values], **attrs).workspace, np.uint8)


def neighbors_of(instance: str) -> int:
    return max((int(part) for part in instance.strip(">").split(", ") if part.isdigit()), default=1)


def not_of_all(ends: Ends) -> None:
    x, out = (far((1 << 32) + 4099, dtype=bool) for _ in range(2))
    x[::1 << 20] = True
    x[-3:] = True
    if ends.run("logical_not", x, out):
        at = ends.visited(x.size, neighbors_of(ends.last[0]))
        assert (out[at] == ~x[at]).all() and at.max() > 1 << 32


def not_of_all_backwards(ends: Ends) -> None:
    x, out = (far((1 << 32) + 99, dtype=bool) for _ in range(2))
    x[:9] = True
    if ends.run("logical_not", x[::-1], out):
        at = ends.visited(x.size, 1)
        assert (out[at] == ~x[::-1][at]).all()


def times_a_row(ends: Ends) -> None:
    x, out = (far((1 << 22) + 3, 1024) for _ in range(2))
    row = (np.arange(1024) % 250).astype(np.uint8)
    x[::1 << 14] = 1
    x[-1] = 1
    if ends.run("mul", x, row, out):
        at = ends.visited(x.size, neighbors_of(ends.last[0]))
        assert (out.ravel()[at] == x.ravel()[at] * row[at % 1024]).all()


def turned(ends: Ends) -> None:
    x, out = far(65600, 65600), far(65600, 65600)
    x[-64:, -64:] = np.arange(4096).reshape(64, 64) % 251
    if ends.run("clone", x.T, out):
        assert (out[-64:, -64:] == x[-64:, -64:].T).all()


def joined(ends: Ends) -> None:
    parts, out = [far((1 << 31) + 5), far((1 << 31) + 9)], far((1 << 32) + 14)
    parts[1][:: 1 << 20] = 3
    parts[1][-40:] = np.arange(40)
    if ends.run("cat", parts, out, dim=0):
        at = ends.visited(out.size, neighbors_of(ends.last[0]))
        inside = [(at < parts[0].size), at >= parts[0].size]
        assert not out[at[inside[0]]].any() and (out[at[inside[1]]] == parts[1][at[inside[1]] - parts[0].size]).all()


def any_of_rows(ends: Ends) -> None:
    x = far((1 << 22) + 3, 1024, dtype=bool)
    out = far(len(x), dtype=bool)
    x[-1, -1] = x[-3, 0] = x[0, 5] = True
    if ends.run("any", x, out, dims=(1,), keepdim=False):
        assert out[-4:].tolist() == [False, True, False, True] and out[:2].tolist() == [True, False]


def largest_of_rows(ends: Ends) -> None:
    x = far((1 << 22) + 3, 1024)
    out = far(len(x), dtype=np.int64)
    x[-1, 77], x[-2, 1000] = 9, 1
    if ends.run("argmax", x, out, dim=1, keepdim=False):
        assert out[-3:].tolist() == [0, 1000, 77]


def rows_taken(ends: Ends) -> None:
    x, index = far((1 << 25) + 5, 128), np.array([(1 << 25) + 4, 3, (1 << 25) + 3, -1])
    x[-1], x[-2], x[3] = np.arange(128), 7, 9
    out = np.zeros((4, 128), np.uint8)
    if ends.run("take", x, index, out, None, dim=0):
        assert (out == x[index]).all()


def elements_taken(ends: Ends) -> None:
    x, out = far((1 << 32) + 77), np.zeros(3, np.uint8)
    x[-1], x[-70], x[2] = 4, 6, 8
    if ends.run("take_along", x, np.array([x.size - 1, 2, x.size - 70]), out, dim=0):
        assert out.tolist() == [4, 8, 6]


def put_and_added(ends: Ends) -> None:
    x, values = far((1 << 32) + 77), np.array([4, 8, 6], np.uint8)
    index = np.array([x.size - 1, 2, x.size - 70])
    for turn, op in enumerate(("put_", "add_at_"), 1):
        if ends.run(op, x, index, values, room(op, x, index, values, dim=0), dim=0):
            assert (x[index] == turn * values).all() and not x[-60:-1].any()


def normed_rows(ends: Ends) -> None:
    x, out = (far((1 << 21) + 3, 1024, dtype=np.float16) for _ in range(2))
    mean, rstd = (far(len(x), 1, dtype=np.float32) for _ in range(2))
    x[-5:] = np.random.default_rng(0).normal(size=(5, 1024))
    one, none = np.ones(1024, np.float16), np.zeros(1024, np.float16)
    if ends.run("layer_norm", x, one, none, out, mean, rstd, None, dims=1, eps=1e-5):
        given = x[-5:].astype(float)
        np.testing.assert_allclose(out[-5:], (given - given.mean(1, keepdims=True)) / given.std(1, keepdims=True), atol=1e-2)


def shares_of_rows(ends: Ends) -> None:
    x, out = (far((1 << 21) + 3, 1024, dtype=np.float16) for _ in range(2))
    x[-5:] = np.random.default_rng(0).normal(size=(5, 1024))
    if ends.run("softmax", x, out, None, dim=1):
        made = np.exp(x[-5:].astype(float))
        np.testing.assert_allclose(out[-5:], made / made.sum(1, keepdims=True), rtol=1e-3, atol=1e-6)


def losses_of_rows(ends: Ends) -> None:
    x, labels = far((1 << 21) + 3, 1024, dtype=np.float16), far((1 << 21) + 3, dtype=np.int64)
    out = far(len(x), dtype=np.float16)
    x[-1, 1023], labels[-1] = 9, 1023
    if ends.run("cross_entropy", x, labels, None, out, None, reduction="none"):
        np.testing.assert_allclose(out[-2:], [np.log(1024), np.log(1023 + np.exp(9)) - 9], rtol=1e-2)


def sums_along_rows(ends: Ends) -> None:
    x, out = (far((1 << 21) + 3, 1024, dtype=np.float16) for _ in range(2))
    x[-1] = 1
    if ends.run("cumsum", x, out, dim=1):
        assert (out[-1] == np.arange(1, 1025)).all()


def largest_of_windows(ends: Ends) -> None:
    x = far(1 << 11, 1, 1024, 1028, dtype=np.float16)
    out, index = (far(1 << 11, 1, 512, 514, dtype=dtype) for dtype in (np.float16, np.uint8))
    x[-1, 0, -2:, -4:] = [[1, 8, 3, 4], [5, 6, 7, 2]]
    how = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "ceil_mode": False}
    if ends.run("max_pool2d", x, out, index, None, **how):
        at = ends.visited(out.size, 4)
        made = x.reshape(-1, 512, 2, 514, 2).transpose(0, 1, 3, 2, 4)[np.unravel_index(at, (1 << 11, 512, 514))]
        assert (out.ravel()[at] == made.max((1, 2))).all()


def updated(ends: Ends) -> None:
    p, g = (far((1 << 31) + 5, dtype=np.float16) for _ in range(2))
    g[-9:] = np.arange(9)
    if ends.run("sgd_", [p], [g], [], 1.0, 0.0, None, dampening=0.0, weight_decay=0.0, nesterov=False,
                maximize=False, first=False):
        assert (p[-9:] == -g[-9:]).all()


CASES: list[Callable[[Ends], None]] = [
    not_of_all, not_of_all_backwards, times_a_row, turned, joined, any_of_rows, largest_of_rows, rows_taken, elements_taken,
    put_and_added, normed_rows, shares_of_rows, losses_of_rows, sums_along_rows, largest_of_windows, updated]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Ends(tmp_path_factory.mktemp("far"))
    with made.in_place():
        for case in CASES:
            case(made)
        made.compile()
        made.wanted["planted"] = {"near"}
        made.libraries["planted"] = made._compile("planted", PLANTED)
        yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_lies_beyond_32_bits_is_found(ends: Ends, case: Callable[[Ends], None]) -> None:
    case(ends)


@pytest.mark.parametrize("wide", [True, False])
def test_a_planted_index_of_32_bits_fails(ends: Ends, wide: bool) -> None:
    x, out = (far((1 << 32) + 4096) for _ in range(2))
    x[-4096:] = 5
    ends.launch("planted", "near", 1 << 16, 256, (view_of(x), view_of(out), np.int64(x.size), np.int32(wide)))
    at = ends.visited(x.size, 1)
    assert (out[at] == x[at]).all() == wide
