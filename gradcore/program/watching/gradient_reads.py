"""Which gradients the code of a traced run asks for, and which it drops."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from gradcore._gradients import Gradients
from gradcore.engine.leaf import Leaf
from gradcore.engine.sites import is_inside
from gradcore.nn.parameter import Parameter
from gradcore.program.guarding.frames import line_of
from gradcore.program.guarding.libraries import is_users
from gradcore.program.watching.harmless import SETS_GRADIENT

_GETS_GRADIENT: CodeType = Gradients.grad.fget.__code__  # type: ignore[attr-defined]
#: What :meth:`GradientReads.saw` looks at.
READS_GRADIENT = frozenset((_GETS_GRADIENT, SETS_GRADIENT))


class GradientReads:
    """Records them weakly: what the function makes is to be freed. ``drawn`` gets reasons against a replay."""

    def __init__(self, drawn: list[str]) -> None:
        self._drawn = drawn
        #: Leaves that had no gradient when it was asked for, or dropped; and by id the parameters that require none.
        self.without: WeakKeyDictionary[Leaf, None] = WeakKeyDictionary()
        self.frozen_without: WeakValueDictionary[int, Parameter] = WeakValueDictionary()
        #: Leaves of which the user's code read a gradient, with its serial.
        self.found: WeakKeyDictionary[Leaf, int] = WeakKeyDictionary()
        #: Leaves of which a gradient was dropped, one that the run has made perhaps.
        self.emptied: WeakKeyDictionary[Leaf, None] = WeakKeyDictionary()
        #: Instructions that set the gradient of a tensor to None, which a replay does too.
        self.dropped: set[tuple[CodeType, int]] = set()

    def saw(self, frame: FrameType) -> None:
        """Take note of a call that gets or sets ``grad``, which has just begun."""
        tensor, asker = frame.f_locals["self"], frame.f_back
        if frame.f_code is _GETS_GRADIENT:
            self._asks(tensor, asker)
        elif frame.f_locals["value"] is None and asker is not None:
            self.dropped.add((asker.f_code, asker.f_lasti))
            # If there is a gradient the next time, a replay has to drop it.
            self._asks(tensor, None)
            edge = tensor.edge or getattr(tensor, "_frozen_edge", None)
            if edge is not None and type(edge[0]) is Leaf and edge[0].grad is not None:
                self.emptied[edge[0]] = None

    def _asks(self, tensor: Any, asker: FrameType | None) -> None:
        leaf = None if tensor.edge is None else tensor.edge[0]
        if leaf is None and isinstance(tensor, Parameter):
            self.frozen_without[id(tensor)] = tensor
        elif type(leaf) is Leaf and leaf.grad is None:
            self.without[leaf] = None
        elif type(leaf) is not Leaf and asker is not None and is_users(asker.f_code):
            # The key of a call does not say whether such a tensor has one.
            self._drawn.append(f"{line_of(asker)} asks for the gradient of a tensor that is no leaf that requires one")
        elif type(leaf) is Leaf and asker is not None and not is_inside(asker.f_code):
            self.found.setdefault(leaf, leaf.grad.storage.serial)
