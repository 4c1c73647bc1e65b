"""The message of a command for an error in a user's model: its type and its line."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

from gradcore.report.text import short_path

#: Folders of code that is not the user's, unless it is the package that the model is in.
_OTHERS = tuple(os.path.join(folder, "") for folder in (
    str(Path(__file__).resolve().parents[1]), *(sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib"))))


def described(error: BaseException, model: str) -> str | None:
    """``RuntimeError at mine.py:12: its text`` for an error that ``model`` raised or led to; None where it had no part."""
    where = None
    for code, name, line in _frames(error):
        if _is_own(code, name, model):
            where = f"{code.co_filename}:{line}"
    if isinstance(error, SyntaxError) and error.filename:
        # It stands where the text does, which no frame has run.
        where = f"{error.filename}:{error.lineno}"
    if where is None:
        return None
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__} at {short_path(where)}{f': {text}' * bool(text)} (--traceback shows what led there)"


def _frames(error: BaseException) -> Iterator[tuple[CodeType, str, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__")), trace.tb_lineno
        trace = trace.tb_next


def _is_own(code: CodeType, name: str, model: str) -> bool:
    file = code.co_filename
    if file.startswith("<"):
        return False
    where, _, _ = model.rpartition(":")
    if where and not where.endswith(".py") and name.partition(".")[0] == where.partition(".")[0]:
        return True
    return name.startswith("gradcore_model_") or not os.path.abspath(file).startswith(_OTHERS)
