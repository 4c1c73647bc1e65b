"""The results as one Markdown page."""

from __future__ import annotations

from bench.gpu.part import Outcome, Part


def page(parts: list[tuple[Part, Outcome]], rehearsal: bool, seconds: float) -> str:
    """Markdown with a line for each part, then all problems, then the tables; the parts took ``seconds`` together."""
    lines = ["# Results on the GPU" if not rehearsal else "# Rehearsal on the CPU: no result is about a GPU", "",
             f"`python -m bench.gpu`, {seconds:.0f} s.", "", "| part | result | summary | s |", "|---|---|---|---|"]
    lines += [f"| {part.name} | {o.status} | {_cell(o.summary)} | {o.seconds:.0f} |" for part, o in parts]
    wrong = [(part, outcome) for part, outcome in parts if outcome.problems]
    if wrong:
        lines += ["", "## Problems"]
    for part, outcome in wrong:
        lines += ["", f"### {part.name}", "", "```text", *(text.rstrip() for text in outcome.problems), "```"]
    for part, outcome in parts:
        if len(outcome.table) > 1:
            head, *rows = outcome.table
            lines += ["", f"## {part.name}", "", part.question, "", f"| {' | '.join(map(_cell, head))} |",
                      "|" + "---|" * len(head), *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
