"""The driver's figures for a process, with mocks of NVML and the CUDA runtime: whole cards, containers, MIG, or no NVML."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace

import pytest

import gradcore
from gradcore.report import load_report
from gradcore.report.driver import DriverAccount
from gradcore.report.step import LibraryBytes

MiB = 1 << 20
CONTEXT, CODE = 500 * MiB, 3 * MiB


class Machine:
    """A card, as the runtime and NVML report it; other processes use ``others`` bytes."""

    def __init__(self, **settings):
        self.whole = 1 << 34
        self.others = settings.get("others", 0)
        self.mine = 0
        #: What processes NVML lists: of this process "pid", with its bytes "unknown", another number, or none.
        self.lists = settings.get("lists", "pid")
        self.mig = settings.get("mig", False)
        #: The numbers of the MIG instances that this process may see.
        self.instances = settings.get("instances", (0, 2))
        self.card = settings.get("card", True)
        self.nvml = settings.get("nvml", True)
        self.memory_info = settings.get("memory_info", True)
        self.handles = []

    def use(self, nbytes):
        self.mine += nbytes

    # -- the runtime

    def setDevice(self, index):
        self.mine = self.mine or CONTEXT

    def deviceGetPCIBusId(self, index):
        return f"0000:0{index}:00.0"

    def memGetInfo(self):
        if not self.memory_info:
            raise RuntimeError("cudaErrorMystery")
        return self.whole - self.others - self.mine, self.whole

    # -- NVML

    def nvmlInit(self):
        if not self.nvml:
            raise RuntimeError("NVML Shared Library Not Found")

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        return bus

    def nvmlDeviceGetMigMode(self, handle):
        if not self.mig:
            raise RuntimeError("Not Supported")
        return 1, 1

    def nvmlDeviceGetHandleByUUID(self, name):
        return name

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, k):
        if k not in self.instances:
            raise RuntimeError("Not Found")
        return f"{handle}, instance {k}"

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        self.handles.append(handle)
        pid = os.getpid()
        rows = {"pid": [(pid, self.mine)], "unknown": [(pid, None)], "number": [(pid, 10 * MiB)], "none": []}[self.lists]
        others = [(1, self.others)] if self.others else []
        return [SimpleNamespace(pid=pid, usedGpuMemory=n) for pid, n in (rows if self.mine else []) + others]

    def nvmlDeviceGetMemoryInfo(self, handle):
        if not self.card:
            raise RuntimeError("Insufficient Permissions")
        return SimpleNamespace(used=self.mine + self.others)


LIBRARIES = (LibraryBytes("cublasLt in matmul", 4 * MiB), LibraryBytes("cached scratch memory (of sort)", 2 * MiB))


def account(machine, segments=20 * MiB, index=1):
    made = DriverAccount(index, machine, machine)
    machine.use(segments + sum(x.nbytes for x in LIBRARIES) + CODE)
    return made.figures(segments, LIBRARIES)


def reconciles(figures):
    return figures.used == (figures.context or 0) + figures.segments + figures.library + figures.remainder


@pytest.mark.parametrize("others", [0, 3000 * MiB])
def test_nvml_knows_the_process(others):
    machine = Machine(others=others)
    found = account(machine)
    assert found.source == "NVML, this process"
    assert (found.used, found.context, found.segments, found.library, found.remainder) == (
        CONTEXT + 29 * MiB, CONTEXT, 20 * MiB, 6 * MiB, CODE)
    assert reconciles(found)
    assert set(machine.handles) == {"0000:01:00.0"}, "the device by its bus: CUDA's numbers are not NVML's"


@pytest.mark.parametrize(("lists", "why"), [
    ("none", "NVML does not list this process"), ("unknown", "NVML does not report the memory of this process"),
    ("number", "NVML lists 10,485,760 bytes for this process ID, fewer than it has allocated")])
def test_in_a_container_the_cards_own_change_counts(lists, why):
    found = account(Machine(lists=lists, others=7 * MiB))
    assert (found.used, found.context, found.remainder) == (CONTEXT + 29 * MiB, CONTEXT, CODE)
    assert reconciles(found)
    assert found.source == ("change of the card's used bytes since before the context was created (then 7,340,032), "
                            f"exact if no other process uses the card; {why}")


@pytest.mark.parametrize(("settings", "why"), [
    ({"nvml": False}, "NVML: NVML Shared Library Not Found"),
    ({"lists": "none", "card": False}, "NVML: Insufficient Permissions"),
    ({"mig": True}, "NVML: the GPU is partitioned by MIG, 2 instances are visible, and CUDA_VISIBLE_DEVICES names none "
                    "(MIG-...)"),
    ({"mig": True, "instances": ()}, "0 instances are visible, and CUDA_VISIBLE_DEVICES names none (MIG-...)")])
def test_without_nvml_the_runtimes_free_bytes_change(settings, why, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = account(Machine(others=7 * MiB, **settings))
    assert (found.used, found.context, found.remainder) == (29 * MiB, None, CODE)
    assert reconciles(found)
    assert found.source.startswith("change of the card's free bytes since the context was created (the context not included)")
    assert found.source.endswith(why)


def test_a_slice_of_mig_is_found_by_its_name(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-0123, MIG-4567")
    machine = Machine(mig=True)
    assert account(machine).source == "NVML, this process"
    assert set(machine.handles) == {"MIG-0123"}


@pytest.mark.parametrize("visible", [None, "0"])
def test_a_container_with_one_slice_of_mig_needs_no_name(visible, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = Machine(mig=True, instances=(3,))
    assert account(machine).source == "NVML, this process"
    assert set(machine.handles) == {"0000:01:00.0, instance 3"}


def test_where_nothing_can_tell_it_says_so():
    found = account(Machine(nvml=False, memory_info=False))
    assert (found.used, found.context, found.remainder) == (None, None, None)
    assert found.segments == 20 * MiB and found.source == "NVML: NVML Shared Library Not Found"


def test_the_report_shows_the_account():
    with gradcore.step(device="cpu") as s:
        pass
    report = dataclasses.replace(s.report, driver=account(Machine()))
    text = str(report)
    assert "Driver (NVML, this process):\n  554,696,704 bytes used = context 524,288,000 + segments 20,971,520 + " in text
    assert ("libraries 6,291,456 + remainder 3,145,728 (0.6%: what the driver and libraries take for themselves)\n"
            "        4,194,304 bytes for cublasLt in matmul\n"
            "        2,097,152 bytes for cached scratch memory (of sort)") in text
    assert load_report(report.to_dict()) == report
    nothing = str(dataclasses.replace(s.report, driver=account(Machine(nvml=False, memory_info=False))))
    assert "Driver (NVML: NVML Shared Library Not Found):\n  N/A bytes used = context N/A + segments" in nothing


def test_the_scratch_pool_says_whose_its_bytes_are(monkeypatch):
    pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")
    import cupy
    import numpy as np

    from gradcore.devices.gpu import loaded as gpu_loaded
    from gradcore.devices.gpu.device import CudaDevice
    from tests.meta.simulated_cuda import Card

    # On a machine with a GPU that of earlier tests is loaded.
    monkeypatch.setattr(gpu_loaded, "code", lambda index: [])
    device = CudaDevice(0, cuda=Card())
    kept = []
    device.bind(lambda: kept.append(cupy.ndarray((1000,), np.float32)), "sort")()
    rows = device.driver_figures().libraries
    assert rows == (LibraryBytes("cupy in sort", 4096), LibraryBytes("cached scratch memory (of sort)", 2 * MiB - 4096))
    assert device.driver_figures().library == device.bridge.ledger.reserved == 2 * MiB
    kept.clear()
    assert [x.nbytes for x in device.driver_figures().libraries] == [2 * MiB]
