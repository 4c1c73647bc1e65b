"""``gradcore.distributed``: says that a process has a device to itself, for scripts that ask before they use others."""

from __future__ import annotations

__all__ = ["is_available", "is_initialized"]


def is_available() -> bool:
    """Whether processes can work together: no."""
    return False


def is_initialized() -> bool:
    """Whether this process belongs to a group: no."""
    return False
