"""The kernel table of the GPU: CUDA C++ of our own for every op; wide heads of attention alone run over CuPy's functions.

Elementwise functions, reductions, products, positions, norms, recurrent layers and optimizers stand in files of their own;
losses here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.attention import build_attention
from gradcore.devices.gpu_attention import own_attention
from gradcore.devices.gpu_decompositions import DECOMPOSITIONS
from gradcore.devices.gpu_elementwise import ELEMENTWISE, wide
from gradcore.devices.gpu_folds import FOLDS
from gradcore.devices.gpu_images import IMAGES
from gradcore.devices.gpu_indexing import INDEXING
from gradcore.devices.gpu_linalg import LINALG, CupyWithProducts
from gradcore.devices.gpu_norms import NORMS
from gradcore.devices.gpu_optimizers import OPTIMIZERS
from gradcore.devices.gpu_ordering import ORDERING
from gradcore.devices.gpu_pointwise import POINTWISE
from gradcore.devices.gpu_random import RANDOM
from gradcore.devices.gpu_recurrent import RECURRENT
from gradcore.devices.kernels import split_workspace

#: The kernels of our own.
KERNELS: dict[str, Callable[..., Any]] = {**ELEMENTWISE, **POINTWISE, **FOLDS, **IMAGES, **INDEXING, **LINALG,
                                          **NORMS, **ORDERING, **DECOMPOSITIONS, **OPTIMIZERS, **RANDOM, **RECURRENT}


def kernel(fn: Callable[..., Any]) -> Callable[..., Any]:
    KERNELS[fn.__name__] = fn
    return fn


def build_cuda_kernels() -> dict[str, Callable[..., Any]]:
    """Every kernel of the GPU by op name."""
    return dict(KERNELS)


# Wider heads than a multiprocessor has room for run over CuPy.
KERNELS.update(own_attention(build_attention(CupyWithProducts(), RANDOM["uniform"])))


# -- losses ------------------------------------------------------------------------------------------------------------


@kernel
def cross_entropy(logits: Any, target: Any, weight: Any, out: Any, workspace: Any, *, reduction: str = "mean",
                  ignore_index: int = -100) -> None:
    rows, classes = logits.shape
    types = (logits.dtype, target.dtype)
    losses, weights = split_workspace(workspace, (rows, logits.dtype), (rows, logits.dtype))
    gl.run_rows("loss", "cross_entropy_rows", types, rows, gl.lanes_of(classes), logits, target, weight,
                out if reduction == "none" else losses, weights, np.int64(rows), np.int32(classes), np.int64(ignore_index))
    if reduction != "none":
        gl.run_blocks("loss", "cross_entropy_reduce", types[:1], 1, losses, weights, out, np.int64(rows),
                      np.int32(reduction == "mean"))


@kernel
def cross_entropy_grad(dy: Any, logits: Any, target: Any, weight: Any, out: Any, workspace: Any, *, reduction: str,
                       ignore_index: int) -> None:
    rows, classes = logits.shape
    types = (logits.dtype, target.dtype)
    whole = None
    if reduction == "mean" and rows:
        whole = split_workspace(workspace, (1, wide(logits.dtype)))[0]
        gl.run_blocks("loss", "whole_weight", types, 1, target, weight, whole, np.int64(rows), np.int32(classes),
                      np.int64(ignore_index))
    gl.run_rows("loss", "cross_entropy_grad", types, rows, gl.lanes_of(classes), dy, logits, target, weight, whole, out,
                np.int64(rows), np.int32(classes), np.int64(ignore_index), np.int32(reduction == "none"))


@kernel
def mse_loss(x: Any, target: Any, out: Any, workspace: Any, *, reduction: str = "mean") -> None:
    divisor = np.float64(x.size if reduction == "mean" else 1)
    # Up to 4096 elements are one block's; beyond, the workspace, a piece of x, has room for the sums of 256.
    blocks = min(-(-x.size // gl.BLOCK), gl.BLOCK) if x.size > 4096 else 1
    gl.run_blocks("loss", "mse_loss", (x.dtype,), blocks, x, target, workspace, out, np.int64(x.size), divisor)
    if blocks > 1:
        gl.run_blocks("loss", "mse_total", (x.dtype,), 1, workspace, out, np.int32(blocks), divisor)
