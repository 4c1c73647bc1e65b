"""``gradcore.autograd.profiler``: ranges by which a profiler such as Nsight Systems shows a step in gradcore's own words."""

from __future__ import annotations

import sys
from contextlib import ContextDecorator
from typing import Any

from gradcore.cuda import nvtx
from gradcore.engine.state import local
from gradcore.spec import TensorSpec

__all__ = ["emit_nvtx", "record_function"]


class emit_nvtx:
    """A context manager, within which each launch of this thread's ops is in a range of NVTX: phase, layer, op and node.

    ``backward encoder.fc1: linear_grad, node 14`` is a part of the gradient of what ``forward encoder.fc1: linear, node 14``
    has computed. A replay of a compiled function is one range, ``replay``. With ``record_shapes`` the shapes of the operands
    follow, as a list with ``[]`` for a number. Raises RuntimeError within another one.
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled, self.record_shapes = enabled, record_shapes

    def __enter__(self) -> emit_nvtx:
        if self.enabled:
            state: Any = local.state
            if isinstance(state.launch, _Named):
                raise RuntimeError("NVTX annotation context manager is not reentrant")
            self._state, self._before = state, state.launch
            state.launch = _Named(state.launch, self.record_shapes)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.enabled:
            self._state.launch = self._before


class _Named:
    """Launches kernels as ``launch`` does, each in a range."""

    def __init__(self, launch: Any, shapes: bool) -> None:
        self._launch, self._shapes = launch, shapes

    def __call__(self, kernel: Any, *arrays: Any) -> Any:
        # Dispatch passes no more than the kernel needs, so that a launch costs nothing while no profiler looks.
        nvtx.range_push(_text(sys._getframe(1).f_locals, self._shapes))
        try:
            return self._launch(kernel, *arrays)
        finally:
            nvtx.range_pop()


def _text(of: dict[str, Any], shapes: bool) -> str:
    """The text of a range, from the variables of the function that launches."""
    if "call" not in of:
        return "replay"
    tag = of["tags"][0] if "tags" in of else of["tag"]
    text = f"{tag.phase} {tag.layer or '(root)'}: {tag.op}" + (f", node {of['number']}" if of["number"] else "")
    if shapes:
        text += f", sizes = {[list(x.shape) if isinstance(x, TensorSpec) else [] for x in of['call'].invocation.inputs]}"
    return text


class record_function(ContextDecorator):
    """A context manager or decorator: a range of NVTX around the block, or around each call, with ``args`` behind its name."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args

    def __enter__(self) -> record_function:
        nvtx.range_push(self.name if self.args is None else f"{self.name}, {self.args}")
        return self

    def __exit__(self, *exc: object) -> None:
        nvtx.range_pop()
