"""The precision of float32 matrix products and convolutions: a user's choice, which every device reads at each of them."""

from __future__ import annotations

from gradcore.errors import SpecError

_CHOICES = ("highest", "high", "medium")
_chosen = "highest"
_in_convolutions = True


def set_float32_matmul_precision(precision: str) -> None:
    """Choose how products of float32 matrices, and convolutions, are computed on a GPU, for the whole process.

    ``highest``, the default, multiplies 24 bits of mantissa; ``high`` and ``medium`` let tensor cores take 11 of them (TF32:
    8 bits of exponent, 10 of mantissa beside the leading one), with sums in float32. Other dtypes and the CPU are not
    affected, and neither are convolutions if ``backends.cudnn.allow_tf32`` is False. Raises :class:`SpecError` for another
    word.
    """
    global _chosen
    if precision not in _CHOICES:
        raise SpecError(f"set_float32_matmul_precision: expected one of {', '.join(_CHOICES)}, but got {precision!r}")
    _chosen = precision


def get_float32_matmul_precision() -> str:
    """``highest``, ``high`` or ``medium``."""
    return _chosen


def allow_in_convolutions(allowed: bool) -> None:
    """Choose whether convolutions follow :func:`set_float32_matmul_precision`, or are always computed as with ``highest``."""
    global _in_convolutions
    _in_convolutions = bool(allowed)


def allowed_in_convolutions() -> bool:
    return _in_convolutions


def rounded() -> tuple[bool, bool]:
    """May tensor cores take TF32 in matrix products, and in convolutions?"""
    return _chosen != "highest", _chosen != "highest" and _in_convolutions
