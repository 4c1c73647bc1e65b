"""Pinned memory: a separate pool with its own records, asynchronous uploads, and when its bytes are reused."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.autograd.graph import _from_pinned, _to_pinned, save_on_cpu
from gradcore.devices import device as device_module
from gradcore.devices.availability import cuda_status
from gradcore.devices.meta import make_meta
from gradcore.devices.pinned import PinnedDevice
from gradcore.engine import owners
from gradcore.engine.value import value_over
from gradcore.errors import TraceError
from gradcore.events import Alloc, Launch, Mark, Read, Upload
from gradcore.spec import TensorSpec
from gradcore.utils.data import DataLoader, TensorDataset
from tests.conftest import raises
from tests.meta.simulated_cuda import HostCard

NO_GPU = not cuda_status().available


@pytest.fixture
def pool():
    # The mailboxes of captured programs of other tests are there, and go with the cycles that hold them.
    gc.collect()
    found = gradcore.device("pinned")
    before = found.ledger.allocated
    yield found
    assert found.ledger.allocated == before


def test_the_number_of_allocations_begins_at_0(pool):
    before = gradcore.memory_stats("pinned")["allocations"]
    x = gradcore.ones(3).pin_memory()
    assert gradcore.memory_stats("pinned")["allocations"] == before + 1
    assert before < 1_000_000 and PinnedDevice().ledger.allocations == 0
    del x


def test_a_pinned_copy_lies_in_the_pinned_pool(pool):
    x = gradcore.arange(12, dtype=np.float32).reshape(3, 4)
    before = gradcore.memory_allocated("cpu")
    y = x.T.pin_memory()
    assert pool.ledger.requested >= 48
    assert gradcore.memory_allocated("cpu") == before
    assert y.storage.device is pool
    assert y.device == gradcore.device("cpu") and str(y.device) == "cpu"
    assert y.tolist() == x.T.tolist()
    assert y.pin_memory() is y and y[1:].pin_memory().storage is y.storage
    assert y.is_pinned() == (not NO_GPU) and not x.is_pinned()
    # Without a GPU an upload to the CPU is counted as one to a GPU.
    assert (y.to("cpu") is y, y.cpu() is y) == (not NO_GPU, not NO_GPU)


def test_ops_on_pinned_tensors_run_on_the_cpu_and_make_ordinary_tensors(pool):
    x = gradcore.ones(3, 4).pin_memory()
    y = gradcore.ones(3, 4)
    results = [x + x, x + y, y + x, x * 2, x.sum(), gradcore.cat([y, x]), gradcore.zeros_like(x), gradcore.rand_like(x),
               x[gradcore.tensor([0, 2])], x.clone(), x @ y.T]
    assert all(t.storage.device is gradcore.device("cpu") for t in results)
    assert results[0].tolist() == results[1].tolist() == results[2].tolist() == [[2.0] * 4] * 3
    x.copy_(y * 5)
    x[0, 0] = 7
    assert x.storage.device is pool and x[0].tolist() == [7, 5, 5, 5]
    assert pool.calls == {}


def test_programs_read_pinned_tensors_as_arguments_and_as_what_they_refer_to(pool, monkeypatch):
    x, weight, plain = gradcore.ones(3, 4).pin_memory(), gradcore.full((3, 4), 2.0).pin_memory(), gradcore.full((3, 4), 3.0)
    compiled = gradcore.compile(lambda a: (a * weight).sum())
    graph = gradcore.trace(lambda a: (a * weight).sum(), [x])
    assert [compiled(t).item() for t in (x, x, x * 5, x)] == [24.0, 24.0, 120.0, 24.0]
    assert [graph.execute(t).item() for t in (x, plain, x)] == [24.0, 72.0, 24.0]
    x.copy_(plain)
    weight.copy_(plain)
    assert compiled(x).item() == graph.execute(x).item() == 108.0
    assert len(compiled.programs) == 2, "pinned, and not"
    with pytest.raises(TraceError, match="makes a tensor from host data"):
        gradcore.compile(lambda a: a.pin_memory().sum())(plain)
    # As if the pool were created in the traced run.
    monkeypatch.setattr("gradcore.program.tracing.tracing.devices", lambda: [gradcore.device("cpu")])
    with pytest.raises(TraceError, match="allocates pinned memory: allocate it outside"):
        gradcore.compile(lambda a: a.pin_memory().sum())(plain)


def test_gradients_through_pinned_inputs(pool):
    before = pool.ledger.allocated
    layer = nn.Linear(4, 2)
    x = gradcore.ones(3, 4).pin_memory()
    with gradcore.step() as s:
        layer(x).sum().backward()
    assert layer.weight.grad.tolist() == [[3.0] * 4] * 2
    w = gradcore.ones(4).pin_memory().requires_grad_()
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0] * 4
    assert s.report.device == "cpu" and s.report.pinned.allocated == before + 512
    assert gradcore.report.Recording.from_dict(s.recording.to_dict()) == s.recording


def test_the_report_has_a_line_for_it(monkeypatch):
    # A pool of its own: other tests may hold captured programs, whose mailboxes are pinned.
    monkeypatch.setattr(device_module, "_devices", {name: d for name, d in device_module._devices.items() if not d.pinned})
    monkeypatch.setattr(device_module, "_used", [d for d in device_module._used if not d.pinned])
    with gradcore.step(device="cpu") as s:
        held = gradcore.ones(1000).pin_memory()
        gradcore.ones(1000).pin_memory()
    figures = s.report.pinned
    assert (figures.allocated, figures.max_allocated, figures.reserved) == (4096, 8192, 2 << 20)
    assert "Pinned host memory: 4,096 bytes live, at most 8,192 in this step; 2,097,152 held by its pool" in str(s.report)
    with gradcore.step(device="cpu", level="counts") as s:
        pass
    assert s.report.pinned.max_allocated == 4096
    del held
    with gradcore.step(device="cpu") as after:
        pass
    assert after.report.pinned is None
    assert gradcore.report.load_report(s.report.to_dict()) == s.report


def test_every_pinned_byte_has_an_owner(pool):
    with gradcore.step(device="pinned") as s:
        gradcore.ones(10).pin_memory()
    # What is before the mark was live already: other tests may hold captured programs.
    begun = next(k for k, r in enumerate(s.log) if isinstance(r, Mark))
    (made,) = [r for r in s.log[begun:] if isinstance(r, Alloc)]
    assert (made.tag.op, made.tag.phase, made.tag.role) == ("pin_memory", "forward", "input")
    assert made.tag.site.file == __file__
    assert [r.nbytes for r in s.log if isinstance(r, Upload)] == [40]
    assert made.serial > 1 << 40, "no block of another pool in a log has this number"


def test_uploads_belong_to_the_stream_for_copies(pool):
    x = gradcore.ones(1000).pin_memory()
    device = make_meta()
    with gradcore.step(device=device) as s:
        y = x.to(device, non_blocking=True)
        z = x.to(device)
        same = x.to(device, np.float32, True), x.to(gradcore.zeros(1, device=device), non_blocking=True)
    assert [t.storage.block.stream for t in (y, z, *same)] == [device.copies, device.stream, device.copies, device.copies]
    assert y.storage.block.users == [device.stream]
    assert [r.nbytes for r in s.log if isinstance(r, Upload)] == [4000] * 4
    del y, z, same


def test_batches_of_a_loader(pool):
    data = TensorDataset(gradcore.arange(12, dtype=np.float32).reshape(6, 2), gradcore.arange(6))
    loader = DataLoader(data, batch_size=4, pin_memory=True)
    if NO_GPU:
        with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator is found"):
            batches = list(loader)
    else:
        batches = list(loader)
    assert [t.storage.device is pool for batch in batches for t in batch] == [True] * 4
    assert batches[1][1].tolist() == [4, 5]


@pytest.mark.skipif(not NO_GPU, reason="with a GPU the CPU does not stand for it")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_without_a_gpu_a_batch_from_pinned_memory_is_input_of_the_step_on_every_device():
    inputs = {}
    for device in ("cpu", "meta"):
        for (x,) in DataLoader(TensorDataset(gradcore.ones(8, 1000)), batch_size=8, pin_memory=True):
            with gradcore.step(device=device) as s:
                x.to(device, non_blocking=True).sum()
            assert s.report.peak.op == "sum"
            inputs[device] = s.report.by_role["input"], [type(r) for r in s.log][-7:]
    assert inputs["cpu"] == inputs["meta"] and inputs["cpu"][0] == 32_256


def test_parts_of_a_batch_keep_their_types(pool):
    from collections import deque, namedtuple

    from gradcore.utils.data.collate import pinned

    class Point(tuple):
        pass

    class Pinned(dict):
        def pin_memory(self):
            return "by itself"

    Pair = namedtuple("Pair", "a b")
    x = gradcore.ones(2)
    queue, point = pinned((deque([x]), Point([x])))
    assert type(queue) is deque and type(point) is Point and queue[0].storage.device is point[0].storage.device is pool
    assert pinned([Pinned(a=x), "text", 3]) == ["by itself", "text", 3]
    found = pinned({"pair": Pair(x, "text"), "list": [x, 3], "tuple": (x,)})
    assert type(found["pair"]) is Pair and found["pair"].b == "text" and found["list"][1] == 3
    assert found["pair"].a.storage.device is found["list"][0].storage.device is found["tuple"][0].storage.device is pool


def test_what_cannot_be_pinned(pool):
    with raises(RuntimeError, "cannot pin a tensor on meta"):
        gradcore.ones(2, device="meta").pin_memory()
    with raises(RuntimeError, "call detach() first"):
        (gradcore.ones(2, requires_grad=True) * 2).pin_memory()


def test_residuals_go_and_come_back_the_same_way_from_pinned_memory():
    device = make_meta()

    def log(pin):
        with gradcore.step(device=device) as s, save_on_cpu(pin_memory=pin):
            w = gradcore.zeros(8, 8, device=device, requires_grad=True)
            (w @ w).T.relu().sum().backward()
            del w
        made = [r for r in s.log if isinstance(r, (Alloc, Upload, Read, Launch))]
        return [(type(r), getattr(r, "requested", getattr(r, "nbytes", 0))) for r in made], {
            r.stream for r in made if isinstance(r, Alloc) and r.tag.op == "upload"}

    (pinned, streams), (plain, default) = log(True), log(False)
    assert pinned == plain
    assert default == {0} and streams == {device.copies.index}
    assert sum(kind is Read for kind, _ in plain) == sum(kind is Upload for kind, _ in plain) == 3


# -- with CuPy's arrays ---------------------------------------------------------------------------------------------------


@pytest.fixture
def card(monkeypatch):
    """A simulated GPU in host memory, with pinned memory."""
    made = HostCard()
    monkeypatch.setitem(device_module._devices, "pinned", PinnedDevice(made))
    return made


@pytest.fixture
def gpu(card):
    module = pytest.importorskip("gradcore.devices.gpu.device", reason="CuPy is not installed: pip install -e '.[nodriver]'",
                                 exc_type=ImportError)
    return module.CudaDevice(0, cuda=card)


def bytes_of(x):
    """The values in a tensor's memory on the simulated GPU."""
    return np.frombuffer(ctypes.string_at(x.storage.block.address, x.spec.nbytes), x.spec.dtype).reshape(x.spec.shape)


def test_an_upload_runs_beside_the_current_stream(card, gpu):
    x = gradcore.arange(1000, dtype=np.float32).pin_memory()
    card.queues[0].append((None, lambda: None))
    y = owners.send(x.spec, gpu, x)
    copies = card.queues[gpu.copies.handle]
    assert len(copies) == 2, "the copy, and the event behind it: it waits for nothing"
    assert len(card.queues[0]) == 2, "what was there, and a wait"
    assert x.storage.block.users == [gpu.copies] and y.storage.block.users == [gpu.stream]
    address, pool = x.storage.block.address, x.storage.device
    del x
    assert not (bytes_of(y) == np.arange(1000)).any()
    again = gradcore.zeros(1000).pin_memory()
    assert again.storage.block.address == address and again.storage.device is pool
    assert bytes_of(y).tolist() == list(range(1000)), "the host waited for the copy before it wrote there"
    card.deviceSynchronize()
    del y, again


@pytest.mark.parametrize("seed", range(5))
def test_residuals_go_and_come_back(card, gpu, seed):
    card.rng.seed(seed)
    whole = owners.upload(np.arange(24, dtype=np.float32).reshape(4, 6), gpu)
    rows = value_over(whole.storage, TensorSpec.strided((2, 6), np.dtype(np.float32), (6, 1), 12))
    kept = [_to_pinned(rows), _to_pinned(whole)]
    address = whole.storage.block.address
    del rows, whole
    # The next owner of these bytes writes after the copies that still read them.
    taken = owners.upload(np.full((4, 6), -1, np.float32), gpu)
    assert taken.storage.block.address == address
    back = [_from_pinned(k) for k in kept]
    kept.clear()
    others = [gradcore.full((4, 6), 9.0).pin_memory() for _ in range(2)]
    card.deviceSynchronize()
    assert bytes_of(back[0]).tolist() == np.arange(12.0, 24).reshape(2, 6).tolist()
    assert bytes_of(back[1]).tolist() == np.arange(24.0).reshape(4, 6).tolist()
    assert (bytes_of(taken) == -1).all()
    del taken, back, others
    assert gpu.ledger.allocated == 0


def test_an_upload_that_is_waited_for_may_be_overwritten_at_once(card, gpu):
    x = gradcore.arange(100, dtype=np.float32).pin_memory()
    y = owners.upload(x.numpy(), gpu)
    x.zero_()
    assert bytes_of(y).tolist() == list(range(100))
    z = owners.upload(np.ones(3, np.float32), gpu)
    card.deviceSynchronize()
    assert bytes_of(z).tolist() == [1, 1, 1]


def test_pageable_memory_that_a_gpu_reads_by_itself_is_waited_for(card):
    """A GPU that is coherent with its CPU (Grace) may read the host's memory after the call has returned."""
    module = pytest.importorskip("gradcore.devices.gpu.device", reason="CuPy is not installed: pip install -e '.[nodriver]'")
    card.stages = False
    device = module.CudaDevice(0, cuda=card, staged=False)
    values = np.arange(100, dtype=np.float32)
    x = owners.upload(values, device)
    values.fill(-1)
    rows = gradcore.arange(200, dtype=np.float32).pin_memory().view(100, 2)
    y = owners.send(TensorSpec.of((100,), "float32"), device, rows[:, 1])
    table = device.graphs.numbers(1, x.storage.block.address)
    table._staged.fill(7)
    table._send(x.storage.block.address, table._staged.ctypes.data, 4)
    table._staged.fill(8)
    card.deviceSynchronize()
    assert bytes_of(x)[1:].tolist() == list(range(1, 100)) and bytes_of(x)[:1].tobytes() == bytes([7] * 4)
    assert bytes_of(y).tolist() == list(range(1, 200, 2))
    del x, y, rows


def test_ops_on_streams_of_the_cpu_are_not_waited_for(card):
    before = len(card.events)
    with gradcore.cuda.stream(gradcore.cuda.Stream("cpu")):
        x = gradcore.arange(100, dtype=np.float32).pin_memory()
        y = x.zero_() + 1
        assert x.storage.block.users
        del x
    assert len(card.events) == before
    assert gradcore.ones(100).pin_memory().tolist() == y.tolist()
