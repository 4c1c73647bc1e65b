"""What the search for holders costs: a look at every reference of the program, as often as it takes."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from gradcore import _holders
from tests.host.holding import fresh, holder

FOUND: dict[str, Any] = {}


def test_nothing_is_looked_for_once_all_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes as long as the program has objects. Here garbage, which has no name, leads to the tensor, too."""
    count, look = [0], _holders.referrers

    def looked(objects: tuple[Any, ...]) -> list[Any]:
        count[0] += 1
        return look(objects)

    monkeypatch.setattr(_holders, "referrers", looked)
    x = fresh()
    serial, cycle = x.storage.serial, [[x]]
    cycle[0].append(cycle)
    FOUND["here"] = x
    del x, cycle
    try:
        assert holder(serial) == f"FOUND['here'] in {__name__}" and count == [1]
    finally:
        FOUND.clear()
        gc.collect()
