"""A CPU kernel recorded as NumPy calls equals the kernel, on the values it was recorded with and on others."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.calls import Changing
from gradcore.devices.host.device import host_table, make_host
from gradcore.devices.host.tape import STRAIGHT, Probe, noted, written_out
from tests.rows import ROWS, Row, tensors_of
from tests.rows_big import BIG

#: By op: how many of its sample calls were recorded, rather than left to the kernel.
seen: dict[str, int] = {}


def compare(op: str, kernel: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run the kernel and its recorded calls from the same bytes, before and after the operands change."""
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    before = [a.copy() for a in arrays]
    calls = written_out(op, kernel, args)
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(arrays, before, strict=True)), (
        "writing a kernel out touches no byte")
    seen[op] = seen.get(op, 0) + (calls is not None)
    draw = np.random.default_rng(0)
    for values in (before, [draw.permutation(b.reshape(-1)).reshape(b.shape) for b in before]):
        results = []
        for run in (lambda: kernel(*args), lambda: [f(*a) for f, a in calls or ()]):
            for a, v in zip(arrays, values, strict=True):
                a[...] = v
            run()
            results.append([a.tobytes() for a in arrays])
        assert calls is None or results[0] == results[1]


def run(row: Row) -> None:
    """Launch a row's calls on a device that compares each of them with its recorded calls."""
    device = make_host()

    def bind(kernel: Callable[..., Any], op: str = "", any_strides: bool = False) -> Callable[..., Any]:
        def launched(*args: Any) -> None:
            if op in STRAIGHT:
                compare(op, kernel, args)
            kernel(*args)

        return launched

    device.bind = bind  # type: ignore[method-assign]
    inputs = tensors_of(row, device)
    row.declared(*row.arguments(inputs), **(dict(row.attrs) if inputs else {**row.attrs, "device": device}))


@pytest.mark.parametrize("row", [r for r in (*ROWS, *BIG) if r.op in STRAIGHT], ids=str)
def test_calls_do_what_their_kernel_does(row: Row) -> None:
    run(row)


def test_every_straight_op_is_written_out_for_one_of_its_sample_calls() -> None:
    seen.clear()
    for row in (r for r in (*ROWS, *BIG) if r.op in STRAIGHT):
        if not seen.get(row.op):
            run(row)
    assert {op for op, count in seen.items() if count} == STRAIGHT


@pytest.mark.parametrize("shape", [(20_000, 3), (400, 50), (3, 9000, 5)], ids=str)
def test_extremes_of_many_short_rows_are_left_to_their_kernel(shape: tuple[int, ...]) -> None:
    """The plain call, which could be recorded, takes many times as long, and another 0 or -0 may win in it."""
    x, out = np.zeros(shape, np.float32), np.zeros((shape[0], *shape[2:]), np.float32)
    kernel = host_table()["amax"]
    assert written_out("amax", lambda x, out: kernel(x, out, dims=(1,), keepdim=False), [x, out]) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_kernel_that_converts_its_operands_reads_them_at_every_run(dtype: str) -> None:
    weight = gradcore.ones(3, dtype=getattr(gradcore, dtype))
    f = gradcore.compile(lambda: (weight * 2 + 1) * weight)
    for value in (1.0, 2.0, 3.0):
        weight.fill_(value)
        assert f().tolist() == [(2 * value + 1) * value] * 3
    assert len(f.traces) == 1


def test_numbers_become_arrays_that_a_run_writes_to() -> None:
    x, out = np.array([-1.0, 0.0, 3.0], np.float32), np.empty(3, np.float32)
    number = Changing(2.0)
    (function, args), = written_out("mul", np.multiply, [x, number, out]) or ()
    cell, = number.cells
    for value in (2.0, 0.1, -0.0):
        cell[()] = value
        function(*args)
        assert out.tobytes() == np.multiply(x, value).tobytes()


def test_the_sign_of_zero_is_kept() -> None:
    x, out = np.array([-1.0, 3.0], np.float32), np.empty(2, np.float32)

    def both(x: Any, out: Any) -> None:
        np.multiply(x, 0.0, out)
        np.add(out, -0.0, out)

    for function, args in written_out("mul", both, [x, out]) or ():
        function(*args)
    assert out.tobytes() == (x * np.float32(0.0) + np.float32(-0.0)).tobytes()


@pytest.mark.parametrize("fails", [False, True])
def test_the_collector_finds_all_that_a_recording_leaves(fails: bool) -> None:
    def kernel(a: Any, out: Any) -> None:
        np.multiply(a[1:].T, 2, out.T[:, :-1])
        if fails:
            a.tolist()

    def probes() -> int:
        gc.collect()
        return len([x for x in gc.get_objects() if type(x) is Probe])

    before = probes()
    calls = noted(kernel, (np.ones((3, 2)), np.ones((3, 2))))
    assert (calls is None) == fails
    del calls
    assert probes() == before
