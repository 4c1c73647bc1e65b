"""The CUDA device with CuPy's real objects and no driver: arrays over blocks, their owners, and lifetimes."""

from __future__ import annotations

import ctypes
import gc
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore  # noqa: E402
from gradcore.devices.availability import cuda_status  # noqa: E402
from gradcore.devices.gpu import device as gpu  # noqa: E402
from gradcore.engine.value import Value  # noqa: E402
from gradcore.errors import OutOfMemory, SourceExhausted, UndeclaredAllocation  # noqa: E402
from gradcore.events import Alloc, Site, Tag  # noqa: E402
from gradcore.memory.driver import CudaDriver, CudaSource  # noqa: E402
from gradcore.memory.resource import Stream  # noqa: E402
from gradcore.memory.stack import build, explain_live  # noqa: E402
from gradcore.reading import short_path  # noqa: E402
from gradcore.spec import TensorSpec  # noqa: E402
from tests.meta.simulated_cuda import HostCard  # noqa: E402

TAG = Tag("test", "layers.0", "forward", "output", Site(__file__, 1, "f"), None, None)


class Runtime:
    """The calls of the CUDA runtime that the device makes, over simulated memory of ``room`` bytes."""

    class CUDARuntimeError(Exception):
        def __init__(self, status):
            super().__init__(f"cudaError {status}")
            self.status = status

    def __init__(self, room=1 << 30):
        self.room = room
        self.next = 1 << 40
        self.held = {}
        self.calls = []
        self.fail = 0

    def setDevice(self, index):
        pass

    def malloc(self, nbytes):
        if self.fail:
            raise self.CUDARuntimeError(self.fail)
        if sum(self.held.values()) + nbytes > self.room:
            raise self.CUDARuntimeError(2)
        self.held[self.next] = nbytes
        self.next += (nbytes + 511) // 512 * 512
        return self.next - (nbytes + 511) // 512 * 512

    def free(self, address):
        del self.held[address]

    def eventCreateWithFlags(self, flags):
        self.calls.append("create")
        return len(self.calls)

    def eventRecord(self, event, stream):
        self.calls.append(("record", stream))

    def streamWaitEvent(self, stream, event, flags):
        self.calls.append(("wait", stream))

    def eventDestroy(self, event):
        self.calls.append("destroy")

    def deviceSynchronize(self):
        self.calls.append("synchronize")

    def streamCreateWithPriority(self, flags, priority):
        return 77

    def memGetInfo(self):
        return 1 << 30, 2 << 30


@pytest.fixture
def device(monkeypatch):
    # CuPy asks the driver which device is current.
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda index: SimpleNamespace(ptr=0))
    return gpu.CudaDevice(0, cuda=Runtime())


def value(device, spec):
    storage = device.allocate(spec.nbytes, TAG)
    made = Value()
    made.storage, made.spec = storage, spec
    made.array = device.array(storage.block, spec)
    return made


def test_arrays_lie_over_our_blocks(device):
    x = value(device, TensorSpec.of((4, 6), np.float32))
    assert isinstance(x.array, cupy.ndarray)
    assert x.array.shape == (4, 6)
    assert x.array.dtype == np.float32
    assert x.array.data.ptr == x.storage.block.address
    view = device.array(x.storage.block, TensorSpec.strided((3, 2), np.dtype(np.float32), (6, 2), 7))
    assert view.data.ptr == x.storage.block.address + 28
    assert view.strides == (24, 8)
    assert x.array[1:, ::2].data.ptr == x.storage.block.address + 24


def test_one_array_object_for_a_block_and_spec(device):
    spec = TensorSpec.of((3,), np.float64)
    x = value(device, spec)
    assert device.array(x.storage.block, spec) is x.array


def test_a_block_goes_back_with_its_storage_and_not_with_arrays(device):
    x = value(device, TensorSpec.of((8,), np.float32))
    array = x.array
    assert device.ledger.allocated == 512
    del x
    assert device.ledger.allocated == 0, "an internal array pins nothing"
    del array


def test_an_exported_array_keeps_the_block_and_knows_its_tag(device):
    gc.disable()
    try:
        x = value(device, TensorSpec.of((8, 2), np.float32))
        array = gpu.export(x)
        address = x.storage.block.address
        del x
        part = array[2:5].T
        del array
        assert device.ledger.allocated == 512
        assert part.data.mem.tag.layer == "layers.0"
        assert part.data.ptr == address + 16
        del part
        assert device.ledger.allocated == 0, "by reference count alone"
    finally:
        gc.enable()


def test_release_on_another_thread(device):
    held = [gpu.export(value(device, TensorSpec.of((8,), np.float32)))]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert device.ledger.allocated == 0


def test_segments_come_from_the_runtime_and_go_back():
    runtime = Runtime()
    device = gpu.CudaDevice(0, cuda=runtime)
    x = value(device, TensorSpec.of((1 << 20,), np.float32))
    assert list(runtime.held.values()) == [20 << 20]
    del x
    assert device.ledger.flush() == 20 << 20
    assert not runtime.held
    assert runtime.calls == ["synchronize"], "the driver's other users are not ordered behind our work"


def test_out_of_memory_on_the_device_names_the_holders():
    device = gpu.CudaDevice(0, cuda=Runtime(room=8 << 20))
    x = value(device, TensorSpec.of((1 << 18,), np.float32))
    with pytest.raises(OutOfMemory, match=r"out of memory(.|\n)*output of test in layer layers\.0"):
        value(device, TensorSpec.of((1 << 22,), np.float32))
    assert device.ledger.allocated == x.spec.nbytes
    value(device, TensorSpec.of((1 << 16,), np.float32))


def test_running_out_says_what_is_in_use_outside_the_pool():
    runtime = Runtime(room=8 << 20)
    device = gpu.CudaDevice(0, cuda=runtime)
    x = value(device, TensorSpec.of((1 << 18,), np.float32))
    runtime.memGetInfo = lambda: (1 << 20, 40 << 20)
    with pytest.raises(OutOfMemory) as caught:
        value(device, TensorSpec.of((1 << 22,), np.float32))
    assert caught.value.outside == (39 << 20) - device.ledger.reserved < 39 << 20
    assert f"limit none, {caught.value.outside:,} in use on the device outside the pool; cudaMalloc could" in str(caught.value)

    runtime.memGetInfo = lambda: runtime.malloc(1 << 30)
    with pytest.raises(OutOfMemory, match="limit none; cudaMalloc could") as caught:
        value(device, TensorSpec.of((1 << 22,), np.float32))
    assert caught.value.outside is None and device.ledger.allocated == x.spec.nbytes


def test_other_errors_of_the_runtime_pass_through():
    runtime = Runtime()
    runtime.fail = 999
    with pytest.raises(Runtime.CUDARuntimeError, match="999"):
        CudaSource(0, runtime).allocate(512)
    runtime.fail = 2
    with pytest.raises(SourceExhausted, match="512 bytes on cuda:0"):
        CudaSource(0, runtime).allocate(512)


def test_another_stream_waits_before_it_takes_memory():
    runtime = Runtime()
    stack = build(CudaSource(0, runtime), CudaDriver(runtime))
    first, second = Stream(0, 11), Stream(1, 22)
    block = stack.ledger.allocate(2 << 20, first, TAG)
    stack.ledger.release(block)
    stack.ledger.allocate(21 << 20, second, TAG)
    assert not runtime.calls, "nothing fits, so nothing is taken over"
    stack.ledger.allocate(1 << 20 | 512, second, TAG)
    assert runtime.calls == ["create", ("record", 11), ("wait", 22), "destroy"]


def test_poison_lands_behind_all_that_used_the_bytes():
    card = HostCard()
    device = gpu.CudaDevice(0, cuda=card, poison=True)
    side = device.make_stream()
    x = value(device, TensorSpec.of((100,), np.float32))
    card.deviceSynchronize()
    assert ctypes.string_at(x.storage.block.address, 512) == b"\xff" * 512
    ctypes.memset(x.storage.block.address, 1, 400)
    seen = []
    card.queues[side.handle].append((None, lambda: seen.append(ctypes.string_at(x_address, 400))))
    x.storage.block.use_on(side)
    x_address = x.storage.block.address
    del x
    card.deviceSynchronize()
    assert seen == [b"\x01" * 400]
    assert ctypes.string_at(x_address, 512) == b"\xff" * 512


@pytest.mark.parametrize("spec", [
    TensorSpec.of((6, 8), np.float32), TensorSpec.strided((8, 6), np.dtype(np.float32), (1, 8), 0),
    TensorSpec.strided((3, 2), np.dtype(np.float32), (16, 3), 9), TensorSpec.strided((5, 6), np.dtype(np.float32), (0, 8), 2),
    TensorSpec.strided((), np.dtype(np.float32), (), 40), TensorSpec.strided((0, 4), np.dtype(np.float32), (8, 1), 0)], ids=str)
def test_reading_allocates_nothing_on_the_device(spec):
    card = HostCard()
    device = gpu.CudaDevice(0, cuda=card, strict=True)
    x = value(device, TensorSpec.of((6, 8), np.float32))
    numbers = np.arange(48, dtype=np.float32)
    device.upload(x.storage, x.spec, numbers.reshape(6, 8))
    expected = np.lib.stride_tricks.as_strided(numbers[spec.offset:], spec.shape, [4 * s for s in spec.strides])
    found = device.read(x.storage, spec)
    np.testing.assert_array_equal(found, expected)
    assert found.flags.c_contiguous and found.dtype == np.float32
    assert device.bridge.ledger.allocations == 0


def test_scratch_of_one_stream_is_not_handed_to_another(device):
    side = device.make_stream()
    device.activate = lambda stream: None

    def hidden(array):
        cupy.ndarray((100,), np.float32)

    launch = device.bind(hidden, "sum")
    launch(None)
    with device.use(side):
        launch(None)
    assert {stream.index for stream in device.bridge.ledger.pool.streams} == {0, side.index}
    assert [call for call in device._cuda.calls if call[0] == "wait"] == [("wait", side.handle)]


def test_cupys_own_allocations_come_from_the_scratch_pool(device):
    def hidden(array):
        made = cupy.ndarray((100,), np.float32)
        assert isinstance(made.data.mem, gpu.ScratchMemory)
        assert device.bridge.ledger.allocated == 512

    device.bind(hidden, "sum")(None)
    assert device.bridge.ledger.allocated == 0
    assert device.bridge.seen == {"sum": (1, 400)}
    assert device.ledger.allocated == 0


def test_strict_mode_refuses_them():
    device = gpu.CudaDevice(0, cuda=Runtime(), strict=True)
    with pytest.raises(UndeclaredAllocation, match="400 bytes in the kernel of op 'sum'"):
        device.bind(lambda array: cupy.ndarray((100,), np.float32), "sum")(None)


def test_the_interface_for_other_libraries_on_the_gpu(device):
    x = gradcore.Tensor.__new__(gradcore.Tensor)
    shown = value(device, TensorSpec.of((4, 6), np.float32))
    x.storage, x.spec, x.array, x.edge, x.base = shown.storage, shown.spec, shown.array, None, None
    found = x.__cuda_array_interface__
    assert found == {"shape": (4, 6), "typestr": "<f4", "version": 3, "stream": 1, "strides": None,
                     "data": (shown.array.data.ptr, False)}
    part = x[1:, ::2]
    assert part.__cuda_array_interface__["strides"] == (24, 8)
    assert part.__cuda_array_interface__["data"] == (shown.array.data.ptr + 24, False)
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="requires grad"):
        _ = x.__cuda_array_interface__
    with pytest.raises(AttributeError, match="on a tensor on cpu"):
        _ = gradcore.ones(2).__cuda_array_interface__
    assert not hasattr(gradcore.ones(2), "__cuda_array_interface__")


def test_the_interface_is_named_with_the_line_that_asked_for_it(device):
    x = gradcore.Tensor.__new__(gradcore.Tensor)
    made = value(device, TensorSpec.of((4, 6), np.float32))
    x.storage, x.spec, x.array, x.edge, x.base = made.storage, made.spec, made.array, None, None
    del made
    asked = x.__cuda_array_interface__  # asked
    # As CuPy does it, which holds the tensor: other holders cannot be known.
    memory = cupy.cuda.memory.UnownedMemory(asked["data"][0], 96, x, 0)
    theirs = cupy.ndarray(asked["shape"], asked["typestr"], cupy.cuda.MemoryPointer(memory, 0))
    del x, memory
    with gradcore.step(device=device) as s:
        pass
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# asked"))
    (found,) = s.report.exported
    assert (found.op, found.layer, found.form, found.alone) == ("test", "layers.0", "__cuda_array_interface__", False)
    assert found.exported_at.startswith(f"{__file__}:{line} in ") and found.allocated == 512
    assert f"shared by __cuda_array_interface__, {short_path(__file__)}:{line}" in "".join(explain_live(device.ledger))
    del theirs
    assert device.ledger.allocated == 0


def test_a_program_written_for_cupy_is_accounted(device):
    with gradcore.step(device=device) as s, gradcore.memory.use_for_cupy("mine", device):
        kept = cupy.ndarray((100, 10), np.float32)  # mine
        cupy.ndarray((1000,), np.float64)
    assert device.ledger.requested == kept.nbytes == 4000
    made = [r.tag for r in s.log if isinstance(r, Alloc)]
    assert [(t.op, t.role, t.phase) for t in made] == [("mine", "output", "forward")] * 2
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# mine"))
    assert str(made[0].site) == f"{__file__}:{line}"
    assert [(x.op, x.allocated, x.held_by) for x in s.report.left] == [("mine", 4096, "you")]
    assert s.report.peak.requested == 12000
    del kept
    assert device.ledger.requested == 0
    if not cuda_status().available:
        with pytest.raises(RuntimeError, match="driver"), gradcore.memory.use_for_cupy():
            raise AssertionError


def test_bytes_of_cupys_arrays_pass_between_its_stream_and_ours(device, monkeypatch):
    """They are free on the stream that they were allocated on, which knows nothing of CuPy's."""
    stream, cuda = SimpleNamespace(ptr=77), device._cuda
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda index: stream)
    cuda.calls.clear()
    with gradcore.memory.use_for_cupy(device=device):
        array = cupy.ndarray((1000,), np.float32)
    assert [call for call in cuda.calls if type(call) is tuple] == [("record", 0), ("wait", 77)]
    cuda.calls.clear()
    del array
    assert device.ledger.requested == 0
    assert [call for call in cuda.calls if type(call) is tuple] == [("record", 77), ("wait", 0)]
