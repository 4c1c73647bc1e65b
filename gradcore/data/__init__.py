"""Data sets on the host, for the command line and the example models."""

from gradcore.data.batches import Batches
from gradcore.data.dataset import Dataset
from gradcore.data.idx import IdxError, read_idx
from gradcore.data.registry import load, names
from gradcore.data.text import Text, Windows

__all__ = ["Batches", "Dataset", "IdxError", "Text", "Windows", "load", "names", "read_idx"]
