"""The declared ops. Importing this package declares them all."""

from gradcore.ops import (
    activation,
    attention,
    batch_norm,
    convolution,
    creation,
    elementwise,
    in_place,
    linalg,
    losses,
    movement,
    nn,
    optimizer,
    pointwise,
    pooling,
    random,
    rectifiers,
    reduce,
    rms_norm,
)
from gradcore.ops.op import all_ops

__all__ = ["activation", "all_ops", "attention", "batch_norm", "convolution", "creation", "elementwise", "in_place", "linalg",
           "losses", "movement", "nn", "optimizer", "pointwise", "pooling", "random", "rectifiers", "reduce", "rms_norm"]
