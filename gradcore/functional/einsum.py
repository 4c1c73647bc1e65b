"""Einstein summation: operands are combined pairwise, the smallest product first, each by a matrix or elementwise product."""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import combinations
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.functional.matrices import diagonal
from gradcore.functional.products import total
from gradcore.functional.shape import listed
from gradcore.ops import elementwise, linalg, movement
from gradcore.units import count_of

Tensor = Any
#: A tensor, and a label for each of its dimensions.
Labelled = tuple[Any, list[Any]]

__all__ = ["einsum"]


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sum of products in Einstein's notation, such as ``"bij,bjk->bik"``: letters that the result lacks are summed over.

    An ellipsis stands for dimensions without a letter, which broadcast; a letter repeated within an operand takes a diagonal.
    Numbers and Ellipsis may replace letters: ``einsum(x, [0, 1], y, [1, 2], [0, 2])``, where the last list is the result's.
    Operands are combined two at a time, those first whose product is smallest. Raises :class:`SpecError` for an equation that
    does not fit the operands, ValueError for a number outside [0, 52).
    """
    if isinstance(equation, Value):
        equation, operands = _spelled((equation, *operands))
    elif not isinstance(equation, str):
        raise TypeError(f"einsum(): argument 'equation' (position 1) must be str, not {type(equation).__name__}")
    given = listed(operands)
    inputs, output = _parse(equation, given)
    waiting = [_without_repeats(x, labels) for x, labels in zip(given, inputs, strict=True)]
    sizes: dict[Any, int] = {}
    for x, labels in waiting:
        for label, n in zip(labels, x.spec.shape, strict=True):
            if sizes.setdefault(label, n) != n and 1 not in (n, sizes[label]):
                raise SpecError(f"einsum(): subscript {label} has size {n} for an operand of shape {list(x.spec.shape)}, which "
                                f"does not broadcast with previously seen size {sizes[label]}")
            sizes[label] = max(sizes[label], n) if 0 not in (n, sizes[label]) else 0
    waiting = [_without_ones(x, labels, sizes) for x, labels in waiting]
    while len(waiting) > 1:
        pairs = list(combinations(range(len(waiting)), 2))
        i, j = min(pairs, key=lambda pair: _size(waiting, pair[0], pair[1], output, sizes)) if len(pairs) > 1 else pairs[0]
        after = _after(waiting, i, j, output)
        second, first = waiting.pop(j), waiting.pop(i)
        waiting.insert(i, _combined(first, second, after, sizes))
    x, labels = _relevant(*waiting[0], output)
    return movement.permute(x, dims=tuple(labels.index(n) for n in output)) if labels != output else x


def _size(waiting: list[Labelled], i: int, j: int, output: list[Any], sizes: dict[Any, int]) -> int:
    """The number of elements of two operands' product."""
    return math.prod(sizes[n] for n in {*waiting[i][1], *waiting[j][1]} & _after(waiting, i, j, output))


def _after(waiting: list[Labelled], i: int, j: int, output: list[Any]) -> set[Any]:
    """The labels that are needed once two operands are combined."""
    return {label for k, (_, labels) in enumerate(waiting) if k not in (i, j) for label in labels}.union(output)


def _spelled(given: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Turn operands, each followed by a list of numbers, into an equation and operands."""
    pairs = len(given) // 2
    if not pairs:
        raise ValueError("einsum(): must specify the equation string and at least one operand, or at least one operand and its "
                         "subscripts list")
    terms = []
    for numbers in (*given[1:2 * pairs:2], *given[2 * pairs:]):
        if any(n is not Ellipsis and not 0 <= n < 52 for n in numbers):
            raise ValueError(f"einsum(): subscript in subscript list is not within the valid range [0, 52): {list(numbers)}")
        terms.append("".join("..." if n is Ellipsis else ascii_uppercase[n] if n < 26 else ascii_lowercase[n - 26]
                             for n in numbers))
    return ",".join(terms[:pairs]) + "".join(f"->{term}" for term in terms[pairs:]), given[:2 * pairs:2]


def _parse(equation: str, operands: list[Tensor]) -> tuple[list[list[Any]], list[Any]]:
    """Labels of the operands and of the result: letters, and for an ellipsis its dimensions' numbers, counted from the end."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise SpecError(f"einsum(): the equation {equation!r} has subscripts for {count_of(len(terms), 'operand')}, but got "
                        f"{len(operands)}")
    inputs = []
    for term, x in zip(terms, operands, strict=True):
        head, dots, tail = term.partition("...")
        free = x.spec.ndim - len(head) - len(tail)
        if (not (head + tail).isalpha() and head + tail) or free < 0 or (free and not dots):
            raise SpecError(f"einsum(): the subscripts {term!r} do not fit an operand of shape {list(x.spec.shape)}")
        inputs.append([*head, *range(free, 0, -1), *tail])
    most = max((n for labels in inputs for n in labels if isinstance(n, int)), default=0)
    letters = [n for labels in inputs for n in labels if isinstance(n, str)]
    if not arrow:
        return inputs, [*range(most, 0, -1), *sorted(n for n in set(letters) if letters.count(n) == 1)]
    head, dots, tail = right.partition("...")
    for letter in head + tail:
        if letter not in letters or (head + tail).count(letter) > 1:
            raise SpecError(f"einsum(): the output subscript {letter!r} of {equation!r} must appear in an operand, and only "
                            "once in the output")
    return inputs, [*head, *(range(most, 0, -1) if dots else ()), *tail]


def _without_repeats(x: Tensor, labels: list[Any]) -> Labelled:
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            one = labels.index(label)
            two = labels.index(label, one + 1)
            if x.spec.shape[one] != x.spec.shape[two]:
                raise SpecError(f"einsum(): subscript {label} is repeated but the sizes {x.spec.shape[one]} and "
                                f"{x.spec.shape[two]} differ")
            x = diagonal(x, 0, one, two)
            labels = [n for d, n in enumerate(labels) if d not in (one, two)] + [label]
    return x, labels


def _without_ones(x: Tensor, labels: list[Any], sizes: dict[Any, int]) -> Labelled:
    """The operand without the dimensions along which it is broadcast: a matrix product needs no copies for them."""
    own = [(n, size) for n, size in zip(labels, x.spec.shape, strict=True) if size == sizes[n]]
    return movement.reshape(x, [size for _, size in own]), [n for n, _ in own]


def _combined(first: Labelled, second: Labelled, after: set[Any], sizes: dict[Any, int]) -> Labelled:
    """The product of two operands, with the labels that are needed afterwards; the others are summed over."""
    (a, of_a), (b, of_b) = (_relevant(x, labels, set(others) | after)
                            for (x, labels), others in ((first, second[1]), (second, first[1])))
    shared = [n for n in of_a if n in of_b]
    inner = [n for n in shared if n not in after]
    batch = [n for n in shared if n not in inner]
    rows, columns = [n for n in of_a if n not in shared], [n for n in of_b if n not in shared]
    if not inner:
        made = elementwise.mul(_ordered(a, of_a, [*batch, *rows], len(columns)),
                               _ordered(b, of_b, [*batch, *([None] * len(rows)), *columns], 0))
        return _relevant(made, [*batch, *rows, *columns], after)
    kept = [sizes[n] for n in batch]
    a, b = _ordered(a, of_a, [*batch, *rows, *inner], 0), _ordered(b, of_b, [*batch, *inner, *columns], 0)
    lead = [math.prod(kept)] if batch else []
    depth, i, j = (math.prod(sizes[n] for n in labels) for labels in (inner, rows, columns))
    made = linalg.matmul(movement.reshape(a, (*lead, i, depth)), movement.reshape(b, (*lead, depth, j)))
    made = movement.reshape(made, (*kept, *(sizes[n] for n in rows), *(sizes[n] for n in columns)))
    return _relevant(made, [*batch, *rows, *columns], after)


def _relevant(x: Tensor, labels: list[Any], wanted: Collection[Any]) -> Labelled:
    """The operand summed over the dimensions whose labels are not ``wanted``."""
    return (total(x, [d for d, n in enumerate(labels) if n not in wanted]), [n for n in labels if n in wanted])


def _ordered(x: Tensor, labels: list[Any], order: list[Any], trailing: int) -> Tensor:
    """Dimensions permuted to the order of the labels; None is a new dimension of size 1, and ``trailing`` of them come last."""
    x = movement.permute(x, dims=tuple(labels.index(n) for n in order if n is not None))
    if None not in order and not trailing:
        return x
    rest = iter(x.spec.shape)
    return movement.reshape(x, [1 if n is None else next(rest) for n in order] + [1] * trailing)
