"""Code that is loaded on a card counts by the bytes that this process uses, or by the card's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu import loaded as gpu_loaded
from gradcore.devices.gpu.gemm import CublasLt, Plan
from gradcore.devices.gpu.problems import Matrix, Problem
from gradcore.report.step import LibraryBytes
from tests.host.cuda.fake_cublas import FakeLt


class Machine:
    """A card of 1,000 bytes."""

    CUDARuntimeError = RuntimeError

    used = 0

    def memGetInfo(self) -> tuple[int, int]:
        return 1000 - self.used, 1000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    monkeypatch.setattr(gpu_loaded, "runtime", made)
    monkeypatch.setattr(gpu_loaded, "_TAKEN", {})
    monkeypatch.setattr(gpu_loaded, "FIGURES", {})
    yield made


def test_what_loading_takes_is_summed_by_whose_it_is(machine: Machine) -> None:
    for whose, nbytes in (("kernels", 10), ("a library", 100), ("kernels", 20), ("nothing", 0), ("less", -5)):
        with gpu_loaded.loading(whose, 7):
            machine.used += nbytes
    assert gpu_loaded.code(7) == [LibraryBytes("code of a library", 100), LibraryBytes("code of kernels", 30)]
    assert gpu_loaded.code(0) == []


def test_segments_that_come_meanwhile_are_no_code(machine: Machine) -> None:
    held = [50]
    gpu_loaded.FIGURES[7] = lambda: (held[0], None)
    with gpu_loaded.loading("kernels", 7):
        machine.used += 300
        held[0] += 200
    assert gpu_loaded.code(7) == [LibraryBytes("code of kernels", 100)]


def test_what_other_processes_take_is_no_code(machine: Machine) -> None:
    mine: list[int | None] = [400]
    gpu_loaded.FIGURES[7] = lambda: (50, mine[0])
    with gpu_loaded.loading("kernels", 7):
        machine.used += 500
        mine[0] = 430
    assert gpu_loaded.code(7) == [LibraryBytes("code of kernels", 30)]
    # A figure of the one kind less one of the other says nothing.
    with gpu_loaded.loading("kernels", 7):
        machine.used += 500
        mine[0] = None
    assert gpu_loaded.code(7) == [LibraryBytes("code of kernels", 30)]


def test_a_load_that_fails_is_counted_and_its_error_passes(machine: Machine) -> None:
    with pytest.raises(ZeroDivisionError), gpu_loaded.loading("kernels", 7):
        machine.used += 4
        raise ZeroDivisionError
    assert gpu_loaded.code(7) == [LibraryBytes("code of kernels", 4)]


def test_without_a_driver_nothing_is_known(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Machine, "memGetInfo")
    monkeypatch.setattr(Machine, "memGetInfo", lambda self: (_ for _ in ()).throw(RuntimeError("no driver")), raising=False)
    with gpu_loaded.loading("kernels", 7):
        pass
    assert gpu_loaded.code(7) == []


def test_the_first_run_of_a_plan_loads(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(FakeLt):
        """A library that loads 64 bytes of code when a descriptor is first used."""

        met: set[int] = set()

        def matmul(self, *arguments: Any) -> None:
            machine.used += 64 * (arguments[1] not in self.met)
            self.met.add(arguments[1])

    monkeypatch.setattr(gpu_gemm, "current_stream", lambda: 0)
    library = CublasLt(Lazy(lambda: True), 0, lambda nbytes: None, 7)
    side = Matrix(0, 4, 16, 16)
    plans = [library.plan(Problem("float32", m, 4, 4, 1, side, side, side)) for m in (2, 3)]
    for _ in range(3):
        for plan in plans:
            assert isinstance(plan, Plan)
            library.run(plan, 0, 0, 0, 0)
    assert gpu_loaded.code(7) == [LibraryBytes("code of cuBLASLt", 128)]
