"""Memory that grows from step to step, also if several kinds of steps alternate."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore.events import Alloc, Site, Tag
from gradcore.report.growth import Growth, explained, growth_of


def test_training_that_leaks_between_evaluations_grows() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    outputs: list[Any] = []
    found = []
    for _ in range(10):
        with gradcore.step(device="cpu") as training:
            outputs.append(w.exp())
        with gradcore.step(device="cpu") as evaluation:
            w.detach().exp()
        found.append((training.report.growth, evaluation.report.growth))
    for growth in found[-1]:
        assert growth is not None and growth.requested == 2000 and growth.steps >= 6
        assert [(g.op, g.count, g.held_by) for g in growth.grown] == [("exp", 10, "graph")]
    assert "Live bytes have grown for " in str(evaluation.report)


@pytest.mark.parametrize(("ends", "found"), [
    ([4, 8, 12, 16], (3, 4)), ([9, 4, 8, 12, 16], (3, 4)),
    # An evaluation that ends as high as the step before it, and one that ends higher.
    ([4, 4, 8, 8, 12, 12, 16, 16], (6, 2)), ([4, 90, 8, 94, 12, 98, 16, 102, 20], (6, 2)),
    # It comes after three steps of training.
    ([4, 8, 12, 12, 16, 20, 24, 24, 28, 32, 36, 36, 40, 44, 48, 48], (14, 2)),
    ([4, 4, 8, 8, 12, 12], None), ([9, 5, 9, 5, 9, 5, 9, 5], None), ([0, 4, 8, 8] * 4, None), ([5, 9, 6, 9, 7, 9, 8, 9], None),
    # Memory that is allocated once and kept is not growth.
    ([1, 1, 1, 2, 2, 2, 3, 3, 3, 3], None), ([7] * 16, None), ([7], None), ([], None)])
def test_what_is_growth(ends: list[int], found: tuple[int, int] | None) -> None:
    growth = growth_of(ends)
    assert (growth and (growth.steps, growth.requested)) == found


def test_two_buffers_of_a_line_pile_up_and_one_does_not() -> None:
    twice, once = (Tag(op, "", "forward", "output", Site("train.py", 7, "main"), None, None) for op in ("exp", "relu"))
    log = [Alloc(k, 0, 512 * k, 10, 512, 0, tag, 0) for k, tag in enumerate((twice, once, twice), 1)]
    (grown,) = explained(Growth(3, 10), log, 0).grown
    assert (grown.op, grown.count, grown.allocated, grown.held_by) == ("exp", 2, 1024, "you")
