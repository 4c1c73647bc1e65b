"""Layer functions in the top-level namespace, such as ``gradcore.batch_norm``, whose signatures differ from ``nn.functional``.

As in PyTorch's bindings, reductions of losses are numbers, and no reduction is the default.
"""

from __future__ import annotations

import warnings
from typing import Any

from gradcore.functional.losses import REDUCTIONS
from gradcore.functional.sizes import Size
from gradcore.nn import functional as F

Tensor = Any

__all__ = ["adaptive_max_pool1d", "alpha_dropout", "batch_norm", "binary_cross_entropy_with_logits", "conv_transpose3d",
           "cosine_embedding_loss", "ctc_loss", "dropout", "embedding", "feature_alpha_dropout",
           "hinge_embedding_loss", "instance_norm", "kl_div",
           "margin_ranking_loss", "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool3d", "pdist",
           "poisson_nll_loss", "rms_norm", "rrelu", "triplet_margin_loss"]

max_pool1d, max_pool2d, max_pool3d, pdist = F.max_pool1d, F.max_pool2d, F.max_pool3d, F.pdist
max_pool1d_with_indices = F.max_pool1d_with_indices
conv_transpose3d, rms_norm, rrelu = F.conv_transpose3d, F.rms_norm, F.rrelu


def adaptive_max_pool1d(input: Tensor, output_size: Size) -> tuple[Tensor, Tensor]:
    """Max pooling of [N, C, L] or [C, L] to ``output_size`` parts: the maxima, and their indices along L, int64."""
    found: tuple[Tensor, Tensor] = F.adaptive_max_pool1d(input, output_size, return_indices=True)
    return found


def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """:func:`gradcore.nn.functional.dropout`, with a required ``train``."""
    return F.dropout(input, p, train)


def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """:func:`gradcore.nn.functional.alpha_dropout`, with a required ``train``."""
    return F.alpha_dropout(input, p, train)


def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """:func:`gradcore.nn.functional.feature_alpha_dropout`, with a required ``train``."""
    return F.feature_alpha_dropout(input, p, train)


def embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> Tensor:
    """Rows of ``weight`` [K, D] at ``indices``; the row ``padding_idx``, unless -1, gets no gradient.

    The rest is as in :func:`gradcore.nn.functional.embedding`.
    """
    return F.embedding(indices, weight, None if padding_idx < 0 else padding_idx, scale_grad_by_freq=scale_grad_by_freq,
                       sparse=sparse)


def batch_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
               running_var: Tensor | None, training: bool, momentum: float, eps: float, cudnn_enabled: bool = True) -> Tensor:
    """:func:`gradcore.nn.functional.batch_norm`; ``cudnn_enabled`` has no effect."""
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
                  running_var: Tensor | None, use_input_stats: bool, momentum: float, eps: float,
                  cudnn_enabled: bool = True) -> Tensor:
    """:func:`gradcore.nn.functional.instance_norm`; ``cudnn_enabled`` has no effect."""
    return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None,
                                     pos_weight: Tensor | None = None, reduction: int = 0) -> Tensor:
    """:func:`gradcore.nn.functional.binary_cross_entropy_with_logits`; ``reduction`` is 0 for none, 1 mean, 2 sum."""
    return F.binary_cross_entropy_with_logits(input, target, weight, reduction=REDUCTIONS[reduction], pos_weight=pos_weight)


def kl_div(input: Tensor, target: Tensor, reduction: int = 0, *, log_target: bool = False) -> Tensor:
    """:func:`gradcore.nn.functional.kl_div`."""
    with warnings.catch_warnings():
        # The function advises "batchmean", which has no number here.
        warnings.simplefilter("ignore", UserWarning)
        return F.kl_div(input, target, reduction=REDUCTIONS[reduction], log_target=log_target)


def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0) -> Tensor:
    """:func:`gradcore.nn.functional.cosine_embedding_loss`."""
    return F.cosine_embedding_loss(input1, input2, target, margin, reduction=REDUCTIONS[reduction])


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 0) -> Tensor:
    """:func:`gradcore.nn.functional.hinge_embedding_loss`."""
    return F.hinge_embedding_loss(input, target, margin, reduction=REDUCTIONS[reduction])


def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 0) -> Tensor:
    """:func:`gradcore.nn.functional.margin_ranking_loss`."""
    return F.margin_ranking_loss(input1, input2, target, margin, reduction=REDUCTIONS[reduction])


def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
             zero_infinity: bool = False) -> Tensor:
    """:func:`gradcore.nn.functional.ctc_loss`."""
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, REDUCTIONS[reduction], zero_infinity)


def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
                        eps: float = 1e-6, swap: bool = False, reduction: int = 0) -> Tensor:
    """:func:`gradcore.nn.functional.triplet_margin_loss`."""
    return F.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction=REDUCTIONS[reduction])


def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: int) -> Tensor:
    """:func:`gradcore.nn.functional.poisson_nll_loss`."""
    return F.poisson_nll_loss(input, target, log_input, full, eps=eps, reduction=REDUCTIONS[reduction])
