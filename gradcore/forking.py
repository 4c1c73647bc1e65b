"""Locks of a process that may fork: the child finds them free, and nothing half done behind them."""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar
from weakref import WeakSet

L = TypeVar("L", bound=Any)

_brief: WeakSet[Any] = WeakSet()
_long: WeakSet[Any] = WeakSet()
#: One thread forks at a time.
_forking = threading.Lock()
_taken: list[Any] = []


def brief(lock: L) -> L:
    """A lock that is held for a moment, and never while another such lock is waited for: a fork waits until it is free."""
    _brief.add(lock)
    return lock


def long(lock: L) -> L:
    """A lock that is held while ops run: a fork does not wait, and the child finds it free, for its holder is not there."""
    _long.add(lock)
    return lock


def _before() -> None:
    _forking.acquire()
    for lock in list(_brief):
        lock.acquire()
        _taken.append(lock)


def _after() -> None:
    while _taken:
        _taken.pop().release()
    _forking.release()


def _in_child() -> None:
    _after()
    for lock in list(_long):
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
