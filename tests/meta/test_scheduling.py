"""How tests are distributed to the workers of pytest-xdist."""

from __future__ import annotations

import pytest


def test_a_group_stays_whole_and_other_tests_go_in_runs_of_a_file() -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed: pip install -e '.[test]'")
    from tests.scheduling import Runs

    grouped = [f"{file}.py::test_g[{k}]@one" for file in "cd" for k in range(30)]
    runs = Runs.__new__(Runs)
    runs.collection = [*(f"a.py::test_x[{k}]" for k in range(40)), "b.py::test_y", "b.py::test_z[@]", *grouped]
    found = [runs._split_scope(test) for test in runs.collection]
    assert found == ["a.py 0"] * 16 + ["a.py 1"] * 16 + ["a.py 2"] * 8 + ["b.py 0"] * 2 + ["one"] * 60
