"""Sample calls of the ops that create, move, index and reduce elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.rows import Row, bools, floats, ints

ROWS: list[Row] = []
F32, F64, I64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)

# -- creation ----------------------------------------------------------------------------------------------------------

ROWS += [
    Row("full", "plain", (1.5,), {"shape": (2, 3), "dtype": F32}, numpy=lambda v: np.full((2, 3), 1.5, F32)),
    Row("full", "0d int", (3,), {"shape": (), "dtype": I64}, numpy=lambda v: np.array(3)),
    Row("full", "empty", (1.0,), {"shape": (0, 3), "dtype": F64}, numpy=lambda v: np.ones((0, 3))),
    Row("full", "bool", (0.5,), {"shape": (1,), "dtype": np.dtype(bool)}, numpy=lambda v: np.array([True])),
    Row("empty", "plain", (), {"shape": (2, 3), "dtype": F32}, numpy=lambda: (2, 3)),
    Row("empty", "empty", (), {"shape": (0,), "dtype": F32}, numpy=lambda: (0,)),
    Row("arange", "int", (3, 2), {"length": 4, "dtype": I64}, numpy=lambda a, b: np.array([3, 5, 7, 9])),
    Row("arange", "float", (0.5, -0.25), {"length": 3, "dtype": F32},
        numpy=lambda a, b: np.array([0.5, 0.25, 0], F32)),
    Row("arange", "int and float", (1, 0.5), {"length": 3, "dtype": F32}, numpy=lambda a, b: np.array([1, 1.5, 2], F32)),
    Row("arange", "long", (0, 1), {"length": 9000, "dtype": F64}, numpy=lambda a, b: np.arange(9000.0)),
    Row("arange", "empty", (0, 1), {"length": 0, "dtype": I64}, numpy=lambda a, b: np.arange(0)),
    *[Row("eye", f"{n} by {m}", (), {"rows": n, "columns": m, "dtype": F32},
          numpy=lambda n=n, m=m: np.eye(n, m, dtype=F32)) for n, m in ((3, 3), (2, 4), (4, 2), (1, 1), (0, 2), (2, 0))],
]

# -- copies and views --------------------------------------------------------------------------------------------------

ROWS += [
    *[Row("cast", name, (a,), {"dtype": np.dtype(to)}, torch=lambda t, x, to=to: x.to(getattr(t, to)))
      for name, a, to in (("to double", floats(2, 3), "float64"), ("to half", floats(4), "float16"),
                          ("to int", floats(4), "int64"), ("from int", ints(4), "float32"),
                          ("to bool", ints(4, high=2), "bool"), ("from bool", bools(4), "float64"),
                          ("transposed", floats(2, 3, layout="transposed"), "float64"),
                          ("empty", floats(0), "float64"), ("0d", floats(), "float64"))],
    *[Row("view", name, (a,), {"shape": shape}, torch=lambda t, x, shape=shape: x.view(shape))
      for name, a, shape in (("plain", floats(2, 6), (3, 4)), ("infer", floats(2, 6), (4, -1)),
                             ("empty", floats(0, 3), (3, 0)), ("0d", floats(), (1, 1)), ("to 0d", floats(1, 1), ()),
                             ("strided", floats(4, 3, layout="sliced"), (2, 2, 3)))],
    *[Row("permute", name, (a,), {"dims": dims}, torch=lambda t, x, dims=dims: x.permute(dims))
      for name, a, dims in (("plain", floats(2, 3, 4), (2, 0, 1)),
                            ("expanded", floats(2, 3, layout="expanded"), (1, 0)),
                            ("empty", floats(0, 3), (1, 0)), ("0d", floats(), ()), ("1d", floats(3), (0,)))],
    *[Row("expand", name, (a,), {"shape": shape}, torch=lambda t, x, shape=shape: x.expand(shape))
      for name, a, shape in (("plain", floats(3, 1), (2, 3, 4)), ("keep", floats(1, 3), (2, -1)),
                             ("0d", floats(), (2, 2)), ("same", floats(2), (2,)), ("to empty", floats(1), (0,)),
                             ("sliced", floats(2, 1, layout="sliced"), (2, 3)))],
    *[Row("slice", name, (a,), {"index": index}, torch=lambda t, x, key=key: x[key])
      for name, a, index, key in (
          ("part", floats(5, 4), ((1, 2, 2), (0, 4, 1)), np.s_[1:5:2]),
          ("take away", floats(3, 4), ((2,), (1, 2, 1)), np.s_[2, 1:3]),
          ("new dimension", floats(3), ((), (0, 3, 1), ()), np.s_[None, :, None]),
          ("to 0d", floats(3), ((1,),), np.s_[1]), ("nothing", floats(3), ((1, 0, 1),), np.s_[1:1]),
          ("transposed", floats(3, 4, layout="transposed"), ((0, 2, 2), (1,)), np.s_[0:3:2, 1]),
          ("empty", floats(0, 2), ((0, 0, 1), (1,)), np.s_[:, 1]))],
    *[Row("as_strided", name, (a,), {"shape": shape, "strides": strides, "offset": offset},
          torch=lambda t, x, s=shape, n=strides, o=offset: x.as_strided(s, n, o))
      for name, a, shape, strides, offset in (
          ("part", floats(3, 4), (2, 2), (4, 2), 1), ("expanded", floats(4), (3, 2), (0, 1), 1),
          ("transposed", floats(3, 4), (4, 3), (1, 4), 0), ("0d", floats(5), (), (), 3),
          ("nothing", floats(3), (0, 2), (2, 1), 0))],
    *[Row("as_strided_grad", name, (a,), {"like": like, "strides": strides, "offset": offset},
          torch=lambda t, x, like=like, n=strides, o=offset: _laid(t, x, like, n, o))
      for name, a, like, strides, offset in (
          ("part", floats(2, 2), (3, 4), (4, 2), 1), ("expanded", floats(3, 2), (4,), (0, 1), 1),
          ("layouts", floats(4, 3, layout="transposed"), (3, 4), (1, 4), 0), ("nothing", floats(0, 2), (3,), (2, 1), 0))],
    *[Row("cleared", name, (a,), {"shape": shape, "strides": strides, "offset": offset},
          torch=lambda t, x, s=shape, n=strides, o=offset: x * _laid(t, t.ones(s), x.shape, n, o).eq(0))
      for name, a, shape, strides, offset in (
          ("part", floats(3, 4), (2, 2), (4, 2), 1), ("0d", floats(5), (), (), 3), ("all", floats(2, 2), (4,), (1,), 0),
          ("nothing", floats(3), (0,), (1,), 0))],
    # The tests of views check what was written: the op only records it in the graph.
    Row("write_part", "plain", (floats(3, 4), floats(2, 2)), {"shape": (2, 2), "strides": (4, 2), "offset": 1},
        torch=lambda t, x, part: x * 1, gradient=False),
    *[Row("slice_grad", name, (a,), {"shape": shape, "index": index}, torch=lambda t, x, shape=shape, key=key:
          _placed(t, x, shape, key))
      for name, a, shape, index, key in (
          ("part", floats(2, 4), (5, 4), ((1, 2, 2), (0, 4, 1)), np.s_[1:5:2]),
          ("layouts", floats(2, 3, layout="transposed"), (3, 3), ((1, 2, 1),), np.s_[1:]),
          ("from 0d", floats(), (3,), ((1,),), np.s_[1]), ("nothing", floats(0), (3,), ((1, 0, 1),), np.s_[1:1]),
          ("new dimension", floats(1, 3), (3,), ((), (0, 3, 1)), np.s_[None]))],
    *[Row("sum_to_shape", name, (a,), {"shape": shape}, torch=lambda t, x, shape=shape: x.sum_to_size(shape))
      for name, a, shape in (("lead", floats(2, 3), (3,)), ("kept", floats(2, 3), (2, 1)), ("all", floats(2, 3), ()),
                             ("both", floats(2, 3, 4), (3, 1)), ("same", floats(2, 3), (2, 3)),
                             ("transposed", floats(2, 3, layout="transposed"), (1, 3)),
                             ("empty", floats(0, 3), (3,)), ("0d", floats(), ()))],
    *[Row("split", name, (a,), {"sizes": sizes, "dim": dim}, torch=lambda t, x, s=sizes, d=dim: t.split(x, s, d))
      for name, a, sizes, dim in (("plain", floats(2, 5), (2, 3), 1), ("first", floats(3, 2), (1, 2), 0),
                                  ("transposed", floats(2, 4, layout="transposed"), (1, 3), 1),
                                  ("nothing", floats(3), (0, 3), 0), ("one", floats(3), (3,), 0))],
    *[Row("cat", name, (args,), {"dim": dim}, torch=lambda t, x, d=dim: t.cat(x, d))
      for name, args, dim in (("plain", [floats(2, 3), floats(2, 1)], 1), ("one", [floats(2)], 0),
                              ("layouts", [floats(2, 3, layout="transposed"), floats(1, 3),
                                           floats(2, 3, layout="sliced")], 0),
                              ("empty part", [floats(0, 3), floats(2, 3)], 0), ("ints", [ints(2), ints(3)], 0),
                              ("int and float", [ints(2), floats(3)], 0))],
]


def _laid(t: Any, dy: Any, like: Any, strides: Any, offset: int) -> Any:
    """Zeros of shape ``like`` with dy added at the strided elements."""
    where = t.arange(int(np.prod(like))).as_strided(dy.shape, strides, offset)
    return t.zeros(int(np.prod(like)), dtype=dy.dtype).index_add(0, where.reshape(-1), dy.reshape(-1)).reshape(like)


def _placed(t: Any, x: Any, shape: Any, key: Any) -> Any:
    out = t.zeros(shape, dtype=x.dtype)
    out[key] = x
    return out


# -- integer indexing --------------------------------------------------------------------------------------------------


def _take(t: Any, x: Any, index: Any, dim: int) -> Any:
    return x[(slice(None),) * dim + (index,)]


def _take_grad(t: Any, dy: Any, index: Any, shape: Any, dim: int) -> Any:
    out = t.zeros(shape, dtype=dy.dtype)
    if dim == 0:
        return out.index_put((index,), dy, accumulate=True)
    return out.index_add(dim, index.reshape(-1) % shape[dim], dy.flatten(dim, dim + index.ndim - 1))


def _put(t: Any, x: Any, index: Any, values: Any, dim: int) -> Any:
    out = x.clone()
    out[(slice(None),) * dim + (index,)] = values.to(x.dtype)
    return out


_repeats = ints(4, given=(2, 0, 2, -1))
ROWS += [
    *[Row("take", name, args, {"dim": dim}, torch=lambda t, x, i, d=dim: _take(t, x, i, d))
      for name, args, dim in (
          ("rows", (floats(3, 2), _repeats), 0), ("columns", (floats(2, 3), _repeats), 1),
          ("matrix of positions", (floats(3, 2), ints(2, 2, low=-3, high=3)), 0),
          ("0d position", (floats(3, 2), ints(high=3)), 0), ("no positions", (floats(3, 2), ints(0)), 0),
          ("layouts", (floats(2, 3, layout="transposed"), ints(4, high=3, layout="sliced")), 1),
          ("ints", (ints(4), ints(2, high=4)), 0), ("middle", (floats(2, 3, 2), _repeats), 1))],
    *[Row("take_grad", name, args, {"shape": shape, "dim": dim},
          torch=lambda t, g, i, s=shape, d=dim: _take_grad(t, g, i, s, d))
      for name, args, shape, dim in (
          ("rows", (floats(4, 2), _repeats), (3, 2), 0), ("columns", (floats(2, 4), _repeats), (2, 3), 1),
          ("matrix of positions", (floats(2, 2, 2), ints(2, 2, high=3)), (3, 2), 0),
          ("layouts", (floats(4, 2, layout="transposed"), _repeats), (3, 2), 0),
          ("no positions", (floats(0, 2), ints(0)), (3, 2), 0))],
    *[Row("put_", name, args, {"dim": dim}, torch=lambda t, x, i, v, d=dim: _put(t, x, i, v, d))
      for name, args, dim in (
          ("rows", (floats(4, 2), ints(2, given=(2, 0)), floats(2, 2)), 0),
          ("broadcast", (floats(4, 2), ints(2, given=(-1, 0)), floats(2)), 0),
          ("columns", (floats(2, 4), ints(2, given=(3, 1)), floats(2, 2)), 1),
          ("0d", (floats(3), ints(given=(1,)), floats()), 0),
          ("no positions", (floats(3), ints(0), floats(0)), 0),
          ("layouts", (floats(4, 3), ints(2, given=(1, 2), layout="plain"), floats(2, 3, layout="transposed")), 0))],
    *[Row("take_along", name, args, {"dim": dim}, torch=lambda t, x, i, d=dim: t.gather(x, d, i % max(x.shape[d], 1)))
      for name, args, dim in (
          ("last", (floats(3, 4), ints(3, 2, low=-4, high=4)), 1), ("first", (floats(3, 2), ints(2, 2, high=3)), 0),
          ("layouts", (floats(3, 4, layout="transposed"), ints(3, 2, high=4, layout="transposed")), 1),
          ("empty", (floats(3, 4), ints(3, 0)), 1), ("1d", (floats(4), ints(6, high=4)), 0))],
    *[Row("take_along_grad", name, args, {"shape": shape, "dim": dim}, torch=lambda t, g, i, s=shape, d=dim:
          t.zeros(s, dtype=g.dtype).scatter_add(d, i % s[d], g))
      for name, args, shape, dim in (
          ("last", (floats(3, 2), ints(3, 2, low=-4, high=4)), (3, 4), 1),
          ("first", (floats(2, 2), ints(2, 2, high=3)), (3, 2), 0),
          ("layouts", (floats(3, 2, layout="transposed"), ints(3, 2, high=4, layout="transposed")), (3, 4), 1),
          ("repeats", (floats(6), ints(6, high=2)), (4,), 0), ("empty", (floats(3, 0), ints(3, 0)), (3, 4), 1))],
]

# -- reductions --------------------------------------------------------------------------------------------------------

_folds = {
    "all": (floats(2, 3), (0, 1), False), "last": (floats(2, 3), (1,), False), "first kept": (floats(2, 3), (0,), True),
    "two of three": (floats(2, 3, 2), (0, 2), False), "transposed": (floats(2, 3, layout="transposed"), (1,), False),
    "sliced": (floats(2, 3, layout="sliced"), (0,), True), "expanded": (floats(3, 2, layout="expanded"), (0,), False),
    "0d": (floats(), (), False), "one": (floats(1, 1), (0, 1), True), "empty kept part": (floats(0, 3), (1,), False)}


def _over(name: str, dims: tuple[int, ...], keepdim: bool) -> Any:
    # torch takes an empty tuple of dimensions as all dimensions.
    return lambda t, x: getattr(t, name)(x, dims, keepdim) if dims else getattr(t, name)(x, (), keepdim)


for _name in ("sum", "mean", "amax", "amin", "logsumexp", "any", "all"):
    for _case, (_operand, _dims, _keep) in _folds.items():
        ROWS.append(Row(_name, _case, (_operand,), {"dims": _dims, "keepdim": _keep}, torch=_over(_name, _dims, _keep)))
ROWS += [
    Row("sum", "nothing", (floats(0, 3),), {"dims": (0,), "keepdim": False}, torch=_over("sum", (0,), False)),
    Row("mean", "nothing", (floats(0, 3),), {"dims": (0,), "keepdim": False}, torch=_over("mean", (0,), False),
        smooth=False),
    Row("any", "nothing", (bools(0, 3),), {"dims": (0,), "keepdim": False}, torch=_over("any", (0,), False)),
    Row("all", "nothing", (bools(0, 3),), {"dims": (0,), "keepdim": False}, torch=_over("all", (0,), False)),
    Row("all", "bool", (bools(3, 4),), {"dims": (1,), "keepdim": False}, torch=_over("all", (1,), False)),
    Row("sum", "int", (ints(2, 3),), {"dims": (1,), "keepdim": False}, torch=_over("sum", (1,), False)),
    Row("sum", "bool", (bools(2, 3),), {"dims": (0, 1), "keepdim": False}, torch=_over("sum", (0, 1), False)),
    Row("amax", "int", (ints(2, 3),), {"dims": (1,), "keepdim": False}, torch=_over("amax", (1,), False)),
    Row("amax", "ties", (floats(2, 3, given=(1, 2, 2, 0, 0, 0)),), {"dims": (1,), "keepdim": False},
        torch=_over("amax", (1,), False), smooth=False),
    Row("amin", "ties", (floats(2, 3, given=(1, 2, 1, 0, 0, 0)),), {"dims": (0, 1), "keepdim": False},
        torch=_over("amin", (0, 1), False), smooth=False),
    Row("amax", "nan", (floats(3, given=(1, math.nan, 2)),), {"dims": (0,), "keepdim": False},
        torch=_over("amax", (0,), False), smooth=False),
    Row("logsumexp", "large", (floats(3, given=(1000, 999, -1000)),), {"dims": (0,), "keepdim": False},
        torch=_over("logsumexp", (0,), False)),
    Row("logsumexp", "many of two of three", (floats(20, 3, 5),), {"dims": (0, 2), "keepdim": False},
        torch=_over("logsumexp", (0, 2), False)),
    Row("logsumexp", "nothing", (floats(0, 3),), {"dims": (0,), "keepdim": False}, torch=_over("logsumexp", (0,), False)),
    Row("logsumexp", "all of nothing", (floats(3, 0),), {"dims": (0, 1), "keepdim": True},
        torch=_over("logsumexp", (0, 1), True)),
    Row("logsumexp", "infinite", (floats(3, 2, given=(-math.inf, 1, -math.inf, 2, -math.inf, math.inf)),),
        {"dims": (0,), "keepdim": False}, torch=_over("logsumexp", (0,), False), smooth=False),
]
for _name in ("argmax", "argmin", "max_with_index", "min_with_index"):
    _torch = _name if _name.startswith("arg") else _name[:3]
    ROWS += [Row(_name, case, (a,), {"dim": dim, "keepdim": keep},
                 torch=lambda t, x, n=_torch, d=dim, k=keep: getattr(t, n)(x, d, k))
             for case, a, dim, keep in (
                 ("last", floats(2, 3), 1, False), ("kept", floats(2, 3), 0, True),
                 ("transposed", floats(2, 3, layout="transposed"), 1, False),
                 ("middle", floats(2, 3, 2), 1, False), ("1d", floats(4), 0, False), ("one", floats(1), 0, True),
                 ("empty kept part", floats(0, 3), 1, False), ("ints", ints(3, 2, high=50), 0, False))]

# -- matrix products ---------------------------------------------------------------------------------------------------

def _matmul(ta: bool, tb: bool) -> Any:
    return lambda t, a, b: t.matmul(a.mT if ta else a, b.mT if tb else b)


def _linear_grad(dy: Any, x: Any, weight: Any, needs: tuple[bool, bool, bool]) -> Any:
    rows, inner = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
    every = (dy @ weight, rows.mT @ inner, rows.sum(0))
    return tuple(part for part, wanted in zip(every, needs, strict=True) if wanted)


ROWS += [
    *[Row("matmul", f"{name} {ta:d}{tb:d}", (a(*(2, 3)[::-1 if ta else 1]), b(*(3, 4)[::-1 if tb else 1])),
          {"transpose_a": ta, "transpose_b": tb}, torch=_matmul(ta, tb))
      for ta in (False, True) for tb in (False, True)
      for name, a, b in (("plain", floats, floats), ("batched", lambda *s: floats(2, *s), floats),
                         ("second batched", floats, lambda *s: floats(2, *s)))],
    *[Row("matmul", name, args, torch=_matmul(False, False)) for name, args in {
        "both batched": (floats(2, 1, 2, 3), floats(2, 3, 2)), "ones": (floats(1, 1), floats(1, 1)),
        "layouts": (floats(2, 3, layout="transposed"), floats(3, 2, layout="sliced")),
        "expanded": (floats(3, 2, layout="expanded"), floats(2, 2)), "ints": (ints(2, 3), ints(3, 2)),
        "no rows": (floats(0, 3), floats(3, 2)), "no inner": (floats(2, 0), floats(0, 3))}.items()],
    *[Row("linear_grad", f"{name} {k}", args, {"needs": needs},
          torch=lambda t, g, x, w, n=needs: _linear_grad(g, x, w, n))
      for k, needs in enumerate(((True, True, True), (False, True, False), (True, False, False), (True, True, False)))
      for name, args in {
          "plain": (floats(2, 4), floats(2, 3), floats(4, 3)), "1d": (floats(2), floats(3), floats(2, 3)),
          "3d": (floats(2, 2, 4), floats(2, 2, 3), floats(4, 3)), "empty": (floats(0, 2), floats(0, 3), floats(2, 3)),
          "layouts": (floats(2, 4, layout="expanded"), floats(2, 3, layout="transposed"),
                      floats(4, 3, layout="sliced"))}.items()],
    *[Row("linear", name, args, torch=lambda t, x, w, b=None: t.nn.functional.linear(x, w, b)) for name, args in {
        "plain": (floats(2, 3), floats(4, 3), floats(4)), "no bias": (floats(2, 3), floats(4, 3), None),
        "1d": (floats(3), floats(2, 3), floats(2)), "3d": (floats(2, 2, 3), floats(2, 3), floats(2)),
        "layouts": (floats(2, 3, layout="transposed"), floats(4, 3, layout="sliced"), floats(4, layout="sliced")),
        "empty": (floats(0, 3), floats(2, 3), floats(2)), "ones": (floats(1, 1), floats(1, 1), floats(1))}.items()],
]
