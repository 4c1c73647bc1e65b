"""PyTorch's path of what collates samples, which many scripts import from there."""

from gradcore.utils.data._utils import collate

__all__ = ["collate"]
