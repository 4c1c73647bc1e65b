"""Compiled functions whose code was executed from a text, so that it has no file, or no module has its classes."""

from __future__ import annotations

import gc
import sys
from typing import Any

import gradcore

EXECUTED = """
import gradcore

class Scale:
    value = 1.0

    def __call__(self, x):
        return x * self.value * factor

factor, scale = 2.0, Scale()
"""


def test_special_methods_of_code_without_a_file_are_the_users() -> None:
    """As those of a dataclass that Python writes are not: ``python -c`` and ``exec(open(...).read())`` name no file."""
    names: dict[str, Any] = {}
    exec(EXECUTED, names)
    scale = names["scale"]
    f = gradcore.compile(lambda x: scale(x))
    x = gradcore.ones(1)
    found = [f(x).item(), f(x).item()]
    names["factor"] = 3.0
    found.append(f(x).item())
    # Without a __name__ around it, the class is said to be of "builtins".
    type(scale).value = 2.0
    assert [*found, f(x).item()] == [2.0, 2.0, 3.0, 6.0] and len(f.programs) == 3


GENERIC = """
class First: value = 2.0
class Second: value = 7.0
Base = First

def f(x):
    class Outer:
        class Inner{parameters}(Base): pass
    return x * Outer.Inner.value
"""


def test_the_base_of_a_generic_class_in_a_class_is_a_global() -> None:
    names: dict[str, Any] = {"__name__": "generic"}
    # Its syntax is new in Python 3.12.
    exec(GENERIC.format(parameters="[T]" * (sys.version_info >= (3, 12))), names)
    f = gradcore.compile(names["f"])
    found = [f(gradcore.ones(1)).item() for _ in range(2)]
    names["Base"] = names["Second"]
    assert [*found, f(gradcore.ones(1)).item()] == [2.0, 2.0, 7.0]
    gc.collect()


def test_a_class_of_no_module_is_traced_like_others() -> None:
    names: dict[str, Any] = {}
    exec("first, second = (type('Scale', (), {'value': value}) for value in (2.0, 7.0))", names)
    chosen = {"kind": names["first"]}
    f = gradcore.compile(lambda x: x * chosen["kind"].value)
    found = [f(gradcore.ones(1)).item() for _ in range(3)]
    chosen["kind"] = names["second"]
    assert [*found, f(gradcore.ones(1)).item()] == [2.0, 2.0, 2.0, 7.0] and len(f.programs) == 2
    del f
    names.clear()
    chosen.clear()
    gc.collect()
