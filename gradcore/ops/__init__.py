"""The declared ops. Importing this package declares them all."""

from gradcore.ops import (
    activation,
    arrangement,
    attention,
    batch_norm,
    convolution,
    creation,
    ctc,
    decompositions,
    elementwise,
    factors,
    group_norm,
    in_place,
    linalg,
    losses,
    movement,
    nn,
    optimizer,
    order,
    placing,
    pointwise,
    pooling,
    random,
    recurrent,
    reduce,
    rms_norm,
    sampling,
    scan,
    special,
    statistics,
)
from gradcore.ops.op import all_ops

__all__ = ["activation", "all_ops", "arrangement", "attention", "batch_norm", "convolution", "creation", "ctc",
           "decompositions", "elementwise", "factors", "group_norm", "in_place", "linalg", "losses", "movement", "nn",
           "optimizer", "order", "placing", "pointwise", "pooling", "random", "recurrent", "reduce", "rms_norm",
           "sampling", "scan", "special", "statistics"]
