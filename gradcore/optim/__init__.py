"""Optimizers: each updates all parameters of a group in one op, except Adafactor, Muon and LBFGS, which take more."""

from gradcore.optim import lr_scheduler, swa_utils
from gradcore.optim.adam import Adam, AdamW
from gradcore.optim.classic import ASGD, Rprop
from gradcore.optim.lbfgs import LBFGS
from gradcore.optim.matrices import Adafactor, Muon
from gradcore.optim.moments import Adamax, Lion, NAdam, RAdam
from gradcore.optim.optimizer import Optimizer
from gradcore.optim.sgd import SGD
from gradcore.optim.squares import Adadelta, Adagrad, RMSprop

__all__ = ["ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "Muon", "NAdam",
           "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils"]
