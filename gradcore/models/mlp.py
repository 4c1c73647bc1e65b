"""A multilayer perceptron: linear layers with ReLU between them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gradcore import nn
from gradcore.models.tasks import ImageTask, require_images
from gradcore.models.workload import Workload, batch_of, classification

#: Pairs of the largest number of pixels of an image, and the widths of the hidden layers.
_HIDDEN = ((256, (128, 128)), (None, (1024, 1024, 1024)))


class MLP(nn.Module):
    """Linear layers of widths ``sizes``: input [N, sizes[0]], result [N, sizes[-1]]."""

    def __init__(self, sizes: tuple[int, ...], device: Any = None) -> None:
        super().__init__()
        if len(sizes) < 2:
            raise ValueError(f"an MLP needs the size of its input and of its output, but got {sizes}")
        self.layers = nn.ModuleList(nn.Linear(n, m, device=device) for n, m in pairwise(sizes))

    def forward(self, x: Any) -> Any:
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x)
            x = nn.functional.relu(x)
        return last(x)


def build(dataset: Any, device: Any) -> Workload:
    """64-128-128-10 for digits, 784-1024-1024-1024-10 for fashion-mnist."""
    require_images(dataset, "mlp")
    hidden = next(h for most, h in _HIDDEN if most is None or dataset.features <= most)
    module = MLP((dataset.features, *hidden, dataset.classes), device)
    return Workload(module, batch_of(dataset), classification, ImageTask(dataset))
