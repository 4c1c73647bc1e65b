"""Blocks of a launch share memory of their stream, so launches on two streams may run at once."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu import workspaces as gpu_workspaces
from gradcore.errors import CaptureError
from gradcore.memory.placement import SMALL_SEGMENT
from tests.conftest import raises
from tests.host.cuda.graph_bed import Bed, emulator_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]


def numbers() -> Any:
    """A row that many blocks reduce, and columns that many blocks reduce."""
    values = np.arange(80_000, dtype=np.float32).reshape(2000, 40) % 7
    return gradcore.tensor(values, device="cuda"), values


def folded(x: Any) -> list[np.ndarray[Any, Any]]:
    return [y.cpu().numpy() for y in (x.reshape(-1).sum(), x.sum(0))]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def captured(bed: Bed) -> None:
        compiled = gradcore.compile(lambda x: (x.reshape(-1).sum(), x.sum(0)))
        for _ in range(2):
            compiled(numbers()[0])

    return emulator_of(tmp_path_factory.mktemp("shared"), lambda bed: folded(numbers()[0]), captured)


@contextmanager
def shared_of_launches() -> Iterator[list[int]]:
    """The addresses that launches within the block get."""
    found: list[int] = []
    launch = gpu_launch.launch

    def noted(family: str, instance: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
        arguments = gpu_launch.placed(arguments)
        if instance.startswith(("fold_split", "fold_columns")):
            found.append(int(arguments[-1]))
        launch(family, instance, blocks, threads, arguments)

    # Undone before the bed's own patches, unlike those of the fixture monkeypatch.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_launch, "launch", noted)
        yield found


def test_each_stream_has_a_place_of_its_own(kernels: Any) -> None:
    with Bed(kernels).in_place() as bed, shared_of_launches() as found:
        x, values = numbers()
        side = bed.device.make_stream()
        # From the third time on, launches are repeated from a record.
        for _ in range(4):
            for stream in (bed.device.stream, side):
                with bed.device.use(stream):
                    for ours, axes in zip(folded(x), (None, 0), strict=True):
                        np.testing.assert_array_equal(ours, values.sum(axes))
        assert found == [found[0], found[0], found[2], found[2]] * 4 and found[0] != found[2]
        blocks = {b.address: b for b in bed.device.bridge.ledger.live.values()}
        assert {blocks[place].stream.handle for place in (found[0], found[2])} == {0, side.handle}
        assert all(blocks[place].tag.phase == "library" for place in found)
        assert {row.name for row in bed.device.bridge.libraries()} >= {"gradcore in sum"}


def test_it_is_made_before_a_capture(kernels: Any) -> None:
    with Bed(kernels).in_place() as bed:
        side = bed.device.make_stream()
        with bed.device.use(side):
            bed.card.streamBeginCapture(side.handle, 0)
            with raises(CaptureError, "the memory shared by the blocks of a launch", "not allocated before the capture"):
                gpu_workspaces.shared()
            bed.card.streamEndCapture(side.handle)
        folded(numbers()[0])
        bed.device.prepare_capture(side)
        with bed.device.use(side):
            bed.card.streamBeginCapture(side.handle, 0)
            assert gpu_workspaces.shared()
            bed.card.streamEndCapture(side.handle)


def test_it_is_cleared_before_any_graph_can_run(kernels: Any) -> None:
    """A graph is launched on other streams than the one that it was captured on, which nothing orders after that."""
    with Bed(kernels).in_place() as bed:
        folded(numbers()[0])
        done: list[str] = []
        bed.card.give("what used these bytes before", lambda: done.append("used"))
        stream = bed.device.make_stream()
        bed.device.prepare_capture(stream)
        with bed.device.use(stream):
            place = gpu_workspaces.shared()
        assert done and ctypes.string_at(place, gpu_workspaces.SHARED_BYTES) == bytes(gpu_workspaces.SHARED_BYTES)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_cleared_after_work_of_a_stream_whose_memory_is_taken(kernels: Any, seed: int) -> None:
    """The allocation may make the current stream wait for another one."""
    with Bed(kernels).in_place() as bed:
        folded(numbers()[0])
        bed.card.rng.seed(seed)
        nbytes = gpu_workspaces.SHARED_BYTES
        # The current stream has nothing free then.
        held = [bed.device._reserve(nbytes, "a test", "sum") for _ in range(SMALL_SEGMENT // nbytes - 1)]
        side = bed.device.make_stream()
        with bed.device.use(side):
            former = bed.device._reserve(nbytes, "a test", "sum")
            place = former.ptr
            bed.card.give("what used these bytes before", lambda: ctypes.memset(place, 0xFF, nbytes))
            del former
        stream = bed.device.make_stream()
        bed.device.prepare_capture(stream)
        with bed.device.use(stream):
            assert gpu_workspaces.shared() == place
        bed.card.deviceSynchronize()
        assert ctypes.string_at(place, nbytes) == bytes(nbytes)
        del held


def test_a_new_graph_waits_for_the_one_that_had_its_workspaces(kernels: Any) -> None:
    with Bed(kernels).in_place() as bed:
        graphs, side = bed.device.graphs, bed.device.make_stream()
        done: list[str] = []
        first = graphs.capture(lambda: bed.card.give("first", lambda: done.append("first")))
        first.launch(side)
        assert not done
        del first
        second = graphs.capture(lambda: bed.card.give("second", lambda: done.append("second")))
        assert done == ["first"] and graphs._idle == []
        second.launch(bed.device.stream)
        bed.card.deviceSynchronize()
        assert done == ["first", "second"]


def test_a_graph_that_another_thread_drops_meanwhile_gives_its_stream_to_no_two(kernels: Any) -> None:
    class Meanwhile(list[Any]):
        """When a stream has been found here, another thread drops a graph."""

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            dropped.clear()
            return found

    with Bed(kernels).in_place() as bed:
        graphs = bed.device.graphs
        graphs._idle = Meanwhile()
        first, second = (graphs.capture(lambda: bed.card.give("nothing", int)) for _ in range(2))
        dropped, streams = [second], {first._stream, second._stream}
        del first, second
        assert len(graphs._idle) == 1
        made = [graphs.capture(lambda: bed.card.give("nothing", int)) for _ in range(2)]
        assert {graph._stream for graph in made} == streams


def test_a_captured_sum_is_the_eager_one(kernels: Any) -> None:
    with Bed(kernels).in_place():
        x, values = numbers()
        compiled = gradcore.compile(lambda x: (x.reshape(-1).sum(), x.sum(0)))
        for _ in range(4):
            for ours, axes in zip(compiled(x), (None, 0), strict=True):
                np.testing.assert_array_equal(ours.cpu().numpy(), values.sum(axes))
