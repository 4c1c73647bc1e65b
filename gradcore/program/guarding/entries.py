"""Guards for the keys and the values of dicts, and for what the code can reach from them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from gradcore.engine.value import Value
from gradcore.program.guarding.guards import Found, Guard, items_of, same_entries, same_items, unseen, weakly
from gradcore.program.guarding.values import MOST_INSIDE, equal, is_plain

if TYPE_CHECKING:
    from gradcore.program.guarding.reach import Reach


def of_entries(name: str, look: Callable[[], Any], value: Any, key: tuple[Any, ...], reach: Reach,
               unread: Collection[str] = ()) -> Found:
    """Guards for the keys and values of a dict, except for those of the ``unread`` keys."""
    # Tensors as keys are compared by identity.
    yield (Guard(f"the keys of {name}", lambda: tuple(look()), tuple(value),
                 same_items if any(isinstance(k, Value) for k in value) else equal), (*key, "keys"))
    if not unread:
        yield items_of(name, look), (*key, "ids")
    if len(value) > MOST_INSIDE:
        yield Guard(name, look, dict(value), same_entries), key
        yield unseen(name), (*key, "unseen")
    elif reach.enters(value, items=True):
        for k, item in [(k, v) for k, v in value.items() if k not in unread]:
            for part in k if isinstance(k, (tuple, frozenset)) else (k,):
                yield from () if isinstance(part, Value) or is_plain(part) else reach.of_object(part)
            if isinstance(k, Value) and k.edge is None:  # It may be an argument, too.
                yield from reach.of_value(f"a key of {name}", weakly(k), k, (*key, "key", id(k)))
            label, at = repr(k) if is_plain(k) else f"a {type(k).__name__}", weakly(k)
            yield from reach.of_value(f"{name}[{label}]", lambda at=at: _entry(look(), at()),  # type: ignore[misc]
                                      item, (*key, "item", id(k)))


def _entry(container: Any, key: Any) -> Any:
    """What a dict has under a key, whatever a ``__getitem__`` of the user's makes of it."""
    # An index would make an entry of a defaultdict that has none.
    return dict.get(container, key) if isinstance(container, dict) else container[key]
