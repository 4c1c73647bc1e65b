"""The precision of float32 matrix products: a user's choice, which every device reads at each product."""

from __future__ import annotations

from gradcore.errors import SpecError

_CHOICES = ("highest", "high", "medium")
_chosen = "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Choose how products of float32 matrices are computed on a GPU, for the whole process.

    ``highest``, the default, multiplies 24 bits of mantissa; ``high`` and ``medium`` let tensor cores take 11 of them (TF32:
    8 bits of exponent, 10 of mantissa beside the leading one), with sums in float32. Other dtypes and the CPU are not
    affected. Raises :class:`SpecError` for another word.
    """
    global _chosen
    if precision not in _CHOICES:
        raise SpecError(f"set_float32_matmul_precision: expected one of {', '.join(_CHOICES)}, but got {precision!r}")
    _chosen = precision


def get_float32_matmul_precision() -> str:
    """``highest``, ``high`` or ``medium``."""
    return _chosen
