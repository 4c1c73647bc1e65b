"""Memory that the runs of several streams write to, though their user cannot see it and order them: they take turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from gradcore.devices.storage import Storage
from gradcore.forking import Lock, long
from gradcore.memory.resource import Stream

#: By storage of a generator's state, the stream that has used it last, and what a thread holds during its turn.
_last: WeakKeyDictionary[Storage, Stream] = WeakKeyDictionary()
_locks: WeakKeyDictionary[Storage, Lock] = WeakKeyDictionary()
_nothing = nullcontext()


def share(storage: Storage) -> None:
    """Let streams use a storage in turn from now on."""
    _locks[storage] = long()
    _last[storage] = storage.block.stream


def is_shared(storage: Storage) -> bool:
    return storage in _last


def turn(*storages: Storage) -> AbstractContextManager[Any]:
    """A context in which the current stream may use shared storages of one device, behind the streams that have used them last.

    Another thread on another stream gets its turn when the work is submitted: what it waits for must be on the stream by then.
    """
    if not storages or not storages[0].device.several:
        return _nothing
    # In one order, or two threads could wait for each other.
    return _turn(sorted(storages, key=lambda storage: storage.serial))


@contextmanager
def _turn(storages: Sequence[Storage]) -> Iterator[None]:
    # By one statement for each lock: in an ExitStack, an interrupt between two of its calls would leave a lock held.
    with _locks[storages[0]], _turn(storages[1:]) if storages[1:] else _nothing:
        device = storages[0].device
        current = device.current
        device.order(_last[storages[0]], current)
        _last[storages[0]] = current
        storages[0].block.use_on(current)
        yield


def use_again(arena: Storage) -> Stream:
    """Let the current stream, which is returned, use an arena behind all streams that have, and behind its own, which waits for
    those that have read what a run left in it."""
    device, block = arena.device, arena.block
    current = device.current
    for user in (block.stream, *(block.users or ())):
        device.order(user, current)
    block.use_on(current)
    return current
