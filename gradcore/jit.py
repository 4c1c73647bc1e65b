"""``gradcore.jit``: PyTorch's marks for its script compiler, which change nothing: what they mark runs as Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["Final", "annotate", "export", "ignore", "is_scripting", "is_tracing", "script", "script_if_tracing", "unused"]


def script(obj: Any, optimize: Any = None, _frames_up: int = 0, _rcb: Any = None, example_inputs: Any = None) -> Any:
    """The function, class or module itself. ``gradcore.compile`` replays a function without the cost of Python."""
    return obj


def script_if_tracing(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself."""
    return fn


def export(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The method itself."""
    return fn


def unused(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The method itself."""
    return fn


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """The method itself, as ``@ignore``, or a decorator that returns it, as ``@ignore(drop=True)``."""
    return drop if callable(drop) else lambda fn: fn


def annotate(the_type: Any, the_value: Any) -> Any:
    """The value."""
    return the_value


def is_scripting() -> bool:
    """Whether the caller is a script: no."""
    return False


def is_tracing() -> bool:
    """Whether PyTorch's tracer follows the caller: no. ``gradcore.compiler.is_compiling`` is about ``gradcore.compile``."""
    return False
