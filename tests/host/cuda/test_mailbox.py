"""What differs between the launches of a captured program, without a GPU: copies that the graph's first kernel makes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore.devices.gpu import mailbox as gpu_mailbox
from gradcore.devices.gpu import numbers as gpu_numbers
from gradcore.program.replaying.replay import Replay
from tests.host.cuda.captured_steps import Training, full, on, plant
from tests.host.cuda.graph_bed import bits

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]


def twice():
    """A compiled function that has been captured, and its mailbox."""
    f = gradcore.compile(lambda x: x.tanh() * 2)
    for k in range(3):
        f(full(k))
    box, _ = f._cached()[0].replay._fixed.boxes
    return f, box


def ahead(f, count):
    """The results of more launches than there are slots, of which none runs before the host looks at a result."""
    inputs = [full(k / 8) for k in range(count)]
    found = [f(x) for x in inputs]
    return [bits(y) for y in found], [bits(x.tanh() * 2) for x in inputs]


def test_the_host_is_never_so_far_ahead_that_it_writes_to_a_slot_in_use(bed, monkeypatch):
    monkeypatch.setattr(gpu_mailbox, "SLOTS", 4)
    f, _ = twice()
    found, expected = ahead(f, 11)
    assert found == expected


def test_a_slot_that_is_written_to_too_early_is_found(bed, monkeypatch):
    monkeypatch.setattr(gpu_mailbox, "SLOTS", 4)
    f, _ = twice()
    monkeypatch.setattr(gpu_mailbox, "SLOTS", 1000)
    with monkeypatch.context() as patch:
        # Slots in turn as before, but without a look at the device's count.
        patch.setattr(gpu_mailbox.Mailbox, "post", reckless)
        found, expected = ahead(f, 11)
    assert found != expected


def reckless(box, sources, targets):
    at = (256 + box._taken % 4 * box._room) // 8
    box._words[at + 1], box._words[at + 3], box._words[at + 5] = sources[0], targets[0], box._out[0][1]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_beside_a_launch_loses_no_slot(bed, monkeypatch, when):
    f, _ = twice()
    launch = type(f._cached()[0].replay._captured[0].graph).launch

    def interrupted(graph, stream):
        if when == "after":
            launch(graph, stream)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(f._cached()[0].replay._captured[0].graph), "launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(full(3))
    found, expected = ahead(f, 5)
    assert found == expected


@pytest.mark.parametrize("nbytes", [1, 4, 13, 16, 4096, 100_004, 300_001])
@pytest.mark.parametrize("beyond", [0, 1, 4, 16])
def test_every_byte_is_copied_whatever_its_alignment(bed, nbytes, beyond):
    random = np.random.default_rng(0).integers(0, 256, 2 * 300_064).astype(np.uint8)
    source, target = gradcore.tensor(random, **on), gradcore.tensor(random * 0, **on)
    turn = gradcore.tensor(np.zeros(gpu_mailbox.TURN, np.uint8), **on)
    home = target.storage.block.address
    copies = [(home, nbytes), (home + 300_032 + beyond, nbytes)]
    box = gpu_mailbox.Mailbox(bed.device, copies, [], None, turn.storage.block.address, 0)
    expected = random * 0
    for k in range(3):
        start = source.storage.block.address + k * 16
        box.post([start + beyond, start + 300_000])
        box.bring_alone()
        expected[:nbytes] = random[k * 16 + beyond:][:nbytes]
        expected[300_032 + beyond:][:nbytes] = random[k * 16 + 300_000:][:nbytes]
        np.testing.assert_array_equal(target.cpu().numpy(), expected)


def test_numbers_come_over_the_bus_while_another_block_copies(bed):
    source, target = gradcore.tensor(np.arange(64.0), **on), gradcore.zeros(128, **on)
    turn = gradcore.tensor(np.zeros(gpu_mailbox.TURN, np.uint8), **on)
    home, numbers = target.storage.block.address, np.arange(100.0, 116.0)
    table = SimpleNamespace(address=home + 256, nbytes=128, computed=lambda: memoryview(numbers).cast("B"))
    box = gpu_mailbox.Mailbox(bed.device, [(home, 256)], [], table, turn.storage.block.address, 0)
    box.post([source.storage.block.address])
    box.bring_alone()
    found = target.cpu().numpy().view(np.uint8)
    assert bytes(found[:256]) == source.cpu().numpy().tobytes()[:256] and bytes(found[256:384]) == numbers.tobytes()
    assert box._blocks[0] == 2 and not found[384:].any()


def test_results_count_as_if_they_were_allocated_after_the_run(bed):
    """A graph copies them itself, so that they are there before."""
    peaks = []
    for capture in (True, False):
        f = gradcore.compile(lambda x: ((x * 2).sum() * 3, x[:2] + 1), capture=capture)
        x = gradcore.ones(3000, **on)
        found = [f(x) for _ in range(3)]
        del found
        gradcore.reset_peak_memory_stats("cuda")
        before = gradcore.memory_allocated("cuda")
        found = f(x)
        peaks.append((gradcore.max_memory_allocated("cuda") - before, gradcore.memory_allocated("cuda") - before))
        del found, f, x
    assert peaks[0] == peaks[1] and peaks[0][1] == 1024


def test_a_result_of_each_run_is_memory_of_its_own(bed):
    f = gradcore.compile(lambda x: (x.tanh(), x.tanh().sum()))
    found = [f(full(k / 8)) for k in range(8)]
    for k, (y, total) in enumerate(found):
        assert bits(y) == bits(full(k / 8).tanh()) and bits(total) == bits(full(k / 8).tanh().sum())
    assert len({t.storage.block.address for pair in found for t in pair}) == 16


@pytest.mark.parametrize("captured", [True, False])
def test_an_interrupt_after_the_launch_leaves_no_results_behind(bed, monkeypatch, captured):
    def fail():
        raise RuntimeError("cannot be captured")

    if not captured:
        # Given up in the run that is interrupted, whose results the next one must not take for its own.
        plant(bed, "tanh", fail)
    f = gradcore.compile(lambda x: x.tanh() * 2)
    for k in range(3 if captured else 1):
        f(full(k))
    x, release = full(0.5), Replay.release
    live = gradcore.memory_allocated("cuda")

    def interrupted(replay):
        release(replay)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Replay, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            f(x)
    if captured:
        assert gradcore.memory_allocated("cuda") == live
    assert bits(f(full(0.75))) == bits(full(0.75).tanh() * 2)


def test_without_pinned_memory_kernels_are_launched_one_by_one_until_there_is_some(bed, monkeypatch):
    class Full:
        def allocate(self, nbytes, tag):
            raise gradcore.OutOfMemory(f"cannot allocate {nbytes} bytes of pinned memory")

    f = gradcore.compile(lambda x: x.tanh() * 2)
    with monkeypatch.context() as patch:
        patch.setattr(gpu_mailbox, "get_device", lambda name: Full())
        for k in range(3):
            assert bits(f(full(k / 8))) == bits(full(k / 8).tanh() * 2)
            reason = f.explain()
    assert ("in its last run its kernels were launched one by one: there is no room for copies of what differs from run to "
            "run: cannot allocate") in reason and "of pinned memory" in reason
    assert bits(f(full(3))) == bits(full(3).tanh() * 2) and f.explain() == reason
    # The pool has got some, from a tensor that is gone.
    gradcore.zeros(1 << 20).pin_memory()
    for k in range(3):
        assert bits(f(full(k / 8))) == bits(full(k / 8).tanh() * 2)
    assert f.explain().endswith("captured in one graph")


def test_numbers_that_could_not_be_computed_are_computed_again():
    numbers = gpu_numbers.Numbers(2, 4096, lambda *copied: None)
    first, second = numbers.number(), numbers.number()
    numbers.values[:] = [0.125, 0.125]
    for number in (first, second):
        numbers.hold(np.dtype([("rate", "f8")]), lambda rate: (rate,), (number,))
    before = bytes(numbers.computed())
    numbers.values[:] = [0.5, 10**400]
    with pytest.raises(OverflowError):
        numbers.computed()
    numbers.values[:] = [0.125, 0.125]
    assert bytes(numbers.computed()) == before


def test_numbers_come_with_the_inputs(bed):
    eager, captured = Training("Adam"), Training("Adam", gradcore.compile)
    for k in range(6):
        eager.step(k), captured.step(k)
    uploads = []
    for training in (eager, captured):
        bed.take()
        training.step(6)
        uploads.append(bed.take().count("upload"))
    assert uploads[0] == uploads[1], "only a step's data is uploaded"
    assert captured.state() == eager.state()
