"""The figures of a device's memory under PyTorch's names, on a device whose every byte is known."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import _holders
from gradcore._step import _pinned_figures, _Start, pool_figures
from gradcore.devices.device import get_device
from gradcore.devices.meta import make_meta
from gradcore.engine.owners import upload
from gradcore.errors import OutOfMemory
from gradcore.memory.ledger import Ledger
from gradcore.reading import short_path
from gradcore.report.step import PinnedFigures, PoolFigures

SEGMENT = 2 << 20


def test_every_figure_and_the_summary() -> None:
    device = make_meta()
    # 4,000 bytes in 4,096, of which 1,000 in 1,024 stay; the pool reserves a segment for both. A freed block waits for a
    # request of its size, beside the rest of the segment, with which another request would merge it.
    kept = upload(np.zeros(250, np.float32), device)
    gone = upload(np.zeros(750, np.float32), device)
    del gone
    # The second allocation needed no new segment.
    figures = PoolFigures(2, 1, 1, SEGMENT, SEGMENT - 1024, SEGMENT - 1024)
    assert device.ledger.allocated == 1024
    assert pool_figures(device.ledger, 0, 0) == figures
    assert pool_figures(device.ledger, 1, 1) == dataclasses.replace(figures, allocations=1)
    line = short_path(f"{__file__}:{test_every_figure_and_the_summary.__code__.co_firstlineno + 4}")
    assert gradcore.memory_stats(device) == {
        "requested": 1000, "allocated": 1024, "reserved": SEGMENT, "max_requested": 4000, "max_allocated": 4096,
        "max_reserved": SEGMENT, "cached": SEGMENT - 1024, "largest_free": SEGMENT - 1024, "arenas": 0,
        "segments": 1, "allocations": 2}
    assert gradcore.memory_summary(device) == f"""\
Memory of {device}:
  requested                  1,000  1000 B
  allocated                  1,024  1.00 KiB
  reserved               2,097,152  2.00 MiB
  max_requested              4,000  3.91 KiB
  max_allocated              4,096  4.00 KiB
  max_reserved           2,097,152  2.00 MiB
  cached                 2,096,128  2.00 MiB
  largest_free           2,096,128  2.00 MiB
  arenas                         0  0 B
  segments                       1
  allocations                    2
The largest holder:
            1,024 bytes  input of upload in layer (root), {line}
                         held by kept in test_every_figure_and_the_summary()"""
    assert (gradcore.memory_requested(device), gradcore.memory_allocated(device), gradcore.memory_reserved(device)) == (
        1000, 1024, SEGMENT)
    assert (gradcore.max_memory_requested(device), gradcore.max_memory_allocated(device),
            gradcore.max_memory_reserved(device)) == (4000, 4096, SEGMENT)
    gradcore.reset_peak_memory_stats(device)
    assert (gradcore.max_memory_requested(device), gradcore.max_memory_allocated(device)) == (1000, 1024)
    del kept
    assert gradcore.empty_cache(device) == SEGMENT and gradcore.memory_reserved(device) == 0
    assert gradcore.max_memory_reserved(device) == SEGMENT
    assert gradcore.memory_summary(device).endswith("Nothing is live.")


def test_no_other_thread_comes_between_two_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    device, found = make_meta(), []
    own: Any = Ledger.requested

    def other(lock: Any) -> None:
        found.append(lock.acquire(False))
        if found[-1]:
            lock.release()

    def requested(ledger: Ledger) -> int:
        thread = threading.Thread(target=other, args=(ledger.lock,))
        thread.start()
        thread.join()
        return int(own.fget(ledger))

    monkeypatch.setattr(Ledger, "requested", property(requested))
    assert gradcore.memory_stats(device)["requested"] == 0 and found == [False]


def test_a_pinned_pool_that_no_start_is_of_has_its_own_peak() -> None:
    x = gradcore.ones(100).pin_memory()
    start = _Start(get_device("cpu"))
    start.peaks = (1 << 40,) * 3
    ledger = get_device("pinned").ledger
    # It was made within the step, which other devices began with.
    assert _pinned_figures([start]) == PinnedFigures(ledger.allocated, ledger.peaks[1], ledger.reserved)
    del x


def test_texts_name_files_from_the_working_directory_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    x = gradcore.ones(4, requires_grad=True)
    y = x.exp()
    graph = gradcore.graph(y)
    monkeypatch.setattr(get_device("cpu").stack.limit, "limit", 1)
    said: list[str] = []
    try:
        gradcore.empty(1 << 26)
    except OutOfMemory as error:
        said += str(error), error.by
        # What programs read is the whole path.
        assert error.file == __file__ and graph.nodes[0].line.startswith(f"{__file__}:")
    assert said
    for text in (*said, gradcore.memory_summary(), str(graph), graph.dot()):
        assert f"{Path(__file__).name}:" in text and __file__ not in text


def test_the_state_of_a_generator_has_its_name_after_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [], _holders.referrers

    def counted(frontier: tuple[Any, ...]) -> list[Any]:
        looks.append(len(frontier))
        return look(frontier)

    monkeypatch.setattr(_holders, "referrers", counted)
    device = get_device("cpu")
    # A new one, for what was made before a test the collector does not see: it is frozen.
    monkeypatch.setattr(device, "generator", None)
    serial = gradcore.manual_seed(0)._state.storage.serial
    assert _holders.holders_of(device.ledger, [serial]) == {serial: "device.generator._state in gradcore"}
    assert looks == [1]
