"""Utilities: checkpointing, data loading, and files of tensors."""

from gradcore.utils import checkpoint, data, hooks

__all__ = ["checkpoint", "data", "hooks"]
