"""Objects of which there is one for each key, as long as something refers to it: caches keyed by them hash by identity."""

from __future__ import annotations

from typing import TypeVar
from weakref import WeakValueDictionary

from gradcore.forking import brief

K = TypeVar("K")
V = TypeVar("V")


class Interned(WeakValueDictionary[K, V]):
    """By key, the object that there is."""

    def __init__(self) -> None:
        super().__init__()
        self._adding = brief()

    def one(self, key: K, made: V) -> V:
        """The object with this key: ``made``, unless another thread has been faster."""
        with self._adding:
            return self.setdefault(key, made)
