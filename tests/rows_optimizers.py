"""Sample calls of the optimizers beside SGD and Adam, with their formulas over NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.rows import Row, floats

ROWS: list[Row] = []
two = [floats(2, 3), floats(4)]
positive = [floats(2, 3, low=4.5, high=6), floats(4, low=4.5, high=6)]

#: Computes new (p, states...) from (p, g, states...), with the gradient after sign and weight decay.
One = Callable[..., tuple[Any, ...]]


def over_lists(one: One, lists: int, weight_decay: float, maximize: bool) -> Callable[..., Any]:
    """The lists that the op writes, computed by a formula for one parameter."""

    def update(*args: Any) -> Any:
        tensors, numbers = [t for t in args[:lists] if t], args[lists:]
        made = []
        for p, g, *states in zip(*tensors, strict=True):
            made.append(one(p, (-g if maximize else g) + weight_decay * p, *states, *numbers))
        return tuple(part for parts in zip(*made, strict=True) for part in parts)

    return update


def add(op: str, case: str, states: list[Any], numbers: tuple[float, ...], one: One, weight_decay: float = 0.0,
        maximize: bool = False, decay_apart: bool = False, **attrs: Any) -> None:
    update = over_lists(one, 2 + len(states), 0.0 if decay_apart else weight_decay, maximize)
    ROWS.append(Row(op, case, (two, two, *states, *numbers), {"weight_decay": weight_decay, "maximize": maximize, **attrs},
                    numpy=update))


def rmsprop(centered: bool) -> One:
    def one(p: Any, g: Any, v: Any, *rest: Any) -> Any:
        *states, lr, momentum = rest
        v = 0.9 * v + 0.1 * g * g
        kept = [v]
        root = np.sqrt(v)
        if centered:
            kept.append(0.9 * states[0] + 0.1 * g)
            root = np.sqrt(v - kept[-1] ** 2)
        step = g / (root + 1e-6)
        if len(states) > centered:
            kept.append(momentum * states[-1] + step)
            step = kept[-1]
        return p - lr * step, *kept

    return one


for _case, _centered, _moments, _momentum, _decay, _maximize in (
        ("plain", False, [], 0.0, 0.0, False), ("centered", True, [], 0.0, 0.1, False),
        ("momentum", False, two, 0.8, 0.0, True), ("momentum of 0", False, two, 0.0, 0.0, False),
        ("centered momentum", True, two, 0.8, 0.1, True)):
    add("rmsprop_", _case, [positive, two if _centered else [], _moments], (0.1, _momentum), rmsprop(_centered), _decay,
        _maximize, alpha=0.9, eps=1e-6)


def adagrad(p: Any, g: Any, s: Any, lr: float, divisor: float) -> Any:
    s = s + g * g
    return p - lr / divisor * g / (np.sqrt(s) + 1e-6), s


def adadelta(p: Any, g: Any, v: Any, u: Any, lr: float) -> Any:
    v = 0.9 * v + 0.1 * g * g
    step = np.sqrt(u + 1e-6) / np.sqrt(v + 1e-6) * g
    return p - lr * step, v, 0.9 * u + 0.1 * step * step


def nadam(shrink: float) -> One:
    def one(p: Any, g: Any, m: Any, v: Any, lr: float, step: int, ahead: float, behind: float, beta1: float) -> Any:
        m, v = beta1 * m + (1 - beta1) * g, 0.9 * v + 0.1 * g * g
        return p * (1 - lr * shrink) - lr * (ahead * m + behind * g) / (np.sqrt(v / (1 - 0.9 ** step)) + 1e-6), m, v

    return one


def radam(shrink: float) -> One:
    def one(p: Any, g: Any, m: Any, v: Any, lr: float, step: int, factor: float, beta1: float) -> Any:
        m, v = beta1 * m + (1 - beta1) * g, 0.9 * v + 0.1 * g * g
        mean = m / (1 - beta1 ** step)
        return p * (1 - lr * shrink) - lr * (mean * factor / (np.sqrt(v) + 1e-6) if factor else mean), m, v

    return one


def lion(shrink: float) -> One:
    def one(p: Any, g: Any, m: Any, lr: float, beta1: float) -> Any:
        return p * (1 - lr * shrink) - lr * np.sign(beta1 * m + (1 - beta1) * g), 0.9 * m + 0.1 * g

    return one


def adamax(p: Any, g: Any, m: Any, u: Any, lr: float, step: int, beta1: float) -> Any:
    m, u = beta1 * m + (1 - beta1) * g, np.maximum(0.9 * u, abs(g) + 1e-6)
    return p - lr / (1 - beta1 ** step) * m / u, m, u


def asgd(p: Any, g: Any, average: Any, eta: float, mu: float, lambd: float) -> Any:
    p = p * (1 - lambd * eta) - eta * g
    return p, p if mu == 1 else average + mu * (p - average)


def rprop(p: Any, g: Any, last: Any, size: Any, smaller: float, larger: float, least: float, most: float) -> Any:
    size = np.clip(np.where(g * last > 0, size * larger, np.where(g * last < 0, size * smaller, size)), least, most)
    g = np.where(g * last < 0, 0 * g, g)
    return p - size * np.sign(g), g, size


for _maximize in (False, True):
    # As in the first step, some have no last gradient.
    _last = [floats(2, 3, given=(0, 1, -1, 0, 2, -2)), floats(4)]
    ROWS.append(Row("rprop_", f"maximize {_maximize}", (two, two, _last, positive, 0.5, 1.2, 3.0, 5.5), {"maximize": _maximize},
                    numpy=over_lists(rprop, 4, 0.0, _maximize)))
for _decay, _maximize in ((0.0, False), (0.1, True)):
    add("adamax_", f"decay {_decay}", [two, positive], (0.1, 3, 0.8), adamax, _decay, _maximize, beta2=0.9, eps=1e-6)
    for _share in (1.0, 0.25):
        add("asgd_", f"decay {_decay} share {_share}", [two], (0.1, _share, 0.2), asgd, _decay, _maximize)
for _decay, _maximize in ((0.0, False), (0.1, True)):
    _case = f"decay {_decay}"
    add("adagrad_", _case, [positive], (0.1, 1.5), adagrad, _decay, _maximize, eps=1e-6)
    add("adadelta_", _case, [positive, positive], (0.1,), adadelta, _decay, _maximize, rho=0.9, eps=1e-6)
    add("lion_", _case, [two], (0.1, 0.8), lion(_decay), _decay, _maximize, decay_apart=True, beta2=0.9)
    for _apart in (False, True):
        _case = f"decay {_decay} apart {_apart}"
        _how = {"eps": 1e-6, "decoupled": _apart, "beta2": 0.9}
        _shrink = _decay if _apart else 0.0
        add("nadam_", _case, [two, positive], (0.1, 3, 0.7, 0.4, 0.8), nadam(_shrink), _decay, _maximize, _apart, **_how)
        for _factor in (0.0, 0.3):
            add("radam_", f"{_case} factor {_factor}", [two, positive], (0.1, 3, _factor, 0.8), radam(_shrink), _decay,
                _maximize, _apart, **_how)


def at(row: Row, params: list[Any], states: list[Any]) -> Row:
    """The same call on other tensors."""
    lists = [states if a else a for a in row.args if isinstance(a, list)][2:]
    return Row(row.op, f"{row.name}, {len(params)} of up to {max(p.shape[0] for p in params)}",
               (params, params, *lists, *[a for a in row.args if not isinstance(a, list)]), row.attrs)


_BIG = [floats(512, 1024), floats(1024)], [floats(512, 1024, low=4.5, high=6), floats(1024, low=4.5, high=6)]
BIG = [at(row, *_BIG) for row in ROWS]
_many = [(k % 7 + 1, 3) for k in range(70)] + [(9001,)]
MANY = [at(row, [floats(*s) for s in _many], [floats(*s, low=4.5, high=6) for s in _many]) for row in ROWS[-1:] + ROWS[4:7]]

# -- all gradients together --------------------------------------------------------------------------------------------


def together(name: str, tensors: list[Any]) -> list[Row]:
    """The square sum and the scaling of the tensors."""
    return [Row("square_sum", name, (tensors,), numpy=lambda tensors: sum((t * t).sum(dtype=t.dtype) for t in tensors)),
            Row("scale_", name, (tensors, floats()), numpy=lambda tensors, factor: tuple(t * factor for t in tensors))]


for _name, _tensors in (("plain", two), ("one", [floats(3)]), ("none of some", [floats(0), floats(3)]),
                        ("0d", [floats(), floats(5)])):
    ROWS += together(_name, _tensors)
ROWS += [*together("empty", [floats(0)]), *together("strided", [floats(3, 4, layout="transposed"), floats(2)])[:1]]
BIG += together("large", _BIG[0])
MANY += together("many", [floats(*s) for s in _many])
