"""Sees which tensors are given another ``requires_grad`` during a trace, and whether all have their own again at its end."""

from __future__ import annotations

from collections.abc import Callable, Container
from types import CodeType, FrameType
from typing import Any
from weakref import ref

from gradcore._gradients import Gradients
from gradcore.program.passed import users_line

#: What an assignment calls, and ``requires_grad_()`` of a tensor or of a module, too.
SETS_REQUIRES_GRAD: CodeType = Gradients.requires_grad.fset.__code__  # type: ignore[attr-defined]


class Requiring:
    """The tensors that existed before the run and got another ``requires_grad`` in it.

    A replay sets none, so each must end as it began. In between it may have another, as a network that judges while the one
    that it judges learns: the trace holds what ran then.
    """

    def __init__(self) -> None:
        #: By id, each with its state when it was first changed, and with the user's line that changed it last. Weakly, since
        #: the engine asks what else refers to a gradient.
        self._seen: dict[int, tuple[ref[Any], tuple[bool, Callable[[], Any]], str]] = {}

    def saw(self, frame: FrameType, new: Container[Any]) -> None:
        """Take note of a call that sets ``requires_grad``, which has just begun; ``new`` contains what the run has made."""
        tensor = frame.f_locals["self"]
        if frame.f_locals["wanted"] == tensor.requires_grad:
            return
        if id(tensor) in self._seen and self._seen[id(tensor)][0]() is tensor:
            self._seen[id(tensor)] = *self._seen[id(tensor)][:2], users_line(frame)
        elif tensor not in new:
            self._seen[id(tensor)] = ref(tensor), _state_of(tensor), users_line(frame)

    def changes(self) -> list[str]:
        """Reasons against a replay: the lines that have left a tensor with another ``requires_grad``, or on another leaf."""
        found: dict[str, str] = {}
        for weak, (required, leaf), line in self._seen.values():
            if (tensor := weak()) is not None:
                now, its = _state_of(tensor)
                if now is not required or its() is not leaf():
                    found.setdefault(line, f"{line} assigns to requires_grad of a {type(tensor).__name__}, {tensor.spec}, "
                                           "which does not have its former value when the function returns")
        return [*found.values()]


def _nothing() -> None:
    """Takes the place of a weak reference to a leaf where there is none."""


def _state_of(tensor: Any) -> tuple[bool, Callable[[], Any]]:
    """Does a tensor require a gradient? And weakly the leaf that keeps it, or kept it before."""
    edge = tensor.edge or getattr(tensor, "frozen", None)
    return tensor.edge is not None, _nothing if edge is None else ref(edge[0])
