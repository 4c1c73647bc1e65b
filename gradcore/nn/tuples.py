"""What PyTorch has in ``torch.nn.modules.utils``: tuples of sizes, and state dicts without a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns an iterable as a tuple, and anything else ``n`` times."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else (x,) * n

    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = (
    _ntuple(n, name) for n, name in enumerate(("_single", "_pair", "_triple", "_quadruple"), 1))


def _reverse_repeat_tuple(t: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    """The elements in reverse order, each ``n`` times: with 2, the padding of each dimension as ``pad`` takes it."""
    return tuple(x for x in reversed(t) for _ in range(n))


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Take ``prefix`` off the keys of a state dict, in place, such as the ``module.`` of PyTorch's ``DataParallel``."""
    for key in [k for k in state_dict if k.startswith(prefix)]:
        state_dict[key.removeprefix(prefix)] = state_dict.pop(key)
    # What is known of modules, by their paths.
    metadata = getattr(state_dict, "_metadata", {})
    for key in [k for k in metadata if k and f"{k}.".startswith(prefix)]:
        metadata[key[len(prefix):]] = metadata.pop(key)
