"""Layers for several devices, of which there is one here: scripts that use them run, and their state dicts load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore import cuda
from gradcore.cuda.properties import gpu
from gradcore.engine.value import Value
from gradcore.functional.creation import transfer
from gradcore.nn.module import Module
from gradcore.nn.norm import _BatchNorm

Tensor = Any

__all__ = ["DataParallel", "SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Batch norm of [N, C, ...] with any number of dimensions; in one process there is nothing to synchronize."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, process_group: Any = None, device: Any = None, dtype: Any = None, *,
                 bias: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.spec.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.spec.ndim}D input)")
        if not input.spec.shape[1]:
            raise ValueError("SyncBatchNorm number of input channels should be non-zero")

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module with its batch norms replaced by layers of this class, which take over parameters and buffers."""
        made = module
        if isinstance(module, _BatchNorm):
            made = SyncBatchNorm(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
                                 process_group, bias=module.bias is not None)
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "training"):
                setattr(made, name, getattr(module, name))
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return made


class DataParallel(Module):
    """A module on one device: calls are passed on to ``module``, whose names in state dicts begin with ``module.``.

    With a GPU the module is moved to ``device_ids[0]``, by default the current one, and so are the tensors that it is called
    with. Raises NotImplementedError for several devices.
    """

    def __init__(self, module: Module, device_ids: Sequence[Any] | None = None, output_device: Any = None,
                 dim: int = 0) -> None:
        super().__init__()
        self.module = module
        self.device_ids: list[int] = []
        if not cuda.is_available():
            return
        if device_ids is not None and len(device_ids) > 1:
            raise NotImplementedError(f"DataParallel runs on one device, but got device_ids={list(device_ids)}")
        self._device = gpu(device_ids[0] if device_ids else cuda.current_device())
        index = self._device.index or 0
        self.dim = dim
        self.device_ids = [index]
        self.output_device = index
        self.module.to(self._device)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.device_ids:
            inputs, kwargs = self._module_moved(inputs), self._module_moved(kwargs)
        return self.module(*inputs, **kwargs)

    def _module_moved(self, given: Any) -> Any:
        if isinstance(given, Value):
            return given if given.storage.device is self._device else transfer(given, self._device)
        if isinstance(given, dict):
            return {name: self._module_moved(value) for name, value in given.items()}
        if type(given) in (tuple, list):
            return type(given)(map(self._module_moved, given))
        return given
