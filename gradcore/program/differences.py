"""What a replay would return other than an eager run of the same call did, beside the values of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gradcore.program.arguments import Output
from gradcore.program.records import Record
from gradcore.program.values import equal, is_plain, same_array


def differences(name: str, ours: Any, eager: Any, outputs: list[Any]) -> Iterator[tuple[str, str, str]]:
    """The differences of two templates of results: the place in the result, and what the replay and the eager run have there.

    ``outputs`` are the tensors of the eager run.
    """
    if type(ours) is not type(eager):
        yield name, _text(ours), _text(eager)
    elif isinstance(ours, Output):
        if not _same_tensor(ours, eager, outputs):
            yield name, "one tensor", "another"
    elif isinstance(ours, (list, tuple)):
        if len(ours) != len(eager):
            yield name, _text(ours), _text(eager)
        for k, (was, now) in enumerate(zip(ours, eager, strict=False)):
            yield from differences(f"{name}[{k}]", was, now, outputs)
    elif isinstance(ours, dict):
        if not equal(tuple(eager), tuple(ours)):
            yield name, f"the keys {[*ours]}", f"the keys {[*eager]}"
        else:
            for key in ours:
                yield from differences(f"{name}[{key!r}]", ours[key], eager[key], outputs)
    elif isinstance(ours, Record):
        if ours.kind is not eager.kind or [*ours.items] != [*eager.items]:
            yield name, _text(ours), _text(eager)
        else:
            for key in ours.items:
                yield from differences(f"{name}.{key}", ours.items[key], eager.items[key], outputs)
    elif not (same_array(eager, ours) if isinstance(ours, np.ndarray) else equal(eager, ours) if is_plain(ours) else True):
        yield name, _text(ours), _text(eager)


def _same_tensor(ours: Output, eager: Output, outputs: list[Any]) -> bool:
    if ours.value is not None:
        return ours.value is (outputs[eager.index] if eager.index >= 0 else eager.value)
    return (ours.index, ours.argument, ours.leaf, None) == (eager.index, eager.argument, eager.leaf, eager.value)


def _text(x: Any) -> str:
    if isinstance(x, Output):
        return "a tensor"
    if isinstance(x, Record):
        return f"a {x.kind.__name__} with {', '.join(x.items)}"
    if isinstance(x, (list, tuple, dict)):
        return f"a {type(x).__name__} of {len(x)}"
    return repr(x)
