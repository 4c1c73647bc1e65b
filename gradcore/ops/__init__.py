"""The declared ops. Importing this package declares them all."""

from gradcore.ops import (
    activation,
    arrangement,
    attention,
    convolution,
    creation,
    ctc,
    decompositions,
    elementwise,
    factors,
    in_place,
    linalg,
    losses,
    movement,
    normalizers,
    norms,
    optimizer,
    order,
    placing,
    pointwise,
    pooling,
    random,
    recurrent,
    reduce,
    scan,
    special,
)
from gradcore.ops.op import all_ops

__all__ = ["activation", "all_ops", "arrangement", "attention", "convolution", "creation", "ctc", "decompositions",
           "elementwise", "factors", "in_place", "linalg", "losses", "movement", "normalizers", "norms", "optimizer", "order",
           "placing", "pointwise", "pooling", "random", "recurrent", "reduce", "scan", "special"]
