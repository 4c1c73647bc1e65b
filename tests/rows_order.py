"""Sample calls of the ops that reorder, write at positions, scan, rank and measure."""

from __future__ import annotations

import math
import warnings
from typing import Any

from tests.rows import Operand, Row, bools, floats, ints

ROWS: list[Row] = []

# -- order, diagonals, windows -------------------------------------------------------------------------------------------

ROWS += [
    *[Row("flip", k, (a,), {"dims": dims}, torch=lambda t, x, d=dims: x.flip(d)) for k, a, dims in (
        ("last", floats(2, 3), (1,)), ("both", floats(2, 3), (0, 1)), ("transposed", floats(2, 3, layout="transposed"), (0,)),
        ("sliced", floats(2, 3, layout="sliced"), (1,)), ("expanded", floats(3, 2, layout="expanded"), (0, 1)),
        ("ints", ints(4), (0,)), ("empty", floats(0, 2), (0, 1)), ("0d", floats(), ()), ("one", floats(1), (0,)))],
    *[Row("roll", k, (a,), {"shifts": shifts, "dims": dims}, torch=lambda t, x, s=shifts, d=dims: x.roll(s, d))
      for k, a, shifts, dims in (
          ("last", floats(2, 5), (2,), (1,)), ("back", floats(5, 2), (-1,), (0,)), ("both", floats(3, 4), (1, -6), (0, 1)),
          ("twice", floats(5), (1, 2), (0, 0)), ("whole", floats(3), (3,), (0,)), ("ints", ints(4), (1,), (0,)),
          ("transposed", floats(2, 3, layout="transposed"), (1,), (1,)), ("empty", floats(0, 2), (1,), (0,)))],
    *[Row("diagonal", k, (a,), {"offset": offset, "dim1": one, "dim2": two},
          torch=lambda t, x, o=offset, a=one, b=two: x.diagonal(o, a, b)) for k, a, offset, one, two in (
              ("square", floats(3, 3), 0, 0, 1), ("above", floats(2, 4), 1, 0, 1), ("below", floats(4, 3), -2, 0, 1),
              ("outside", floats(2, 2), 5, 0, 1), ("batched", floats(2, 3, 4), 0, 1, 2), ("apart", floats(3, 2, 3), 1, 2, 0),
              ("transposed", floats(3, 4, layout="transposed"), 1, 0, 1), ("empty", floats(0, 3), 0, 0, 1))],
]
_WINDOWS: dict[str, tuple[Operand, dict[str, int]]] = {
    "plain": (floats(7), {"dim": 0, "size": 3, "step": 2}), "all": (floats(2, 4), {"dim": 1, "size": 4, "step": 1}),
    "first": (floats(5, 2), {"dim": 0, "size": 2, "step": 1}), "apart": (floats(2, 6), {"dim": 1, "size": 2, "step": 3}),
    "transposed": (floats(2, 5, layout="transposed"), {"dim": 1, "size": 3, "step": 1}),
    "dilated": (floats(2, 7), {"dim": 1, "size": 3, "step": 2, "dilation": 2}),
    "0d": (floats(), {"dim": 0, "size": 1, "step": 1}), "of nothing": (floats(0, 4), {"dim": 1, "size": 2, "step": 1})}


def _unfolded(t: Any, x: Any, dim: int, size: int, step: int, dilation: int = 1) -> Any:
    return x.unfold(dim, (size - 1) * dilation + 1, step)[..., ::dilation] if x.ndim else x.unfold(0, size, step)


def _folded_back(t: Any, dy: Any, shape: Any, how: dict[str, int]) -> Any:
    x = t.zeros(shape, dtype=dy.dtype, requires_grad=True)
    found, = t.autograd.grad(_unfolded(t, x, **how), x, t.ones(dy.shape, dtype=dy.dtype), create_graph=True)
    where = _unfolded(t, t.arange(x.numel()).reshape(shape), **how).reshape(-1)
    assert found.shape == x.shape
    return t.zeros(x.numel(), dtype=dy.dtype).index_add(0, where, dy.reshape(-1)).reshape(shape)


for _name, (_operand, _how) in _WINDOWS.items():
    _shape, _d, _all = _operand.shape, _how["dim"], {"dilation": 1, **_how}
    ROWS.append(Row("windows", _name, (_operand,), _all, torch=lambda t, x, h=_how: _unfolded(t, x, **h)))
    if _shape:
        _count = (_shape[_d] - (_how["size"] - 1) * _all["dilation"] - 1) // _how["step"] + 1
        _seen = (*_shape[:_d], _count, *_shape[_d + 1:], _how["size"])
        ROWS.append(Row("windows_grad", _name, (floats(*_seen, layout=_operand.layout),), {"shape": _shape, **_all},
                        torch=lambda t, g, s=_shape, h=_how: _folded_back(t, g, s, h)))
ROWS.append(Row("windows_grad", "0d", (floats(1),), {"shape": (), "dim": 0, "size": 1, "step": 1, "dilation": 1},
                torch=lambda t, g: g.reshape(())))

# -- positions -----------------------------------------------------------------------------------------------------------


def _scatter(t: Any, x: Any, index: Any, values: Any, dim: int, add: bool) -> Any:
    source = values.expand(index.shape)
    return (x.scatter_add if add else x.scatter)(dim, index, source)


def _scatter_extreme(t: Any, x: Any, index: Any, values: Any, dim: int, largest: bool) -> Any:
    return x.scatter_reduce(dim, index, values.expand(index.shape), "amax" if largest else "amin")


_ONCE = ints(2, 3, given=(2, 0, 1, 0, 2, 1))
ROWS += [
    *[Row(name, k, args, {"dim": dim}, torch=lambda t, x, i, v, d=dim, a=name == "add_along_": _scatter(t, x, i, v, d, a))
      for name in ("put_along_", "add_along_") for k, args, dim in (
          ("last", (floats(2, 4), _ONCE, floats(2, 3)), 1),
          ("first", (floats(3, 2), ints(1, 2, given=(2, 0)), floats(1, 2)), 0),
          ("fewer lines", (floats(3, 4), _ONCE, floats(2, 3)), 1), ("one value", (floats(2, 4), _ONCE, floats()), 1),
          ("layouts", (floats(2, 4), ints(2, 3, given=(0, 1, 2, 0, 1, 3), layout="transposed"),
                       floats(2, 3, layout="sliced")), 1),
          ("ints", (ints(4), ints(2, given=(3, 1)), ints(2)), 0), ("no positions", (floats(3), ints(0), floats(0)), 0),
          ("middle", (floats(2, 3, 2), ints(2, 1, 2, high=3), floats(2, 1, 2)), 1))],
    Row("add_along_", "repeats", (floats(2, 3), ints(2, 5, high=3), floats(2, 5)), {"dim": 1},
        torch=lambda t, x, i, v: x.scatter_add(1, i, v)),
    Row("put_along_", "repeats", (floats(3), ints(4, given=(1, 1, 1, 0)), floats(4)), {"dim": 0}, smooth=False, gradient=False,
        torch=lambda t, x, i, v: x.scatter(0, i, v)),
    *[Row("extreme_along_", k + ", smallest" * (not largest), args, {"dim": dim, "largest": largest}, gradient=False,
          torch=lambda t, x, i, v, d=dim, most=largest: _scatter_extreme(t, x, i, v, d, most))
      for largest in (True, False) for k, args, dim in (
          ("repeats", (floats(2, 3), ints(2, 5, high=3), floats(2, 5)), 1),
          ("fewer lines", (floats(3, 4), _ONCE, floats(2, 3)), 0), ("one value", (floats(2, 4), _ONCE, floats()), 1),
          ("layouts", (floats(2, 4, layout="transposed"), ints(2, 3, given=(0, 1, 1, 0, 1, 3), layout="transposed"),
                       floats(2, 3, layout="sliced")), 1),
          ("ints", (ints(4), ints(3, given=(3, 1, 3)), ints(3)), 0), ("no positions", (floats(3), ints(0), floats(0)), 0),
          ("NaN", (floats(3, given=(1.0, float("nan"), 2.0)), ints(4, given=(0, 0, 1, 2)),
                   floats(4, given=(float("nan"), 3.0, 4.0, float("inf")))), 0),
          ("middle", (floats(2, 3, 2), ints(2, 5, 2, high=3), floats(2, 5, 2)), 1))],
    *[Row("add_at_", k, args, {"dim": dim}, torch=lambda t, x, i, v, d=dim: _index_add(t, x, i, v, d)) for k, args, dim in (
        ("rows", (floats(3, 2), ints(4, given=(2, 0, 2, -1)), floats(4, 2)), 0),
        ("columns", (floats(2, 3), ints(4, given=(2, 0, 2, -1)), floats(2, 4)), 1),
        ("matrix of positions", (floats(3, 2), ints(2, 2, high=3), floats(2, 2, 2)), 0),
        ("broadcast", (floats(4, 2), ints(3, high=4), floats(2)), 0),
        ("0d position", (floats(3, 2), ints(high=3), floats(2)), 0),
        ("no positions", (floats(3), ints(0), floats(0)), 0), ("1d", (floats(4), ints(6, high=4), floats(6)), 0),
        ("layouts", (floats(4, 3), ints(2, given=(1, 2)), floats(2, 3, layout="transposed")), 0))],
]


def _index_add(t: Any, x: Any, index: Any, values: Any, dim: int) -> Any:
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1:])
    flat = values.expand(shape).reshape(*x.shape[:dim], -1, *x.shape[dim + 1:])
    return x.index_add(dim, index.reshape(-1) % x.shape[dim], flat)


# -- running sums and products -------------------------------------------------------------------------------------------

_ALONG: dict[str, tuple[Operand, int]] = {
    "last": (floats(2, 4), 1), "first": (floats(4, 2), 0), "middle": (floats(2, 3, 2), 1),
    "transposed": (floats(2, 4, layout="transposed"), 1), "sliced": (floats(2, 3, layout="sliced"), 1),
    "expanded": (floats(3, 2, layout="expanded"), 0), "empty": (floats(0, 3), 1), "nothing": (floats(2, 0), 1),
    "0d": (floats(), 0), "one": (floats(1), 0), "zeros": (floats(2, 4, given=(1, 0, 2, 3, 0, 2, 0, 4)), 1),
    "long": (floats(600, low=0.9, high=1.1), 0)}
ROWS += [
    *[Row("cumsum", f"{k} {reverse:d}", (a,), {"dim": dim, "reverse": reverse}, tolerance=1e-4 if k == "long" else 1e-5,
          torch=lambda t, x, d=dim, r=reverse: x.flip(d).cumsum(d).flip(d) if r and x.ndim else x.cumsum(d))
      for reverse in (False, True) for k, (a, dim) in _ALONG.items() if k != "long" or not reverse],
    *[Row("cumprod", k, (a,), {"dim": dim}, torch=lambda t, x, d=dim: x.cumprod(d)) for k, (a, dim) in _ALONG.items()
      if k != "long"],
    *[Row("cumextreme", f"{k} {largest:d}", (a,), {"dim": dim, "largest": largest},
          torch=lambda t, x, d=dim, most=largest: (t.cummax if most else t.cummin)(x, d)[0])
      for largest in (False, True) for k, (a, dim) in _ALONG.items()],
    *[Row("cumextreme", k, (a,), {"dim": 1, "largest": True}, torch=lambda t, x: t.cummax(x, 1)[0]) for k, a in (
        ("int", ints(2, 5)), ("nan", floats(2, 4, given=(1, math.nan, 2, 0, -math.inf, 3, math.inf, 1))))],
    *[Row("prod", k, (a,), {"dim": dim, "keepdim": k == "first"}, torch=lambda t, x, d=dim, keep=k == "first": x.prod(d, keep))
      for k, (a, dim) in _ALONG.items() if k != "long"],
    *[Row(n, "int", (ints(2, 3, low=1),), {"dim": 1}, torch=lambda t, x, n=n: getattr(x, n)(1)) for n in ("cumsum", "cumprod")],
    *[Row(n, "bool", (bools(4),), {"dim": 0}, torch=lambda t, x, n=n: getattr(x, n)(0)) for n in ("cumsum", "cumprod")],
    Row("cumsum", "infinite", (floats(3, given=(1, math.inf, 2)),), {"dim": 0}, torch=lambda t, x: x.cumsum(0), smooth=False),
    Row("prod", "int", (ints(2, 3, low=1),), {"dim": 1, "keepdim": False}, torch=lambda t, x: x.prod(1)),
    *[Row("recurrence", f"{k} {reverse:d}", (a, a), {"dim": dim, "reverse": reverse},
          torch=lambda t, b, a, d=dim, r=reverse: _recur(t, b, a, d, r))
      for reverse in (False, True) for k, (a, dim) in _ALONG.items() if k not in ("0d", "long")],
]


def _recur(t: Any, b: Any, a: Any, dim: int, reverse: bool) -> Any:
    made: list[Any] = []
    for i in range(b.shape[dim])[::-1 if reverse else 1]:
        now = b.select(dim, i)
        made.append(now + a.select(dim, i + 1 if reverse else i) * made[-1] if made else now)
    return t.stack(made[::-1] if reverse else made, dim) if made else b * 1


# -- ranks ---------------------------------------------------------------------------------------------------------------


def _ranks(t: Any, x: Any, dim: int, start: int, length: int, descending: bool) -> Any:
    values, indices = t.sort(x, dim=dim, descending=descending, stable=True)
    return (values.narrow(dim, start, length), indices.narrow(dim, start, length)) if x.ndim else (values, indices)


ROWS += [Row("ranked", f"{k} {'down' if down else 'up'}", (a,),
             {"dim": dim, "start": start, "length": length, "descending": down},
             torch=lambda t, x, d=dim, s=start, n=length, down=down: _ranks(t, x, d, s, n, down),
             smooth=k not in ("ties", "special") and "of many" not in k)
         for down in (False, True) for k, a, dim, start, length in (
             ("whole", floats(2, 5), 1, 0, 5), ("first", floats(5, 2), 0, 0, 5), ("few", floats(3, 7), 1, 0, 2),
             ("nothing", floats(3, 0), 1, 0, 0),
             ("middle one", floats(2, 5, 2), 1, 2, 1), ("transposed", floats(2, 5, layout="transposed"), 1, 1, 3),
             ("ties", floats(7, given=(1, 0, 1, 0, 2, 1, 0)), 0, 0, 7), ("ints", ints(2, 9, low=-5), 1, 0, 9),
             ("bools", bools(6), 0, 0, 6), ("special", floats(5, given=(math.nan, 1, -math.inf, math.inf, 0)), 0, 0, 5),
             ("few of many special", floats(9000, given=(math.nan, math.inf, -math.inf) * 3000), 0, 2999, 3),
             ("few of many", floats(30, 300), 1, 0, 5), ("middle of many", floats(300, 30), 0, 149, 1),
             ("few of many ties", ints(30, 300, high=900), 1, 60, 20),
             ("few of many equal", ints(2, 5000, high=2), 1, 0, 9),
             ("0d", floats(), 0, 0, 1), ("one", floats(1), 0, 0, 1), ("none", floats(2, 3), 1, 0, 0),
             ("empty", floats(0, 3), 1, 0, 2), ("many", floats(300), 0, 0, 300))]

# -- variance and norms ----------------------------------------------------------------------------------------------------

_folds = {
    "all": (floats(2, 3), (0, 1), False), "last": (floats(2, 3), (1,), False), "first kept": (floats(2, 3), (0,), True),
    "two of three": (floats(2, 3, 2), (0, 2), False), "transposed": (floats(2, 3, layout="transposed"), (1,), False),
    "sliced": (floats(2, 3, layout="sliced"), (0,), True), "expanded": (floats(3, 2, layout="expanded"), (0,), False),
    "0d": (floats(), (), False), "one": (floats(1, 1), (0, 1), True), "empty kept part": (floats(0, 3), (1,), False)}
ROWS += [
    *[Row("var", f"{k} {n}", (a,), {"dims": dims, "correction": n, "keepdim": keep}, smooth=n == 0 or k not in ("0d", "one"),
          torch=lambda t, x, d=dims, n=n, keep=keep: _var(t, x, d, n, keep))
      for n in (0, 1) for k, (a, dims, keep) in _folds.items()],
    *[Row("vector_norm", f"{k} {p}", (a,), {"p": p, "dims": dims, "keepdim": keep}, tolerance=2e-5,
          torch=lambda t, x, d=dims, p=p, keep=keep: t.linalg.vector_norm(x, p, d, keep))
      for p in (0, 1, 2, 3, 2.5, math.inf, -math.inf) for k, (a, dims, keep) in _folds.items()
      if k != "expanded" or p not in (math.inf, -math.inf)],
    *[Row("vector_norm", f"zeros {p}", (floats(2, 3, given=(0, 0, 0, 0, 1, -2)),), {"p": p, "dims": (1,), "keepdim": False},
          torch=lambda t, x, p=p: t.linalg.vector_norm(x, p, 1), smooth=False) for p in (0, 1, 2, 3, math.inf)],
    *[Row("vector_norm", f"ties {p}", (floats(4, given=(2, -2, 1, 1)),), {"p": p, "dims": (0,), "keepdim": True},
          torch=lambda t, x, p=p: t.linalg.vector_norm(x, p, 0, True), smooth=False) for p in (math.inf, -math.inf)],
]


def _var(t: Any, x: Any, dims: Any, correction: int, keepdim: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for zero degrees of freedom
        return t.var(x, dims, correction=correction, keepdim=keepdim)

_line, _run = floats(1 << 17), ints(9000, given=tuple(range(9000)))
#: Long lines, and a run of positions.
BIG = [Row("cumsum", "long", (_line,), {"dim": 0, "reverse": True}), Row("cumprod", "long", (floats(2, 20, 5000),), {"dim": 1}),
       Row("recurrence", "long", (_line, _line), {"dim": 0, "reverse": True}),
       Row("take", "run", (floats(32, 9000), _run), {"dim": 1}),
       Row("take_grad", "run", (floats(32, 9000), _run), {"shape": (32, 9000), "dim": 1})]
