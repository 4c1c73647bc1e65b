"""``gradcore.utils.data.distributed``, for scripts that import it and use it if there are several processes."""

from __future__ import annotations

from typing import Any

from gradcore.utils.data.sampler import Sampler

__all__ = ["DistributedSampler"]


class DistributedSampler(Sampler[Any]):
    """For scripts that import it, or ask whether a sampler is one: none can be made."""

    def __init__(self, dataset: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("DistributedSampler is not implemented: gradcore trains in one process on one device. "
                                  "Nearest: RandomSampler, or shuffle=True")
