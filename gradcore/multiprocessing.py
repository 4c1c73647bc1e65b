"""``gradcore.multiprocessing``: Python's own. Tensors are not shared between processes; threads share them."""

from multiprocessing import *  # noqa: F403
from multiprocessing import __all__ as __all__
