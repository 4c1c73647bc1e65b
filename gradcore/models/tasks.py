"""Tasks: the endless batches that a training run reads, and the evaluation at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gradcore import functional
from gradcore.data.batches import Batches
from gradcore.data.dataset import Dataset
from gradcore.data.text import Text, Windows
from gradcore.engine.modes import no_grad

Array = np.ndarray[Any, Any]
#: How many samples, and windows of text, an evaluation takes at a time.
_AT_ONCE, _WINDOWS_AT_ONCE = 1024, 64
#: By how much the scores of a sample's next character are divided: below 1, likely ones are drawn more often.
_TEMPERATURE = 0.8


@dataclass(frozen=True)
class Result:
    """An evaluation: figures by name for the run's file, and lines of text for the user."""

    figures: dict[str, Any]
    lines: tuple[str, ...]


class Task(Protocol):
    """Batches of one kind of data, and evaluation on its test part."""

    @property
    def about(self) -> str:
        """A description of the data."""

    def epoch(self, batch_size: int) -> int:
        """The number of steps in an epoch."""

    def batches(self, batch_size: int, seed: int) -> Iterator[tuple[Array, Array]]:
        """An endless iterator over batches."""

    def result(self, module: Any, device: Any) -> Result:
        """Evaluate the module on the test part, and return it to its training mode."""


def require_images(dataset: Any, model: str) -> None:
    """Raises ValueError for a text."""
    if not isinstance(dataset, Dataset):
        raise ValueError(f"the model {model} is trained on images, but {dataset.name} is a text: try --data digits or "
                         "fashion-mnist")


class ImageTask:
    """Classification of images."""

    def __init__(self, dataset: Dataset) -> None:
        self._data = dataset
        #: Training samples; a batch has no more.
        self.samples = len(dataset.train_x)

    @property
    def about(self) -> str:
        return f"{self._data.name} ({len(self._data.train_x):,} training and {len(self._data.test_x):,} test samples)"

    def _rows(self, batch_size: int, seed: int) -> Batches:
        return Batches(self._data.train_x, self._data.train_y, batch_size=batch_size, seed=seed,
                       drop_last=self.samples >= batch_size)

    def epoch(self, batch_size: int) -> int:
        return len(self._rows(batch_size, 0))

    def batches(self, batch_size: int, seed: int) -> Iterator[Any]:
        rows = self._rows(batch_size, seed)
        while True:
            yield from rows

    def result(self, module: Any, device: Any) -> Result:
        share = accuracy(module, self._data.test_x, self._data.test_y, device)
        return Result({"accuracy": share}, (f"test accuracy {share:.2%}",))


def accuracy(module: Any, x: Array, y: Array, device: Any) -> float:
    """The fraction of samples whose highest score is at their label."""
    right = 0
    training = module.training
    module.eval()
    with no_grad():
        for start in range(0, len(x), _AT_ONCE):
            scores = module(functional.tensor(x[start:start + _AT_ONCE], device=device))
            found = scores.argmax(1).cpu().numpy()
            right += int((found == y[start:start + _AT_ONCE]).sum())
    module.train(training)
    return right / len(x)


class TextTask:
    """Prediction of the next character of a text. Raises ValueError for other data."""

    def __init__(self, text: Text, context: int, loss: Callable[[Any, Any, Any], Any]) -> None:
        if isinstance(text, Dataset):
            raise ValueError(f"the model is trained on text, but {text.name} holds images: try --data python-docs")
        self._text = text
        self._context = context
        self._loss = loss

    @property
    def about(self) -> str:
        return (f"{self._text.name} ({len(self._text.train):,} training and {len(self._text.test):,} test characters of "
                f"{self._text.classes} kinds; bigram entropy {self._text.bigram_entropy():.4f} nats per character)")

    def epoch(self, batch_size: int) -> int:
        return len(Windows(self._text.train, self._context, batch_size))

    def batches(self, batch_size: int, seed: int) -> Iterator[tuple[Array, Array]]:
        windows = Windows(self._text.train, self._context, batch_size, seed)
        while True:
            yield windows.draw()

    def result(self, module: Any, device: Any) -> Result:
        training = module.training
        module.eval()
        with no_grad():
            loss = self._test_loss(module, device)
            sample = write(module, self._text, self._context, "The ", 300, device)
        module.train(training)
        entropy = self._text.bigram_entropy()
        beside = "below" if loss < entropy else "not below"
        return Result({"test_loss": loss, "bigram_entropy": entropy, "sample": sample},
                      (f"test loss {loss:.4f} nats per character, {beside} the bigram entropy of {entropy:.4f}",
                       f"A sample of text:\n\n{sample}\n"))

    def _test_loss(self, module: Any, device: Any) -> float:
        """The mean loss over the windows of the test part, in nats per character."""
        numbers, size = self._text.test, self._context
        if len(numbers) < 2:
            return float("nan")
        size = min(size, len(numbers) - 1)
        starts = np.arange(0, len(numbers) - size, size)
        total = 0.0
        for k in range(0, len(starts), _WINDOWS_AT_ONCE):
            rows = numbers[starts[k:k + _WINDOWS_AT_ONCE, None] + np.arange(size + 1)]
            x, y = (functional.tensor(np.ascontiguousarray(part), device=device) for part in (rows[:, :-1], rows[:, 1:]))
            total += self._loss(module, x, y).item() * len(rows)
        return total / len(starts)


def write(module: Any, text: Text, context: int, start: str, length: int, device: Any) -> str:
    """``start`` and ``length`` more characters, each sampled from the module's prediction from the ``context`` before it."""
    generator = np.random.Generator(np.random.Philox(key=np.array([0, 3], np.uint64)))
    known = [c for c in start if c in text.alphabet] or [text.alphabet[0]]
    numbers = list(text.encode("".join(known)))
    for _ in range(length):
        seen = np.array([numbers[-context:]], np.int64)
        scores = module(functional.tensor(seen, device=device))[0, -1].cpu().numpy().astype(np.float64) / _TEMPERATURE
        odds = np.exp(scores - scores.max())
        numbers.append(int(generator.choice(len(odds), p=odds / odds.sum())))
    return text.decode(np.array(numbers))
