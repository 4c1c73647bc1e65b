"""gradcore.cuda's streams and events: on devices without a driver, on a simulated GPU, and PyTorch's error texts."""

from __future__ import annotations

import sys
import threading

import pytest

import gradcore
from gradcore import cuda, nn
from gradcore.devices import turns
from gradcore.devices.host.device import make_host
from gradcore.devices.meta import MetaDevice, make_meta
from gradcore.events import Alloc
from gradcore.memory.driver import CudaDriver
from gradcore.memory.resource import Stream
from gradcore.memory.sources import CountingSource
from gradcore.memory.stack import build
from gradcore.ops import random
from gradcore.program.replaying.replay import Replay
from tests.conftest import raises
from tests.logs import normalized
from tests.meta.simulated_cuda import Card
from tests.meta.test_interrupts import at_every_moment


@pytest.fixture
def card():
    return Card()


@pytest.fixture
def device(card):
    """Shapes only, on streams of a simulated GPU."""
    return MetaDevice("meta", build(CountingSource(), CudaDriver(card)), Stream(0, 0), {})


def test_allocations_belong_to_the_current_stream(device):
    side = cuda.Stream(device)
    with gradcore.step(device=device) as s:
        a = gradcore.zeros(1000, device=device)
        with cuda.stream(side):
            assert cuda.current_stream(device) == side
            b = gradcore.zeros(1000, device=device)
            with cuda.stream(cuda.default_stream(device)), cuda.stream(None):
                c = gradcore.zeros(1000, device=device)
        with side:
            d = gradcore.zeros(1000, device=device)
    assert cuda.current_stream(device) == cuda.default_stream(device) != side
    assert [t.storage.block.stream.index for t in (a, b, c, d)] == [0, side.queue.index, 0, side.queue.index]
    assert [r.stream for r in s.log if isinstance(r, Alloc)] == [0, side.queue.index, 0, side.queue.index]


def test_a_context_that_is_entered_twice_ends_where_it_began(device):
    side, other = cuda.Stream(device), cuda.Stream(device)
    for context in (cuda.stream(side), side):
        with context, cuda.stream(other), context:
            assert cuda.current_stream(device) == side
        assert cuda.current_stream(device) == cuda.default_stream(device)


def test_two_threads_in_one_stream_go_back_to_their_own(device):
    side, own = cuda.Stream(device), cuda.Stream(device)
    turns, found = threading.Barrier(2), []

    def other():
        with cuda.stream(own):
            with side:
                turns.wait()
                turns.wait()
            found.append(cuda.current_stream(device))

    thread = threading.Thread(target=other)
    thread.start()
    turns.wait()
    with side:
        turns.wait()
        thread.join()
    assert found == [own] and cuda.current_stream(device) == cuda.default_stream(device)


def test_an_op_on_another_stream_is_waited_for_before_the_bytes_are_free(device, card):
    side = cuda.Stream(device)
    x = gradcore.zeros(1000, device=device)
    with cuda.stream(side):
        y = x + 1
        y.add_(x)
        both = gradcore.cat([x, y])
    assert x.storage.block.users == [side.queue]
    assert y.storage.block.users is both.storage.block.users is None
    before = card.calls["streamWaitEvent"]
    del x
    assert device.ledger.allocated == y.storage.block.size + both.storage.block.size
    assert card.calls["streamWaitEvent"] == before + 1
    del y, both


def test_record_stream_says_so_for_others(device):
    side = cuda.Stream(device)
    x = gradcore.zeros(10, device=device)
    x.record_stream(side)
    x.record_stream(side)
    x.record_stream(cuda.default_stream(device))
    assert x.storage.block.users == [side.queue]


def test_backward_goes_on_behind_every_stream_of_forward(device, card):
    side, other = cuda.Stream(device), cuda.Stream(device)
    w = gradcore.zeros(8, 8, device=device, requires_grad=True)
    with cuda.stream(side):
        loss = (w @ w).sum()
    before = card.calls["streamWaitEvent"]
    loss.backward()
    assert card.calls["streamWaitEvent"] == before + 1, "behind side; other never had any work"
    assert w.grad is not None and not card.queues[other.cuda_stream]
    del loss, w


def test_one_stream_asks_the_card_for_nothing(device, card):
    model = nn.Linear(16, 4, device=device)
    model(gradcore.zeros(3, 16, device=device)).sum().backward()
    assert not card.calls


def test_the_log_is_the_same_with_streams_on_every_device(device):
    def log(place):
        side = cuda.Stream(place)
        with gradcore.step(device=place) as s:
            x = gradcore.zeros(100, 100, device=place, requires_grad=True)
            with cuda.stream(side):
                y = (x * 2).relu()
            cuda.current_stream(place).wait_stream(side)
            y.sum().backward()
            del x, y
        return normalized(s.raw_log)

    assert log(make_host()) == log(make_meta()) == log(device)


def test_a_replay_notes_the_stream_that_it_runs_on():
    side = cuda.Stream("cpu")
    w = gradcore.ones(4)
    f = gradcore.compile(lambda x: ((x * w).exp() * 2).sum())
    x = gradcore.zeros(4)
    expected = [f(x).item(), f(x).item()]
    with cuda.stream(side):
        assert f(x).item() == expected[0] == expected[1] == 8
    assert x.storage.block.users == w.storage.block.users == [side.queue]
    assert f(x).item() == 8


def test_the_second_part_of_a_replay_notes_the_stream_that_it_runs_on():
    """As autograd's own nodes do: the bytes of what it reads may be free after it, and the next call writes to its arena."""
    side, cpu = cuda.Stream("cpu"), gradcore.device("cpu")
    w = gradcore.full((4,), 3.0)
    f = gradcore.compile(lambda x: (x * x * w).sum())
    for _ in range(3):
        w.storage.block.users = None
        leaf = gradcore.ones(4, requires_grad=True)
        x = leaf * 1
        y = f(x)
        with cuda.stream(side):
            y.backward()
        assert leaf.grad.tolist() == [6] * 4
        assert x.storage.block.users == w.storage.block.users == [side.queue]
    assert [side.queue] in [arena.users for arena in cpu.ledger.arenas]


def orders(device, monkeypatch):
    """The pairs of streams that are ordered from now on."""
    found = []
    monkeypatch.setattr(device, "order", lambda first, then: found.append((first, then)) if first is not then else None)
    return found


def test_streams_draw_from_a_generator_in_turn(device, monkeypatch):
    """Its state, which each draw reads and writes, is no tensor that the user could order."""
    side, generator = cuda.Stream(device), gradcore.Generator(device)
    found = orders(device, monkeypatch)

    def draw():
        return gradcore.rand(4, device=device, generator=generator)

    draw()
    assert not found
    with cuda.stream(side):
        draw(), draw()
    draw()
    generator.manual_seed(0)
    assert found == [(device.stream, side.queue), (side.queue, device.stream)]


@pytest.mark.parametrize("replayed", [False, True], ids=["eager", "replay"])
def test_a_thread_gets_its_turn_when_another_has_drawn(monkeypatch, replayed):
    """What it waits for must be on the other's stream by then: else both would draw from one state at the same time."""
    cpu, found, threads, kernel_of, play = gradcore.device("cpu"), [], [], random.advance, Replay._play
    streams = [cuda.Stream("cpu"), cuda.Stream("cpu")]

    def noted(what):
        found.append(f"{threading.current_thread().name} {what}")

    def order(first, then):
        noted("waits")
        if not threads:
            threads.append(threading.Thread(target=draw, args=(streams[1], gradcore.rand, 4), name="another"))
            threads[0].start()
            # It waits for its turn, so this ends when the time is over; it would have drawn by then.
            threads[0].join(0.5)

    def draw(stream, how, *what):
        with cuda.stream(stream):
            how(*what)

    f, x = gradcore.compile(lambda x: nn.functional.dropout(x, 0.5) + 1), gradcore.ones(4)
    for _ in range(2):
        f(x)
    monkeypatch.setattr(threading.current_thread(), "name", "one")
    monkeypatch.setattr(cpu, "order", order)
    monkeypatch.setattr(random, "advance", lambda *args, **attrs: (noted("draws"), kernel_of(*args, **attrs))[1])
    monkeypatch.setattr(Replay, "_play", lambda *args: (noted("draws"), play(*args))[1])
    draw(streams[0], *((f, x) if replayed else (gradcore.rand, 4)))
    threads[0].join()
    assert list(dict.fromkeys(found)) == ["one waits", "one draws", "another waits", "another draws"], found


@pytest.mark.parametrize("where", ["/gradcore/devices/turns.py", "/contextlib.py"])
def test_a_turn_that_is_interrupted_is_over(where, monkeypatch):
    """Else the next thread that draws would wait for ever."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    side, generator = cuda.Stream("cpu"), gradcore.Generator("cpu")
    lock = turns._locks[generator._state.storage]
    assert gradcore.device("cpu").several and side
    for _ in at_every_moment(lambda: gradcore.rand(4, generator=generator), where):
        assert not lock._is_owned()


def test_a_replay_draws_in_turn_too(monkeypatch):
    side, cpu, x = cuda.Stream("cpu"), gradcore.device("cpu"), gradcore.ones(4)
    f = gradcore.compile(lambda x: nn.functional.dropout(x, 0.5) + 1)
    for _ in range(2):
        f(x)
    found = orders(cpu, monkeypatch)
    with cuda.stream(side):
        f(x)
    assert found == [(cpu.stream, side.queue)] * 2, "its arena and the generator's state"
    gradcore.rand(4)
    assert found[2:] == [(side.queue, cpu.stream)]
    f(x)
    assert found[3:] == [(side.queue, cpu.stream)], "its arena"


def test_a_replay_draws_from_two_generators_in_their_turns(monkeypatch):
    side, cpu, x, one, two = cuda.Stream("cpu"), gradcore.device("cpu"), gradcore.ones(4), *map(gradcore.Generator, ["cpu"] * 2)
    f = gradcore.compile(lambda x: x + gradcore.rand(4, generator=two) * gradcore.rand(4, generator=one))
    for _ in range(2):
        f(x)
    found = orders(cpu, monkeypatch)
    with cuda.stream(side):
        f(x)
    assert found == [(cpu.stream, side.queue)] * 3, "its arena and both states"


def test_events_stand_behind_work(device, card):
    side = cuda.Stream(device)
    event = cuda.Event()
    assert event.query()
    event.synchronize()
    card.queues[side.cuda_stream].append((None, lambda: None))
    assert side.record_event(event) is event
    assert not event.query() and not side.query()
    cuda.default_stream(device).wait_event(event)
    event.wait(cuda.default_stream(device))
    assert not cuda.default_stream(device).query()
    event.synchronize()
    assert event.query()
    side.synchronize()
    cuda.synchronize(device)
    assert side.query() and cuda.default_stream(device).query()
    with raises(RuntimeError, "Event device meta does not match recording stream's device cpu"):
        event.record(cuda.default_stream("cpu"))
    del event
    assert card.events == {}


def test_times_between_events(monkeypatch):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    with raises(ValueError, "Both events must be recorded before calculating elapsed time."):
        first.elapsed_time(last)
    stream, clock = cuda.default_stream("cpu"), iter((3.0, 3.25))
    monkeypatch.setattr("gradcore.memory.streams.perf_counter", lambda: next(clock))
    stream.record_event(first)
    stream.record_event(last)
    assert first.elapsed_time(last) == 250
    assert first.query() and stream.query(), "the CPU has done its work when it returns"
    with raises(ValueError, "Both events must be created with argument 'enable_timing=True'."):
        first.elapsed_time(cuda.Event())


def test_streams_come_from_a_pool(device):
    made = [cuda.Stream(device) for _ in range(33)]
    assert made[32] == made[0] != made[1] and len(set(made)) == 32
    assert cuda.Stream(device, priority=-1) not in made
    assert made[0].__cuda_stream__() == (0, made[0].cuda_stream)


@pytest.mark.skipif(cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_a_stream_is_an_error():
    with raises(gradcore.DeviceError, "cuda is not available"):
        cuda.Stream()
    with raises(gradcore.DeviceError, "cuda is not available"):
        cuda.current_stream()


@pytest.mark.oracle
def test_the_names_are_pytorchs(torch):
    for ours, theirs in ((cuda.Stream, torch.cuda.Stream), (cuda.Event, torch.cuda.Event)):
        for name in ("query", "synchronize", "wait_event", "wait_stream", "record_event", "record", "wait", "elapsed_time"):
            assert hasattr(ours, name) == hasattr(theirs, name)
    for name in ("stream", "set_stream", "current_stream", "default_stream", "synchronize"):
        assert hasattr(torch.cuda, name) and hasattr(cuda, name)
