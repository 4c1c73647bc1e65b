"""Before anything slow is imported: an interrupt of the command ``gradcore`` prints a line, not the imports' traceback.

It cannot be caught where the command begins: ``gradcore/__init__.py`` runs before any module of the package, and takes most of
the first second.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType


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


if _is_running() and sys.excepthook is sys.__excepthook__:
    sys.excepthook = _told
