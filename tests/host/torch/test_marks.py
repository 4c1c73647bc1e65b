"""PyTorch's marks for its script compiler change nothing, and what would download weights can be imported."""

from __future__ import annotations

from typing import Any

import gradcore
from gradcore import jit, nn
from tests.conftest import raises


@jit.script
def swish(x: Any) -> Any:
    return x * x.sigmoid()


class Block(nn.Module):
    size: jit.Final[int]
    __constants__ = ["size"]

    def __init__(self) -> None:
        super().__init__()
        self.size, self.linear = 3, nn.Linear(3, 3)

    @jit.ignore
    def plain(self, x: Any) -> Any:
        return swish(x) if not jit.is_scripting() and not jit.is_tracing() else x

    @jit.ignore(drop=True)
    def dropped(self, x: Any) -> Any:
        return self.plain(self.linear(x))

    @jit.unused
    def unused(self) -> int:
        return self.size

    @jit.export
    def forward(self, x: Any) -> Any:
        return self.dropped(x) * jit.annotate(int, self.unused())


def test_what_is_marked_runs_as_it_is() -> None:
    block = Block()
    assert jit.script(block) is block and jit.script_if_tracing(swish) is swish
    x = gradcore.ones(2, 3)
    y = block.linear(x)
    assert block(x).tolist() == (y * y.sigmoid() * 3).tolist()


def test_downloads_can_be_imported_and_say_what_to_do() -> None:
    from gradcore.hub import load_state_dict_from_url
    from gradcore.utils import model_zoo

    for load in (load_state_dict_from_url, model_zoo.load_url):
        with raises(NotImplementedError, "https://host/a.pth is not read: convert the file with safetensors"):
            load("https://host/a.pth", progress=True)
