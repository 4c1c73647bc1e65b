"""Malicious names have no effect on the page, and the browser blocks what a faulty script might do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradcore.events import Alloc, Free, Keep, Mark, Record, Reserve, Site, Tag
from gradcore.report import Recording, Run, RunWriter, StepFigures, build_report, load_run
from gradcore.report.html import Named, page, save
from gradcore.report.step import PoolFigures
from gradcore.spec import TensorSpec
from tests.host.reports.browser import Opened, expected

HOSTILE = ("</script><script>window.hit = 1</script>", "<img src=x onerror='window.hit = 2'>", "<svg onload=alert(3)>",
           "__proto__", "constructor", '"><b onmouseover="window.hit=4">x', "javascript:alert(5)", "{{script}}", "<!--<script>",
           "\u2028\u202e\x00&lt;", "${alert(6)}", "]]>")


def hostile() -> Recording:
    """A step in which every name is malicious."""
    def tag(i: int) -> Tag:
        name = HOSTILE[i % len(HOSTILE)]
        site = Site(name, 1, name)
        return Tag(name, HOSTILE[(i + 1) % len(HOSTILE)], name, HOSTILE[(i + 2) % len(HOSTILE)], site, site,
                   TensorSpec.of((2,), "float32"))

    records: list[Record] = [Mark("begin", "step", 0), Reserve(0, 1 << 20)]
    for i in range(len(HOSTILE)):
        records += [Alloc(i + 1, 0, 512 * i, 8, 512, 0, tag(i), i + 1), Keep(i + 1, i + 1, HOSTILE[i]),
                    Mark("begin", HOSTILE[i], i)]
    records += [*map(Free, range(1, 4)), Mark("end", "step", 99)]
    return Recording(build_report(records, device=HOSTILE[0], batch_size=2, pool=PoolFigures(0, 0, 0, 0, 0, 0)), tuple(records))


@pytest.mark.parametrize("events", [True, False], ids=["with events", "a report alone"])
def test_hostile_names_do_nothing(browser: Any, tmp_path: Path, events: bool) -> None:
    found = hostile()
    path = tmp_path / "hostile.jsonl"
    with RunWriter(path, {name: name for name in HOSTILE}) as writer:
        for step in (1, 2):
            writer.add(StepFigures.of(step, None, found.report), type("Step", (), {"recording": found})())
        writer.close({name: name for name in HOSTILE})
    loaded = load_run(path)
    if not events:
        alone = Recording(found.report, ())
        loaded = Run(loaded.about, loaded.steps, {1: alone, 2: alone}, loaded.result)
    save(tmp_path / "hostile.html", page([Named(name, loaded) for name in HOSTILE]))
    opened = Opened(browser, tmp_path / "hostile.html")
    for by in ("layer", "op", "role") if events else ():
        opened.page.check(f"input[name=by][value={by}]")
    for row in range(len(opened.rows())):
        opened.page.click(f"#owners-rows tr:nth-child({row + 1}) button")
    opened.page.check("#kept-all")
    assert opened.page.evaluate("window.hit") is None and opened.complaints == []
    assert opened.requests == [(tmp_path / "hostile.html").as_uri()]
    assert opened.page.evaluate("document.querySelectorAll('img, svg, b, iframe, object, link, base').length") == 0
    assert opened.page.evaluate("document.scripts.length") == 2
    shown = expected(found, found.report.peak.position) if events else [["", "", t.op] for t in found.report.top]
    assert [row[2] for row in opened.rows()] == [row[2] for row in shown]
    assert opened.page.title() == f"Device memory: {HOSTILE[0]}"
    opened.context.close()


def test_the_policy_holds_where_a_script_would_slip_in(browser: Any, tmp_path: Path) -> None:
    """If a script of the page passed text to a parser, the browser would block it; it cannot reach the network either."""
    hostile().save_html(tmp_path / "step.html")
    opened = Opened(browser, tmp_path / "step.html")
    refused = opened.page.evaluate("""async () => {
        const refused = [];
        const attempt = async (name, act) => { try { await act(); } catch { refused.push(name); } };
        await attempt("innerHTML", () => { document.body.innerHTML = "<b>x</b>"; });
        await attempt("fetch", () => fetch("https://example.invalid/"));
        const script = document.createElement("script");
        script.append("window.hit = 1");
        document.body.append(script);
        return [refused, window.hit ?? null]; }""")
    assert refused == [["innerHTML", "fetch"], None]
    assert opened.complaints and all("Content Security Policy" in text or "Trusted" in text for text in opened.complaints)
    opened.context.close()
