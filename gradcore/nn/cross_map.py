"""Local response normalization with the arithmetic of Torch 7, which PyTorch keeps for models that were made with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.autograd.function import Function
from gradcore.engine.owners import constant
from gradcore.functional import matmul, reshape
from gradcore.nn.module import Module

Tensor = Any

__all__ = ["CrossMapLRN2d"]


def _summed(x: Tensor, chosen: np.ndarray[Any, Any]) -> Tensor:
    """For each channel of [N, C, H, W] the sum of those that its row of ``chosen`` [C, C] says."""
    table = constant("cross_map_lrn", chosen.astype(x.spec.dtype), x)
    n, c, h, w = x.spec.shape
    return reshape(matmul(table, reshape(x, (n, c, h * w))), x.spec.shape)


class _CrossMap(Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
        ctx.size, ctx.alpha, ctx.beta = size, alpha, beta
        after = np.subtract.outer(*[np.arange(input.spec.shape[1])] * 2)
        # Channel 0 never leaves the sum of a window that has moved past it.
        window = (np.abs(after) <= (size - 1) // 2) | ((after >= 0) & (np.arange(len(after)) == 0))
        scale = _summed(input * input, window) * (alpha / size) + k
        output = scale ** -beta * input
        ctx.save_for_backward(input, output, scale)
        return output

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        slope, = slopes
        input, output, scale = ctx.saved_tensors
        before = -np.subtract.outer(*[np.arange(input.spec.shape[1])] * 2)
        first = min(int(ctx.size - (ctx.size - 1) / 2), ctx.size - 1)
        ratios = _summed(slope * output / scale, (before >= -first) & (before < ctx.size - first))
        return scale ** -ctx.beta * slope - input * ratios * (2 * ctx.alpha * ctx.beta / ctx.size), None, None, None, None


class CrossMapLRN2d(Module):
    """x / (k + alpha / size * s)^beta, where s is the sum of x^2 over neighboring channels of [N, C, H, W].

    As in PyTorch, channel 0 stays in the sums of all channels behind it, and for odd sizes the gradient takes a window that
    is shifted by one: it is not the slope of the result. :class:`LocalResponseNorm` computes both as they should be.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        if input.spec.ndim != 4:
            raise ValueError(f"CrossMapLRN2d: Expected input to be 4D, got {input.spec.ndim}D instead.")
        return _CrossMap.apply(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
