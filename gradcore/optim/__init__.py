"""Optimizers: each updates all parameters of a group in one op."""

from gradcore.optim import lr_scheduler, swa_utils
from gradcore.optim.adam import Adam, AdamW
from gradcore.optim.classic import ASGD, Rprop
from gradcore.optim.lbfgs import LBFGS
from gradcore.optim.moments import Adamax, Lion, NAdam, RAdam
from gradcore.optim.optimizer import Optimizer
from gradcore.optim.sgd import SGD
from gradcore.optim.squares import Adadelta, Adagrad, RMSprop

__all__ = ["ASGD", "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "NAdam", "Optimizer", "RAdam",
           "RMSprop", "Rprop", "lr_scheduler", "swa_utils"]
