"""What a network reserves is little more than what it needs at its peak, also after its optimizer has made its state."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import gradcore
from gradcore import nn


@pytest.mark.parametrize("rows", [500, 1024, 4096, 8192, 16384])
def test_the_steps_after_the_first_find_room_for_their_largest_tensors(rows: int) -> None:
    gc.collect()
    gradcore.empty_cache("meta")
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
    gradcore.empty_cache("meta")
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


class Words(nn.Module):
    """Blocks between a table and scores of many classes, which are the largest tensor by far."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20_000, 256)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
                                    for _ in range(6))
        self.scores = nn.Linear(256, 20_000)

    def forward(self, x: Any) -> Any:
        x = self.table(x)
        for block in self.blocks:
            x = x + block(x)
        return self.scores(x)


def _early(net: Any, optimizer: Any, x: Any) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), x).backward()
    optimizer.step()


def _between(net: Any, optimizer: Any, x: Any) -> None:
    loss = nn.functional.cross_entropy(net(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _in_parts(net: Any, optimizer: Any, x: Any) -> None:
    for _ in range(3):
        nn.functional.cross_entropy(net(x), x).backward()
    optimizer.step()
    optimizer.zero_grad()


def _zeroed(net: Any, optimizer: Any, x: Any) -> None:
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(net(x), x).backward()
    optimizer.step()


def _in_16_bits(net: Any, optimizer: Any, x: Any) -> None:
    optimizer.zero_grad()
    with gradcore.autocast("cuda"):
        loss = nn.functional.cross_entropy(net(x), x)
    loss.backward()
    optimizer.step()


def _scored(net: Any, optimizer: Any, x: Any) -> None:
    with gradcore.no_grad():
        net(x)


@pytest.mark.parametrize(("step", "least"), [(_early, 0.95), (_between, 0.95), (_in_parts, 0.95), (_zeroed, 0.92),
                                             (_in_16_bits, 0.93), (_scored, 0.95)])
def test_what_fits_into_a_limit_is_nearly_all_of_it(step: Any, least: float) -> None:
    """In whatever order gradients are made and cleared: where they live through a forward, its largest tensor finds room."""
    limit = 1 << 30

    def peak(rows: int) -> int:
        """Bytes of the peak of some steps, 0 if they run out of memory."""
        gc.collect()
        gradcore.empty_cache("meta")
        gradcore.reset_peak_memory_stats("meta")
        with gradcore.device("meta"):
            net = Words()
            optimizer = gradcore.optim.AdamW(net.parameters())
            x = gradcore.zeros(rows, dtype=gradcore.int64)
            try:
                for _ in range(4):
                    step(net, optimizer, x)
            except gradcore.OutOfMemory:
                return 0
        return gradcore.max_memory_allocated("meta")

    memory = gradcore.device("meta").stack.limit
    before, memory.limit = memory.limit, limit
    try:
        used, rows = 0, 5600
        while found := peak(rows):
            used, rows = found, rows + 32
    finally:
        memory.limit = before
        gradcore.empty_cache("meta")
    assert used >= least * limit, f"the largest batch takes {used / limit:.1%}"
