"""Sizes in bytes, parsed from and formatted as text, and counts."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from operator import index

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
          "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def count_of(count: int, what: str) -> str:
    """``1 step``, ``2,000 steps``."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def parse_bytes(text: str | int) -> int:
    """``"64MiB"`` -> 67108864, ``"1_000 B"`` -> 1000; a plain number is bytes. Raises ValueError naming what was given.

    A float is refused, since it may be meant as a share.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ValueError(f"a size in bytes must be at least 0, but got {text}")
        return text
    match = re.fullmatch(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([a-zA-Z]*)\s*", "" if isinstance(text, float) else str(text))
    if not match or match[2].lower() not in _UNITS:
        raise ValueError(f"expected a size such as '64MiB', '1.5 GB' or 4096, but got {text!r}")
    return int(Fraction(match[1].replace("_", "")) * _UNITS[match[2].lower()])


def parse_limit(given: str | int | None, name: str = "the memory limit", none: str = "None") -> int | None:
    """What a pool may reserve, in bytes; None means no limit. Raises ValueError, whose text calls it ``name``.

    Other libraries read a float as a share of the memory, and 0 as no limit or as no memory: both are refused here.
    """
    if given is None:
        return None
    try:
        # index() takes NumPy's ints, and refuses a float even of whole bytes.
        nbytes = parse_bytes(given if isinstance(given, str) else index(given))
    except (TypeError, ValueError):
        nbytes = 0
    if nbytes < 1 or isinstance(given, bool):
        raise ValueError(f"{name} must be a size of at least 1 byte, such as '64MiB' or 4096, or {none} for no limit, but got "
                         f"{given!r}")
    return nbytes


def limit_from(variable: str) -> int | None:
    """The limit in an environment variable; None if it is unset or empty."""
    return parse_limit(os.environ.get(variable) or None, variable, "empty")


def switch_from(variable: str) -> bool:
    """Is an environment variable 1? Raises ValueError unless it is 1, 0, empty or unset: ``true`` would be taken for off."""
    value = os.environ.get(variable) or "0"
    if value not in ("0", "1"):
        raise ValueError(f"{variable} must be 1, or 0 or empty for off, but got {value!r}")
    return value == "1"


def format_seconds(seconds: float) -> str:
    """A time in ms below a second: ``0.39 ms``, ``1.50 s``."""
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.999995 else f"{seconds:,.2f} s"


def format_loss(loss: float) -> str:
    """``2.2868``; of very small and large ones as many digits: ``1.234e-05``."""
    return f"{loss:.3e}" if 0 < abs(loss) < 1e-3 or abs(loss) >= 1e5 else f"{loss:.4f}"


def format_bytes(nbytes: float) -> str:
    """``nbytes`` in powers of 1024, with at most four digits: ``1.50 KiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # What would be rounded to 1024.0 of one unit is 1.00 of the next.
        if abs(size) < (1024 if unit == "B" else 1023.95) or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.{1 + (abs(size) < 9.995)}f} {unit}"
        size /= 1024
    raise AssertionError
