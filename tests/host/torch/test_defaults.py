"""Defaults of arguments: a call that leaves one out means what it means in PyTorch."""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import Any

import pytest

import gradcore
from tests.host.torch.test_arguments import OTHER_THINGS, part_of

#: How many defaults of a module's functions are compared, at least.
FUNCTIONS = {"": 200, "Tensor": 40, "nn.functional": 200, "nn.init": 19, "linalg": 21, "special": 2}
#: The same of its classes' constructors.
CLASSES = {"nn": 340, "optim": 100, "optim.lr_scheduler": 45, "utils.data": 10}


def plain(value: Any) -> Any:
    """One number for a list of the same, None for an empty one, a float for what is a number, a function's name."""
    if isinstance(value, (list, tuple)) and len(set(value)) < 2:
        value = value[0] if value else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return tuple(value) if isinstance(value, list) else value.__name__ if inspect.isfunction(value) else value


def theirs(torch: Any, path: str, name: str) -> dict[str, list[Any]]:
    """PyTorch's defaults of an argument, which its overloads may not share."""
    function, found = getattr(part_of(torch, path), name, None), defaultdict(list)
    if inspect.isfunction(function) or path in CLASSES:
        for p in inspect.signature(function).parameters.values() if callable(function) else ():
            found[p.name] += [p.default] * (p.default is not p.empty)
    else:
        op = f"aten::{f'{path}_' if path in ('linalg', 'special') else ''}{name}"
        for a in (a for schema in torch._C._jit_get_schemas_for_operator(op) for a in schema.arguments):
            # What Python calls has the reduction "none" for losses, whatever the schema says.
            found[a.name] += [a.default_value] * (a.has_default_value() and a.name != "reduction")
    return found


@pytest.mark.parametrize(("path", "least"), [*(FUNCTIONS | CLASSES).items()])
def test_defaults_are_pytorchs(path: str, least: int, torch: Any) -> None:
    """Where neither is None, which stands for what the function says."""
    wrong, count = [], 0
    for name, function in inspect.getmembers(part_of(gradcore, path), callable):
        if name.startswith("_") or name in OTHER_THINGS or inspect.isclass(function) != (path in CLASSES):
            continue
        known = theirs(torch, path, name)
        for p in inspect.signature(inspect.unwrap(function)).parameters.values():
            ours, wanted = plain(p.default), {plain(v) for v in known[p.name]} - {None}
            if isinstance(ours, (bool, float, str, tuple)) and p.default is not p.empty and wanted:
                count += 1
                if ours not in wanted:
                    wrong.append((name, p.name, ours, wanted))
    assert wrong == []
    assert count >= least
