"""How tests are distributed to the workers of pytest-xdist."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("xdist", reason="pytest-xdist is not installed: pip install -e '.[test]'")

from tests.scheduling import Runs

MARKED = 'pytestmark = [pytest.mark.timeout(9),\n    # Why.\n    pytest.mark.xdist_group("two")]\n'


def runs_of(folder: Path, *collection: str) -> Any:
    for file in "abcdef":
        (folder / f"{file}.py").write_text(MARKED if file in "ef" else "pytestmark = []\nfound = xdist_group\n")
    runs = Runs.__new__(Runs)
    runs.config, runs.collection = SimpleNamespace(rootpath=folder), list(collection)  # type: ignore[assignment]
    return runs


def test_a_group_stays_whole_and_other_tests_go_in_runs_of_a_file(tmp_path: Path) -> None:
    grouped = [f"{file}.py::test_g[{k}]@one" for file in "cd" for k in range(30)]
    # As they are named where xdist cannot append the group.
    marked = [f"{file}.py::test_g[{k}]" for file in "ef" for k in range(30)]
    runs = runs_of(tmp_path, *(f"a.py::test_x[{k}]" for k in range(40)), "b.py::test_y", "b.py::test_z[@]", *grouped, *marked)
    found = [runs._split_scope(test) for test in runs.collection]
    assert found == ["a.py 0"] * 16 + ["a.py 1"] * 16 + ["a.py 2"] * 8 + ["b.py 0"] * 2 + ["one"] * 60 + ["two"] * 60


def test_a_unit_is_sent_by_its_places_without_what_is_done_and_finished_units_are_forgotten(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, "b.py::test_w", "b.py::test_x", "b.py::test_y", "b.py::test_z")
    sent: list[int] = []
    node = Mock(send_runtest_some=sent.extend)
    runs.assigned_work = {}
    runs.workqueue = OrderedDict({"left": {"b.py::test_z": False}, "over": {"b.py::test_w": True, "b.py::test_y": False}})
    runs._assign_work_unit(node)
    runs._assign_work_unit(node)
    assert sent == [3, 2] and list(runs.assigned_work[node]) == ["left", "over"]
    runs.assigned_work[node]["left"]["b.py::test_z"] = True
    runs.workqueue["next"] = {"b.py::test_x": False}
    runs._assign_work_unit(node)
    assert sent == [3, 2, 1] and list(runs.assigned_work[node]) == ["over", "next"]
