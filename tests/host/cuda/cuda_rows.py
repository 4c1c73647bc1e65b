"""Runs sample calls with two sets of kernels, the CUDA device's, emulated, and NumPy's, and compares them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradcore.devices.gpu import kernels as gpu_kernels
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu.kernels import elementwise
from gradcore.devices.host.device import host_table, make_host
from gradcore.dtypes import bfloat16, is_floating
from gradcore.ops import all_ops
from tests.host.cuda.emulator import Copy, Emulator
from tests.rows import Row, parts, tensors_of

OWN = gpu_kernels.KERNELS
#: Tolerance for sums in another order, relative to the largest value of the result.
TOLERANCE = {np.dtype(np.float16): 1e-3, np.dtype(np.float32): 3e-6, np.dtype(np.float64): 1e-14}
#: Roundings to 16 bits, of products, states and slopes, behind a result of a recurrent layer's two steps, at most.
ROUNDINGS = 8


def flat(values: Any) -> list[Any]:
    return [a for v in values for a in (v if isinstance(v, (list, tuple)) else [v])]


class Both:
    """A CPU device whose kernels run on both sides: ours twice over copies of the operands, then NumPy's; it compares.

    The second time, threads run in descending order, in a grid of few blocks where a kernel takes any number.

    Ours run with their result in the place of each input that the op declares, too: bits must be the same. What the pool
    hands out is filled with NaN first, so that results of an earlier call are none of this one's: many rows may run on one
    device. ``own`` are the kernels that are tried, and ``copy`` makes the operands that they are given. With ``off``, ours are
    given inputs that lie an element from where NumPy's lie, as a view may. ``orders`` says for each run whether threads run in
    descending order. ``results``, if given, makes what ops allocate, in the place of ``copy``, and nothing is compared.
    """

    def __init__(self, emulator: Any, own: dict[str, Callable[..., Any]] = OWN, copy: Callable[..., Any] = Copy,
                 off: bool = False, orders: tuple[bool, ...] = (False, True),
                 results: Callable[..., Any] | None = None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRADCORE_POISON", "1")
            self.device = make_host()
        self.emulator = emulator
        self.orders = orders
        self.relaxed = 1.0
        self.roundings = 0
        self.own = own
        self.copy = copy
        self.results = results or copy
        #: Generates the inputs.
        self.input = functools.partial(copy, off=1) if off else copy
        self.compared: list[str] = []
        #: Ops with the inputs over which their result was written.
        self.aliased: set[tuple[str, str]] = set()
        # Halves are passed to the kernels unchanged: the CPU device would pass copies in float32.
        self.device.suited = lambda kernel, operands: (kernel, 0)
        self.device.kernels = {name: self.both(name, kernel) if name in own else kernel
                               for name, kernel in host_table().items()}

    def both(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any, **attrs: Any) -> None:
            arrays = [a for a in flat(values) if isinstance(a, np.ndarray)]
            found = [self.ours(name, values, attrs, falling) for falling in self.orders]
            over = self.over(name, values, attrs) if self.results is self.copy else []
            if not self.emulator.libraries:
                return
            # Looked up here, not for each of a device's kernels, since most devices of tests run only one.
            names = [] if isinstance(kernel, np.ufunc) else list(inspect.signature(kernel).parameters)
            # Some ops declare one only for large operands.
            with_workspace = any(name.endswith("workspace") for name in names[:len(values)])
            in_single(kernel, values, attrs, with_workspace)
            self.compared.append(name)
            if self.results is not self.copy:
                return
            first = found[0]
            whole = list(zip(first, found[-1], arrays, strict=True))
            # A kernel may leave any values in its workspace, which comes last.
            for one, other, expected in whole[:-1] if with_workspace else whole:
                np.testing.assert_array_equal(_plain(one), _plain(other),
                                              err_msg=f"{name}: the order of the threads decides the result")
                compare(name, one, expected, self.relaxed, self.roundings)
            for place, made in over:
                result = first[sum(isinstance(v, np.ndarray) for v in values[:len(all_ops()[name].inputs)])]
                np.testing.assert_array_equal(_plain(made), _plain(result), err_msg=f"{name} cannot be written over {place}")
                self.aliased.add((name, place))

        return run

    def ours(self, name: str, values: Any, attrs: dict[str, Any], falling: bool) -> list[np.ndarray]:
        made: list[Any] = []

        def copied(a: Any, copy: Callable[..., Any]) -> Any:
            if isinstance(a, (list, tuple)):
                return [copied(part, copy) for part in a]
            if not isinstance(a, np.ndarray):
                return a
            made.append(copy(a, exact=self.emulator.sanitize))
            return made[-1].cupy()

        self.emulator.falling = falling
        inputs = len(all_ops()[name].inputs)
        operands = [copied(v, self.input) for v in values[:inputs]]
        given = len(made)
        operands += [copied(v, self.results) for v in values[inputs:]]
        # Nobody has written the results and the workspace before.
        self.emulator.blanks = [(c.bytes.ctypes.data + c.start, np.zeros(c.nbytes, np.uint8)) for c in made[given:]] if (
            self.results is Copy) else []
        with pytest.MonkeyPatch.context() as patch:
            if falling:
                # A thread of a small grid takes several elements, as one of a large tensor does, and a block several units.
                patch.setattr(gpu_launch, "MOST_BLOCKS", 2)
                patch.setattr(gpu_launch, "GRID", 3)
            self.own[name](*operands, **attrs)
        self.emulator.blanks = []
        for copy in made:
            copy.check(name)
        return [copy.array for copy in made]

    def over(self, name: str, values: Any, attrs: dict[str, Any]) -> list[tuple[str, np.ndarray]]:
        """The result written over each declared input that has the same layout."""
        inputs = all_ops()[name].inputs
        found = []
        for place in all_ops()[name].over(attrs):
            given, out = values[inputs.index(place)], values[len(inputs)]
            if not isinstance(given, np.ndarray) or not given.flags.c_contiguous or out.size < 2 or (
                    (given.shape, given.dtype, given.strides) != (out.shape, out.dtype, out.strides)):
                continue
            for falling in self.orders:
                self.emulator.falling = falling
                # Inputs lie as before: a kernel that adds up loads as many elements at once as lie side by side.
                copies = [(self.input if k < len(inputs) else self.copy)(v, exact=self.emulator.sanitize)
                          if isinstance(v, np.ndarray) else v for k, v in enumerate(values)]
                whole = copies[len(inputs)] = copies[inputs.index(place)]
                self.own[name](*[v.cupy() if hasattr(v, "cupy") else v for v in copies], **attrs)
                whole.check(name)
                found.append((place, whole.array))
        return found

    def run(self, row: Row, dtype: Any, relaxed: float = 1.0) -> list[str]:
        """Run a row, and return the ops that were compared, to the tolerance times ``relaxed``."""
        self.compared, self.relaxed, self.roundings = [], relaxed, 0
        if row.op.startswith("attention") and dtype == bfloat16():
            # Probabilities are rounded before they are multiplied, by up to 2^-9 each.
            self.relaxed *= 50
        if row.op.removesuffix("_grad") in ("rnn", "lstm", "gru") and _narrow(np.dtype(dtype)):
            # Products are stored before anything is added to them, as PyTorch's are, and a step begins with what the one before
            # it stored, while NumPy's stay in single precision.
            self.roundings = ROUNDINGS
        tensors = tensors_of(row, self.device, dtype)
        args, attrs = row.arguments(tensors), dict(row.attrs)
        if not tensors:
            attrs["device"] = self.device
        for name in row.declared.writes:
            k = row.declared.inputs.index(name)
            if args[k] is not None:
                args[k] = [a.clone() for a in args[k]] if isinstance(args[k], list) else args[k].clone()
        parts(row.declared(*args, **attrs))
        return self.compared


def _plain(array: Any) -> Any:
    """Bits in place of values of dtypes that NumPy cannot compare."""
    return array.view(np.uint16) if array.dtype.kind == "V" else array


def in_single(kernel: Callable[..., Any], values: Any, attrs: dict[str, Any], with_workspace: bool) -> None:
    """Run NumPy's kernel; on halves in single precision, as the CUDA kernels do, so that what is compared is theirs."""
    if not any(isinstance(a, np.ndarray) and _narrow(a.dtype) for a in flat(values)):
        kernel(*values, **attrs)
        return
    pairs = []

    def widened(a: Any) -> Any:
        if isinstance(a, (list, tuple)):
            return [widened(part) for part in a]
        if not isinstance(a, np.ndarray) or not _narrow(a.dtype):
            return a
        pairs.append((a, a.astype(np.float32)))
        return pairs[-1][1]

    given = [widened(v) for v in values]
    if with_workspace:
        given[-1] = np.empty(2 * given[-1].nbytes, np.uint8)
    kernel(*given, **attrs)
    for narrow, wide in pairs:
        np.copyto(narrow, wide, casting="unsafe")


def _narrow(dtype: Any) -> bool:
    return dtype.itemsize == 2 and is_floating(dtype)


def compare(name: str, found: Any, expected: Any, relaxed: float = 1.0, roundings: int = 0) -> None:
    """``roundings`` may each add half a step of the largest value, in 16 bits."""
    assert found.dtype == expected.dtype
    if not is_floating(expected.dtype):
        np.testing.assert_array_equal(found, expected, err_msg=name)
        return
    rounding, half_step = 0.0, 2**-11
    if expected.dtype == bfloat16():
        # NumPy's comparison does not handle its NaN. Two nearly equal values may be rounded to adjacent ones.
        found, expected = found.astype(np.float32), expected.astype(np.float32)
        rounding, half_step = 2**-7, 2**-8
    largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=1e-3)
    tolerance = TOLERANCE[expected.dtype] * relaxed
    slack = tolerance * max(expected.size, 100) ** 0.5 + roundings * half_step
    np.testing.assert_allclose(found, expected, rtol=rounding or 30 * tolerance, atol=float(largest) * slack, err_msg=name)


def calls() -> list[tuple[Row, Any]]:
    """Every sample call with a kernel of our own, with the dtypes that it runs in."""
    from tests.rows import ROWS
    from tests.rows_cuda import BFLOAT, HALF, SINGLE, SIZES

    found = [(row, dtype) for row in [*ROWS, *SIZES] if row.op in OWN for dtype in (np.float32, np.float64)]
    return found + [(row, np.float32) for row in SINGLE] + [(row, np.float16) for row in HALF] + [
        (row, bfloat16()) for row in BFLOAT if row.op in OWN]


def accesses() -> list[tuple[Row, Any]]:
    """Sample calls that make every access of memory which a kernel makes: of elementwise functions, which share theirs, those
    of many sizes and a few forms; of all others, every one, but none in double precision or bfloat16 whose accesses are those
    of single precision or of half."""
    from tests.rows_cuda import HALF

    halves = {(row.op, row.name) for row in HALF}

    def is_one_of_many(row: Row) -> bool:
        return OWN[row.op].__module__ == elementwise.__name__ and not (
            row.name.startswith("size") or row.op.endswith("_")
            or row.op in ("mul", "where", "bitwise_not", "nan_to_num", "elu", "elu_grad"))

    return [(row, dtype) for row, dtype in calls() if dtype is not np.float64 and not is_one_of_many(row)
            and not (dtype == bfloat16() and (row.op, row.name) in halves)]


def views() -> list[Row]:
    """Sample calls whose inputs may have any alignment, by which kernels choose their accesses."""
    return [row for row, dtype in calls() if dtype is np.float32]


@functools.cache
def noted() -> Emulator:
    """An emulator that has seen the sample calls and run nothing: what they launch, and what only tests launch."""
    from tests.rows_cuda import UNBOUND

    emulator = Emulator(Path())
    # Nothing runs, so that the order of threads changes nothing.
    once = (False,)
    with emulator.in_place():
        both = Both(emulator, orders=once)
        for row, dtype in calls():
            both.run(row, dtype)
        both = Both(emulator, off=True, orders=once)
        for row in views():
            both.run(row, np.float32)
    for family, instances in UNBOUND.items():
        emulator.wanted.setdefault(family, set()).update(instances)
    return emulator


def emulate(folder: Path) -> Emulator:
    """An emulator with every requested instance."""
    emulator = Emulator(folder)
    emulator.wanted = noted().wanted
    emulator.compile()
    return emulator
