"""Kernels of the CPU that choose by bits, and remainders by doubles: the bits of NumPy's functions, for all numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcore.devices.host import scratch as host_scratch
from gradcore.devices.host.device import host_table

SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1, -1, 3e38, -3e38, 0.5, 7, -7, 1e-38], np.float32)
KERNELS = host_table()
rng = np.random.default_rng(0)


def given(size: int, scale: float, special: bool) -> tuple[Any, Any]:
    x, y = (rng.standard_normal(size) * scale).astype(np.float32), rng.standard_normal(size).astype(np.float32)
    # Multiples of each other, whose remainder is 0.
    x[:1000], y[:1000] = np.round(x[:1000]), np.round(y[:1000] * 4) / 4 + 8
    if special:
        x[-225:], y[-225:] = np.repeat(SPECIAL, 15), np.tile(SPECIAL, 15)
    return x, y


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("special", [False, True], ids=["", "special"])
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e7])
@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_divide"])
@np.errstate(all="ignore")
def test_remainders_are_numpys(name: str, scale: float, special: bool) -> None:
    x, y = given(40_000, scale, special)
    # With no NaN among them, as there is with other special numbers.
    infinite = np.where(rng.random(40_000) < 0.1, np.copysign(np.float32(np.inf), y), y)
    for divisor in (y, 0.7, -0.3, 3, 0.0, float("inf"), float("-inf"), infinite):
        out = np.empty_like(x)
        KERNELS[name](x, divisor, out)
        same(out, getattr(np, name)(x, divisor))
    out = x.copy()
    KERNELS[f"{name}_"](out, y)
    same(out, getattr(np, name)(x, y))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@np.errstate(all="ignore")
def test_sums_of_exponentials_are_numpys(dtype: str) -> None:
    x, y = (a.astype(dtype) for a in given(40_000, 3.0, True))
    out = np.empty_like(x)
    KERNELS["logaddexp"](x, y, out)
    np.testing.assert_allclose(out, np.logaddexp(x, y), rtol=1e-6 if dtype == "float32" else 2e-15, atol=np.finfo(dtype).eps)
    small = np.full(40_000, -30, dtype)
    KERNELS["logaddexp"](small - 200, small, out)
    same(out, small)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool"])
def test_choices_are_numpys(dtype: str) -> None:
    size = 40_000
    a, b = (rng.integers(0, 2 if dtype == "bool" else 100, size).astype(dtype) for _ in range(2))
    mask = rng.random(size) > 0.5
    if a.dtype.kind == "f":
        a[:3] = b[-3:] = np.nan, np.inf, -0.0
    for x, y in ((a, b), (a, 0), (0, b), (a, 1), (1, b), (0, 0), (np.broadcast_to(a[7:8], size), b), (a[::-1], b)):
        out = np.empty(size, dtype)
        KERNELS["where"](mask, x, y, out)
        same(out, np.where(mask, x, y).astype(dtype))
    # One of them repeats a row or a column, or is of another layout or dtype, perhaps in the place of the result.
    mask, a, b = (t.reshape(200, 200) for t in (mask, a, b))
    for x, y in ((a, b[0]), (b[:, :1], a), (a.T, b), (a, b.astype(np.float64)), (a[0], b[:, :1])):
        out = np.empty((200, 200), dtype)
        KERNELS["where"](mask, x, y, out)
        same(out, np.where(mask, x, y).astype(dtype))
    out = b.copy()
    KERNELS["where"](mask, a[0], out, out)
    same(out, np.where(mask, a[0], b))
    out = b.copy()
    KERNELS["where"](mask, a, out, out)
    same(out, np.where(mask, a, b))
    out = b.copy()
    KERNELS["masked_fill_"](out, mask, 1)
    same(out, np.where(mask, 1, b).astype(dtype))


def test_a_kernel_that_interrupts_another_leaves_its_temporaries_alone() -> None:
    """As a signal's handler or a finalizer may, between two calls of NumPy."""
    x, out, inner = np.arange(5000, dtype=np.float32), np.empty(5000, np.float32), np.empty(5000, np.float32)

    def outer(x: Any, out: Any, t: Any) -> None:
        np.add(x, 1, t)
        KERNELS["hardswish"](x, inner)
        np.multiply(t, 2, out)

    host_scratch.over(outer, (x,), out, "x")
    np.testing.assert_array_equal(out, 2 * (x + 1))
    # A function that raises gives the memory back.
    with pytest.raises(ZeroDivisionError):
        host_scratch.over(lambda x, out, t: 1 // 0, (x,), out, "x")
    kept: list[Any] = []
    host_scratch.over(lambda x, out, t: kept.append(t), (x,), out, "x")
    assert np.may_share_memory(kept[0], host_scratch._memory.bytes)


def test_pieces_of_spaced_operands_write_the_result_itself() -> None:
    """What is written elsewhere is copied, which costs as much as a kernel's own calls of NumPy."""
    x, out, seen = np.arange(10_000, dtype=np.float32)[::2], np.empty(5000, np.float32), []

    def total(x: Any, y: Any, out: Any, t: Any) -> None:
        seen.append((x, out))
        np.add(x, y, out)

    host_scratch.over(total, (x, x), out, "x")
    np.testing.assert_array_equal(out, x * 2)
    assert len(seen) > 1 and all(np.may_share_memory(part, out) for _, part in seen)
    # One alone is copied there, to be read in long pieces; but not over another operand.
    other = np.arange(5000, dtype=np.float32)
    for y in (other, other[::-1].T, 2, x.astype(np.int64)):
        del seen[:]
        host_scratch.over(total, (np.zeros(5000, np.float32), y), out, "x")
        np.testing.assert_array_equal(out, np.broadcast_to(y, 5000))
        assert len(seen) == 1
    host_scratch.over(total, (other, other[::-1]), other, "x")
    assert (other == 4999).all()


def test_temporaries_start_on_lines_of_the_cache() -> None:
    seen: list[int] = []
    x, out = np.ones(777, np.float32), np.empty(777, np.float32)
    host_scratch.over(lambda x, out, *room: seen.extend(t.ctypes.data % 64 for t in room), (x,), out, "x?i")
    assert seen == [0, 0, 0]
