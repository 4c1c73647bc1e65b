"""``Workload``: a module, a batch and a loss, which can be trained, planned or measured; or a training step of a user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcore import trees
from gradcore._tensor import Tensor
from gradcore.data.dataset import Dataset
from gradcore.models.examples import Array, Batch, Example, as_batch, parts
from gradcore.models.tasks import Task
from gradcore.nn import functional as F
from gradcore.nn.module import Module

Loss = Callable[..., Any]


@dataclass(frozen=True)
class Workload:
    """``example(batch_size)`` returns a training batch, such as arrays (x, y), and ``loss(module, x, y)`` a scalar tensor."""

    module: Module
    example: Example
    loss: Loss
    #: The task of a run; None for that of the data set.
    task: Task | None = None
    #: False if ``example`` has only the arrays of one batch.
    any_size: bool = True

    def require_fit(self, batch: Batch, name: str) -> None:
        """Raises TypeError unless the loss takes the parts of ``batch``."""
        what = self.loss.forward if isinstance(self.loss, Module) else self.loss
        # The library's own take scores and labels.
        own = str(getattr(type(self.loss) if isinstance(self.loss, Module) else what, "__module__", ""))
        if own.startswith(("gradcore.nn.", "gradcore.functional.")) or not _fits(what, (None,), batch):
            given = getattr(self.loss, "__name__", type(self.loss).__name__)
            raise TypeError(f"{name}: the loss is called as loss({_listed(('module',), batch)}), but {given} takes other "
                            "arguments; for one of scores and labels, return lambda module, x, y: loss(module(x), y)")

    def run(self, batch: Batch, optimizer: Any) -> Any:
        """A training step on tensors. Returns the loss; raises ValueError if it isn't one number with a gradient."""
        optimizer.zero_grad()
        loss = _called(self.loss, (self.module,), batch)
        if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
            what = (f"{loss.spec}{'' if loss.requires_grad else ' without a gradient'}" if isinstance(loss, Tensor)
                    else f"a {type(loss).__name__}")
            raise ValueError(f"the model's loss must be one number that requires a gradient, but is {what}")
        loss.backward()
        optimizer.step()
        return loss


@dataclass(frozen=True)
class OwnStep:
    """A whole training step of a user's own, which is called with the parts of a batch, and has its optimizers."""

    step: Callable[..., Any]
    example: Example
    any_size: bool = True

    def require_fit(self, batch: Batch, name: str) -> None:
        """Raises TypeError unless the step takes the parts of ``batch``."""
        if not _fits(self.step, (), batch):
            raise TypeError(f"{name}: the training step is called as step({_listed((), batch)}), but takes other arguments")

    def run(self, batch: Batch, optimizer: None) -> Any:
        """The step on tensors, and what it returns."""
        return _called(self.step, (), batch)


def _called(function: Callable[..., Any], first: tuple[Any, ...], batch: Batch) -> Any:
    return function(*first, **batch) if isinstance(batch, dict) else function(*first, *batch)


def _fits(function: Any, first: tuple[Any, ...], batch: Batch) -> bool:
    """Does a function take ``first`` and the parts of a batch? True if it cannot be known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some callables have none.
        return True
    try:
        _called(signature.bind, first, batch)
    except TypeError:
        return False
    return True


def _listed(first: tuple[str, ...], batch: Batch) -> str:
    named = [f"{k}=..." for k in batch] if isinstance(batch, dict) else [f"batch[{k}]" for k in range(len(batch))]
    return ", ".join([*first, *named])


def classification(module: Any, x: Any, y: Any) -> Any:
    """Cross-entropy of the module's scores, the default loss."""
    return F.cross_entropy(module(x), y)


def batch_of(dataset: Dataset) -> Example:
    """An example of the first samples of a data set, repeated if a batch is larger than the set."""

    def example(batch_size: int) -> tuple[Array, Array]:
        rows = np.arange(batch_size) % len(dataset.train_x)
        return dataset.train_x[rows], dataset.train_y[rows]

    return example


def as_workload(made: Any, name: str, batch_size: int) -> Workload | OwnStep:
    """What a model function returned for ``batch_size``, as a workload. Raises TypeError, which says what was expected."""
    if isinstance(made, Workload):
        _require_loss(name, made.loss)
        return made
    model, inputs, *rest = made if isinstance(made, tuple) and len(made) in (2, 3) else (None, None)
    step = callable(model) and not isinstance(model, (Module, type)) and not _of_torch(type(model)) and not rest
    if not isinstance(model, Module) and not step:
        given = f"({', '.join(map(_named, made))})" if isinstance(made, tuple) else _named(made)
        of_torch = any(_of_torch(type(part)) for part in (made if isinstance(made, tuple) else (made,)))
        raise TypeError(f"{name} returned {given}: " + (
            "PyTorch's modules do not run here: import gradcore as torch, or call as_torch.install() of gradcore.utils first"
            if of_torch else
            "expected (module, batch), (module, batch, loss), (step, batch) or a Workload; a batch is a tuple such as (x, y), "
            "a dict, or a function of the batch size that makes one"))
    example = inputs if callable(inputs) else _fixed(name, inputs, batch_size)
    if step:
        return OwnStep(model, example, any_size=callable(inputs))
    loss, = rest or (classification,)
    _require_loss(name, loss)
    return Workload(model, example, loss, any_size=callable(inputs))


def _of_torch(kind: type) -> bool:
    """Is it PyTorch's, or derived from a class of PyTorch's?"""
    return any(base.__module__.partition(".")[0] == "torch" for base in kind.__mro__)


def _named(value: Any) -> str:
    """The type of a value; of a module of PyTorch's that a script has taken for gradcore's, with its path."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__.startswith("torch.") else kind.__name__


def _require_loss(name: str, loss: Any) -> None:
    if not callable(loss):
        raise TypeError(f"{name}: the loss must be a function of the module and the parts of the batch, but is "
                        f"{type(loss).__name__}")


def _fixed(name: str, inputs: Any, made_for: int) -> Example:
    """An example that has only the batch of ``made_for`` samples."""
    batch = as_batch(inputs, name)
    for where, part in parts(batch):
        # More rows may be several per sample, or a whole data set: neither should be cut off silently.
        if isinstance(part, np.ndarray) and part.shape[:1] != (made_for,):
            raise ValueError(f"{name}: the arrays of a batch must have one row per sample, {made_for} for a batch of "
                             f"{made_for}, but {where} has shape {list(part.shape)}; for another layout, return a function of "
                             "the batch size that makes the batch")

    def example(batch_size: int) -> Batch:
        if batch_size > made_for:
            raise ValueError(f"{name} returned a batch of {made_for} samples, but expected {batch_size}")
        return trees.filled(batch, [p[:batch_size] if isinstance(p, np.ndarray) else p for p in trees.leaves(batch)])

    return example
