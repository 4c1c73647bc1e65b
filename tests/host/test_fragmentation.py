"""What a network reserves is little more than what it needs at its peak, also after its optimizer has made its state."""

from __future__ import annotations

import gc

import pytest

import gradcore
from gradcore import nn


@pytest.mark.parametrize("rows", [512, 1024, 4096, 8192, 16384])
def test_the_steps_after_the_first_find_room_for_their_largest_tensors(rows: int) -> None:
    gc.collect()
    gradcore.empty_cache()
    with gradcore.device("meta"):
        layers = [layer for _ in range(3) for layer in (nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))]
        net = nn.Sequential(*layers, nn.Linear(512, 50_000))
        optimizer = gradcore.optim.Adam(net.parameters())
        x, y = gradcore.zeros(rows, 512), gradcore.zeros(rows, dtype=gradcore.int64)
        for _ in range(5):
            with gradcore.step(level="counts") as step:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
    peak = step.report.peak
    assert peak.allocated <= peak.reserved <= 1.05 * peak.allocated, f"{peak.reserved / peak.allocated:.2f} times as much"


def test_texts_of_many_lengths_reserve_little_more_than_the_longest() -> None:
    gc.collect()
    gradcore.empty_cache()
    with gradcore.device("meta"):
        gradcore.reset_peak_memory_stats("meta")
        net = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.Linear(512, 50_000))
        optimizer = gradcore.optim.Adam(net.parameters())
        for length in (700, 900, 300, 1000, 800, 1100, 200, 1300, 1200, 400):
            x, y = gradcore.zeros(16 * length, 512), gradcore.zeros(16 * length, dtype=gradcore.int64)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    allocated, reserved = gradcore.max_memory_allocated("meta"), gradcore.memory_reserved("meta")
    assert reserved <= 1.3 * allocated, f"{reserved / allocated:.2f} times as much"
