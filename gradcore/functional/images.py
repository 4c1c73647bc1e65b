"""Functions of images [N, C, H, W]: convolution, pooling, batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from gradcore.engine.state import local
from gradcore.errors import SpecError
from gradcore.functional.mathematics import add, rsqrt
from gradcore.functional.shape import plain, squeeze, unsqueeze
from gradcore.ops import batch_norm as norms
from gradcore.ops import convolution, creation, movement, pooling

Tensor = Any
Size = int | Sequence[int]
FLOAT32 = np.dtype(np.float32)


def sizes(name: str, value: Size, dims: int) -> Any:
    """An int for each of one to three dimensions, from one int or as many ints. Raises :class:`SpecError` for anything else."""
    if isinstance(value, int):
        return (value,) * dims
    value = plain(value)
    parts = (value,) if isinstance(value, int) else tuple(map(plain, value))
    parts = parts * dims if len(parts) == 1 else parts
    if len(parts) != dims or not all(isinstance(n, int) for n in parts):
        expected = ("one int", "an int or a pair of ints", "an int or three ints")[dims - 1]
        raise SpecError(f"{name} must be {expected}, but got {value!r}")
    return parts


def sizes_kept(name: str, output_size: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """An output size for each dimension of ``shape``; None keeps one. Raises :class:`SpecError` for another number of sizes."""
    given = plain(output_size)
    wanted = [given] * len(shape) if given is None or isinstance(given, int) else list(given)
    if len(wanted) != len(shape):
        raise SpecError(f"{name}: output_size must be an int or {len(shape)} of them, but got {output_size!r}")
    return tuple(n if m is None else int(m) for n, m in zip(shape, wanted, strict=True))


pair, triple = partial(sizes, dims=2), partial(sizes, dims=3)


def need_batches(name: str, x: Tensor, dims: int) -> bool:
    """Whether N is missing of [N, C, ...] with ``dims`` spatial dimensions. Raises :class:`SpecError` for another number."""
    if x.spec.ndim not in (dims + 1, dims + 2):
        raise SpecError(f"Expected {dims + 1}D (unbatched) or {dims + 2}D (batched) input to {name}, but got input of size: "
                        f"{list(x.spec.shape)}")
    return bool(x.spec.ndim == dims + 1)


def batched(name: str, x: Tensor, dims: int = 2) -> tuple[Tensor, bool]:
    """The input as [N, C, ...], and whether N was missing and is 1."""
    lone = need_batches(name, x, dims)
    return unsqueeze(x, 0) if lone else x, lone


def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Size = 1, padding: Size | str = 0,
           dilation: Size = 1, groups: int = 1) -> Tensor:
    """Cross-correlation: input [N, C, H, W] or [C, H, W], weight [O, C / groups, kH, kW], bias [O], result [N, O, H', W'].

    ``padding`` is one int, two ints, ``"valid"`` or ``"same"``. Backward keeps only input and weight; the workspace holds 2^18
    elements or one row of windows, whatever the batch size.
    """
    steps, holes = pair("stride", stride), pair("dilation", dilation)
    x, lone = batched("conv2d", input)
    if isinstance(padding, str):
        x, edges = _named_padding(x, weight, padding, steps, holes)
    else:
        edges = pair("padding", padding)
    out = convolution.conv2d(x, weight, bias, stride=steps, padding=edges, dilation=holes, groups=groups)
    return squeeze(out, 0) if lone else out


def same_padding(padding: str, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """What ``padding`` adds to each dimension: nothing for "valid", all that the window takes for "same"."""
    if padding == "valid":
        return [0] * len(stride)
    if padding != "same":
        raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'valid', 'same'}}")
    if any(step != 1 for step in stride):
        raise SpecError("padding='same' is not supported for strided convolutions")
    return [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]


def _named_padding(x: Tensor, weight: Tensor, padding: str, stride: tuple[int, int],
                   dilation: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    total = same_padding(padding, weight.spec.shape[2:], stride, dilation)
    if any(n % 2 for n in total):
        # With an even window, "same" pads one more element on the right and at the bottom.
        shape = (*x.spec.shape[:2], *(n + t % 2 for n, t in zip(x.spec.shape[2:], total, strict=True)))
        x = movement.slice_grad(x, shape=shape, index=tuple((0, n, 1) for n in x.spec.shape))
    return x, (total[0] // 2, total[1] // 2)


def max_pool2d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The largest element of each window of [N, C, H, W] or [C, H, W].

    With ``return_indices`` also its index in the flattened plane, int64. Backward keeps one byte per output element (four for
    windows of more than 256 elements), and neither input nor output.
    """
    kernel = pair("kernel_size", kernel_size)
    how = {"kernel": kernel, "stride": kernel if stride is None else pair("stride", stride),
           "padding": pair("padding", padding), "dilation": pair("dilation", dilation)}
    x, lone = batched("max_pool2d", input)
    out, index = pooling.max_pool2d(x, **how, ceil_mode=ceil_mode)
    if lone:
        out = squeeze(out, 0)
    if not return_indices:
        return out
    places = pooling.max_pool2d_places(index, shape=x.spec.shape, **how)
    return out, squeeze(places, 0) if lone else places


def avg_pool2d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    """The mean of each window of [N, C, H, W] or [C, H, W], or its sum over ``divisor_override``. Backward keeps nothing."""
    kernel = pair("kernel_size", kernel_size)
    x, lone = batched("avg_pool2d", input)
    out = pooling.avg_pool2d(x, kernel=kernel, stride=kernel if stride is None else pair("stride", stride),
                             padding=pair("padding", padding), ceil_mode=ceil_mode, count_pad=count_include_pad,
                             divisor=divisor_override)
    return squeeze(out, 0) if lone else out


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Mean pooling of [N, C, H, W] or [C, H, W] to ``output_size``, an int or two; None keeps a size.

    Backward keeps nothing.
    """
    x, lone = batched("adaptive_avg_pool2d", input)
    size = sizes_kept("adaptive_avg_pool2d", output_size, x.spec.shape[2:])
    out = pooling.adaptive_avg_pool2d(x, size=size)
    return squeeze(out, 0) if lone else out


def is_mixed(input: Tensor, *others: Tensor | None) -> bool:
    """Is a norm's input of 16 bits, and are its other tensors float32? Then, as in PyTorch, all of it is computed in float32.

    Under autocast the op does this itself, and its result stays float32.
    """
    region = local.state.autocast
    given = [t.spec.dtype for t in others if t is not None]
    return (input.spec.narrow and bool(given) and all(dtype == FLOAT32 for dtype in given)
            and (region is None or input.storage.device.type not in region.dtypes))


def batch_norm(input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
               bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) for each channel of [N, C, ...], times weight, plus bias.

    In training, mean and (biased) variance are the batch's, and ``running_*`` become (1 - momentum) * running + momentum *
    batch, with the unbiased variance; otherwise mean and variance are the running ones. For a 16-bit input, the other tensors
    may be float32. Ioffe and Szegedy, arXiv:1502.03167.
    """
    if weight is None and bias is not None and is_mixed(input, running_mean, running_var, bias):
        return movement.cast_to(batch_norm(movement.cast(input, dtype=FLOAT32), running_mean, running_var, weight, bias,
                                           training, momentum, eps), input.spec)
    if training and not input.spec.numel and input.spec.ndim > 1:
        # An empty batch has no statistics, and leaves the running ones as they are.
        dtype = input.spec.widened().dtype
        mean, rstd = (creation.full(v, shape=input.spec.shape[1:2], dtype=dtype, device=input.storage.device) for v in (0, 1))
        return norms.batch_norm_apply(input, weight, bias, mean, rstd)
    if training:
        return norms.batch_norm(input, weight, bias, running_mean, running_var, momentum=float(momentum), eps=float(eps))
    if running_mean is None or running_var is None:
        raise ValueError("Expected running_mean and running_var to be defined when training=False")
    mean, var = (movement.cast_to(v, v.spec.widened()) for v in (running_mean, running_var))
    return norms.batch_norm_apply(input, weight, bias, mean, rsqrt(add(var, eps)))
