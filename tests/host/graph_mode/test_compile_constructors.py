"""Constructors that run in a trace may set attributes of the object that they make, and of no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn


class Counted:
    made = 0
    last: Any = None

    def __init__(self, x: Any, how: str) -> None:
        global total
        self.x, self.n = x, 1
        self.n += 1
        if how == "its class":
            type(self).made += 1
        elif how == "a class":
            Counted.made += 1
        elif how == "a global":
            total += 1
        elif how == "an object":
            SETTINGS.made += 1
        elif how == "the last one":
            type(self).last = self.n
        elif how == "an item":
            TOTALS["made"] += 1


class Alone:
    made = 0

    def __init__(self, x: Any) -> None:
        self.x = x
        type(self).made += 1


total = 0
TOTALS = {"made": 0}
SETTINGS = SimpleNamespace(made=0)


@pytest.mark.parametrize("how", ["its class", "a class", "a global", "an object", "the last one", "an item", ""])
def test_a_constructor_that_changes_something_else_is_refused(how: str) -> None:
    def counts() -> int:
        return Counted.made + total + TOTALS["made"] + SETTINGS.made

    compiled, before = gradcore.compile(lambda x: Counted(x * 2, how).x), counts()
    for _ in range(4):
        compiled(gradcore.ones(2))
    assert counts() == before + 4 * (how not in ("", "the last one"))
    assert bool(compiled.programs) == (not how), compiled.explain()


def test_a_class_that_counts_its_instances_without_naming_itself_is_refused() -> None:
    compiled = gradcore.compile(lambda x: Alone(x * 2).x)
    for k in range(4):
        compiled(gradcore.ones(2))
        assert Alone.made == k + 1
    assert "assigns to made" in compiled.traces[0]


def test_a_module_that_each_run_makes_is_no_change() -> None:
    class Inner(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.layer = self.same = nn.Linear(n, n)
            self.calls = 0
            self.calls += n
            self.scale, self.more = 2.0, [n]

        def forward(self, x: Any) -> Any:
            return self.layer(x) * 0 + self.scale * x + self.calls

    compiled = gradcore.compile(lambda x: Inner(2)(x).detach())
    for k in range(4):
        assert compiled(gradcore.full((1, 2), float(k))).tolist() == [[2.0 * k + 2] * 2]
    assert len(compiled.programs) == 1, compiled.explain()
