"""The exception types of gradcore.

Each one is also the builtin type that PyTorch users catch, so ``except RuntimeError`` keeps working.
"""

from __future__ import annotations


class GradcoreError(Exception):
    """Base class of gradcore's own errors."""


class SpecError(GradcoreError, RuntimeError, ValueError):
    """Shapes, dtypes or arguments do not fit an op; the text says what was given and what was expected."""


class DimError(SpecError, IndexError):
    """A dimension or an index lies outside its range."""


class DeviceError(GradcoreError, RuntimeError):
    """A device is missing or unknown, or operands are on different devices."""


class LocatedError(GradcoreError, RuntimeError):
    """A device error whose text dispatch completes with the op that it happened in, and that op's source line."""

    def locate(self, op: str, layer: str, phase: str, line: str) -> None:
        """Add the op to the text, unless it has one already."""
        if "\n  in op " not in str(self):
            self.args = (f"{self}\n  in op {op}, layer {layer or '(root)'}, phase {phase}, {line}",)


class KernelError(LocatedError):
    """A CUDA kernel does not compile, load or launch; the text quotes the compiler or the driver."""


class DeviceFault(LocatedError):
    """A CUDA kernel failed while running; the text says when that was noticed, and how to find the op."""


class DataDependentShape(GradcoreError, NotImplementedError):
    """A value was needed where only shapes exist (the meta device). NotImplementedError is a RuntimeError, too."""


class LinAlgError(GradcoreError, RuntimeError):
    """A matrix has no inverse or no Cholesky factor; the text names the op and the shape."""


class OutOfMemory(GradcoreError, RuntimeError, MemoryError):
    """The device is out of memory; the text lists the largest holders.

    ``asked``, ``live``, ``cached``, ``largest_free`` and ``limit`` are in bytes. So is ``outside``: if the device itself ran
    out, what is in use on it beside the pool, by this process and others; else None. ``by`` says which op asked, and where;
    the parts of it are ``op``, ``layer`` (``""`` for the root), ``phase``, and ``file`` and ``line``, in backward those of
    the forward op. ``caller_file`` and ``caller_line`` are then the line that called backward, else ``""`` and 0.
    """

    asked = live = cached = largest_free = line = caller_line = 0
    limit: int | None = None
    outside: int | None = None
    by = op = layer = phase = file = caller_file = ""

    def __init__(self, text: str, **parts: int | str | None) -> None:
        super().__init__(text)
        vars(self).update(parts)


class SourceExhausted(GradcoreError, MemoryError):
    """A source, or the limit around it, refused a segment. The pool then flushes and tries again.

    ``limit`` is what the limit allows, and ``used`` what is in use on the device, in bytes; None if they are not known.
    """

    def __init__(self, text: str, *, limit: int | None = None, used: int | None = None) -> None:
        super().__init__(text)
        self.limit = limit
        self.used = used


class AlreadyReleased(GradcoreError, RuntimeError):
    """Backward reached a node whose residuals were released already; or memory was given back a second time."""


class ModifiedInPlace(GradcoreError, RuntimeError):
    """A residual was written to after it was kept."""


class NoSecondDerivative(GradcoreError, RuntimeError):
    """An op's gradient cannot itself be differentiated."""


class UndeclaredAllocation(GradcoreError, RuntimeError):
    """Strict mode: an array library allocated device memory that no op declared."""


class TraceError(GradcoreError, RuntimeError):
    """A traced function did something that a replay cannot repeat; the text names the line."""


class CaptureError(GradcoreError, RuntimeError):
    """Something happened during a CUDA graph capture that the graph cannot hold."""


class ProgramError(GradcoreError, ValueError):
    """A file is not a program that can be run safely; the text names the file, the place in it, and what was expected."""


class NotCovered(GradcoreError, AttributeError, NotImplementedError):
    """PyTorch has this name and gradcore does not; the text names the nearest equivalent. ``hasattr`` is False."""


class NotCoveredImport(GradcoreError, ImportError, NotImplementedError):
    """As :class:`NotCovered`, for ``from gradcore import name``."""


class NotCoveredModule(NotCoveredImport, ModuleNotFoundError):
    """As :class:`NotCoveredImport`, for ``import gradcore.name``."""


class ExportError(GradcoreError, NotImplementedError):
    """Part of a program has no counterpart in the export format; the text names op, layer and line."""


def require_int(name: str, value: object, least: int) -> None:
    """Raise ValueError, naming the argument, unless ``value`` is an int of at least ``least``."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be an int of at least {least}, but got {value!r}")
