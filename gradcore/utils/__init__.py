"""Tools around training."""

from gradcore.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
