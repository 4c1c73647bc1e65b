"""The declared ops. Importing this package declares them all."""

from gradcore.ops import activation, creation, elementwise, linalg, movement, nn, optimizer, random, reduce
from gradcore.ops.op import all_ops

__all__ = ["activation", "all_ops", "creation", "elementwise", "linalg", "movement", "nn", "optimizer", "random",
           "reduce"]
