"""Functions that combine several tensors, or compute a few numbers from many, as users call them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gradcore
from tests.forms import Form, quiet
from tests.rows import Operand, floats, ints

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(name, call, operands, **options))


_f, _cube, _v, _0d = floats(3, 4), floats(2, 3, 4), floats(5), floats()
_nan = math.nan

# -- running ---------------------------------------------------------------------------------------------------------------

for _name in ("cummax", "cummin", "logcumsumexp"):
    form(_name, lambda t, x, n=_name: getattr(t, n)(x, 1), _cube)
    form(f"{_name}:last", lambda t, x, n=_name: getattr(x, n)(dim=-1), floats(2, 7, layout="transposed"))
    form(f"{_name}:0d", lambda t, x, n=_name: getattr(t, n)(x, 0), _0d)
    form(f"{_name}:one", lambda t, x, n=_name: getattr(t, n)(x, 0), floats(1, 2))
    form(f"{_name}:empty", lambda t, x, n=_name: getattr(t, n)(x, 1), floats(2, 0), smooth=False)
for _name in ("cummax", "cummin"):
    form(f"{_name}:equal", lambda t, x, n=_name: getattr(t, n)(x, 0), floats(7, given=(1, 3, 3, 1, 1, 3, 0)), smooth=False)
    form(f"{_name}:nan", lambda t, x, n=_name: getattr(t, n)(x, 0), floats(6, given=(1, _nan, 3, 2, _nan, 0)), gradient=False)
    form(f"{_name}:ints", lambda t, x, n=_name: getattr(t, n)(x, 0).indices, ints(9), gradient=False)
form("logcumsumexp:far apart", lambda t, x: t.logcumsumexp(x, 0), floats(5, given=(-1000, 0, 1000, 0, -math.inf)),
     gradient=False)

# -- estimates -------------------------------------------------------------------------------------------------------------

_often, _much = ints(4, low=1), floats(4, low=0.3)
form("cov", lambda t, x: t.cov(x), _f)
form("cov:vector", lambda t, x: x.cov(correction=0), _v)
form("cov:weights", lambda t, x, n, w: t.cov(x, fweights=n, aweights=w), _f, _often, _much)
form("cov:counts", lambda t, x, n: t.cov(x, correction=0, fweights=n), _f, _often)
form("cov:too few", quiet(lambda t, x: [t.cov(x[:, :1]), t.cov(x[0, 0])]), _f, gradient=False)
form("cov:ints", lambda t, x: t.cov(x), ints(2, 5), gradient=False, double=1e-6)
form("corrcoef", lambda t, x: t.corrcoef(x), _f)
form("corrcoef:vector", lambda t, x: x.corrcoef(), _v, smooth=False)
for _name in ("trapezoid", "trapz", "cumulative_trapezoid"):
    form(_name, lambda t, x, n=_name: getattr(t, n)(x), _cube)
    form(f"{_name}:dx", lambda t, x, n=_name: getattr(t, n)(x, dx=0.5, dim=1), _cube)
    form(f"{_name}:places", lambda t, x, y, n=_name: getattr(t, n)(x, y, dim=0), _f, floats(3))
    form(f"{_name}:all places", lambda t, x, y, n=_name: getattr(t, n)(x, y), _cube, floats(3, 4))
    form(f"{_name}:ints", lambda t, x, n=_name: getattr(t, n)(x), ints(4), gradient=False)
    form(f"{_name}:uint8", lambda t, x, n=_name: getattr(t, n)(x.byte()), ints(4, given=(3, 100, 254, 1)), gradient=False)
    form(f"{_name}:one", lambda t, x, n=_name: getattr(t, n)(x), floats(2, 1), smooth=False, gradient=_name != "trapezoid")
_often = ints(2, 6, given=(1, 2, 2, 1, 0, 3, 5, 4, 4, 4, 5, 5))
form("mode", lambda t, x: t.mode(x), _often, gradient=False)
form("mode:dim", lambda t, x: x.mode(0, keepdim=True), _often, gradient=False)
form("mode:floats", lambda t, x: t.mode(x, 1).values, floats(2, 3, given=(1, 2, 2, 3, 0, 3)), smooth=False)
form("mode:nan", lambda t, x: t.mode(x).values, floats(2, 4, given=(1, _nan, _nan, 2, 3, _nan, 3, _nan)), gradient=False)
form("mode:only nan", lambda t, x: t.mode(x), floats(3, given=(_nan,) * 3), gradient=False)
form("mode:long", lambda t, x: t.mode(x, 1).values, ints(3, 40, high=6), gradient=False)
form("mode:0d", lambda t, x: t.mode(x, 0), _0d)
form("nanmedian", lambda t, x: t.nanmedian(x), floats(5, given=(_nan, 3, 1, _nan, 2)), smooth=False)
form("nanmedian:equal", lambda t, x: x.nanmedian(), floats(5, given=(3, _nan, 1, 1, 1)), smooth=False)
form("nanmedian:nothing", lambda t, x: [t.nanmedian(x), t.nanmedian(x[:0])], floats(2, given=(_nan, _nan)), gradient=False)
form("nanmedian:dim", lambda t, x: t.nanmedian(x, 1), floats(2, 4, given=(_nan, 3, 1, 2, 5, _nan, _nan, 4)), smooth=False)
form("nanmedian:kept", lambda t, x: x.nanmedian(0, True), _f)
form("nanmedian:ints", lambda t, x: t.nanmedian(x), ints(6), gradient=False)

# -- gathered --------------------------------------------------------------------------------------------------------------

form("block_diag", lambda t, x, y, z: t.block_diag(x, y, z), _f, floats(2), _0d)
form("block_diag:none", lambda t: t.block_diag(), gradient=False)
form("block_diag:of nothing", lambda t, x: t.block_diag(x[:, :0], x), _f)
form("block_diag:types", lambda t, x, y: t.block_diag(x, y), ints(2, 1), floats(1, 2))
form("cartesian_prod", lambda t, x, y, z: t.cartesian_prod(x, y, z), floats(2), floats(3), floats(1))
form("cartesian_prod:one", lambda t, x: t.cartesian_prod(x), _v)
for _r in (0, 1, 2, 3, 6):
    form(f"combinations:{_r}", lambda t, x, r=_r: t.combinations(x, r), _v, gradient=_r in (1, 2, 3))
form("combinations:again", lambda t, x: t.combinations(x, 2, with_replacement=True), floats(3))
for _n in (None, 0, 1, 2, 4):
    form(f"vander:{_n}", lambda t, x, n=_n: t.vander(x, n), _v, gradient=False)
form("vander:increasing", lambda t, x: t.vander(x, increasing=True), floats(3), gradient=False)
# torch's overwrites what its gradient needs.
form("vander:gradient", lambda t, x: t.vander(x, 4, True) if t is gradcore else x.unsqueeze(1) ** t.arange(4), floats(3))
form("vander:ints", lambda t, x: t.vander(x, N=3), ints(4), gradient=False)
form("select_scatter", lambda t, x, y: t.select_scatter(x, y, 1, -2), _f, floats(3))
form("slice_scatter", lambda t, x, y: t.slice_scatter(x, y, 1, 1, None, 2), _f, floats(3, 2))
form("slice_scatter:end", lambda t, x, y: x.slice_scatter(y, start=-2, end=9), _f, floats(2, 4))
form("diagonal_scatter", lambda t, x, y: t.diagonal_scatter(x, y, 1), _f, floats(3))
form("diagonal_scatter:dims", lambda t, x, y: x.diagonal_scatter(y, dim1=0, dim2=2), _cube, floats(3, 2))
form("put", lambda t, x, i, y: t.put(x, i, y), _f, ints(2, 2, given=(0, -1, 5, 3)), floats(2, 2))
form("put:added", lambda t, x, i, y: x.put(i, y, accumulate=True), _f, ints(4, given=(1, 1, -2, 1)), floats(4))
form("Tensor.put_", lambda t, x, i, y: x.clone().t().put_(i, y), _f, ints(3, given=(0, 7, 2)), floats(3))
_at = ints(2, 3, given=(0, 2, 0, 2, 2, 1))
for _reduce in ("sum", "prod", "mean", "amax", "amin"):
    for _own in (False, True):
        for _dim in (0, 1):
            form(f"scatter_reduce:{_reduce} {_own} {_dim}", lambda t, x, i, y, r=_reduce, s=_own, d=_dim: t.scatter_reduce(
                x, d, i, y, r, include_self=s), floats(4, 4), _at, floats(2, 3))
        form(f"Tensor.scatter_reduce_:{_reduce} {_own}", lambda t, x, i, y, r=_reduce, s=_own: x.clone().scatter_reduce_(
            1, i, y, r, include_self=s), floats(2, 4), _at, floats(2, 3))
    form(f"scatter_reduce:{_reduce} part", lambda t, x, i, y, r=_reduce: t.scatter_reduce(x, 0, i, y, reduce=r), floats(4, 4),
         _at, floats(3, 5), gradient=False)
    form(f"scatter_reduce:{_reduce} ints", lambda t, x, i, y, r=_reduce: x.scatter_reduce(0, i, y, r), ints(4, 3, low=-5), _at,
         ints(2, 3, low=-5), gradient=False)
for _reduce in ("prod", "mean", "amax", "amin"):
    for _own in (False, True):
        form(f"index_reduce:{_reduce} {_own}", lambda t, x, i, y, r=_reduce, s=_own: t.index_reduce(
            x, 1, i, y, r, include_self=s), floats(2, 4), ints(5, given=(0, 2, 2, 0, 1)), floats(2, 5))
    form(f"Tensor.index_reduce_:{_reduce}", lambda t, x, i, y, r=_reduce: x.clone().index_reduce_(0, i, y, reduce=r),
         floats(4, 2), ints(2, given=(3, 3)), floats(2, 2))
form("scatter_reduce:prod zeros", lambda t, x, i, y: x.scatter_reduce(0, i, y, "prod"), floats(4, given=(0, 0, 2, 3)),
     ints(8, given=(0, 1, 2, 2, 2, 3, 3, 3)), floats(8, given=(0, 3, 0, 4, 5, 0, 0, 6)), smooth=False)
form("scatter_reduce:prod 0d", lambda t, x, i, y: x.scatter_reduce(0, i, y, "prod"), floats(), ints(high=1), floats())
form("scatter_reduce:prod none", lambda t, x, i, y: x.scatter_reduce(0, i, y, "prod"), floats(3), ints(0), floats(0))
for _reduce in ("amax", "amin"):
    form(f"scatter_reduce:{_reduce} equal", lambda t, x, i, y, r=_reduce: x.scatter_reduce(0, i, y, r), floats(2, given=(1, 0)),
         ints(4, given=(0, 0, 0, 1)), floats(4, given=(1, 1, 0, 0)), smooth=False)
    form(f"scatter_reduce:{_reduce} nan", lambda t, x, i, y, r=_reduce: x.scatter_reduce(0, i, y, r), floats(3),
         ints(3, given=(0, 0, 1)), floats(3, given=(_nan, 5, 6)), gradient=False)
    form(f"scatter_reduce:{_reduce} 0d", lambda t, x, i, y, r=_reduce: x.scatter_reduce(0, i, y, r), floats(),
         ints(high=1), floats())
    form(f"scatter_reduce:{_reduce} infinite", lambda t, x, i, y, r=_reduce: x.scatter_reduce(0, i, y, r, include_self=False),
         floats(2), ints(3, given=(0, 0, 0)), floats(3, given=(math.inf, 1, -math.inf)), smooth=False)
