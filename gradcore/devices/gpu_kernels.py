"""The kernel table of the GPU: kernels in CUDA C++ for every op.

Only attention with heads too wide for a multiprocessor's shared memory runs on CuPy's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore.devices.attention import build_attention
from gradcore.devices.gpu_attention import own_attention
from gradcore.devices.gpu_decompositions import DECOMPOSITIONS
from gradcore.devices.gpu_elementwise import ELEMENTWISE
from gradcore.devices.gpu_folds import FOLDS
from gradcore.devices.gpu_images import IMAGES
from gradcore.devices.gpu_indexing import INDEXING
from gradcore.devices.gpu_linalg import LINALG, CupyWithProducts
from gradcore.devices.gpu_losses import LOSSES
from gradcore.devices.gpu_norms import NORMS
from gradcore.devices.gpu_optimizers import OPTIMIZERS
from gradcore.devices.gpu_ordering import ORDERING
from gradcore.devices.gpu_pointwise import POINTWISE
from gradcore.devices.gpu_random import RANDOM
from gradcore.devices.gpu_recurrent import RECURRENT

KERNELS: dict[str, Callable[..., Any]] = {
    **ELEMENTWISE, **POINTWISE, **FOLDS, **IMAGES, **INDEXING, **LINALG, **LOSSES, **NORMS, **ORDERING, **DECOMPOSITIONS,
    **OPTIMIZERS, **RANDOM, **RECURRENT, **own_attention(build_attention(CupyWithProducts(), RANDOM["uniform"]))}


def build_cuda_kernels() -> dict[str, Callable[..., Any]]:
    """All kernels of the GPU by op name, in a new dict."""
    return dict(KERNELS)
