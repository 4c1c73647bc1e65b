"""The line of source that an op runs for: the first one outside gradcore, found once for each instruction."""

from __future__ import annotations

import copy
import functools
import os
import re
import sys
from collections.abc import Callable
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

from gradcore.engine.state import local
from gradcore.errors import DataDependentShape
from gradcore.events import WRITTEN, Site

T = TypeVar("T")


def _folders(file: str, path: Any = os.path) -> tuple[str, tuple[str, ...]]:
    """The package's folder, by the file name of this module, and those of its parts that use it as users do."""
    package = path.join(path.dirname(path.dirname(file)), "")
    return package, tuple(path.join(package, part, "") for part in ("cli", "models"))


# As file names of code objects have them: possibly through a link, and with the separators of the system.
_PACKAGE, _OUTSIDE = _folders(__file__)

#: Python's own code that calls us for somebody. A copy belongs to whoever asked for it, a user or a layer here, and what a
#: context does to whoever enters it.
_GO_BETWEENS = frozenset(f.__code__.co_filename for f in (copy.deepcopy, contextmanager, functools.update_wrapper))

# By id of a code object: its sites by instruction, or None for code inside gradcore. The code objects are held, so that ids
# are not reused.
CODES: dict[int, dict[int, Site] | None] = {}
_held: list[CodeType] = []

#: What Python 3.11 adds to a function's name for the lists, dicts and sets that are made by comprehensions in it.
_COMPREHENSIONS = re.compile(r"((\.<locals>)?\.)?<(list|dict|set)comp>")

_CALL = (lambda run: run()).__code__

#: Steps that record whole stacks.
_stacks = 0


class whole_stacks:
    """A context in which the sites that any thread looks up carry their call stacks. To end it twice is to end it once."""

    _open = False

    def __enter__(self) -> None:
        global _stacks
        _stacks += 1
        self._open = True
        # Cached sites would be used without their stacks; nothing is cached until this ends.
        CODES.clear()
        _held.clear()

    def __exit__(self, *exc: object) -> None:
        global _stacks
        _stacks -= self._open
        self._open = False


def _whole(frame: FrameType | None) -> Site:
    sites: list[Site] = []
    while frame is not None and len(sites) < 64:
        if not _nameless(frame.f_code):
            sites.append(_site(frame))
        frame = frame.f_back
    first, *callers = sites or [Site("<gradcore>", 0, "")]
    return first.called_by(callers)


def _site(frame: FrameType) -> Site:
    code = frame.f_code
    # From Python 3.12 on, comprehensions run in the frame of the function that they are in.
    function = _COMPREHENSIONS.sub("", code.co_qualname) or "<module>"
    return Site(code.co_filename, frame.f_lineno or 0, function)


def find_site(frame: FrameType | None) -> Site:
    """The line of the first frame outside gradcore, from ``frame`` outwards."""
    if _stacks:
        return _whole(frame)
    while frame is not None:
        code = frame.f_code
        try:
            lines = CODES[id(code)]
        except KeyError:
            lines = _learn(code)
        if lines is not None:
            site = lines.get(frame.f_lasti)
            if site is None:
                site = lines[frame.f_lasti] = _site(frame)
            return site
        frame = frame.f_back
    return Site("<gradcore>", 0, "")


@functools.lru_cache(1024)
def called_at(site: Site) -> Callable[[Callable[[], T]], T]:
    """A function that calls another in a frame of that line: where nothing that is called has a line outside gradcore, what
    runs again has that of the first run."""
    code = _CALL.replace(co_filename=site.file, co_firstlineno=site.line, co_name=site.function, co_qualname=site.function)
    return FunctionType(code, {"__name__": __name__})


def is_inside(code: CodeType | None) -> bool:
    """Does the code belong to gradcore, so that its lines are not sites?"""
    if code is None:
        return False
    name = code.co_filename
    # Methods that dataclasses and named tuples generate have no line either; others of "<string>" are of `python -c`, say.
    return (name.startswith(_PACKAGE) and not name.startswith(_OUTSIDE)) or name == WRITTEN or (
        name == "<string>" and (code.co_qualname.startswith("__create_fn__.") or code.co_varnames[:1] == ("_cls",)))


def _nameless(code: CodeType) -> bool:
    """Is a line of the code never the one that an op ran for?"""
    return code.co_filename in _GO_BETWEENS or is_inside(code)


def _learn(code: CodeType) -> dict[int, Site] | None:
    if len(_held) > 50_000:
        CODES.clear()
        _held.clear()
    _held.append(code)
    # Another thread may clear the table at any time.
    lines = CODES[id(code)] = None if _nameless(code) else {}
    return lines


def here() -> Site:
    """The site of the caller's line, or the one that backward has set."""
    site = local.state.site
    return find_site(sys._getframe(1)) if site is None else site


def need_values(op: str, device: Any, what: str = "the shape of the result", instead: str = "") -> None:
    """Raise :class:`DataDependentShape`, with the line, if ``what`` depends on values that the device has not: meta."""
    if device.type == "meta":
        raise DataDependentShape(f"{op}: {what} depends on values, which meta tensors do not have, in {here()}"
                                 f"{instead and ': '}{instead}")
