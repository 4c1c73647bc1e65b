"""``gradcore.hub``: says that weights are not downloaded, for models whose files import what does it in PyTorch."""

from __future__ import annotations

from typing import Any

__all__ = ["load_state_dict_from_url"]


def load_state_dict_from_url(url: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Raise NotImplementedError: files of PyTorch's are not read, and nothing is downloaded."""
    raise NotImplementedError(f"load_state_dict_from_url is not implemented, so {url} is not read: convert the file with "
                              "safetensors.torch.save_file, and give gradcore.load its path")
