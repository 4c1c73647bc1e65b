"""The simulated GPU notes addresses that a device could not access, which its kernels can: its memory is the host's."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices.gpu.kernels.optimizers import GROUP
from tests.card import session


@pytest.fixture
def card(tmp_path):
    """A session that is not installed, and an allocation of 4,096 bytes of its device."""
    made = session.Session(tmp_path)
    place = ctypes.c_uint64()
    assert made.card.cudaMalloc(ctypes.addressof(place), 4096) == 0
    return made, place.value


@pytest.mark.parametrize("astray", [False, True])
def test_an_address_of_the_host_in_a_table_is_a_fault(card, astray):
    made, place = card
    outside = np.zeros(16)
    group = np.zeros((), GROUP)
    group["tensors"][0, :2] = place, outside.ctypes.data if astray else place + 4095
    made._asked_for("step", session._addresses("optim", group))
    assert [f"{outside.ctypes.data:#x}" in fault for fault in made.card.faults] == [True] * astray


def test_numbers_are_no_addresses():
    assert session._addresses("random", np.uint64(7)) == [] == session._addresses("loss", np.int64(7))
    assert session._addresses("product", np.uint64(7)) == [7]


@pytest.mark.parametrize(("by", "many"), [(0, 0), (2048, 0), (2049, 1), (4096, 2)])
def test_a_copy_from_beyond_the_device_is_a_fault(card, by, many):
    """The second launch takes the second slot: a copy of 2,048 bytes, and numbers, which lie in the slot itself."""
    made, place = card
    box, turn = np.zeros(1024, np.uint64), np.array([1, 0], np.uint64)
    slot = 256 + 512
    box[slot // 8:slot // 8 + 6] = place, place + by, 2048, place, box.ctypes.data + slot + 64, 8
    made._asked_for("bring", session._copied(box.ctypes.data, 512, 4, 0, 2, 1, turn.ctypes.data))
    assert len(made.card.faults) == many


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("back", [False, True])
def test_a_captured_copy_needs_host_memory_that_stays(card, pinned, back):
    """A graph reads and writes it at each launch, when pageable memory may be another's."""
    made, place = card
    stream, host, graph = (ctypes.c_uint64() for _ in range(3))
    assert made.card.cudaStreamCreateWithFlags(ctypes.addressof(stream), 1) == 0
    assert made.card.cudaHostAlloc(ctypes.addressof(host), 512, 1) == 0
    pageable = np.zeros(64)
    at = host.value if pinned else pageable.ctypes.data
    ends = (at, place) if back else (place, at)
    assert made.card.cudaMemcpyAsync(*ends, 512, 2 if back else 1, stream.value) == 0
    assert made.card.cudaStreamBeginCapture(stream.value, 1) == 0
    assert (made.card.cudaMemcpyAsync(*ends, 512, 2 if back else 1, stream.value) == 0) == pinned
    assert made.card.cudaStreamEndCapture(stream.value, ctypes.addressof(graph)) == 0
    assert len(made.card.faults) == (not pinned)
