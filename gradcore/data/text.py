"""Text data sets, as indices of characters."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Text:
    """A text as characters. ``train`` and ``test`` are int64 indices into ``alphabet``; the test part is the text's end."""

    name: str
    train: Array
    test: Array
    alphabet: str
    #: Its origin, in words.
    source: str

    def __repr__(self) -> str:
        return (f"<text {self.name}: {len(self.train):,} training and {len(self.test):,} test characters of {self.classes} "
                "kinds>")

    @property
    def classes(self) -> int:
        """The number of different characters."""
        return len(self.alphabet)

    def encode(self, text: str) -> Array:
        """Indices of characters. Raises ValueError for a character that is not in the alphabet."""
        unknown = sorted(set(text) - set(self.alphabet))
        if unknown:
            raise ValueError(f"{self.name} has no character {', '.join(map(repr, unknown))}")
        return np.array([self.alphabet.index(c) for c in text], np.int64)

    def decode(self, numbers: Array) -> str:
        """The characters with these indices."""
        return "".join(self.alphabet[i] for i in numbers)

    def bigram_entropy(self) -> float:
        """The conditional entropy H(next | current) of characters of the training part, in nats.

        It is the lowest loss of a model that sees only one character (Shannon, Prediction and Entropy of Printed English,
        1951).
        """
        counts = np.zeros((self.classes, self.classes))
        np.add.at(counts, (self.train[:-1], self.train[1:]), 1)
        rows = counts.sum(1, keepdims=True)
        share = counts / np.maximum(rows, 1)
        return float(-(counts * np.log(np.where(share > 0, share, 1))).sum() / counts.sum())


def from_string(name: str, text: str, source: str) -> Text:
    """A text, of which the last tenth is for testing."""
    if len(text) < 2:
        raise ValueError(f"{name}: a text needs at least 2 characters, but has {len(text)}")
    alphabet = "".join(sorted(set(text)))
    place = {c: i for i, c in enumerate(alphabet)}
    numbers = np.array([place[c] for c in text], np.int64)
    cut = len(numbers) - len(numbers) // 10
    return Text(name, numbers[:cut], numbers[cut:], alphabet, source)


def load_python_docs() -> Text:
    """The help texts of the running interpreter: the strings of the standard library's ``pydoc_data.topics``."""
    from pydoc_data.topics import topics  # type: ignore[import-untyped, unused-ignore]

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return from_string("python-docs", text, f"pydoc_data.topics of Python {sys.version.split()[0]}, PSF license")


class Windows:
    """Batches of windows at random positions of a text: x [batch, context], and y, the next character of each.

    The order depends only on the seed. Raises ValueError for a context longer than the text.
    """

    def __init__(self, numbers: Array, context: int, batch_size: int, seed: int = 0) -> None:
        if len(numbers) < context + 1:
            raise ValueError(f"a text of {len(numbers)} characters is too short for windows of {context} characters and the "
                             "next one")
        self._numbers = numbers
        self._context = context
        self._batch_size = batch_size
        self._generator = np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, 2], np.uint64)))

    def __len__(self) -> int:
        """The number of batches with as many characters as the text."""
        return max(len(self._numbers) // (self._context * self._batch_size), 1)

    def draw(self) -> tuple[Array, Array]:
        """The next batch: x and y, int64 [batch, context] both."""
        starts = self._generator.integers(0, len(self._numbers) - self._context, self._batch_size)
        rows = starts[:, None] + np.arange(self._context + 1)
        found = self._numbers[rows]
        return found[:, :-1], found[:, 1:]
