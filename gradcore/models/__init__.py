"""Models to train, plan and measure."""

from gradcore.models.registry import load, names
from gradcore.models.workload import Workload

__all__ = ["Workload", "load", "names"]
