"""Layers that learn the size of their input at their first call, and are ordinary layers from then on."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from gradcore.functional import empty
from gradcore.functional.sizes import Size
from gradcore.nn.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gradcore.nn.linear import Linear
from gradcore.nn.members import KINDS
from gradcore.nn.module import Module
from gradcore.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from gradcore.nn.parameter import UninitializedParameter

Tensor = Any
Shape = tuple[int, ...]

__all__ = ["LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d",
           "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d", "LazyInstanceNorm2d",
           "LazyInstanceNorm3d", "LazyLinear"]


class LazyModuleMixin(Module):
    """A layer before its first call, a subclass of the one that it becomes.

    Its parameters exist from the beginning, so an optimizer may have them; their values are drawn, and their bytes allocated,
    in the first call. ``to`` and the like decide where and of which dtype. ``load_state_dict`` makes it a layer of the loaded
    size.
    """

    #: The second base, unless a class says otherwise.
    cls_to_become: ClassVar[Any]
    #: Attributes that say the size of the input, 0 before it is known.
    _module_unknown: ClassVar[str]
    #: Is there a bias? And the device and dtype of the parameters.
    _module_wanted: tuple[bool, Any, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "cls_to_become") and len(cls.__bases__) == 2:
            cls.cls_to_become = cls.__bases__[1]

    def _module_make(self, bias: bool, device: Any, dtype: Any) -> None:
        self._module_wanted = bias, device, dtype
        for name in ("weight", "bias"):
            self.register_parameter(name, UninitializedParameter(device=device, dtype=dtype)
                                    if getattr(self, "affine", True) and (bias or name == "weight") else None)

    def _module_size_of(self, shape: Shape) -> int:
        """The size that an input of this shape says. Raises what the layer raises for a shape that it does not take."""
        raise NotImplementedError

    def _module_size_in(self, shapes: dict[str, Shape]) -> int | None:
        """The size that tensors of these shapes, by name, have in a layer; None if they do not say it."""
        raise NotImplementedError

    def has_uninitialized_params(self) -> bool:
        """Whether the layer still waits for its first input."""
        return isinstance(self, LazyModuleMixin)

    def initialize_parameters(self, input: Tensor) -> None:
        """Become the layer for inputs like this one."""
        self._module_become(self._module_size_of(input.spec.shape))

    def _module_become(self, size: int) -> None:
        tables = {*Module.__annotations__, *KINDS, "_module_wanted", "weight", "bias"}
        # Apart, so that a failure changes nothing here.
        made = self.cls_to_become.__new__(self.cls_to_become)
        Module.__init__(made)
        made.__dict__.update((name, value) for name, value in self.__dict__.items() if name not in tables)
        made.__dict__[self._module_unknown] = size
        made._module_make(*self._module_wanted)
        self.__dict__[self._module_unknown] = size
        del self._module_wanted
        holders = {name: p for name, p in self._parameters.items() if p is not None}
        self.__class__ = self.cls_to_become
        for name, holder in holders.items():
            holder.become(made._parameters[name])
            # Put again, since its new leaf has no name yet.
            self._module_put("_parameters", name, holder)
        for name, value in made._buffers.items():
            self.register_buffer(name, value)

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.initialize_parameters(input)
        return self.forward(input, *args, **kwargs)

    def reset_parameters(self) -> None:
        """Nothing to do: there are no parameters before the first input."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        bias, device, dtype = self._module_wanted
        moved = fn(empty(0, device=device, dtype=dtype))
        self._module_wanted = bias, moved.device, moved.dtype
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        shapes = {name: np.shape(state_dict[prefix + name]) for name in ("weight", "running_mean")
                  if prefix + name in state_dict}
        size = self._module_size_in(shapes)
        if size is not None:
            self._module_become(size)
            self._load_from_state_dict(state_dict, prefix, *args)
            return
        _, strict, missing_keys, unexpected_keys, _ = args
        if strict:
            names = [name for name, p in self._parameters.items() if p is not None]
            names += ["running_mean", "running_var"] if getattr(self, "track_running_stats", False) else []
            missing_keys += [prefix + name for name in names if prefix + name not in state_dict]
            known = {prefix + name for name in (*names, *self._module_may_be_missing)}
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in known]


class LazyLinear(LazyModuleMixin, Linear):
    """:class:`Linear` whose ``in_features`` are the last dimension of its first input."""

    _module_unknown = "in_features"

    def __init__(self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(0, out_features, bias, device, dtype)

    def _module_size_of(self, shape: Shape) -> int:
        return shape[-1]

    def _module_size_in(self, shapes: dict[str, Shape]) -> int | None:
        return shapes["weight"][1] if "weight" in shapes else None


class _LazyConv(LazyModuleMixin):
    _module_unknown = "in_channels"
    _module_dims: int
    groups: int
    transposed: bool

    def _module_size_of(self, shape: Shape) -> int:
        if len(shape) - self._module_dims not in (1, 2):
            raise RuntimeError(f"Expected {self._module_dims + 1}D (unbatched) or {self._module_dims + 2}D (batched) input to "
                               f"{type(self).__name__}, but got input of size: {list(shape)}")
        return shape[-self._module_dims - 1]

    def _module_size_in(self, shapes: dict[str, Shape]) -> int | None:
        if "weight" not in shapes:
            return None
        return shapes["weight"][0] if self.transposed else shapes["weight"][1] * self.groups


class _LazyPlain(_LazyConv):
    def __init__(self, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0, dilation: Size = 1,
                 groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(0, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype)


class _LazyTransposed(_LazyConv):
    def __init__(self, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                 groups: int = 1, bias: bool = True, dilation: Size = 1, padding_mode: str = "zeros", device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(0, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation, padding_mode,
                         device, dtype)


class _LazyNorm(LazyModuleMixin):
    _module_unknown = "num_features"

    def __init__(self, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, track_running_stats: bool = True,
                 device: Any = None, dtype: Any = None, *, bias: bool = True) -> None:
        # As in PyTorch, the defaults of a lazy instance norm are those of batch norm.
        super().__init__(0, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def initialize_parameters(self, input: Tensor) -> None:
        self._check_input_dim(input)  # type: ignore[attr-defined]
        super().initialize_parameters(input)

    def _module_size_of(self, shape: Shape) -> int:
        return shape[1]

    def _module_size_in(self, shapes: dict[str, Shape]) -> int | None:
        return next(iter(shapes.values()))[0] if shapes else None


class LazyConv1d(_LazyPlain, Conv1d):
    """:class:`Conv1d` whose ``in_channels`` are the channels of its first input."""


class LazyConv2d(_LazyPlain, Conv2d):
    """:class:`Conv2d` whose ``in_channels`` are the channels of its first input."""


class LazyConv3d(_LazyPlain, Conv3d):
    """:class:`Conv3d` whose ``in_channels`` are the channels of its first input."""


class LazyConvTranspose1d(_LazyTransposed, ConvTranspose1d):
    """:class:`ConvTranspose1d` whose ``in_channels`` are the channels of its first input."""


class LazyConvTranspose2d(_LazyTransposed, ConvTranspose2d):
    """:class:`ConvTranspose2d` whose ``in_channels`` are the channels of its first input."""


class LazyConvTranspose3d(_LazyTransposed, ConvTranspose3d):
    """:class:`ConvTranspose3d` whose ``in_channels`` are the channels of its first input."""


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """:class:`BatchNorm1d` whose ``num_features`` are the channels of its first input."""


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """:class:`BatchNorm2d` whose ``num_features`` are the channels of its first input."""


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """:class:`BatchNorm3d` whose ``num_features`` are the channels of its first input."""


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """:class:`InstanceNorm1d` whose ``num_features`` are the channels of its first input."""


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """:class:`InstanceNorm2d` whose ``num_features`` are the channels of its first input."""


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """:class:`InstanceNorm3d` whose ``num_features`` are the channels of its first input."""
