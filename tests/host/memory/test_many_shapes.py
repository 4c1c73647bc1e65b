"""Shapes that never come again, as of texts and pictures of all sizes, leave nothing behind on the host."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise

import pytest

import gradcore
from gradcore import nn
from gradcore.engine import dispatch
from gradcore.engine.plans import Call
from gradcore.events import Invocation, Tag
from gradcore.spec import TensorSpec

KINDS = (TensorSpec, Tag, Invocation, Call)


def alive(device: str) -> Counter[str]:
    """How many of each kind there are, but for those in the caches of calls and of arrays, whose sizes are limited."""
    known = gradcore.device(device)
    assert 100 < len(known.calls) <= 400
    known.calls.clear()
    gc.collect()
    pool = known.ledger.pool
    places = [*(arrays for s in pool.segments.values() for arrays in s.arrays.values()), *(b.arrays for b in pool.blocks)]
    cached = {spec for arrays in places for spec in arrays}
    return Counter(type(x).__name__ for x in gc.get_objects() if type(x) in KINDS and x not in cached)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_known_of_shapes_does_not_pile_up(device: str, recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_CALLS", 399)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(4, 2)).to(device)
    optimizer = gradcore.optim.Adam(net.parameters())

    def train(heights: range) -> None:
        for height in heights:
            with gradcore.step() if recorded else nullcontext():
                optimizer.zero_grad()
                net(gradcore.rand(1, 3, height, 9, device=device)).sum().backward()
                optimizer.step()

    gradcore.device(device).calls.clear()
    train(range(5, 45))
    counts = [alive(device)]
    for first in (45, 125):
        train(range(first, first + 80))
        counts.append(alive(device))
    # The 80 shapes have thousands. A cache whose size is limited may fill once.
    grown = [sum((after - before).values()) for before, after in pairwise(counts)]
    assert min(grown) < 200, counts


def test_a_spec_that_nobody_uses_is_forgotten_and_made_again() -> None:
    spec = TensorSpec.of((7, 11, 13, 17), "float32")
    assert TensorSpec.of((7, 11, 13, 17), spec.dtype) is spec and spec.like() is spec
    there = weakref.ref(spec)
    del spec
    assert there() is None
    assert TensorSpec.of((7, 11, 13, 17), "float32").shape == (7, 11, 13, 17)


def test_threads_that_meet_get_one_spec() -> None:
    start, found = threading.Barrier(4), []

    def make() -> None:
        for size in range(300):
            start.wait()
            found.append((size, TensorSpec.of((size, 19, 23), "float32")))

    threads = [threading.Thread(target=make) for _ in range(4)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert len(found) == 1200 and len({id(spec) for _, spec in found}) == 300
