"""``gradcore.nn.parallel``: wrappers of modules that scripts for several devices import, and use if there are several."""

from __future__ import annotations

from typing import Any

from gradcore.nn.module import Module
from gradcore.nn.one_device import DataParallel

__all__ = ["DataParallel", "DistributedDataParallel"]


class DistributedDataParallel(Module):
    """For scripts that import it, or ask whether a model is one: none can be made."""

    def __init__(self, module: Module, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("DistributedDataParallel is not implemented: gradcore trains in one process on one device. "
                                  "gradcore.distributed.is_available() is False")
