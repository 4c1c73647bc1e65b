"""The meta device: shapes and the log, without values. It predicts the memory of the same run on any other device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.device import Device, register
from gradcore.errors import DataDependentShape
from gradcore.memory.resource import Block, Stream
from gradcore.memory.sources import CountingSource
from gradcore.memory.stack import build
from gradcore.memory.streams import NoDriver
from gradcore.spec import TensorSpec
from gradcore.units import limit_from


class MetaDevice(Device):
    type = "meta"

    def array(self, block: Block, spec: TensorSpec) -> None:
        return None

    def kernel(self, name: str) -> Callable[..., Any]:
        return _nothing

    def copy_in(self, array: None, values: np.ndarray[Any, Any]) -> None:
        pass

    def copy_across(self, array: None, pinned: Any, back: bool = False) -> None:
        pass

    def copy_out(self, array: None) -> np.ndarray[Any, Any]:
        raise DataDependentShape("a tensor on the meta device has no values to read: only shapes are known there")


def _nothing(*arrays: Any, **attrs: Any) -> None:
    pass


def make_meta(index: int = 0) -> MetaDevice:
    stack = build(CountingSource(), NoDriver(), limit=limit_from("GRADCORE_MEMORY_LIMIT"))
    return MetaDevice("meta", stack, Stream(0), {})


register("meta", make_meta)
