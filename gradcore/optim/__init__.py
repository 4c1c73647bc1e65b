"""Optimizers: each updates all parameters of a group in one op."""

from gradcore.optim import lr_scheduler
from gradcore.optim.adam import Adam, AdamW
from gradcore.optim.optimizer import Optimizer
from gradcore.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]
