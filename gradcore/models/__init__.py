"""Example models for the command line, and loading of user models."""

from gradcore.models.registry import defaults, load, names
from gradcore.models.workload import OwnStep, Workload

__all__ = ["OwnStep", "Workload", "defaults", "load", "names"]
