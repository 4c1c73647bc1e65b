"""Writes a diff as one HTML page of tables, which opens from disk, loads nothing and runs no script."""

from __future__ import annotations

import html
from collections.abc import Iterable

from gradcore.report.diff import AT_END, Change, Diff, summary
from gradcore.report.html import filled, hash_of, part


def diff_page(diff: Diff, before: str, after: str) -> str:
    """The page; ``before`` and ``after`` are a line of text each on what was compared."""
    style = part("page.css")
    return filled("diff.html", {
        "policy": f"default-src 'none'; style-src '{hash_of(style)}'; base-uri 'none'; form-action 'none'",
        "style": style, "summary": html.escape(summary(diff)), "before": html.escape(before), "after": html.escape(after),
        "tables": _tables(diff),
        "end": "" if diff.end is None else f"<h1>{html.escape(summary(diff.end, AT_END))}</h1>\n{_tables(diff.end)}"})


def _tables(diff: Diff) -> str:
    return "\n".join(_table(group, changes) for group, changes in diff.by.items())


def _table(group: str, changes: Iterable[Change]) -> str:
    rows = [f'<tr><td class="number">{c.change:+,}</td><td class="path">{html.escape(c.name or "(root)")}</td>'
            f'<td class="number">{c.before:,}</td><td class="number">{c.after:,}</td></tr>' for c in changes]
    if not rows:
        return f"<section><h2>By {group}</h2><p>No change.</p></section>"
    head = f'<tr><th class="number">change</th><th>{group}</th><th class="number">before</th><th class="number">after</th></tr>'
    return (f'<section><h2>By {group}</h2><div class="scroll"><table><thead>{head}</thead><tbody>\n' + "\n".join(rows)
            + "\n</tbody></table></div></section>")
