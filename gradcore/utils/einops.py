"""einops on tensors: its functions take them once this module is imported; its layers ``Rearrange``, ``Reduce``, ``EinMix``."""

from __future__ import annotations

import sys
from typing import Any

from einops._backends import AbstractBackend
from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter

__all__ = ["EinMix", "Rearrange", "Reduce"]


class GradcoreBackend(AbstractBackend):
    """What einops does with tensors. It finds the class by itself, among the subclasses of its own, as soon as there is one."""

    framework_name = "gradcore"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        made = functional.from_numpy(x)
        return made.requires_grad_() if self.is_float_type(made) else made

    def to_numpy(self, x: Tensor) -> Any:
        return x.detach().cpu().numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return functional.arange(start, stop)

    def transpose(self, x: Any, axes: Any) -> Tensor:
        return x.permute(axes)

    def reduce(self, x: Tensor, operation: str, axes: Any) -> Tensor:
        """By ``min``, ``max``, ``sum``, ``mean``, ``prod``, ``any`` or ``all``. Raises NotImplementedError for another name."""
        if operation in ("min", "max", "sum", "mean"):
            return getattr(x, {"min": "amin", "max": "amax"}.get(operation, operation))(dim=tuple(axes))
        if operation not in ("prod", "any", "all"):
            raise NotImplementedError(f"einops.reduce by {operation!r} is not implemented by gradcore")
        # These take one dimension at a time.
        for axis in sorted(axes, reverse=True):
            x = getattr(x, operation)(dim=axis)
        return x

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        return functional.stack(tensors)

    def add_axis(self, x: Any, new_position: int) -> Tensor:
        return x.unsqueeze(new_position)

    def add_axes(self, x: Any, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        """A view with more dimensions, whose elements are repeated along them without a copy."""
        sizes = [-1] * n_axes
        for position, length in pos2len.items():
            x = x.unsqueeze(position)
            sizes[position] = length
        return x.expand(sizes)

    def tile(self, x: Any, repeats: Any) -> Tensor:
        return x.repeat(repeats)

    def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
        return functional.cat(tensors, dim=axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.is_floating_point()

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return functional.einsum(pattern, *x)

    def layers(self) -> Any:
        return sys.modules[__name__]


class Rearrange(RearrangeMixin, Module):
    """``einops.rearrange`` as a layer: ``Rearrange("b c h w -> b (h w) c")``."""

    def forward(self, input: Tensor) -> Tensor:
        return self._apply_recipe(input)


class Reduce(ReduceMixin, Module):
    """``einops.reduce`` as a layer: ``Reduce("b c h w -> b c", "mean")``."""

    def forward(self, input: Tensor) -> Tensor:
        return self._apply_recipe(input)


class EinMix(_EinmixMixin, Module):
    """A linear layer over named axes: ``EinMix("b t i -> b t o", weight_shape="i o", bias_shape="o", i=3, o=4)``.

    The parameters ``weight`` and ``bias`` are uniform within einops' bounds; ``bias`` is None without a ``bias_shape``.
    """

    def _create_parameters(self, weight_shape: Any, weight_bound: float, bias_shape: Any, bias_bound: float) -> None:
        self.weight = Parameter(functional.zeros(weight_shape).uniform_(-weight_bound, weight_bound))
        self.bias = None if bias_shape is None else Parameter(functional.zeros(bias_shape).uniform_(-bias_bound, bias_bound))

    def _create_rearrange_layers(self, pre_reshape_pattern: str | None, pre_reshape_lengths: Any,
                                 post_reshape_pattern: str | None, post_reshape_lengths: Any) -> None:
        def layer(pattern: str | None, lengths: Any) -> Any:
            kind: Any = Rearrange
            return None if pattern is None else kind(pattern, **lengths)

        self.pre_rearrange = layer(pre_reshape_pattern, pre_reshape_lengths)
        self.post_rearrange = layer(post_reshape_pattern, post_reshape_lengths)

    def forward(self, input: Tensor) -> Tensor:
        if self.pre_rearrange is not None:
            input = self.pre_rearrange(input)
        result = functional.einsum(self.einsum_pattern, input, self.weight)
        if self.bias is not None:
            result = result + self.bias
        return result if self.post_rearrange is None else self.post_rearrange(result)
