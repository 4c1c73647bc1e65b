"""Describes errors in a user's model in one line: type, line of source or model, and text."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from gradcore.errors import OutOfMemory
from gradcore.reading import short_path

#: Folders of code that is not the user's, except for the package that the model is in.
_OTHERS = tuple(os.path.join(folder, "") for folder in (
    str(Path(__file__).resolve().parents[1]), *(sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib"))))


def described(error: BaseException, model: str, clear: bool) -> str | None:
    """``RuntimeError at mine.py:12: its text`` for an error that was raised in ``model`` or below it.

    For another error None if its text is ``clear`` by itself, else ``IndexError in mine.py:build: its text``: labels that the
    default loss refuses, for one, meet no line of the model.
    """
    where = None
    for file, name, line in _frames(error):
        if _is_own(file, name, model):
            where = f"{file}:{line}"
    if where is None and isinstance(error, OutOfMemory):
        where = _asked_at(error, model)
    if isinstance(error, SyntaxError) and error.filename:
        # The line with the syntax error is in no frame, as it never ran.
        where = f"{error.filename}:{error.lineno}"
    if where is None and clear:
        return None
    place = f"in {model}" if where is None else f"at {short_path(where)}"
    text = error.msg if isinstance(error, SyntaxError) else noted(error)
    return f"{type(error).__name__} {place}{f': {text}' * bool(text)} (--traceback prints the traceback)"


def noted(error: BaseException) -> str:
    """The error's text and its notes, on one line."""
    return "; ".join(filter(None, (str(error), *getattr(error, "__notes__", ()))))


def _frames(error: BaseException) -> Iterator[tuple[str, str, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, str(trace.tb_frame.f_globals.get("__name__")), trace.tb_lineno
        trace = trace.tb_next


def _asked_at(error: OutOfMemory, model: str) -> str | None:
    """The line of the model whose op, or the gradient of whose op, asked for memory: in backward no frame is the model's."""
    for file, line in (error.file, error.line), (error.caller_file, error.caller_line):
        name = next((n for n, m in list(sys.modules.items()) if getattr(m, "__dict__", {}).get("__file__") == file), "")
        if file and _is_own(file, name, model):
            return f"{file}:{line}"
    return None


def _is_own(file: str, name: str, model: str) -> bool:
    if file.startswith("<"):
        return False
    where, _, _ = model.rpartition(":")
    if where and not where.endswith(".py") and name.partition(".")[0] == where.partition(".")[0]:
        return True
    return name.startswith("gradcore_model_") or not os.path.abspath(file).startswith(_OTHERS)
