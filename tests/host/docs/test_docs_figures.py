"""Figures of benchmarks in the documentation: one source for each; and lists that are to be complete."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from bench import plan

ROOT = Path(__file__).resolve().parents[3]
#: Models by their names in docs/graph-plans.md, with the batch sizes there.
GAINS = (("cnn", "the convolutional one gains most", 64), ("small", "small MLP gains", 256), ("gpt", "the GPT", 8))


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading."""
    section = re.split(rf"^## {heading}$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)[1].split("\n## ")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in section.splitlines() if row.startswith("| ")]


def test_the_costs_of_the_levels_are_in_one_place() -> None:
    costs = {row[0]: row[2] for row in rows_of("docs/report.md", "How much is recorded")[1:]}
    assert [level.split("`")[1] for level in costs] == ["off", "counts", "events", "stacks"]
    for cost in costs.values():
        assert re.fullmatch(r"\d\.\d+ to \d\.\d+", cost)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert [page.name for page in pages if costs["`stacks`"] in page.read_text(encoding="utf-8")] == ["report.md"]


def test_the_costs_in_the_readme_are_those_of_the_page() -> None:
    shown = [row[1:] for row in rows_of("README.md", "What it costs")[1:]]
    of, large, small, cnn, gpt, large_again, small_again, cnn_again, gpt_again, _ = rows_of(
        "docs/performance.md", "Time on a CPU")
    _, eager, captured, _, peak = rows_of("docs/performance.md", "On an H200")
    memory = rows_of("docs/performance.md", "Memory on a CPU")
    kept = next(row for heads, row in pairwise(memory) if "CNN, batch 128" in heads)
    column = of.index("AMD Zen 4")
    assert shown == [[row[column] for row in (small, large, cnn, gpt)],
                     [row[column] for row in (small_again, large_again, cnn_again, gpt_again)],
                     eager[1:], captured[1:], peak[1:], [kept[2], kept[1], *kept[3:]]]


@pytest.mark.parametrize(("name", "words", "batch"), GAINS)
def test_what_results_over_operands_save(name: str, words: str, batch: int) -> None:
    found = plan.planned(name, batch)
    gain = f"{1 - found.bound / found.apart:.1%}".replace("%", " %")
    (said,) = re.findall(rf"{words}[^%]*? (\d+\.\d+ %)(?= of the arena at batch size {batch}| at {batch}\b)",
                         text_of("docs/graph-plans.md"))
    assert said == gain


def test_every_environment_variable_is_listed() -> None:
    code = "".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "gradcore").rglob("*.py")))
    _, _, listed = text_of("docs/questions.md").partition("Which environment variables are there?")
    assert set(re.findall(r"GRADCORE_[A-Z_]+", code)) == set(re.findall(r"`(GRADCORE_[A-Z_]+)`", listed))
