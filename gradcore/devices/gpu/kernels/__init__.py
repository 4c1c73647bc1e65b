"""The kernel table of the GPU, with a kernel in CUDA C++ for every op.

``elementwise``; along dimensions ``reductions``, ``ordering``, ``norms``, ``losses``, ``ctc``; products are ``linalg``,
``decompositions``, ``recurrent`` and ``attention``, and ``images`` convolution and pooling; ``movement`` and ``indexing``;
``random``; ``optimizers``.

Only attention with heads too wide for a multiprocessor's shared memory runs on CuPy's functions.
"""

from __future__ import annotations

from gradcore.devices.gpu import launch
from gradcore.devices.gpu.kernels import (  # noqa: F401 - their kernels register themselves
    attention,
    ctc,
    decompositions,
    elementwise,
    images,
    indexing,
    linalg,
    losses,
    movement,
    norms,
    optimizers,
    ordering,
    random,
    recurrent,
    reductions,
)

KERNELS = launch.KERNELS
