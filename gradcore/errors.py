"""Every error that gradcore raises by a type of its own.

Each also is the builtin type that PyTorch users catch, so that ``except RuntimeError`` keeps working.
"""

from __future__ import annotations


class GradcoreError(Exception):
    """The root of gradcore's own errors."""


class SpecError(GradcoreError, RuntimeError, ValueError):
    """Shapes, dtypes or arguments do not fit an op; the text says what was given and what was expected."""


class DimError(SpecError, IndexError):
    """A dimension or an index lies outside its range."""


class DeviceError(GradcoreError, RuntimeError):
    """A device is missing, unknown, or operands stand on different ones."""


class LocatedError(GradcoreError, RuntimeError):
    """An error of the device that the op it happened to is added to, by dispatch, which knows the line."""

    def locate(self, op: str, layer: str, phase: str, line: str) -> None:
        """Say once in which op it happened."""
        if "\n  in op " not in str(self):
            self.args = (f"{self}\n  in op {op}, layer {layer or '(root)'}, phase {phase}, {line}",)


class KernelError(LocatedError):
    """A CUDA kernel does not compile, load or launch; the text has the compiler's or the driver's words."""


class DeviceFault(LocatedError):
    """A CUDA kernel failed while it ran; the text says when that was noticed, and how to find the op."""


class DataDependentShape(GradcoreError, RuntimeError):
    """A value was needed where only shapes exist (the meta device)."""


class LinAlgError(GradcoreError, RuntimeError):
    """A matrix has no inverse, or no Cholesky factor; the text says which op met it, and its shape."""


class OutOfMemory(GradcoreError, RuntimeError, MemoryError):
    """The device has no room; the text names who holds the memory. Numbers are in bytes; ``by`` says who asked, and where."""

    def __init__(self, text: str, *, asked: int = 0, live: int = 0, cached: int = 0, largest_free: int = 0,
                 limit: int | None = None, by: str = "") -> None:
        super().__init__(text)
        self.asked = asked
        self.by = by
        self.live = live
        self.cached = cached
        self.largest_free = largest_free
        self.limit = limit


class SourceExhausted(GradcoreError, MemoryError):
    """A source, or a limit before it, refused a segment. The pool answers by flushing and trying again."""

    def __init__(self, text: str, *, limit: int | None = None) -> None:
        super().__init__(text)
        self.limit = limit


class StaleBlock(GradcoreError, RuntimeError):
    """A block was given back twice, or through a handle from an earlier life."""


class AlreadyReleased(GradcoreError, RuntimeError):
    """Backward reached a node whose residuals have gone back to the pool."""


class ModifiedInPlace(GradcoreError, RuntimeError):
    """A residual was written to after it was kept."""


class NoSecondDerivative(GradcoreError, RuntimeError):
    """An op's gradient cannot itself be differentiated."""


class UndeclaredAllocation(GradcoreError, RuntimeError):
    """Strict mode: an array library allocated device memory that no op declared."""


class TraceError(GradcoreError, RuntimeError):
    """A traced function did something that no replay could do again; the text names the line."""


class CaptureError(GradcoreError, RuntimeError):
    """Something happened during a capture that a captured graph cannot hold."""


class ProgramError(GradcoreError, ValueError):
    """A file holds no program that can be run safely; the text names the file, the place in it, and what was expected."""


class NotCovered(GradcoreError, AttributeError, NotImplementedError):
    """PyTorch has the name and gradcore has not; the text names the nearest thing that there is. ``hasattr`` is False."""


class NotCoveredImport(GradcoreError, ImportError, NotImplementedError):
    """As :class:`NotCovered`, for ``from gradcore import name``."""


class NotCoveredModule(NotCoveredImport, ModuleNotFoundError):
    """As :class:`NotCoveredImport`, for ``import gradcore.name``."""


class ExportError(GradcoreError, NotImplementedError):
    """Something in a program has no counterpart in the format that it is exported to; the text names op, layer and line."""
