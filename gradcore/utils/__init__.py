"""Tools around training."""

from gradcore.utils import checkpoint

__all__ = ["checkpoint"]
