"""The kernels of the CPU.

Elementwise: ``elementary`` (NumPy's own functions), ``arithmetic``, ``choices``, ``rectifiers`` and ``bends``
(activations), ``erf``, ``gamma``, ``incomplete``; ``in_place`` makes those of in-place ops.

Along dimensions: ``reductions``, ``ordering``, ``softmax``, ``norms``, ``batch_norm``, ``losses``, ``ctc``.

Products: ``products``, ``decompositions``, ``recurrent``; convolution is ``convolution`` over ``planes``, ``depthwise``, or
``columns``, and ``pooling`` is beside it.

Further: ``movement``, ``indexing`` and ``folding``, ``random`` and ``sampling``, ``optimizers``.
"""

from gradcore.devices.host.kernels import (  # noqa: F401 - they register themselves
    arithmetic,
    batch_norm,
    bends,
    choices,
    convolution,
    ctc,
    decompositions,
    elementary,
    erf,
    gamma,
    incomplete,
    indexing,
    losses,
    movement,
    norms,
    optimizers,
    ordering,
    pooling,
    products,
    random,
    rectifiers,
    recurrent,
    reductions,
    sampling,
    softmax,
)
