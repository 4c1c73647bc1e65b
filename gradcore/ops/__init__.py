"""The declared ops. Importing this package declares them all."""

from gradcore.ops import (
    activation,
    attention,
    batch_norm,
    convolution,
    creation,
    elementwise,
    linalg,
    losses,
    movement,
    nn,
    optimizer,
    pooling,
    random,
    recurrent,
    reduce,
    rms_norm,
)
from gradcore.ops.op import all_ops

__all__ = ["activation", "all_ops", "attention", "batch_norm", "convolution", "creation", "elementwise", "linalg",
           "losses", "movement", "nn", "optimizer", "pooling", "random", "recurrent", "reduce", "rms_norm"]
