"""A small convolutional network for images."""

from __future__ import annotations

from typing import Any

from gradcore import nn
from gradcore.models.tasks import ImageTask, require_images
from gradcore.models.workload import Workload, batch_of, classification


class CNN(nn.Module):
    """Three blocks of convolution, batch norm and ReLU, with pooling between them, then the mean over the plane.

    Input [N, features] or [N, C, H, W], for images of shape ``image``, (H, W) or (C, H, W); result [N, classes].
    """

    def __init__(self, image: tuple[int, ...], classes: int, device: Any = None) -> None:
        super().__init__()
        self.image = image if len(image) == 3 else (1, *image)
        if len(self.image) != 3 or min(self.image[1:]) < 4:
            raise ValueError(f"a CNN needs images of shape (H, W) or (C, H, W), of at least 4 x 4 elements, but got {image}")
        layers: list[nn.Module] = []
        for i, o in ((self.image[0], 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(i, o, 3, padding=1, bias=False, device=device), nn.BatchNorm2d(o, device=device), nn.ReLU()]
            if o < 64:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(64, classes, device=device)

    def forward(self, x: Any) -> Any:
        x = x.view(-1, *self.image)
        x = self.features(x)
        return self.head(x)


def build(dataset: Any, device: Any) -> Workload:
    """A :class:`CNN` for the images of ``dataset``."""
    require_images(dataset, "cnn")
    module = CNN(dataset.image, dataset.classes, device)
    return Workload(module, batch_of(dataset), classification, ImageTask(dataset))
