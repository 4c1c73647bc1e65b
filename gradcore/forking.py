"""Locks for a process that may fork or be interrupted: none stays taken, and none hides work that is half done."""

from __future__ import annotations

import os
import sys
import threading
from _thread import RLock
from typing import Any
from weakref import WeakSet

_brief: WeakSet[Any] = WeakSet()
_long: WeakSet[Any] = WeakSet()
#: One thread forks at a time.
_forking = threading.Lock()
_taken: list[Any] = []


class Lock(RLock):  # type: ignore[misc]
    """A lock for ``with``. It is re-entrant so that it can be asked whether this thread holds it."""

    if sys.version_info >= (3, 14):

        def __enter__(self) -> bool:
            # From Python 3.14 on a signal's handler may raise when __enter__ of C's has returned and before the block has
            # begun, and __exit__ is not called then (python/cpython#148874). What is raised in here is.
            try:
                return self.acquire()
            except BaseException:
                if self._is_owned():
                    self.release()
                raise


def brief() -> Lock:
    """A lock that is held for a moment: a fork waits until it is free."""
    lock = Lock()
    _brief.add(lock)
    return lock


def held() -> set[Any]:
    """The brief locks that this thread holds."""
    return {lock for lock in list(_brief) if lock._is_owned()}


def long() -> Lock:
    """A lock that is held while ops run: a fork does not wait, and the child finds it free, for its holder is not there."""
    lock = Lock()
    _long.add(lock)
    return lock


def _before() -> None:
    _forking.acquire()
    while (held := _take_all()) is not None:
        with held:
            pass


def _take_all() -> Any:
    """Take all brief locks, or none, and return one that is held: its holder may be waiting for another of them."""
    for lock in list(_brief):
        if not lock.acquire(False):
            _give_back()
            return lock
        _taken.append(lock)
    return None


def _give_back() -> None:
    while _taken:
        _taken.pop().release()


def _after() -> None:
    _give_back()
    _forking.release()


def _in_child() -> None:
    _after()
    for lock in list(_long):
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
