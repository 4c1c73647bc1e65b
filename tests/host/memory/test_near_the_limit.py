"""Near a limit a network trains without asking the source for segments again and again, at every batch size that fits."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.events import Unreserve

GiB = 1 << 30
F = nn.functional


class Residual(nn.Module):
    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, wider, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(wider, wider, 3, 1, 1, bias=False)
        self.norm, self.last = nn.BatchNorm2d(wider), nn.BatchNorm2d(wider)
        self.beside = nn.Identity() if stride == 1 else nn.Sequential(
            nn.Conv2d(channels, wider, 1, stride, bias=False), nn.BatchNorm2d(wider))

    def forward(self, x: Any) -> Any:
        return F.relu(self.last(self.second(F.relu(self.norm(self.first(x))))) + self.beside(x))


def resnet18() -> nn.Module:
    """He et al., arXiv:1512.03385, table 1."""
    stages = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                         *[Residual(*of) for of in stages], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


@pytest.mark.parametrize("late", [False, True], ids=["gradients cleared before the forward", "after it"])
@pytest.mark.parametrize("batch", [1400, 1442, 1466, 1500, 1550, 1590])
def test_what_fits_is_reserved_once(batch: int, late: bool) -> None:
    memory = gradcore.device("meta").stack.limit
    before, memory.limit = memory.limit, 24 * GiB
    went = []
    try:
        gc.collect()
        gradcore.empty_cache("meta")
        with gradcore.device("meta"):
            net = resnet18()
            optimizer = gradcore.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            for _ in range(7):
                with gradcore.step() as step:
                    x, y = gradcore.zeros(batch, 3, 224, 224), gradcore.zeros(batch, dtype=gradcore.int64)
                    if not late:
                        optimizer.zero_grad()
                    loss = F.cross_entropy(net(x), y)
                    if late:
                        optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    del loss
                went.append(sum(r.nbytes for r in step.recording.records if isinstance(r, Unreserve)))
    finally:
        memory.limit = before
        gradcore.empty_cache("meta")
    assert max(went[-2:]) <= GiB // 16, f"bytes of segments that each step gave back: {went}"
