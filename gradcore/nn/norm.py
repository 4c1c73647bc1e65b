"""Normalization layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradcore.engine.modes import no_grad
from gradcore.errors import SpecError
from gradcore.functional import empty, squeeze, unsqueeze
from gradcore.functional.shape import plain
from gradcore.nn import functional as F
from gradcore.nn import init
from gradcore.nn.module import Family, Module
from gradcore.nn.parameter import Parameter

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
           "LayerNorm", "LocalResponseNorm", "RMSNorm"]

Tensor = Any


#: By PyTorch's name, which code imports for its annotations.
_shape_t = int | Sequence[int]


def _sizes(shape: _shape_t) -> tuple[int, ...]:
    return tuple(map(plain, (shape,) if isinstance(shape, (int, np.integer)) else shape))


class _Affine(Module):
    """Base of layers with a weight, and perhaps a bias, that may be None."""

    weight: Parameter | None
    bias: Parameter | None

    def _module_add(self, shape: Any, device: Any, dtype: Any, **wanted: bool) -> None:
        for name, given in wanted.items():
            self.register_parameter(name, Parameter(empty(shape, device=device, dtype=dtype)) if given else None)

    def reset_parameters(self) -> None:
        """Fill the weight with ones and the bias with zeros."""
        for name, fill in (("weight", init.ones_), ("bias", init.zeros_)):
            if getattr(self, name, None) is not None:
                fill(getattr(self, name))


class LayerNorm(_Affine):
    """(x - mean) / sqrt(var + eps) over the last dimensions, of shape ``normalized_shape``, times weight, plus bias.

    Ba, Kiros and Hinton, arXiv:1607.06450.
    """

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._module_add(self.normalized_shape, device, dtype, weight=elementwise_affine, bias=elementwise_affine and bias)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
                f"bias={self.bias is not None}")


class _NormBase(_Affine, Family, dims=()):
    """Base of batch and instance norms: weight and bias of each channel, and running statistics."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    #: PyTorch's: since 2, there is ``num_batches_tracked``.
    _version = 2
    _module_may_be_missing = frozenset(("num_batches_tracked",))

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, device: Any = None, dtype: Any = None, *, bias: bool = True) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._module_make(bias, device, dtype)

    def _module_make(self, bias: bool, device: Any, dtype: Any) -> None:
        n, tracked = self.num_features, self.track_running_stats
        self._module_add(n, device, dtype, weight=self.affine, bias=self.affine and bias)
        self.register_buffer("running_mean", empty(n, device=device, dtype=dtype) if tracked else None)
        self.register_buffer("running_var", empty(n, device=device, dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", empty((), device=device, dtype=np.int64) if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Reset the running mean to 0, the running variance to 1, and the number of batches to 0."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Start the running statistics again, and fill the weight with ones and the bias with zeros."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        """Raises :class:`SpecError`."""
        if input.spec.ndim not in self._module_dims:
            wanted = " or ".join(f"{n}D" for n in self._module_dims)
            raise SpecError(f"expected {wanted} input (got {input.spec.ndim}D input)")

    def extra_repr(self) -> str:
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
                f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}")


class _BatchNorm(_NormBase):
    """(x - mean) / sqrt(var + eps) for each channel, times weight, plus bias; training updates running statistics.

    Ioffe and Szegedy, arXiv:1502.03167.
    """

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        tracks, count = self.training and self.track_running_stats, self.num_batches_tracked
        if tracks and count is not None:
            count.add_(1)
        # Whoever does without statistics, or counts, sets them to None; the mode alone does not say what there is.
        keep = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if keep else (None, None)
        batch = self.training or (mean is None and var is None)
        if tracks and self.momentum is None and mean is not None and var is not None and count is not None:
            with self._module_averaged(mean, var):
                return F.batch_norm(input, mean, var, self.weight, self.bias, batch, 1.0, self.eps)
        return F.batch_norm(input, mean, var, self.weight, self.bias, batch, self.momentum or 0.0, self.eps)

    @contextmanager
    def _module_averaged(self, *statistics: Tensor) -> Iterator[None]:
        """Make statistics of a batch, which the block writes in their place, the means over all batches so far.

        By tensors: a number read from the count would stop a program, and has no value on meta.
        """
        with no_grad():
            former = [s.clone() for s in statistics]
        yield
        with no_grad():
            share = 1 / self.num_batches_tracked.to(statistics[0].dtype)
            for s, before in zip(statistics, former, strict=True):
                s.mul_(share).add_(before.mul_(1 - share))


class BatchNorm1d(_BatchNorm, dims=(2, 3)):
    """Batch norm of [N, C] or [N, C, L]."""


class BatchNorm2d(_BatchNorm, dims=(4,)):
    """Batch norm of [N, C, H, W]."""


class BatchNorm3d(_BatchNorm, dims=(5,)):
    """Batch norm of [N, C, D, H, W]."""


class RMSNorm(_Affine):
    """x / sqrt(mean(x^2) + eps) over the last dimensions, of shape ``normalized_shape``, times weight.

    Zhang and Sennrich, arXiv:1910.07467.
    """

    def __init__(self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self._module_add(self.normalized_shape, device, dtype, weight=elementwise_affine)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """(x - mean) / sqrt(var + eps) over each of ``num_groups`` groups of channels of [N, C, ...], times weight, plus bias.

    Wu and He, arXiv:1803.08494.
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
                 dtype: Any = None, *, bias: bool = True) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._module_add(num_channels, device, dtype, weight=affine, bias=affine and bias)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
                f"bias={self.bias is not None}")


class _InstanceNorm(_NormBase):
    """(x - mean) / sqrt(var + eps) for each channel of each sample. Ulyanov et al., arXiv:1607.08022."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
                 track_running_stats: bool = False, device: Any = None, dtype: Any = None, *, bias: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        lone = input.spec.ndim == self._module_dims[0]
        out = F.instance_norm(unsqueeze(input, 0) if lone else input, self.running_mean, self.running_var, self.weight,
                              self.bias, self.training or not self.track_running_stats, self.momentum or 0.0, self.eps)
        return squeeze(out, 0) if lone else out


class InstanceNorm1d(_InstanceNorm, dims=(2, 3)):
    """Instance norm of [N, C, L] or [C, L]."""


class InstanceNorm2d(_InstanceNorm, dims=(3, 4)):
    """Instance norm of [N, C, H, W] or [C, H, W]."""


class InstanceNorm3d(_InstanceNorm, dims=(4, 5)):
    """Instance norm of [N, C, D, H, W] or [C, D, H, W]."""


class LocalResponseNorm(Module):
    """x / (k + alpha * m)^beta, where m is the mean of x^2 over ``size`` neighboring channels of [N, C, ...]."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
