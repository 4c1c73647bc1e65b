"""``Dataset``: arrays of images and classes on the host, with their origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and classes. ``*_x`` are float32 [N, features] in [0, 1], ``*_y`` int64 [N] below ``classes``."""

    name: str
    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    classes: int
    #: Its origin, in words.
    source: str
    #: Shape of one image, whose product is the number of features.
    image: tuple[int, ...]

    def __repr__(self) -> str:
        return (f"<data set {self.name}: {len(self.train_x):,} training and {len(self.test_x):,} test samples of "
                f"{'x'.join(map(str, self.image))}, {self.classes} classes>")

    @property
    def features(self) -> int:
        """The numbers of a sample."""
        return int(self.train_x.shape[1])
