"""Models to train, plan and measure."""

from gradcore.models.registry import defaults, load, names
from gradcore.models.workload import Workload

__all__ = ["Workload", "defaults", "load", "names"]
