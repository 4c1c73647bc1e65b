"""Text as data: numbers of characters, windows, entropy."""

from __future__ import annotations

import math

import numpy as np

from gradcore import data
from gradcore.data.text import Windows, from_string
from tests.conftest import raises


def test_characters_as_numbers() -> None:
    text = from_string("abc", "abcabcabca" * 10, "a test")
    assert text.alphabet == "abc" and (len(text.train), len(text.test)) == (90, 10)
    assert text.decode(text.encode("cab")) == "cab"
    with raises(ValueError, "abc has no character 'd', 'x'"):
        text.encode("dax")
    with raises(ValueError, "a text needs at least 2 characters, but has 1"):
        from_string("one", "a", "a test")


def test_the_entropy_of_pairs() -> None:
    assert from_string("cycle", "abc" * 100, "a test").bigram_entropy() == 0.0
    # After a comes a or b, evenly; after b always a.
    text = from_string("even", "aab" * 300, "a test")
    assert math.isclose(text.bigram_entropy(), 2 / 3 * math.log(2), rel_tol=1e-2)


def test_windows_and_their_successors() -> None:
    numbers = np.arange(50)
    windows = Windows(numbers, 8, 16, seed=3)
    x, y = windows.draw()
    assert x.shape == y.shape == (16, 8) and (y == x + 1).all() and len(windows) == 1
    again, _ = Windows(numbers, 8, 16, seed=3).draw()
    np.testing.assert_array_equal(x, again)
    assert not np.array_equal(x, Windows(numbers, 8, 16, seed=4).draw()[0])
    assert not np.array_equal(x, windows.draw()[0])
    seen = np.concatenate([windows.draw()[0].ravel() for _ in range(50)])
    assert seen.min() == 0 and seen.max() == 48
    with raises(ValueError, "a text of 50 characters is too short for windows of 50 characters"):
        Windows(numbers, 50, 1)


def test_pythons_own_help_texts() -> None:
    text = data.load("python-docs")
    assert len(text.train) > 300_000 and 80 < text.classes < 400
    assert 2 < text.bigram_entropy() < 3 and "pydoc_data.topics" in text.source


def test_a_text_file(tmp_path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one two three\n" * 20, encoding="utf-8")
    assert data.load(path).name == "lines"
    # Some editors put a mark at the beginning, which is no character of the text.
    marked = tmp_path / "marked.txt"
    marked.write_text("one two three\n" * 20, encoding="utf-8-sig")
    assert data.load(marked).alphabet == data.load(path).alphabet
    with raises(ValueError, "or of a text file"):
        data.load(tmp_path / "absent")
