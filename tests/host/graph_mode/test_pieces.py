"""Sequences of elementwise calls cut into pieces equal the calls one after the other, wherever their arrays are in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gradcore.devices.calls import Changing, KernelCall
from gradcore.devices.host import pieces as host_pieces
from gradcore.devices.host.pieces import in_pieces


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_pieces, "PIECE", 16)


def run(calls: list[KernelCall]) -> None:
    for function, args in calls:
        function(*args)


def drawn(memory: np.ndarray, rng: np.random.Generator) -> list[KernelCall]:
    """Calls on arrays of 48 elements at random places of a buffer, some block by block, some of another size."""
    def at(size: int = 48) -> Any:
        start = 16 * int(rng.integers(0, (memory.size - size) // 16 + 1))
        return memory[start:start + size].reshape(-1, 8)

    factor = np.asarray(0.5, memory.dtype)
    calls: list[KernelCall] = []
    for _ in range(int(rng.integers(2, 7))):
        kind = rng.integers(0, 5)
        if kind == 0:
            calls.append((partial(np.maximum, out=at()), [at(), 0]))
        elif kind == 1:
            calls.append((np.multiply, [at(), factor, at()]))
        elif kind == 2:
            x, y, column = at(), at(), at(16).reshape(-1)[:2].reshape(2, 1)
            calls += [(np.add, [x[k:k + 2], column, y[k:k + 2]]) for k in range(0, 6, 2)]
        elif kind == 3:
            calls.append((np.subtract, [at(16), 1.5, at(16)]))
        else:
            calls.append((np.add, [at(), at(), at()]))
    return calls


@pytest.mark.parametrize("seed", range(20))
def test_pieces_do_what_whole_calls_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory = np.empty(320, np.float32)
    values = rng.standard_normal(320).astype(np.float32)
    cut = 0
    for _ in range(40):
        calls = drawn(memory, rng)
        memory[:] = values
        run(calls)
        expected = memory.tobytes()
        memory[:] = values
        pieces = in_pieces(calls)
        cut += len(pieces) > len(calls)
        run(pieces)
        assert memory.tobytes() == expected
    assert cut > 5, "some of these runs are cut"


def test_what_follows_blocks_is_cut_like_them() -> None:
    x, y, z, column = np.ones((6, 8)), np.ones((6, 8)), np.ones((6, 8)), np.ones((2, 1))
    calls: list[KernelCall] = []
    for k in range(0, 6, 2):
        calls += [(np.multiply, [x[k:k + 2], column, y[k:k + 2]]), (np.add, [y[k:k + 2], column, y[k:k + 2]])]
    calls += [(partial(np.maximum, out=z), [y, 0]), (np.greater, [z, 0, z])]
    made = in_pieces(calls)
    names = [getattr(f, "func", f).__name__ for f, _ in made]
    assert names == ["multiply", "add", "maximum", "greater"] * 3


def test_a_number_that_a_run_brings_keeps_its_place() -> None:
    x, y = np.ones(64), np.ones(64)
    calls: list[KernelCall] = [(np.multiply, [x, Changing(2.0), y]), (np.add, [y, x, y])]
    assert in_pieces(calls)[0] is calls[0]
