"""Utilities: checkpointing, counting operations, data loading, and files of tensors."""

from gradcore.utils import checkpoint, checkpointed, data, flop_counter, hooks, model_zoo

__all__ = ["checkpoint", "checkpointed", "data", "flop_counter", "hooks", "model_zoo"]
