"""Names of arguments: PyTorch's are taken by keyword, or refused by name, in every function and method that is here."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import arguments

NAMES = Path(arguments.__file__).with_name("torch_arguments.txt")
PATHS = ("", "Tensor", "nn.functional", "nn.init", "linalg")
#: Names for other purposes: dimensions with names, scripts' own spellings, another thing of the same name.
OTHER_THINGS = {"compile", "load", "save", "trace", "initial_seed", "seed", "manual_seed", "set_default_dtype", "result_type"}


def part_of(library: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        library = getattr(library, name)
    return library


def parameters(function: Any) -> list[str]:
    return [p.name for p in inspect.signature(function).parameters.values()]


def schemas(torch: Any, path: str, name: str) -> Iterator[list[str]]:
    """The arguments of each overload of an op of PyTorch's, as Python writes them."""
    found = torch._C._jit_get_schemas_for_operator(f"aten::{'linalg_' if path == 'linalg' else ''}{name}")
    # Those without a tensor to start from are of numbers and lists in scripts.
    own = [s for s in found if any(a.name in ("self", "tensors", "condition") for a in s.arguments)] or found
    for schema in own:
        outs = [a.name for a in schema.arguments if a.is_out]
        names = [a.name for a in schema.arguments if not a.is_out]
        if path == "Tensor":
            if "self" not in names or outs:
                continue
            yield [n for n in names if n != "self"]
        else:
            extra = ["out"] if outs and path != "nn.functional" else []
            yield [*("input" if n == "self" else n for n in names if n != "names"), *extra]


def theirs(torch: Any, path: str, name: str) -> list[str]:
    """The arguments of a function or method of PyTorch's, in their order; none where nobody says."""
    function = getattr(part_of(torch, path), name, None)
    if inspect.isfunction(function):
        names = parameters(function)[path == "Tensor":]
        if not {"args", "kwargs"} >= {*names}:
            return [n for n in names if n not in ("args", "kwargs")]
    if not callable(function) or isinstance(function, type):
        return []
    return list(dict.fromkeys(n for names in schemas(torch, path, name) for n in names))


def ours(path: str) -> Iterator[tuple[str, Any]]:
    """Our functions and methods, without what makes them lenient."""
    part = part_of(gradcore, path)
    for name in sorted(dir(part)):
        function = inspect.getattr_static(part, name)
        if not name.startswith("_") and inspect.isfunction(function) and (path or name not in OTHER_THINGS):
            yield name, function


def written(torch: Any) -> str:
    lines = ["The arguments of PyTorch 2.13: GRADCORE_WRITE_README=1 pytest tests/host/test_arguments.py writes them."]
    for path in PATHS:
        lines.append(f"[torch.{path}]" if path else "[torch]")
        lines += [f"{name}: {' '.join(found)}" for name, _ in ours(path) if (found := theirs(torch, path, name))]
    return "\n".join(lines) + "\n"


@pytest.mark.oracle
def test_the_arguments_are_pytorchs(torch: Any) -> None:
    if not torch.__version__.startswith("2.13"):
        pytest.skip(f"the names are those of PyTorch 2.13, this is {torch.__version__}")
    text = written(torch)
    if os.environ.get("GRADCORE_WRITE_README") == "1":
        NAMES.write_text(text)
    assert NAMES.read_text() == text, "GRADCORE_WRITE_README=1 pytest tests/host/test_arguments.py writes it anew"
