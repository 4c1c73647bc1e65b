"""Pinned memory over a simulated card: its bytes go on when the copies that use them are done."""

import gc

import pytest

from gradcore.devices.pinned import PinnedDevice
from gradcore.events import FREE, UNTAGGED
from gradcore.memory.driver import CudaDriver
from gradcore.memory.resource import Stream
from tests.meta.simulated_cuda import Card, HostCard


def busy(card, driver):
    """A stream with a copy that is not done."""
    stream = Stream(0, driver.create_stream(0))
    card.queues[stream.handle].append((None, lambda: None))
    return stream


def test_bytes_are_handed_out_when_their_copies_are_done():
    card = HostCard()
    driver = CudaDriver(card)
    pinned = PinnedDevice(card)
    assert pinned.locked
    stream = busy(card, driver)
    low, first, high = (pinned.allocate(5000, UNTAGGED) for _ in range(3))
    first.block.use_on(stream)
    offset = first.block.offset
    del first, low, high
    assert card.queues[stream.handle], "to give them back waits for nothing"
    others = [pinned.allocate(nbytes, UNTAGGED) for nbytes in (5000, 5000, 70_000)]
    assert card.queues[stream.handle], "nor does to take others, such as those on either side"
    assert {o.block.offset - offset for o in others[:2]} == {-5120, 5120}
    for _ in range(2):
        # The second time there is nothing to wait for: the event is gone.
        again = pinned.allocate(5000, UNTAGGED)
        assert again.block.offset == offset and not card.queues[stream.handle] and card.events == {}
        del again
    del others
    assert pinned.ledger.flush() == 2 << 20 and card.held == {} and card.wrong == []


def test_a_wait_that_fails_gives_the_bytes_back():
    card = HostCard()
    driver = CudaDriver(card)
    pinned = PinnedDevice(card)
    stream = busy(card, driver)
    first = pinned.allocate(5000, UNTAGGED)
    first.block.use_on(stream)
    del first

    def fails(event):
        raise Card.CUDARuntimeError(700)

    card.eventSynchronize = fails
    log = pinned.ledger.begin_log()
    with pytest.raises(Card.CUDARuntimeError, match="700"):
        pinned.allocate(5000, UNTAGGED)
    # At once, not when figures are read, which finds what nobody owns.
    assert log[-1][0] == FREE
    pinned.ledger.end_log()
    assert pinned.ledger.allocated == 0
    del card.eventSynchronize
    held = pinned.allocate(5000, UNTAGGED)
    assert not card.queues[stream.handle] and card.events == {}
    del held


def test_the_pool_is_emptied_behind_all_copies():
    card = HostCard()
    pinned = PinnedDevice(card)
    stream = busy(card, CudaDriver(card))
    held = pinned.allocate(5000, UNTAGGED)
    held.block.use_on(stream)
    del held
    gc.collect()
    assert pinned.ledger.flush() == 2 << 20
    assert card.wrong == [] and card.held == {}
    held = pinned.allocate(5000, UNTAGGED)
    assert card.events == {}, "those of the memory that is gone are gone too"
    del held
    assert pinned.ledger.flush() == 2 << 20 and card.wrong == []
