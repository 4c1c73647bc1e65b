"""Peaks compared by layer: of many, and where there are other networks than before, which change the names of all."""

from __future__ import annotations

import random

import pytest

from gradcore.report import matching as module
from gradcore.report.diff import Owners, compare


def test_a_network_is_itself_where_another_one_has_come() -> None:
    """Its name is part of the paths of layers where there are several."""
    def rows(*sides: dict[str, int]) -> list[tuple[str, int, int]]:
        before, after = (Owners(sum(sums.values()), {"layer": sums}) for sums in sides)
        return [(c.name, c.before, c.after) for c in compare(before, after).by["layer"]]

    one = {"": 512, "body.0": 2048, "body.1": 1024, "head": 1024}
    first = {"Net#1.body.0": 2048, "Net#1.body.1": 1536, "Net#1.head": 1024}
    assert rows(one, {"": 512, **first, "Net#2.body.0": 4096, "Net#2.head": 1024}) == [
        ("Net#2.body.0", 0, 4096), ("Net#2.head", 0, 1024), ("Net#1.body.1", 1024, 1536)]
    assert rows({"": 512, **first, "Net#2.head": 1024}, one) == [("Net#2.head", 1024, 0), ("body.1", 1536, 1024)]
    # Of several networks one has got a number, too.
    assert rows({"Net.head": 512, "Critic.0": 512}, {"Net#1.head": 1024, "Net#2.head": 512, "Critic.0": 512}) == [
        ("Net#1.head", 512, 1024), ("Net#2.head", 0, 512)]
    # What has nothing or less in common is not the same; nor is what is not there under its new name.
    assert rows({"head": 512}, {"tail": 512}) == [("head", 512, 0), ("tail", 0, 512)]
    assert rows(one, {**one, "copy.head": 512}) == [("copy.head", 0, 512)]
    assert rows({"attn.out": 512}, {"cross.out": 512}) == [("attn.out", 512, 0), ("cross.out", 0, 512)]
    assert rows({"Net.a": 512, "Net.b": 512}, {"Net#1.a": 512, "Net#2.c": 512}) == [("Net#2.c", 0, 512), ("Net.b", 512, 0)]
    # A path may have nothing before its first dot.
    assert rows({".head": 512}, {".head": 512, "Net#1.head": 512}) == [("Net#1.head", 0, 512)]
    # What runs in no layer may be outside of the network.
    assert rows(one, {"": 256, **first, "Net#1": 256})[1:] == [("", 512, 256), ("Net#1", 0, 256)]


def test_the_rows_of_networks_add_up() -> None:
    r = random.Random(0)
    for _ in range(2000):
        before, after = ({".".join(r.choice(("", "a", "b", "Net#1", "Net#2", "0")) for _ in range(r.randint(0, 2))):
                          512 * r.randint(1, 3) for _ in range(r.randint(0, 8))} for _ in range(2))
        diff = compare(*(Owners(sum(sums.values()), {"layer": sums}) for sums in (before, after)))
        assert sum(c.change for c in diff.by["layer"]) == diff.change
        assert {c.name for c in diff.by["layer"]} <= before.keys() | after.keys()


def test_thousands_of_networks_files_or_lines_are_compared_in_no_long_time(monkeypatch: pytest.MonkeyPatch) -> None:
    many = range(3000)
    for group, before, after in (("layer", "Net{}.a", "Other{}.a"), ("line", "/old/{}.py:7 in f", "/new/{}.py:7 in f")):
        sides = [Owners(512 * len(many), {group: {name.format(n): 512 for n in many}}) for name in (before, after)]
        assert len(compare(*sides).by[group]) == 6000 * (group == "layer")
    # Lines of one function. To be looked at, a pair has to be about as far into it.
    monkeypatch.setattr(module, "_COMPARED", 10_000)
    sides = [Owners(sum(lines.values()), {"line": lines}) for lines in
             ({f"a.py:{2 * n + moved * (n > 50)} in f": 512 + n % 97 for n in many} for moved in (0, 5))]
    assert not compare(*sides).by["line"]


def test_layers_that_changed_alike_share_a_line_of_many() -> None:
    before = {f"h.{k}.{part}": 64 for k in range(8) for part in ("up", "down")}
    after = {name: 32 if "up" in name else 96 for name in before} | {"h.7.up": 0, "head": 32}
    diff = compare(Owners(1024, {"layer": before}), Owners(1024, {"layer": after}))
    assert [line.split() for line in str(diff).splitlines()[3:]] == [
        ["+256", "h.0-7.down", "512", "->", "768"], ["-224", "h.0-6.up", "448", "->", "224"],
        ["-64", "h.7.up", "64", "->", "0"], ["+32", "head", "0", "->", "32"]]
    assert len(diff.by["layer"]) == 17
