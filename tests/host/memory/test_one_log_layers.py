"""NumPy and meta write the same log for layers, losses and optimizers of every family, so peaks are predicted to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.nn import functional as F
from tests.logs import normalized

F32 = np.float32


class Last(nn.Module):
    """The outputs of a recurrent layer, without its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


#: A model, the array that it is given, the loss of its output, the optimizer.
CASES: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "images": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Dropout2d(0.2),
                                     nn.ConvTranspose2d(8, 4, 3, stride=2), nn.InstanceNorm2d(4, affine=True),
                                     nn.PixelShuffle(2), nn.Upsample(scale_factor=2), nn.Upsample((9, 7), mode="bilinear"),
                                     nn.ZeroPad2d(1)),
               np.ones((2, 3, 6, 6), F32), lambda y: F.huber_loss(y, gradcore.ones_like(y)), lambda p: optim.RMSprop(
                   p, momentum=0.9, centered=True, weight_decay=0.1)),
    "volumes": (lambda: nn.Sequential(nn.ConvTranspose3d(2, 3, 2, stride=2), nn.ReflectionPad3d(1), nn.MaxPool3d(2),
                                      nn.LocalResponseNorm(2), nn.AvgPool3d(2, 1), nn.RReLU(), nn.AdaptiveAvgPool3d(2),
                                      nn.LPPool3d(2, 2), nn.Flatten(1)), np.ones((2, 2, 3, 4, 3), F32),
                lambda y: gradcore.cdist(y, y + 1).sum() + F.grid_sample(
                    y.reshape(2, 3, 1, 1), F.affine_grid(y.reshape(1, 2, 3).expand(2, 2, 3), (2, 3, 2, 2), False),
                    align_corners=False).sum(), optim.SGD),
    "lstm": (lambda: Last(nn.LSTM(4, 5, 2, dropout=0.3, bidirectional=True)), np.ones((6, 3, 4), F32),
             lambda y: F.binary_cross_entropy_with_logits(y, gradcore.ones_like(y),
                                                          pos_weight=gradcore.ones(10, device=y.device)),
             optim.NAdam),
    "gru": (lambda: nn.Sequential(Last(nn.GRU(4, 5)), nn.RMSNorm(5), nn.AlphaDropout(0.2)), np.ones((6, 3, 4), F32),
            lambda y: F.poisson_nll_loss(y, gradcore.zeros_like(y)), optim.RAdam),
    "transformer": (lambda: nn.Sequential(nn.Embedding(11, 8), nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)),
                    np.ones((5, 3), np.int64), lambda y: F.triplet_margin_loss(y, y * 2, y + 1), optim.Adagrad),
    "sequences": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.MaxPool1d(2), nn.ConvTranspose1d(6, 4, 2, 2),
                                        nn.Linear(8, 3)), np.ones((2, 4, 8), F32),
                  lambda y: F.cosine_similarity(y, gradcore.ones_like(y), -1).mean() + F.kl_div(
                      y, gradcore.ones_like(y), reduction="sum"),
                  optim.Adadelta),
    "bags": (lambda: nn.EmbeddingBag(11, 8, padding_idx=3), np.ones((5, 3), np.int64),
             lambda y: F.multi_margin_loss(y, gradcore.zeros(5, dtype=np.int64, device=y.device)), optim.Lion),
}


def logs(name: str, device: str) -> tuple[list[Any], list[Any]]:
    """Three steps of training, from an empty pool."""
    build, array, loss_of, optimizer_of = CASES[name]
    model = build().to_empty(device="cpu" if device == "meta" else "meta")
    gradcore.empty_cache(device)
    gradcore.manual_seed(0)
    model.to_empty(device=device)
    for p in model.parameters():
        nn.init.ones_(p)
    optimizer = optimizer_of(model.parameters())
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    found, peaks = [], []
    for _ in range(3):
        with gradcore.step(batch_size=2, device=device) as s:
            optimizer.zero_grad()
            loss = loss_of(model(gradcore.tensor(array, device=device)))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        found.append(s.raw_log)
        peaks.append(s.report.peak)
    return found, peaks


@pytest.mark.parametrize("name", CASES)
def test_numpy_and_meta_write_the_same_log(name: str) -> None:
    (ours, peaks), (predicted, predictions) = logs(name, "cpu"), logs(name, "meta")
    for log, other in zip(ours, predicted, strict=True):
        for record, expected in zip(normalized(log), normalized(other), strict=True):
            assert record == expected
    for peak, prediction in zip(peaks, predictions, strict=True):
        assert (peak.requested, peak.allocated, peak.reserved) == (prediction.requested, prediction.allocated,
                                                                   prediction.reserved)
