"""Figures of benchmarks in the documentation: one source for each; and lists that are to be complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench import plan

ROOT = Path(__file__).resolve().parents[3]
#: Models by their names in docs/graph-mode.md, with the batch sizes there.
GAINS = (("cnn", "the convolutional one gains most", 64), ("small", "small MLP gains", 256), ("gpt", "the GPT", 8))


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_the_costs_of_the_levels_are_the_same_in_both_places() -> None:
    readme, page = text_of("README.md"), text_of("docs/report.md")
    costs = {level: cost for cost, level in re.findall(r"(\d\.\d+ to \d\.\d+) at `(\w+)`", readme)}
    assert list(costs) == ["off", "counts", "events", "stacks"]
    assert {level: cost for level, cost in re.findall(r"\| `(\w+)`[^|]*\|[^|]*\| ([^|]*) \|", page) if level in costs} == costs
    (others,) = re.findall(r"the other networks take (\d\.\d+ to \d\.\d+)", readme)
    assert f"other networks take {others} times as long" in page


@pytest.mark.parametrize(("name", "words", "batch"), GAINS)
def test_what_results_over_operands_save(name: str, words: str, batch: int) -> None:
    found = plan.planned(name, batch)
    gain = f"{1 - found.bound / found.apart:.1%}".replace("%", " %")
    (said,) = re.findall(rf"{words}[^%]*? (\d+\.\d+ %)(?= of the arena at batch size {batch}| at {batch}\b)",
                         text_of("docs/graph-mode.md"))
    assert said == gain


def test_every_environment_variable_is_listed() -> None:
    code = "".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "gradcore").rglob("*.py")))
    _, _, listed = text_of("docs/questions.md").partition("Which environment variables are there?")
    assert set(re.findall(r"GRADCORE_[A-Z_]+", code)) == set(re.findall(r"`(GRADCORE_[A-Z_]+)`", listed))
