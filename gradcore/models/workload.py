"""``Workload``: a module, a batch and a loss, which can be trained, planned or measured."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcore.data.dataset import Dataset
from gradcore.models.examples import Array, Example, as_array
from gradcore.models.tasks import Task
from gradcore.nn import functional as F
from gradcore.nn.module import Module

Loss = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Workload:
    """``example(batch_size)`` returns the arrays x and y of a training batch, ``loss(module, x, y)`` a scalar tensor."""

    module: Module
    example: Example
    loss: Loss
    #: The task of a run; None for that of the data set.
    task: Task | None = None
    #: False if ``example`` has only the arrays of one batch.
    any_size: bool = True


def classification(module: Any, x: Any, y: Any) -> Any:
    """Cross-entropy of the module's scores, the default loss."""
    return F.cross_entropy(module(x), y)


def batch_of(dataset: Dataset) -> Example:
    """An example of the first samples of a data set, repeated if a batch is larger than the set."""

    def example(batch_size: int) -> tuple[Array, Array]:
        rows = np.arange(batch_size) % len(dataset.train_x)
        return dataset.train_x[rows], dataset.train_y[rows]

    return example


def as_workload(made: Any, name: str, batch_size: int) -> Workload:
    """What a model function returned for ``batch_size``, as a workload. Raises TypeError, which says what was expected."""
    if isinstance(made, Workload):
        _require_loss(name, made.loss)
        return made
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], Module):
        given = f"({', '.join(map(_named, made))})" if isinstance(made, tuple) else _named(made)
        raise TypeError(f"{name} returned {given}: expected (module, (x, y)), (module, (x, y), loss) or a Workload")
    module, inputs, loss = (*made, classification)[:3]
    # First, since a loss that takes other arguments may be right for what the inputs are.
    example = inputs if callable(inputs) else _fixed(name, inputs, batch_size)
    _require_loss(name, loss)
    return Workload(module, example, loss, any_size=callable(inputs))


def _named(value: Any) -> str:
    """The type of a value; of a module of PyTorch's that a script has taken for gradcore's, with its path."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__.startswith("torch.") else kind.__name__


def _require_loss(name: str, loss: Any) -> None:
    """Raises TypeError for what cannot be called as a loss is, with words that the error of the call would not have."""
    if not callable(loss):
        raise TypeError(f"{name}: the loss must be a function of (module, x, y), but is {type(loss).__name__}")
    what, call = (type(loss), loss.forward) if isinstance(loss, Module) else (loss, loss)
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        # Some callables have none.
        return
    try:
        signature.bind(None, None, None)
    except TypeError:
        fits = False
    else:
        # The library's own take scores and labels.
        fits = not str(getattr(what, "__module__", "")).startswith(("gradcore.nn.", "gradcore.functional."))
    if not fits:
        given = getattr(loss, "__name__", type(loss).__name__)
        raise TypeError(f"{name}: the loss is called as loss(module, x, y), but {given} takes other arguments; for one of "
                        "scores and labels, return lambda module, x, y: loss(module(x), y)")


def _fixed(name: str, inputs: Any, made_for: int) -> Example:
    if not isinstance(inputs, tuple) or len(inputs) != 2:
        given = f"a tuple of {len(inputs)}" if isinstance(inputs, tuple) else type(inputs).__name__
        if isinstance(inputs, tuple) and len(inputs) > 2:
            given += ": pass one array for several, and split it in the loss function"
        raise TypeError(f"{name}: the inputs must be a tuple (x, y) of arrays or a function of the batch size, but are {given}")
    x, y = map(as_array, inputs)
    # More rows may be several per sample, or a whole data set: neither should be cut off silently.
    if not x.ndim or not y.ndim or len(x) != made_for or len(y) != made_for:
        raise ValueError(f"{name}: x and y must have one row per sample, {made_for} for a batch of {made_for}, but have shapes "
                         f"{list(x.shape)} and {list(y.shape)}; for another layout, return a function of the batch size that "
                         "makes (x, y)")

    def example(batch_size: int) -> tuple[Array, Array]:
        if batch_size > made_for:
            raise ValueError(f"{name} returned a batch of {made_for} samples, but expected {batch_size}")
        return x[:batch_size], y[:batch_size]

    return example
