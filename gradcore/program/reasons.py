"""Says in words what a call's key has other than the key of the trace before, from which it is traced again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.program.places import Place
from gradcore.spec import TensorSpec

#: What is compared by identity.
_LEAF = "a leaf that requires a gradient"
_OBJECT = "an object"


def difference(key: Any, before: Any, modes: Sequence[str]) -> str:
    """A sentence on the first difference of two keys, which begin with the ``modes`` and go on with the arguments."""
    k = next((k for k, (now, was) in enumerate(zip(key, before, strict=False)) if now != was), len(key))
    if k < len(modes):
        return f"the mode is new: {modes[k]} is {key[k]} and was {before[k]}"
    more = [part[0].name for part in key[len(modes):] if isinstance(part, tuple) and part and isinstance(part[0], Place)
            and all(part[0] is not was[0] for was in before if isinstance(was, tuple) and was)]
    if more:
        return f"{', '.join(more)} became an argument"
    if len(key) != len(before) or k == len(key):
        return "there are more or fewer arguments or tensors in them, or they share memory in another way"
    now, was = key[k], before[k]
    if all(isinstance(x, int) for x in key[k:]):
        # Behind the arguments are numbers that say which of them share memory; an object is a number, too.
        return "an argument is another object, which is compared by identity, or the arguments share memory in another way"
    name = f"argument {k - len(modes)}"
    if isinstance(now, tuple) and isinstance(was, tuple) and isinstance(now[0], Place) and now[0] is was[0]:
        name, now, was = now[0].name, now[1], was[1]
    elif _is_named(now) and _is_named(was) and now[0] == was[0]:
        name, now, was = f"argument {now[0]}", now[1], was[1]
    while _is_container(now) and _is_container(was) and now[0] is was[0] and len(now) == len(was):
        i, now, was = next((i, a, b) for i, (a, b) in enumerate(zip(now, was, strict=True)) if a != b)
        if _is_named(now) and _is_named(was) and now[0] == was[0]:
            name, now, was = f"{name}[{now[0]!r}]", now[1], was[1]
        else:
            name = f"{name}[{i - 1}]"
    texts = _text(now), _text(was)
    if texts[0] == texts[1] and texts[0] in (_LEAF, _OBJECT):
        return another(name, texts[0] == _LEAF)
    if texts[0] == texts[1] and isinstance(now[0], TensorSpec) and now[0].strides != was[0].strides:
        return f"{name}, {texts[0]}, has strides {now[0].strides} and had {was[0].strides}"
    return f"{name} is {texts[0]} and was {texts[1]}" if all(texts) and texts[0] != texts[1] else f"{name} has changed"


def another(name: str, leaf: bool) -> str:
    """A sentence on an argument that is compared by identity, as a leaf is."""
    inside = ": call x = x.detach().requires_grad_() inside of the function" if leaf else ""
    return f"{name} is another {(_LEAF if leaf else _OBJECT).split(' ', 1)[1]}, and these are compared by identity{inside}"


def _is_named(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str)


def _is_container(part: Any) -> bool:
    return isinstance(part, tuple) and part[0] in (list, tuple, dict)


def _text(part: Any) -> str:
    """An argument as a text, from its part of a key; "" for what takes too many words."""
    if isinstance(part, int):
        return _OBJECT
    if isinstance(part, tuple) and isinstance(part[0], int):
        return _LEAF
    if isinstance(part, tuple) and isinstance(part[0], TensorSpec):
        return f"{part[0]} on {part[1]}" + " that requires a gradient" * (part[3] > 0)
    if _is_container(part):
        return f"a {part[0].__name__} of {len(part) - 1}"
    if isinstance(part, tuple) and part[0] in (int, float, bool, str, type(None)):
        # The key of a zero is its text, which has a sign.
        text = str(part[1]) if part[0] is float else repr(part[1])
        return text if len(text) < 100 else ""
    return ""
