"""Lets an interrupt of the command ``gradcore`` print a line instead of a traceback, also while the package is imported.

It cannot be caught where the command begins: ``gradcore/__init__.py`` runs before any module of the package, and takes most of
the first second. Nor is one caught that comes in a finalizer, such as a storage's: Python prints it, and goes on.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from types import TracebackType
from typing import Any


def _is_running() -> bool:
    """Is this process the command, by its script or ``python -m gradcore``? While ``-m`` looks for its module, argv says so."""
    name = (getattr(sys, "argv", None) or [""])[0]
    if name != "-m":
        return os.path.basename(name) in ("gradcore", "gradcore.exe", "gradcore-script.py", "gradcore-script.pyw")
    words = getattr(sys, "orig_argv", ())
    return any(a == "-m" and b in ("gradcore", "gradcore.cli.main") for a, b in zip(words, words[1:])) or "-mgradcore" in words


def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("gradcore: interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _come_again(lost: Any) -> None:
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    # Not at once: it would be lost in this function, too.
    again = threading.Timer(0.02, _thread.interrupt_main)
    again.daemon = True
    again.start()


if _is_running() and sys.excepthook is sys.__excepthook__:
    sys.excepthook = _told
    sys.unraisablehook = _come_again
