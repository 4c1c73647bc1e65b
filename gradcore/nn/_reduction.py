"""``torch.nn._reduction``, which losses that a program writes itself import: reductions by number or older arguments."""

from __future__ import annotations

from gradcore.arguments import warn
from gradcore.functional.losses import check_reduction


def get_enum(reduction: str) -> int:
    """0 for "none", 1 for "mean", 2 for "sum". Raises ValueError for another one."""
    check_reduction(reduction)
    return ("none", "mean", "sum").index(reduction)


def legacy_get_string(size_average: bool | None, reduce: bool | None, emit_warning: bool = True) -> str:
    """The reduction that the two older arguments say, which are True by default."""
    size_average, reduce = size_average in (None, True), reduce in (None, True)
    found = "none" if not reduce else "mean" if size_average else "sum"
    if emit_warning:
        warn(f"size_average and reduce args will be deprecated, please use reduction={found!r} instead.")
    return found


def legacy_get_enum(size_average: bool | None, reduce: bool | None, emit_warning: bool = True) -> int:
    """:func:`legacy_get_string` by number."""
    return get_enum(legacy_get_string(size_average, reduce, emit_warning))
