"""No kernel allocates memory that its op does not declare: NumPy's allocations while it runs are traced."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradcore.devices.host.device import HostDevice, make_host
from gradcore.engine.plans import Call
from tests.rows import Row, tensors_of
from tests.rows_big import BIG

pytestmark = pytest.mark.usefixtures("tracing")

#: The allowed total of temporaries of fixed size.
SLACK = 64 << 10


class Watch:
    """A device whose kernels run traced; ``worst`` is the largest number of bytes that one of them had allocated at once."""

    def __init__(self) -> None:
        self.device: HostDevice = make_host()
        self.device.bind = self.bind  # type: ignore[method-assign]
        self.worst = 0
        self.launches = 0

    def bind(self, kernel: Callable[..., Any], op: str = "", any_strides: bool = False) -> Callable[..., Any]:
        def traced(*arrays: Any) -> None:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            kernel(*arrays)
            self.launches += 1
            self.worst = max(self.worst, tracemalloc.get_traced_memory()[1] - before)

        return traced

    def run(self, row: Row) -> int:
        inputs = tensors_of(row, self.device)
        args, attrs = row.arguments(inputs), dict(row.attrs)
        if not inputs:
            attrs["device"] = self.device
        # Twice: memory that is allocated once and kept, such as a table of powers, is not temporary.
        for _ in range(2):
            self.worst = 0
            row.declared(*args, **attrs)
        return self.worst

    def library(self) -> int:
        """Bytes that the calls so far have declared for libraries."""
        return max(call.library for call in self.device.calls.values() if isinstance(call, Call))


@pytest.mark.parametrize("row", BIG, ids=str)
def test_no_kernel_makes_undeclared_bytes(row: Row) -> None:
    watch = Watch()
    worst = watch.run(row)
    assert watch.launches or row.declared.view
    assert worst <= SLACK + watch.library(), f"{row.op} made {worst:,} bytes that it had not declared"


def test_the_trace_sees_numpys_memory() -> None:
    before, _ = tracemalloc.get_traced_memory()
    array = np.empty(1 << 20, np.uint8)
    assert tracemalloc.get_traced_memory()[0] - before >= array.nbytes


@pytest.mark.parametrize("size", [SLACK // 2, 2 * SLACK])
def test_a_planted_temporary_shows(size: int) -> None:
    watch = Watch()
    honest = watch.device.kernels["add"]

    def greedy(x: Any, y: Any, out: Any) -> None:
        honest(x, y + np.empty(size, np.uint8)[:1], out)

    watch.device.kernels["add"] = greedy
    row = next(r for r in BIG if r.op == "add")
    planted = Row("add", "planted", (row.args[0], row.args[0]))
    assert watch.run(planted) >= size
