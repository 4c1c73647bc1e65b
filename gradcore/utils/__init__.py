"""Utilities: checkpointing, data loading, and files of tensors."""

from gradcore.utils import checkpoint, data, hooks, model_zoo

__all__ = ["checkpoint", "data", "hooks", "model_zoo"]
