"""``torch.utils.data._utils.collate``."""

from gradcore.utils.data.collate import default_collate, default_convert

__all__ = ["default_collate", "default_convert"]
