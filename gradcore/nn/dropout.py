"""Dropout layers."""

from __future__ import annotations

from typing import Any

from gradcore.functional.dropouts import probability
from gradcore.nn import functional as F
from gradcore.nn.module import Family

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]

Tensor = Any


class _DropoutNd(Family):
    _module_in_repr = "p inplace"

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        probability(p)
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return self._module_function(input, self.p, self.training, self.inplace)


class Dropout(_DropoutNd, function=F.dropout):
    """In training, each element is 0 with probability ``p``, else x / (1 - p); in evaluation, the input is returned."""


class Dropout1d(_DropoutNd, function=F.dropout1d):
    """Drops whole channels of [N, C, L]; see :func:`gradcore.nn.functional.dropout1d`."""


class Dropout2d(_DropoutNd, function=F.dropout2d):
    """Drops whole channels of [N, C, H, W]; see :func:`gradcore.nn.functional.dropout2d`."""


class Dropout3d(_DropoutNd, function=F.dropout3d):
    """Drops whole channels of [N, C, D, H, W]; see :func:`gradcore.nn.functional.dropout3d`."""


class AlphaDropout(_DropoutNd):
    """Dropout that preserves mean and variance, for SELU networks; see :func:`gradcore.nn.functional.alpha_dropout`.

    As in PyTorch, ``inplace`` has no effect.
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(_DropoutNd):
    """Alpha dropout of whole channels of [N, C, ...]; see :func:`gradcore.nn.functional.feature_alpha_dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        return F.feature_alpha_dropout(input, self.p, self.training)
