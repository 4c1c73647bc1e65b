"""Containers with more items than guards compare: tensors that are made of Python numbers may have numbers out of them."""

from __future__ import annotations

from array import array
from collections import deque
from types import MappingProxyType

import numpy as np

from gradcore.program.guards import Opaque

#: What is compared only if it is not too long.
LONG = (list, tuple, deque, set, frozenset, dict, MappingProxyType, np.ndarray, bytearray, memoryview, array)


class Unseen(Opaque):
    """Such a container: no run that refers to it, and makes tensors of numbers, is replayed."""

    __slots__ = ()

    def refusal(self) -> str:
        return (f"it makes a tensor of Python numbers, and {self.name} has too many items to be compared: make the tensor "
                "outside")
