"""The list of the largest holders of bytes, as errors, summaries and the leaks of a test show it."""

from __future__ import annotations

from collections.abc import Iterable

from gradcore.grouping import Buffer, largest

ASKED: list[int] = []


def who(serials: Iterable[int]) -> dict[int, str]:
    ASKED[:] = serials
    return {2: "kept[0]"}


def test_buffers_of_one_owner_share_a_line_that_names_what_holds_the_largest() -> None:
    buffers: list[Buffer] = [("", "output of add in", "a.py:1", 512, 1), ("", "output of add in", "a.py:1", 2048, 2),
                             ("", "output of add in", "a.py:1", 2048, 3), ("fc", "output of add in", "a.py:1", 5120, 4)]
    assert largest(buffers, 8, who) == (2, [
        "            5,120 bytes  output of add in fc, a.py:1",
        "            4,608 bytes  output of add in (root), a.py:1 (3 buffers)",
        "                         held by kept[0]"])
    assert ASKED == [4, 2]


def test_of_many_owners_equal_blocks_share_a_line_and_the_rest_one() -> None:
    buffers: list[Buffer] = [(f"h.{k}", "residual of mul in", "a.py:1", 512, k) for k in range(4)]
    buffers += [("head", "residual of mul in", "a.py:2", 1024, 9), ("tail", "residual of mul in", "a.py:2", 300, 10),
                ("last", "residual of mul in", "a.py:2", 200, 11)]
    assert largest(buffers, 2, who) == (2, [
        "            2,048 bytes  residual of mul in h.0-3, a.py:1 (4 buffers)",
        "            1,024 bytes  residual of mul in head, a.py:2",
        "              500 bytes  in 2 more"])
    assert ASKED == [0, 9]
    assert largest(iter(buffers[-1:]), 2, None) == (1, ["              200 bytes  residual of mul in last, a.py:2"])
    assert largest([], 2, None) == (0, [])
