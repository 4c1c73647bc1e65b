"""Learning rate schedules, with PyTorch's names and formulas."""

from gradcore.optim.lr_scheduler.base import LRScheduler
from gradcore.optim.lr_scheduler.cycle import CyclicLR, OneCycleLR
from gradcore.optim.lr_scheduler.factors import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from gradcore.optim.lr_scheduler.plateau import ReduceLROnPlateau
from gradcore.optim.lr_scheduler.sequence import ChainedScheduler, SequentialLR

#: The old name of the base class.
_LRScheduler = LRScheduler

__all__ = ["ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
           "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR",
           "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR"]
