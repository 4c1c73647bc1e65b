"""Handwritten digits that come with the package: 1,797 images of 8 x 8 pixels. See SOURCES.md."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

import numpy as np

from gradcore.data.dataset import Dataset

TRAIN, TEST = 1437, 360
FILE = Path(__file__).with_name("digits.csv.gz")


@functools.cache
def load_digits() -> Dataset:
    """The data set, read once per process; its arrays are read-only."""
    with gzip.open(FILE, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    # NumPy guarantees RandomState's streams; those of newer generators may change between versions.
    table = table[np.random.RandomState(0).permutation(TRAIN + TEST)]
    x = table[:, :64].astype(np.float32) / np.float32(16)
    y = table[:, 64].astype(np.int64)
    for array in (x, y):
        array.flags.writeable = False
    return Dataset("digits", x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:], 10,
                   "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, "
                   "https://archive.ics.uci.edu/dataset/80, CC BY 4.0", (8, 8))
