"""The adaptive softmax: a loss over very many classes, of which few are frequent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gradcore.errors import SpecError
from gradcore.functional import argmax, cat, mean, squeeze, unsqueeze
from gradcore.nn import functional as F
from gradcore.nn.container import ModuleList, Sequential
from gradcore.nn.linear import Linear
from gradcore.nn.module import Module
from gradcore.ops import elementwise, movement

Tensor = Any

__all__ = ["AdaptiveLogSoftmaxWithLoss"]

#: A class that no loss is computed for.
_IGNORED = -100


class _ASMoutput(NamedTuple):
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-probabilities of targets [N] among ``n_classes``, by a head of the most frequent classes and of clusters of others.

    Grave et al., Efficient softmax approximation for GPUs, arXiv:1609.04309. ``cutoffs`` are the first classes of the clusters;
    each is computed by way of ``div_value`` times fewer features than the one before.

    Shapes alone decide what is computed, so that meta tensors and :func:`gradcore.compile` work: each cluster scores all
    samples, and those of other clusters get no gradient from it. PyTorch selects each cluster's samples first, which takes less
    time and memory, and leaves ``grad`` None where there are none.
    """

    def __init__(self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
                 head_bias: bool = False, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (cutoffs != sorted(set(cutoffs)) or cutoffs[0] <= 0 or cutoffs[-1] > n_classes - 1
                or any(int(c) != c for c in cutoffs)):
            raise ValueError("cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where "
                             "each value is between 1 and n_classes-1")
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = self.cutoffs[0]
        self.n_clusters = len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, device=device, dtype=dtype)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            width = int(in_features // div_value ** (i + 1))
            self.tail.append(Sequential(
                Linear(in_features, width, bias=False, device=device, dtype=dtype),
                Linear(width, self.cutoffs[i + 1] - self.cutoffs[i], bias=False, device=device, dtype=dtype)))

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        self.head.reset_parameters()
        layers: Any = self.tail.children()
        for first, second in layers:
            first.reset_parameters()
            second.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        """The log-probability of each target, and minus their mean."""
        self._module_check(input_, target_)
        lone = not target_.spec.ndim
        input, target = (unsqueeze(x, 0) if lone else x for x in (input_, target_))
        bounds = [0, *self.cutoffs]
        # What is in no cluster is no class of the head either.
        places = elementwise.where(self._module_within(target, 0, bounds[1]), target, self.head_size)
        parts = []
        for i, (low, high) in enumerate(zip(bounds[1:], bounds[2:], strict=False)):
            within = self._module_within(target, low, high)
            places = elementwise.where(within, self.shortlist_size + i, places)
            own = elementwise.where(within, target - low, _IGNORED)
            parts.append(F.cross_entropy(self.tail[i](input), own, ignore_index=_IGNORED, reduction="none"))
        try:
            loss = F.cross_entropy(self.head(input), places, ignore_index=_IGNORED, reduction="none")
        except IndexError:
            raise SpecError(f"Target values should be in [0, {self.n_classes - 1}], but others were found.") from None
        for part in parts:
            loss = loss + part
        output = -loss
        return _ASMoutput(squeeze(output, 0) if lone else output, mean(loss))

    @staticmethod
    def _module_within(target: Tensor, low: int, high: int) -> Tensor:
        return elementwise.logical_and(elementwise.ge(target, low), elementwise.lt(target, high))

    @staticmethod
    def _module_check(input: Tensor, target: Tensor) -> None:
        dims = target.spec.ndim
        if dims > 1:
            raise SpecError("0D or 1D target tensor expected, multi-target not supported")
        if dims and input.spec.shape[:1] != target.spec.shape:
            raise SpecError("Input and target should have the same size in the batch dimension.")
        if input.spec.ndim != dims + 1:
            raise SpecError(f"{dims}D target tensor expects {dims + 1}D input tensors, but found inputs with size "
                            f"{list(input.spec.shape)}")

    def log_prob(self, input: Tensor) -> Tensor:
        """The log-probabilities [N, n_classes] of all classes."""
        return self._get_full_log_prob(input, self.head(input))

    def _get_full_log_prob(self, input: Tensor, head_output: Tensor) -> Tensor:
        head = F.log_softmax(head_output, dim=1)
        parts = [movement.narrow(head, 1, 0, self.shortlist_size)]
        for i, cluster in enumerate(self.tail):
            parts.append(F.log_softmax(cluster(input), dim=1) + movement.narrow(head, 1, self.shortlist_size + i, 1))
        return cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The class with the largest probability for each sample."""
        head_output = self.head(input)
        found = argmax(head_output, 1)
        return elementwise.where(elementwise.lt(found, self.shortlist_size), found,
                                 argmax(self._get_full_log_prob(input, head_output), 1))
