"""Finds where code assigns to anything but its own variables, which of these instructions ran, and on which objects."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Container, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import ref

from gradcore.program.guarding.bytecode import Step, steps_of
from gradcore.program.guarding.libraries import is_users
from gradcore.program.guarding.values import asked, copied, equal, is_plain

#: Instructions that write outside a function; whether a cell is an enclosing function's depends on the code.
_STORES = frozenset(("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL"))
_CELLS = frozenset(("STORE_DEREF", "DELETE_DEREF"))
#: Instructions that load a variable.
_LOADS = ("LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")
_ITEMS = frozenset(("STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"))

_other = object()


class Assignment(NamedTuple):
    """An instruction that assigns to ``name``, with its line; its prefixes lie at ``start`` or behind, itself ``at``.

    ``operator`` is the offset of the in-place operator whose result it assigns (``x.y += z``), or -1; ``owner`` is the variable
    ``x`` in ``x.y = z`` and in ``x.y += z``, if it is one.
    """

    name: str
    line: int
    start: int
    at: int
    operator: int
    instruction: str
    owner: str = ""


def assigned(code: CodeType, containers: Container[str], keeping: bool) -> Iterator[Assignment]:
    """Attributes, globals and variables of enclosing functions that code assigns to; items of containers too.

    With ``keeping``, assignments to attributes of the first argument are left out.
    """
    return (a for a, container in _found(code) if (container is None or container in containers)
            and not (keeping and a.operator < 0 and a.owner == code.co_varnames[0]))


# Each trace asks about all functions that ran, and to disassemble them takes longer than all else that it does.
@functools.lru_cache(maxsize=4096)
def _found(code: CodeType) -> list[tuple[Assignment, str | None]]:
    """Every assignment, and for one to an item of which variable."""
    made: list[tuple[Assignment, str | None]] = []
    steps = steps_of(code)
    line, outside = code.co_firstlineno, ""
    # What is loaded first where an expression begins: an item's target is loaded after the value, which may load more.
    begins: dict[tuple[int, int], str] = {}
    for k, s in enumerate(steps):
        line = s.begins[0] or line
        # Without columns (python -X no_debug_ranges), the last variable that was loaded is taken for the target.
        at = s.begins if s.ends != s.begins else (0, s.offset)
        if s.opname in _STORES or s.opname in _ITEMS or (s.opname in _CELLS and s.argval in code.co_freevars):
            operator, start = _operator(steps, k), steps[k - 1].offset + 1 if k else 0
            container = begins.get(at, outside) if s.opname in _ITEMS else None
            owner = "" if s.opname != "STORE_ATTR" else _loaded(steps, k) if operator < 0 else _changed(steps, k)
            name = s.argval if container is None else f"an item of {container}"
            made.append((Assignment(name, line, start, s.offset, operator, s.opname, owner), container))
        elif s.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and s.argval not in code.co_cellvars:
            outside = begins[at] = s.argval
        elif s.opname.startswith("LOAD_FAST"):
            begins[at] = ""
        elif s.opname in ("STORE_FAST", "STORE_NAME", "POP_TOP", "RETURN_VALUE"):
            outside = ""
    return made


def _operator(steps: list[Step], k: int) -> int:
    """The offset of the in-place operator whose result step ``k`` takes; -1 if it takes none."""
    before = next((steps[j] for j in range(k - 1, -1, -1) if steps[j].opname != "SWAP"), None)
    return before.offset if before is not None and before.opname == "BINARY_OP" and before.text.endswith("=") else -1


def _loaded(steps: list[Step], k: int) -> str:
    """The variable that is loaded right before step ``k``; "" if none is, or perhaps another one: ``(x if y else z).a = 1``."""
    return str(steps[k - 1].argval) if k and steps[k - 1].opname.startswith(_LOADS) and not steps[k].target else ""


def _changed(steps: list[Step], k: int) -> str:
    """The variable in ``x.y += z``, of which step ``k`` sets the attribute: it was loaded, and copied to load the attribute."""
    copy = next((j for j in range(k - 2, 0, -1) if steps[j].opname == "COPY" and not steps[j + 1].target
                 and (steps[j + 1].opname, steps[j + 1].argval) == ("LOAD_ATTR", steps[k].argval)), 0)
    return _loaded(steps, copy)


@functools.lru_cache(maxsize=4096)
def _places(code: CodeType) -> dict[int, tuple[str, str]]:
    """By offset of an instruction that assigns to an attribute: the variable that has the object, if one has, and the name;
    of one that assigns to a global: "" and the name."""
    return {a.at: (a.owner, a.name) for a, _ in _found(code) if a.owner or a.instruction == "STORE_GLOBAL"}


class Steps:
    """A context manager that records which instructions run, in those of the user's functions that assign to something.

    If a debugger or a coverage tool traces already, nothing is recorded, and every instruction is taken to have run.
    """

    def __init__(self) -> None:
        #: By code: how often the instruction at each offset ran.
        self._ran: dict[CodeType, Counter[int]] = {}
        #: By code and offset: the objects, by id, to whose attributes the instruction assigned; None without a weak one.
        self._owned: dict[tuple[CodeType, int], dict[int, ref[Any] | None]] = {}
        #: By the id of an object, or of the globals, and a name: what the run found there, if that is plain data.
        self._former: dict[tuple[Any, ...], Any] = {}

    def __enter__(self) -> Steps:
        if sys.gettrace() is None:
            # Python 3.12 follows instructions only if some frame has asked for it by now. No variable may refer to the frame
            # that it is in, which would never be freed.
            sys._getframe().f_trace_opcodes = True
            sys.settrace(self._follow)
            sys._getframe().f_trace_opcodes = False
        return self

    def __exit__(self, *exc: object) -> None:
        if sys.gettrace() == self._follow:
            sys.settrace(None)

    def _follow(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not is_users(frame.f_code) or not _found(frame.f_code):
            return None
        # Python 3.13 takes note of the wish for instructions only from a frame that has a function for them.
        frame.f_trace = self._note
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._note

    def _note(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            self._ran.setdefault(code, Counter())[at] += 1
            if (place := _places(code).get(at)) is not None:
                owner, name = place
                if owner:
                    of = frame.f_locals[owner] if owner in frame.f_locals else frame.f_globals.get(owner)
                    self._owns(code, at, of)
                    self._had(of, asked(of, "__dict__", {}), name)
                else:
                    self._had(frame.f_globals, frame.f_globals, name)
        return self._note

    def _had(self, of: Any, own: Any, name: str) -> None:
        """Record what is at a place that the next instruction assigns to, unless one has assigned to it before."""
        if (id(of), name) not in self._former:
            there = own.get(name, _other)
            self._former[id(of), name] = copied(there) if is_plain(there) else _other

    def restored(self, key: tuple[Any, ...], now: Any) -> bool:
        """Is in the place with this key the number, text or None that the run found there? An equal list is another one."""
        return is_plain(now) and copied(now) is now and equal(now, self._former.get(key[1:], _other))

    def _owns(self, code: CodeType, at: int, owner: Any) -> None:
        owned = self._owned.setdefault((code, at), {})
        if id(owner) not in owned:
            # A reference would keep what the run makes.
            try:
                owned[id(owner)] = ref(owner)
            except TypeError:
                owned[id(owner)] = None

    def forget(self) -> None:
        """Free the weak references to objects, by which one could take them for referred to."""
        self._owned.clear()

    def owners(self, code: CodeType, of: Assignment) -> list[Any]:
        """The objects to whose attribute an assignment assigned, but for those that are gone, with None for each that is not
        known."""
        owned = self._owned.get((code, of.at), {0: None})
        return [None if x is None else owner for x in owned.values() for owner in [x and x()] if x is None or owner is not None]

    def changes(self, code: CodeType, of: Assignment, harmless: Counter[tuple[CodeType, int]],
                dropped: Container[tuple[CodeType, int]]) -> bool:
        """Did the assignment run more often than the runs of it, or of its operator, that were ``harmless``?

        If nothing is known of its code, only those that have ``dropped`` a gradient are taken for harmless.
        """
        ran = self._ran.get(code)
        if ran is None:
            return (code, of.at) not in dropped
        times = max(ran[at] for at in range(of.start, of.at + 1))
        return times > max(harmless[code, of.at], harmless[code, of.operator])
