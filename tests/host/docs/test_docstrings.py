"""What ``help()`` shows: every public function and class says what it does."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import gradcore

MODULES = ("gradcore", "gradcore.amp", "gradcore.autograd", "gradcore.cuda", "gradcore.data", "gradcore.distributions",
           "gradcore.errors", "gradcore.func", "gradcore.linalg", "gradcore.memory", "gradcore.nn", "gradcore.nn.functional",
           "gradcore.nn.init", "gradcore.nn.utils", "gradcore.optim", "gradcore.optim.lr_scheduler", "gradcore.report",
           "gradcore.special", "gradcore.utils.data")


def public(name: str) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(name)
    for key in dir(module):
        if not key.startswith("_") and callable(what := getattr(module, key)):
            yield key, what


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    found = dict(public(name))
    assert found
    assert [key for key, what in found.items() if not inspect.getdoc(what)] == []


def test_functions_of_ops_say_what_they_compute() -> None:
    said = {key: inspect.getdoc(what) for key, what in public("gradcore")}
    assert [key for key, doc in said.items() if doc is not None and doc.startswith("The op ")] == []
    assert said["arctan2"] == "The angle of the point with abscissa y and ordinate x, in radians in [-pi, pi]."
    assert gradcore.Tensor.exp.__doc__ == said["exp"]


def own_methods(kind: type) -> Iterator[str]:
    """The names of the functions and properties that a class has from classes of gradcore."""
    for base in kind.__mro__:
        for key, what in vars(base).items():
            function = getattr(what, "__func__", getattr(what, "fget", what))
            if not key.startswith("_") and inspect.isfunction(function) and base.__module__.partition(".")[0] == "gradcore":
                yield key


@pytest.mark.parametrize("name", MODULES)
def test_every_public_method_has_a_docstring(name: str) -> None:
    """Its own, or that of a base class. ``forward`` says the same as its class."""
    kinds = {what for _, what in public(name) if isinstance(what, type) and what.__module__.partition(".")[0] == "gradcore"}
    missing = {f"{kind.__name__}.{key}" for kind in kinds for key in own_methods(kind) if key != "forward"
               and not any(getattr(vars(base).get(key), "__doc__", None) for base in kind.__mro__)}
    assert sorted(missing) == []
