"""What :mod:`gradcore.functional.borders` refuses; that it agrees with PyTorch is seen in the layers."""

from __future__ import annotations

import gradcore
from gradcore.functional.borders import pad
from tests.conftest import raises


def test_errors_say_what_was_expected() -> None:
    x = gradcore.ones(2, 6, 5, 7)
    with raises(RuntimeError, "Padding length must be even", "but got [1] for 4 dimensions"):
        pad(x, (1,))
    with raises(RuntimeError, "resulted in a negative output size of -2"):
        pad(x, (-5, -4))
    with raises(NotImplementedError, "pad(mode='reflect') is not supported"):
        pad(x, (1, 1), "reflect")
