"""What a run may change if it changes it back, as a replay does neither: hooks, and ``requires_grad`` of tensors."""

from __future__ import annotations

from collections.abc import Callable, Container
from types import CodeType, FrameType
from typing import Any
from weakref import ref

from gradcore.engine.hooks import RemovableHandle, hang
from gradcore.nn.hooks import shown
from gradcore.program.guarding.frames import users_line

_REMOVES: CodeType = RemovableHandle.remove.__code__
#: What adds or removes a hook, whatever it hangs on, or gives the program a table of them.
CHANGES_HOOKS = frozenset((hang.__code__, shown.__code__, _REMOVES))


class Former:
    """Objects that a run has changed, with their states of before.

    ``state_of`` gives a state, which must not hold the object, and ``why`` the end of a reason against a replay.
    """

    def __init__(self, state_of: Callable[[Any], Any], why: Callable[[Any], str]) -> None:
        self._state_of = state_of
        self._why = why
        #: By id, each with its state when it was first changed, and with the user's line that changed it last. Weakly, since
        #: the engine asks what else refers to a gradient, and a table of hooks goes with its node.
        self._seen: dict[int, tuple[ref[Any], Any, str]] = {}

    def saw(self, x: Any, frame: FrameType, new: Container[Any] = ()) -> None:
        """Take note of a call that is about to change an object, unless it is ``new``."""
        known = self._seen.get(id(x))
        if known is None or known[0]() is not x:
            if x in new:
                return
            known = ref(x), self._state_of(x), ""
        self._seen[id(x)] = *known[:2], users_line(frame)

    def changes(self) -> list[str]:
        """Reasons against a replay: the lines that have left an object in another state."""
        found: dict[str, str] = {}
        for weak, state, line in self._seen.values():
            if (x := weak()) is not None and self._state_of(x) != state:
                found.setdefault(line, f"{line} {self._why(x)}")
        return [*found.values()]


def hung() -> Former:
    """For tables of hooks."""
    return Former(tuple, lambda table: "adds or removes a hook, which a replay would not do")


def table_of(frame: FrameType) -> Any:
    """The table that a call of :data:`CHANGES_HOOKS` may change, which has just begun; None if it is gone."""
    return frame.f_locals["self"]._hooks() if frame.f_code is _REMOVES else frame.f_locals["hooks"]


def requiring() -> Former:
    """For tensors that get another ``requires_grad``.

    In between one may have another, as a network that judges while the one that it judges learns: the trace has what ran then.
    """
    return Former(_gradient_of, lambda tensor: f"assigns to requires_grad of a {type(tensor).__name__}, {tensor.spec}, which "
                                               "does not have its former value when the function returns")


def _gradient_of(tensor: Any) -> tuple[bool, Any]:
    """Does a tensor require a gradient? And weakly the leaf that keeps it, or kept it before."""
    edge = tensor.edge or getattr(tensor, "_frozen_edge", None)
    return tensor.edge is not None, edge and ref(edge[0])
