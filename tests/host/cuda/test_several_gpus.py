"""Several GPUs, with a mock of the runtime: each call and each kernel of a device finds it current, whatever was before."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from cupy.cuda import runtime

import gradcore
from gradcore.cuda import properties
from gradcore.devices import availability, pinned
from gradcore.devices.device import get_device
from gradcore.devices.gpu import current as gpu_current
from gradcore.devices.gpu import device as gpu
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu import mailbox as gpu_mailbox
from gradcore.devices.gpu import workspaces as gpu_workspaces
from gradcore.devices.gpu.current import OnDevice, has_context
from gradcore.errors import DeviceError
from gradcore.events import UNTAGGED
from gradcore.memory.driver import CudaDriver
from gradcore.memory.pinned import AfterCopies
from gradcore.memory.resource import Stream
from tests.host.cuda.test_cupy_objects import Runtime


class Several(Runtime):
    """A runtime with several devices; every call notes which of them is current."""

    def __init__(self):
        super().__init__()
        self.current = 0
        self.noted = []

    def getDevice(self):
        return self.current

    def setDevice(self, index):
        self.current = index

    def malloc(self, nbytes):
        self.noted.append(("malloc", self.current))
        return super().malloc(nbytes)

    def deviceSynchronize(self):
        self.noted.append(("wait", self.current))

    def eventCreateWithFlags(self, flags):
        self.noted.append(("event", self.current))
        return super().eventCreateWithFlags(flags)

    def memcpyAsync(self, *arguments):
        self.noted.append(("copy", self.current))

    def pointerGetAttributes(self, address):
        return SimpleNamespace(type=0)


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(gpu_current, "has_context", lambda index: True)
    return Several()


def device_on(cuda, index):
    device = gpu.CudaDevice(index, cuda=OnDevice(cuda, index))
    device.kernels = {name: lambda *arrays, name=name, **how: cuda.noted.append((name, cuda.current))
                      for name in device.kernels}
    return device


def test_what_a_device_does_is_done_on_it(cuda):
    first, second = device_on(cuda, 0), device_on(cuda, 1)
    for device in (first, second, first):
        cuda.noted.clear()
        x = gradcore.tensor(np.ones(4, np.float32), device=device)
        large = gradcore.empty(1 << 24, device=device) + 1
        device.synchronize()
        device.order(device.stream, device.make_stream())
        assert {current for _, current in cuda.noted} == {device.index}
        assert {"add", "copy", "malloc", "wait", "event"} <= {name for name, _ in cuda.noted}
        # What the user's own code, or another library, had chosen.
        assert cuda.current == 0
        del x, large
        gradcore.empty_cache(device)


def test_the_second_is_named_and_not_made_the_current_one(cuda):
    gradcore.cuda.set_device(device_on(cuda, 0))
    with pytest.raises(DeviceError, match=r"^cuda:1 cannot be made the current GPU, which is cuda:0: name cuda:1 where"):
        gradcore.cuda.set_device(device_on(cuda, 1))


def test_a_mailbox_of_a_captured_program_is_used_on_its_device(cuda, monkeypatch):
    """Its kernels are no op's; and when it goes, an event tells when its slots may be used again."""
    device = device_on(cuda, 1)
    monkeypatch.setattr(gpu_launch, "launch", lambda *what: cuda.noted.append((what[:2], cuda.current)))
    box = gpu_mailbox.Mailbox(device, [(4096, 16)], [(8192, 16)], None, 12_288, 0)
    cuda.noted.clear()
    box.bring()
    box.deliver()
    del box
    assert cuda.noted == [(("mailbox", "bring"), 1)] * 2 + [("event", 1)]
    assert cuda.current == 0


def test_pinned_memory_goes_back_behind_the_copies_of_every_device(cuda, monkeypatch):
    used = [device_on(cuda, index) for index in (0, 1)]
    monkeypatch.setattr(pinned, "devices", lambda: used)
    found = pinned.PinnedDevice(cuda)
    cuda.hostAlloc = lambda nbytes, flags: 1 << 20
    cuda.freeHost = lambda address: cuda.noted.append(("free", cuda.current))
    held = found.allocate(4096, UNTAGGED)
    cuda.noted.clear()
    del held
    assert found.ledger.flush() == 2 << 20
    assert cuda.noted == [("wait", 0), ("wait", 1), ("free", 0)]


def test_pinned_memory_is_allocated_on_a_gpu_that_is_used(cuda, monkeypatch):
    """Page-locked memory is of a context: on a GPU that nothing uses, one would be created."""
    used = [get_device("cpu"), device_on(cuda, 1)]
    monkeypatch.setattr(pinned, "devices", lambda: used)
    cuda.hostAlloc = lambda nbytes, flags: cuda.noted.append(("allocate", cuda.current)) or 1 << 20
    cuda.freeHost = lambda address: cuda.noted.append(("free", cuda.current))
    cuda.eventSynchronize = lambda event: cuda.noted.append(("wait for a copy", cuda.current))
    cuda.noted.clear()
    found = pinned.PinnedDevice(pinned.where_used(cuda, 2))
    held = found.allocate(4096, UNTAGGED)
    found.driver.synchronize_event(7)
    del held
    found.ledger.flush()
    assert cuda.noted == [("allocate", 1), ("wait for a copy", 1), ("wait", 1), ("free", 1)] and cuda.current == 0
    # One GPU needs no switch, and where none is used yet, the current one is as good as any.
    assert pinned.where_used(cuda, 1) is cuda
    del used[1]
    assert pinned.where_used(cuda, 2) is cuda


def test_memory_is_asked_of_a_gpu_without_making_another_current(cuda, monkeypatch):
    device = device_on(cuda, 1)
    monkeypatch.setattr(properties, "get_device", lambda name: device)
    monkeypatch.setattr(runtime, "memGetInfo", lambda: (cuda.current, 10))
    assert properties.mem_get_info(1) == (1, 10) and cuda.current == 0
    # CuPy's own switch would go back to a GPU that this process does not use, and so create a context there.
    monkeypatch.setattr(gpu_current, "has_context", lambda index: False)
    assert properties.mem_get_info(1) == (1, 10) and cuda.current == 1


def test_fused_kernels_are_chosen_and_workspaces_made_on_the_device(cuda, monkeypatch):
    device = device_on(cuda, 1)
    found = []
    monkeypatch.setattr(gpu, "fused", lambda *what: found.append(cuda.current))
    device.fused("relu", [])
    workspaces = SimpleNamespace(of=lambda handle: found.append(cuda.current))
    monkeypatch.setitem(gpu_workspaces.SHARED, 1, workspaces)
    cuda.streamSynchronize = lambda stream: found.append(cuda.current)
    device.prepare_capture(device.make_stream())
    assert found == [1, 1, 1] and cuda.current == 0


def test_cupys_object_for_a_stream_is_made_on_its_device(cuda, monkeypatch):
    """That of newer versions of CuPy may only be used where the device is current that was so when it was made."""
    device, found = device_on(cuda, 1), []
    note = SimpleNamespace(use=lambda: found.append(("used", cuda.current)))
    monkeypatch.setattr(gpu_workspaces, "of_cupy", lambda handle: found.append(("made", cuda.current)) or note)
    monkeypatch.setattr(gpu_workspaces._chosen, "of", {})
    monkeypatch.setattr(gpu.cupy.cuda, "get_current_stream", lambda index: note)
    device.activate(device.make_stream())
    assert found == [("made", 1), ("made", 1), ("used", 1)] and cuda.current == 0


def test_the_former_device_is_current_again_after_an_error(cuda):
    def fail(nbytes):
        assert cuda.current == 1
        raise cuda.CUDARuntimeError(700)

    cuda.malloc = fail
    found = OnDevice(cuda, 1)
    with pytest.raises(found.CUDARuntimeError):
        found.malloc(512)
    assert cuda.current == 0 and found.CUDARuntimeError is Several.CUDARuntimeError and found.room == 1 << 30


def test_a_device_without_a_context_gets_none_when_another_is_used(cuda, monkeypatch):
    """To make it current would create one."""
    monkeypatch.setattr(gpu_current, "has_context", lambda index: False)
    OnDevice(cuda, 1).malloc(512)
    assert cuda.noted == [("malloc", 1)] and cuda.current == 1


def test_the_driver_says_whether_a_device_has_a_context(monkeypatch):
    states = iter((0, 1))

    def state(index, flags, active):
        active._obj.value = next(states)
        return 0

    monkeypatch.setattr(gpu_current, "_with_context", set())
    monkeypatch.setattr(gpu_current, "driver_library", lambda: SimpleNamespace(cuDevicePrimaryCtxGetState=state))
    # Once it has one, the driver is not asked again.
    assert [has_context(3) for _ in range(3)] == [False, True, True]
    monkeypatch.setattr(gpu_current, "driver_library", lambda: None)
    assert has_context(4)


@pytest.mark.parametrize("devices", [1, 2])
def test_only_a_machine_with_several_devices_switches_between_them(devices, monkeypatch):
    monkeypatch.setattr(gpu, "cuda_status", lambda: availability.CudaStatus((13, 0), devices, ""))
    monkeypatch.setattr(gpu, "CudaDevice", lambda index, **how: how["cuda"])
    monkeypatch.setattr(gpu.runtime, "getDeviceProperties", lambda index: {})
    made = gpu.make_cuda(0)
    assert isinstance(made, OnDevice) if devices > 1 else made is gpu.runtime


@pytest.mark.parametrize("shared", [0, 1])
def test_a_gpu_that_reads_the_hosts_page_tables_stages_no_copies(shared, monkeypatch):
    monkeypatch.setattr(gpu, "cuda_status", lambda: availability.CudaStatus((13, 0), 1, ""))
    monkeypatch.setattr(gpu, "CudaDevice", lambda index, **how: how["staged"])
    monkeypatch.setattr(gpu.runtime, "getDeviceProperties", lambda index: {"pageableMemoryAccessUsesHostPageTables": shared})
    assert gpu.make_cuda(0) is not bool(shared)


def test_a_pinned_blocks_event_is_made_on_the_device_of_the_copy(cuda):
    """An event of one device cannot be recorded on a stream of another."""
    copies = device_on(cuda, 1).make_stream()
    cuda.noted.clear()
    block = SimpleNamespace(users=[copies], segment=SimpleNamespace(index=0), offset=0, size=512)
    AfterCopies(SimpleNamespace(release=lambda block: None), CudaDriver(cuda), {}).release(block)
    assert cuda.noted == [("event", 1)] and cuda.current == 0
    cuda.noted.clear()
    block.users = [Stream(1, 99)]
    AfterCopies(SimpleNamespace(release=lambda block: None), CudaDriver(cuda), {}).release(block)
    assert cuda.noted == [("event", 0)]
