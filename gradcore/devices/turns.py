"""Memory that the runs of several streams write to, though their user cannot see it and order them: they take turns."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from gradcore.devices.storage import Storage
from gradcore.memory.resource import Stream

#: By storage of a generator's state, the stream that has used it last.
_last: WeakKeyDictionary[Storage, Stream] = WeakKeyDictionary()


def share(storage: Storage) -> None:
    """Let streams use a storage in turn from now on."""
    _last[storage] = storage.block.stream


def is_shared(storage: Storage) -> bool:
    return storage in _last


def take_turn(storage: Storage) -> None:
    """Let the current stream use a shared storage, behind the stream that has used it last."""
    device = storage.device
    if device.several:
        current = device.current
        device.order(_last[storage], current)
        _last[storage] = current
        storage.block.use_on(current)


def use_again(arena: Storage) -> Stream:
    """Let the current stream, which is returned, use an arena behind all streams that have, and behind its own, which waits for
    those that have read what a run left in it."""
    device, block = arena.device, arena.block
    current = device.current
    for user in (block.stream, *(block.users or ())):
        device.order(user, current)
    block.use_on(current)
    return current
