"""Drawings of plans: every buffer at its planned place, in well-formed files, whatever the names of layers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import gradcore
from gradcore import nn
from gradcore.events import Site
from gradcore.program import Program, plan
from gradcore.program.planning.drawing import draw, sketch
from gradcore.program.planning.plan import planned
from gradcore.program.program import with_lifetimes
from gradcore.spec import round_up
from tests.conftest import raises
from tests.meta.test_plan import chain

SVG = "{http://www.w3.org/2000/svg}"


def rectangles(text: str) -> list[Any]:
    return ElementTree.fromstring(text).findall(f".//{SVG}rect")


def stepped() -> Any:
    """A compiled training step on the meta device."""
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10)).to("meta")
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    compiled = gradcore.compile(step)
    for _ in range(2):
        compiled(gradcore.ones(32, 64, device="meta"), gradcore.zeros(32, dtype=gradcore.int64, device="meta"))
    return compiled


def test_a_buffer_is_one_rectangle_where_the_plan_has_it() -> None:
    compiled = stepped()
    program, found = compiled.programs[0], compiled.plans[0]
    drawn = rectangles(draw(program, found))
    assert len(drawn) == len(program.made()) > 10
    floor, count = max(float(r.get("y")) + float(r.get("height")) for r in drawn), len(program.instructions)
    pixels = (floor - min(float(r.get("y")) for r in drawn)) / found.nbytes
    left = min(float(r.get("x")) for r in drawn)
    wide = (max(float(r.get("x")) + float(r.get("width")) for r in drawn) - left) / count
    for b, r in zip(program.made(), drawn, strict=True):
        x, y, width, height = (float(r.get(name)) for name in ("x", "y", "width", "height"))
        assert abs((floor - y - height) / pixels - found.offsets[b.index]) * pixels < 0.2
        assert abs(height / pixels - round_up(b.nbytes)) * pixels < 0.2
        end = b.last if b.index in found.shared.values() else min(b.last, count - 1) + 1
        assert abs((x - left) / wide - b.first) < 0.02 and abs(width / wide - (end - b.first)) < 0.02


def test_a_rectangle_says_whose_it_is() -> None:
    compiled = stepped()
    titles = [r.findtext(f"{SVG}title") for r in rectangles(draw(compiled.programs[0], compiled.plans[0]))]
    tanh = next(t for t in titles if "of tanh in 1" in t)
    assert re.fullmatch(r"t\d+: residual of tanh in 1, forward\n.*test_drawing.py:\d+\nfloat32\[32, 256\], 32,768 bytes at "
                        r"[\d,]+\ninstructions \d+ to \d+; t\d+ takes its place", tanh)
    assert sum("takes its place" in t for t in titles) == len(compiled.plans[0].shared) == 3
    assert any("gradient of linear_grad in 2, backward" in t for t in titles)


def test_a_drawing_has_its_axes_its_bound_and_nothing_from_elsewhere() -> None:
    compiled = stepped()
    found = compiled.plans[0]
    text = draw(compiled.programs[0], found)
    words = [t.text for t in ElementTree.fromstring(text).findall(f".//{SVG}text")]
    assert f"lower bound {found.bound:,} bytes (dashed)" in words and "stroke-dasharray" in text
    assert {"time, in instructions", "address in the arena", "0 B", "0", "forward", "backward", "residual"} <= {*words}
    assert f"{len(compiled.programs[0].made())} buffers in {found.nbytes:,} bytes, 0.0% above the lower bound" in words
    assert not re.search("<(?!title|rect|text|path|svg|/)|href|url\\(|on[a-z]+=", text)
    assert re.findall("https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


def hostile(name: str) -> Program:
    program = chain([512, 1024, 512])
    return replace(program, buffers=tuple(
        replace(b, tag=b.tag._replace(layer=name, op=name, role=name, site=Site(name, b.tag.site.line, b.tag.site.function)))
        for b in program.buffers), instructions=tuple(
            replace(i, tag=i.tag._replace(phase=name, layer=name)) for i in program.instructions))


@pytest.mark.parametrize("name", [
    "</title><script>alert(1)</script>", "\"><image href='x' onerror='y'/>", "]]>&lt;&#0;<!--", "\0\x1b[31m\ud800\ufffe",
    "&amp;"])
def test_a_hostile_name_is_text(name: str) -> None:
    program = hostile(name)
    found = plan(program)
    text = draw(program, found)
    # Characters that cannot be encoded are not in it either.
    root = ElementTree.fromstring(text.encode())
    assert {e.tag.removeprefix(SVG) for e in root.iter()} == {"svg", "path", "rect", "text", "title"}
    plain = re.sub("[\0\x1b\ud800\ufffe]", "\ufffd", name)
    assert len(rectangles(text)) == 2 and all(plain in r.findtext(f"{SVG}title") for r in rectangles(text))
    assert plain in [t.text for t in root.findall(f".//{SVG}text")]
    assert not re.search("[\0\x1b\ud800\ufffe]", str(sketch(program, found)))


def test_a_terminal_shows_it_in_its_width() -> None:
    compiled = stepped()
    program, found = compiled.programs[0], compiled.plans[0]
    for width, height in ((80, 20), (64, 4), (132, 30)):
        lines = str(sketch(program, found, width=width, height=height)).splitlines()
        assert max(map(len, lines)) <= width and len(lines) == height + 5
        assert {"█", "▓"} <= set("".join(lines[:height])) and lines[height + 1].split() == ["forward", "backward", "optimizer"]
        # The update is the last instruction, on 64 and 80 columns narrower than its name, which ends where the plot does.
        assert lines[height].count("┬") == 2 and len(lines[height]) == width == len(lines[height + 1]) + 3 * (width == 132)
        assert lines[-1] == f"15 buffers (12 places), arena {found.nbytes:,} bytes, lower bound {found.bound:,}"
    with raises(ValueError, "at least 64 columns and 4 lines, but got 63 and 20"):
        sketch(program, found, width=63)


def test_what_is_drawn_in_a_terminal_is_what_lies_there() -> None:
    # Two buffers of a kibibyte, the second computed from the first: half the height at first, all of it while both are live.
    program = chain([1024] * 4)
    # If each overwrites the one before, all of that half.
    for found, expected in ((planned(program, {}), [[False, False, True, True], [True] * 4, [True] * 4]),
                            (plan(program), [[True] * 4] * 3)):
        lines = str(sketch(program, found, height=4)).splitlines()
        rows = [line[12:].ljust(68) for line in lines[:4]]
        assert [[row[at] != " " for row in rows] for at in (5, 34, 62)] == expected


def test_programs_that_make_nothing_are_drawn_too() -> None:
    program = chain([100])
    found = plan(program)
    assert rectangles(draw(program, found)) == [] and "0 buffers, arena 0 bytes" in str(sketch(program, found))
    program = with_lifetimes(chain([0, 0, 0]), set())
    assert rectangles(draw(program, plan(program)))


def test_a_compiled_function_is_drawn_to_a_file(tmp_path: Path) -> None:
    compiled = gradcore.compile(lambda x: (x * 2).exp())
    with raises(IndexError, "cannot draw program 0: the cache has 0 programs; call the function first"):
        compiled.draw()
    compiled(gradcore.ones(1000, device="meta"))
    text = compiled.draw(tmp_path / "plan.svg")
    assert "2 buffers" in str(text) and str(text) == str(compiled.draw())
    assert (tmp_path / "plan.svg").read_text() == draw(compiled.programs[0], compiled.plans[0])
    with raises(IndexError, "cannot draw program 1: the cache has 1 program"):
        compiled.draw(program=1)


def test_a_part_of_a_chain_shows_what_the_parts_before_it_left(tmp_path: Path) -> None:
    a = gradcore.ones(1000, device="meta", requires_grad=True)
    graph = gradcore.trace(lambda x: (x * x).exp(), a)
    loss = gradcore.trace(lambda y: y.sum(), graph.outputs)
    slope = gradcore.gradients(loss, wrt=[a])
    drawn: list[list[str]] = []
    for k, part in enumerate((graph, loss, slope)):
        part.draw(tmp_path / f"{k}.svg")
        drawn.append([r.findtext(f"{SVG}title").split(" in ")[0].partition(": ")[2]
                      for r in rectangles((tmp_path / f"{k}.svg").read_text())])
    assert any(t.endswith("of exp") for t in drawn[0]) and any(t.endswith("of exp") for t in drawn[2])
    assert any(t.endswith("of sum") for t in drawn[1]) and not any(t.endswith("of sum") for t in drawn[0])
