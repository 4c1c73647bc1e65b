"""Connectionist temporal classification on the GPU: one block for each sample, in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.kernels import split_workspace


def _sizes(log_probs: Any, targets: Any, alpha: Any, blank: int) -> tuple[Any, ...]:
    steps, samples, classes = log_probs.shape
    padded = targets.shape[1] if targets.ndim == 2 else -1
    return (np.int64(steps), np.int64(samples), np.int32(classes), np.int64(padded), np.int64(targets.size),
            np.int64(alpha.shape[1]), np.int32(blank))


@gl.kernel
def ctc_loss(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, out: Any, alpha: Any, workspace: Any, *,
             blank: int = 0, zero_infinity: bool = False) -> None:
    gl.run_blocks("ctc", "ctc_loss", (out.dtype,), out.size, log_probs, targets, input_lengths, target_lengths, out, alpha,
                  *_sizes(log_probs, targets, alpha, blank))


@gl.kernel
def ctc_loss_grad(dy: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, loss: Any, alpha: Any,
                  out: Any, workspace: Any, *, blank: int, zero_infinity: bool) -> None:
    columns = alpha.shape[1]
    links, later, now, shares = split_workspace(workspace, (columns, np.dtype(np.int64)), *[(columns, out.dtype)] * 3)
    gl.run_blocks("ctc", "ctc_loss_grad", (out.dtype,), loss.size, dy, log_probs, targets, input_lengths, target_lengths, loss,
                  alpha, out, links, later, now, shares, *_sizes(log_probs, targets, alpha, blank), np.int32(zero_infinity))
