"""Padding layers, and the ``padding_mode`` of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.functional.shape import plain
from gradcore.functional.sizes import Size
from gradcore.nn import functional as F
from gradcore.nn.module import Family

__all__ = ["CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d",
           "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d",
           "ZeroPad1d", "ZeroPad2d", "ZeroPad3d"]

Tensor = Any

#: The values of ``padding_mode``.
MODES = ("zeros", "reflect", "replicate", "circular")


def require_mode(mode: str) -> None:
    """Raise ValueError if it is no ``padding_mode``."""
    if mode not in MODES:
        raise ValueError(f"padding_mode must be one of {', '.join(MODES)}, but got padding_mode={mode!r}")


def borders_of(padding: Sequence[int] | str, kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The sizes that a convolution whose ``padding_mode`` is not zeros pads its input by, last dimension first."""
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilation, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in padding]
    return [n for pair in reversed(sides) for n in pair]


class _Pad(Family):
    def __init__(self, padding: Size) -> None:
        super().__init__()
        given: Any = plain(padding)
        self.padding = (given,) * (2 * self._module_dims) if isinstance(given, int) else tuple(map(plain, given))

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self._module_mode)

    def extra_repr(self) -> str:
        return str(self.padding)


class _ConstantPadNd(_Pad):
    def __init__(self, padding: Size, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ReflectionPadNd(_Pad, mode="reflect"):
    pass


class _ReplicationPadNd(_Pad, mode="replicate"):
    pass


class _CircularPadNd(_Pad, mode="circular"):
    pass


class ConstantPad1d(_ConstantPadNd):
    """Pads the last dimension with ``value``; ``padding`` is (before, after), or one size for both."""


class ConstantPad2d(_ConstantPadNd, dims=2):
    """Pads the last two dimensions with ``value``; ``padding`` is (left, right, top, bottom), or one size for all."""


class ConstantPad3d(_ConstantPadNd, dims=3):
    """Pads the last three dimensions with ``value``.

    ``padding`` is (left, right, top, bottom, front, back), or one size for all.
    """


class _Zero(_ConstantPadNd):
    def __init__(self, padding: Size) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return str(self.padding)


class ZeroPad1d(_Zero, ConstantPad1d):
    """Pads with zeros; sizes as in :class:`ConstantPad1d`."""


class ZeroPad2d(_Zero, ConstantPad2d, dims=2):
    """Pads with zeros; sizes as in :class:`ConstantPad2d`."""


class ZeroPad3d(_Zero, ConstantPad3d, dims=3):
    """Pads with zeros; sizes as in :class:`ConstantPad3d`."""


class ReflectionPad1d(_ReflectionPadNd):
    """Pads by reflection, without repeating the edge; sizes as in :class:`ConstantPad1d`."""


class ReflectionPad2d(_ReflectionPadNd, dims=2):
    """Pads by reflection, without repeating the edge; sizes as in :class:`ConstantPad2d`."""


class ReflectionPad3d(_ReflectionPadNd, dims=3):
    """Pads by reflection, without repeating the edge; sizes as in :class:`ConstantPad3d`."""


class ReplicationPad1d(_ReplicationPadNd):
    """Pads by repeating the edge; sizes as in :class:`ConstantPad1d`."""


class ReplicationPad2d(_ReplicationPadNd, dims=2):
    """Pads by repeating the edge; sizes as in :class:`ConstantPad2d`."""


class ReplicationPad3d(_ReplicationPadNd, dims=3):
    """Pads by repeating the edge; sizes as in :class:`ConstantPad3d`."""


class CircularPad1d(_CircularPadNd):
    """Pads circularly, with elements from the other end; sizes as in :class:`ConstantPad1d`."""


class CircularPad2d(_CircularPadNd, dims=2):
    """Pads circularly, with elements from the other end; sizes as in :class:`ConstantPad2d`."""


class CircularPad3d(_CircularPadNd, dims=3):
    """Pads circularly, with elements from the other end; sizes as in :class:`ConstantPad3d`."""
