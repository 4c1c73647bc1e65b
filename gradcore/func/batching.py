"""``vmap``: a function of samples over batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from gradcore._random import bookmark, default_generators
from gradcore._tensor import Tensor
from gradcore.engine.modes import is_grad_enabled
from gradcore.functional import select, stack, unbind
from gradcore.trees import filled, leaves, mapped

Dims = Any


def vmap(func: Callable[..., Any], in_dims: Dims = 0, out_dims: Dims = 0, randomness: str = "error", *,
         chunk_size: int | None = None) -> Callable[..., Any]:
    """A function that calls ``func`` for each sample of its arguments, and stacks the results.

    ``in_dims`` has the dimension of the samples for each argument, None for those that all samples share: one for all, or a
    tuple with one for each argument, which may be nested as that is. All samples share keyword arguments. ``out_dims`` says in
    the same way where the samples go in the results; with None there, they share the first sample's. Random numbers are an
    error, the ``"same"`` for all samples, or ``"different"`` ones. ``chunk_size`` changes nothing: ``func`` is called sample by
    sample, so that it costs as much as a loop, and may look at values.

    Raises ValueError for dimensions that do not fit the arguments or the results, and for no samples, of whose results nothing
    is known; RuntimeError for another ``randomness``, and for random numbers that are an error.
    """
    need_randomness(randomness)
    if chunk_size is not None and not chunk_size > 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")
    name = getattr(func, "__name__", repr(func))

    @functools.wraps(func, updated=())
    def batched(*args: Any, **kwargs: Any) -> Any:
        where = f"vmap({name}, in_dims={in_dims}, ...)(<inputs>)"
        if not isinstance(in_dims, (int, tuple)) or isinstance(in_dims, bool):
            raise ValueError(f"{where}: expected `in_dims` to be int or a (potentially nested) tuple matching the structure of "
                             f"inputs, got: {type(in_dims)}.")
        if not args:
            raise ValueError(f"vmap({name})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you are trying to "
                             "vmap over a function with no inputs. The latter is unsupported.")
        tensors = list(leaves(args))
        dims = [_checked(where, x, d) for x, d in zip(tensors, _spread(
            in_dims, args, f"{where}: in_dims is not compatible with the structure of `inputs`"), strict=True)]
        count = _samples(tensors, dims)
        # One op, whose gradient joins those of the samples: that of each index has the size of the whole.
        samples = [unbind(x, d) if d is not None and x.requires_grad and is_grad_enabled() else None
                   for x, d in zip(tensors, dims, strict=True)]
        results = []
        for k in _drawing(count, randomness):
            own = filled(args, (x if d is None else select(x, d, k) if of is None else of[k]
                                for x, d, of in zip(tensors, dims, samples, strict=True)))
            results.append(func(*own, **kwargs))
        return _stacked(name, out_dims, results)

    return batched


def need_randomness(given: Any) -> None:
    """Raise RuntimeError for another word than the three that say how samples draw random numbers."""
    if given not in ("error", "different", "same"):
        raise RuntimeError(f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {given}")


def _spread(dims: Dims, tree: Any, error: str) -> Iterator[Any]:
    """A dimension for each leaf: one in the place of a part is that of all its leaves. Raises ValueError with ``error``."""
    if dims is None or isinstance(dims, int):
        yield from (dims for _ in leaves(tree))
        return
    keys = _keys(dims)
    if keys is None or keys != _keys(tree) or isinstance(dims, dict) is not isinstance(tree, dict):
        raise ValueError(f"{error}: {dims} for {_outline(tree)}.")
    for key in keys:
        yield from _spread(dims[key], tree[key], error)


def _keys(tree: Any) -> list[Any] | None:
    return list(tree) if isinstance(tree, dict) else [*range(len(tree))] if isinstance(tree, (list, tuple)) else None


def _outline(tree: Any) -> str:
    return repr(mapped(tree, _outline)) if isinstance(tree, (list, tuple, dict)) else type(tree).__name__


def _checked(where: str, x: Any, d: int | None) -> int | None:
    if d is None:
        return None
    if not isinstance(x, Tensor):
        raise ValueError(f"{where}: Got in_dim={d} for an input but the input is of type {type(x)}. We cannot vmap over "
                         "non-Tensor arguments, please use None as the respective in_dim")
    n = x.spec.ndim
    if not -n <= d < n:
        raise ValueError(f"{where}: Got in_dim={d} for some input, but that input is a Tensor of dimensionality {n} so "
                         f"expected in_dim to satisfy -{n} <= in_dim < {n}.")
    return d % n


def _samples(tensors: list[Any], dims: list[int | None]) -> int:
    sizes = [x.spec.shape[d] for x, d in zip(tensors, dims, strict=True) if d is not None]
    if not sizes:
        raise ValueError("vmap: at least one input must have samples, but in_dims is None for all")
    if len({*sizes}) > 1:
        raise ValueError("vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
                         f"{sizes} for the mapped dimension")
    if not sizes[0]:
        raise ValueError("vmap: expected at least one sample, but the mapped dimension has size 0")
    return sizes[0]


def _drawing(count: int, randomness: str) -> Iterator[int]:
    """The numbers of the samples. Between them it sees to it that none draws random numbers, or that all draw the same."""
    go_back = bookmark() if randomness == "same" else None
    drawn = [g.drawn for g in default_generators()]
    for k in range(count):
        if k and go_back is not None:
            go_back()
        yield k
        if randomness == "error" and [g.drawn for g in default_generators()[:len(drawn)]] != drawn:
            raise RuntimeError("vmap: called random operation while in randomness error mode. Please either use the 'same' or "
                               "'different' randomness flags on vmap or perform the randomness operation out of vmap")


def _stacked(name: str, out_dims: Dims, results: list[Any]) -> Any:
    first = results[0]
    for x in leaves(first):
        if not isinstance(x, Tensor):
            raise ValueError(f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(x)}.")
    dims = _spread(out_dims, first, f"vmap({name}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible with the "
                                    "structure of `outputs`")
    columns = zip(*map(leaves, results), strict=True)
    return filled(first, (column[0] if d is None else stack(column, d) for d, column in zip(dims, columns, strict=True)))
