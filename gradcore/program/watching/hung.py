"""The hooks that a run adds and removes: a replay does neither, so each table must end as it began."""

from __future__ import annotations

from types import CodeType, FrameType
from weakref import ref

from gradcore.engine.hooks import RemovableHandle, Table, hang
from gradcore.program.guarding.frames import users_line

_ADDS: CodeType = hang.__code__
#: What adds or removes a hook, whatever it hangs on.
CHANGES_HOOKS = frozenset((_ADDS, RemovableHandle.remove.__code__))


class Hung:
    """The tables of hooks that a run has changed."""

    def __init__(self) -> None:
        #: By id: the table, weakly, as one on a node of a graph goes with that; its keys when it was first changed; and the
        #: user's line that changed it last.
        self._seen: dict[int, tuple[ref[Table], tuple[int, ...], str]] = {}

    def saw(self, frame: FrameType) -> None:
        """Take note of a call of :data:`CHANGES_HOOKS`, which has just begun."""
        table = frame.f_locals["hooks"] if frame.f_code is _ADDS else frame.f_locals["self"]._hooks()
        if table is not None:
            weak, keys, _ = self._seen.get(id(table), (lambda: None, (), ""))
            self._seen[id(table)] = *((weak, keys) if weak() is table else (ref(table), tuple(table))), users_line(frame)

    def changes(self) -> list[str]:
        """Reasons against a replay: the lines that have left other hooks than there were."""
        return [f"{line} adds or removes a hook, which a replay would not do"
                for weak, keys, line in self._seen.values() if (table := weak()) is not None and tuple(table) != keys]
