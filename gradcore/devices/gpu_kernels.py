"""The kernel table of the GPU, with a kernel in CUDA C++ for every op.

Only attention with heads too wide for a multiprocessor's shared memory runs on CuPy's functions.
"""

from __future__ import annotations

from gradcore.devices import (  # noqa: F401 - their kernels register themselves
    gpu_attention,
    gpu_ctc,
    gpu_decompositions,
    gpu_elementwise,
    gpu_images,
    gpu_indexing,
    gpu_launch,
    gpu_linalg,
    gpu_losses,
    gpu_movement,
    gpu_norms,
    gpu_optimizers,
    gpu_ordering,
    gpu_random,
    gpu_recurrent,
    gpu_reductions,
)

KERNELS = gpu_launch.KERNELS
