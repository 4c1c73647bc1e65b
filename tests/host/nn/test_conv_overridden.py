"""Convolutions of a program's own, which pad or choose the size of the result by what PyTorch's have under the same names."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore


def found(library: Any) -> list[Any]:
    f, pair = library.nn.functional, library.nn.modules.utils._pair

    class Standardized(library.nn.Conv2d):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            padded = f.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            return f.conv2d(padded, weight, self.bias, self.stride, pair(0), self.dilation, self.groups)

    class Enlarging(library.nn.ConvTranspose2d):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, size: Any = None) -> Any:
            weight = 2 * self.weight
            extra = self._output_padding(x, size, self.stride, self.padding, self.kernel_size, 2, self.dilation)
            return f.conv_transpose2d(x, weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    results: list[Any] = []
    x = library.arange(32.0).reshape(1, 2, 4, 4)
    for make in (lambda: Standardized(2, 3, (3, 2), padding=(1, 2), padding_mode="circular"),
                 lambda: Standardized(2, 3, 2, padding="same", padding_mode="reflect"), lambda: Enlarging(2, 3, 3, stride=2)):
        layer = make()
        with library.no_grad():
            for p in layer.parameters():
                p.copy_(library.arange(float(p.numel())).reshape(p.shape).sin())
        results += [[*layer._reversed_padding_repeated_twice], layer(x).flatten().tolist()]
    with pytest.raises(ValueError, match="valid sizes range from"):
        layer(x, [20, 20])
    results += [list(layer(x, [10, 9]).shape), list(layer._output_padding(x, [9, 10], (2, 2), (0, 0), (3, 3), 2))]
    return [*results, library.nn.modules.utils._reverse_repeat_tuple((1, 2), 2)]


@pytest.mark.oracle
def test_convolutions_that_pad_themselves_are_pytorchs(torch: Any) -> None:
    ours, theirs = found(gradcore), found(torch)
    assert [pytest.approx(x, rel=1e-5, abs=1e-5) if isinstance(x, list) else x for x in theirs] == ours


def test_convolutions_find_their_padding_as_pad_takes_it() -> None:
    assert found(gradcore)[::2][:3] == [[2, 2, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]]
