"""Reductions, running sums, ranks and norms as users call them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.forms import Form
from tests.rows import Operand, floats, ints

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(name, call, operands, **options))


_f, _t, _cube, _0d = floats(3, 4), floats(3, 4, layout="transposed"), floats(2, 3, 4), floats()
_positive = floats(3, 4, low=0.5, high=1.5)
#: name: positional arguments, named ones
FOLDS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {"": ((), {}), "dim": ((1,), {}), "kept": ((-1, True), {}),
                                                            "dims": (((0, 2),), {"keepdim": True})}
for _name in ("sum", "mean", "amax", "amin", "nansum", "nanmean", "logsumexp", "norm", "any", "all"):
    for _case, (_args, _attrs) in FOLDS.items():
        if (_name, _case) == ("logsumexp", ""):
            continue
        _given = (2, *_args) if _name == "norm" and _args else _args
        for _how, _call in {"": lambda t, x, n=_name, a=_given, k=_attrs: getattr(t, n)(x, *a, **k),
                            "Tensor.": lambda t, x, n=_name, a=_given, k=_attrs: getattr(x, n)(*a, **k)}.items():
            form(f"{_how}{_name}{':' if _case else ''}{_case}", _call, _cube, gradient=_name not in ("any", "all"))
for _name in ("max", "min"):
    form(_name, lambda t, x, n=_name: getattr(t, n)(x), _f)
    form(f"{_name}:dim", lambda t, x, n=_name: getattr(x, n)(1), _f)
    form(f"{_name}:kept", lambda t, x, n=_name: getattr(t, n)(x, 0, keepdim=True), _t)
    form(f"{_name}:names", lambda t, x, n=_name: [getattr(x.max(1), k) for k in ("values", "indices")], _f)
    form(f"{_name}:pair", lambda t, x, y, n=_name: getattr(t, n)(x, y), _f, floats(4))
    form(f"arg{_name}", lambda t, x, n=_name: getattr(t, f"arg{n}")(x), _f, gradient=False)
    form(f"arg{_name}:dim", lambda t, x, n=_name: getattr(x, f"arg{n}")(1, True), _f, gradient=False)
for _case, _attrs in {"": {}, "dim": {"dim": 1}, "kept": {"dim": 0, "keepdim": True}}.items():
    form(f"std:constant {_case}", lambda t, x, k=_attrs: t.std(x, **k), floats(3, 2, given=(2, 2, 2, 2, 2, 2)), smooth=False)
    form(f"std_mean:constant {_case}", lambda t, x, k=_attrs: t.std_mean(x, **k)[0], floats(2, 2, given=(1, 1, 1, 2)),
         smooth=False)
form("sum:dtype", lambda t, x: t.sum(x, dtype=t.float64), _f)
form("mean:dtype", lambda t, x: x.mean(dtype=t.float64), _f)
form("sum:ints", lambda t, x: x.sum(0), ints(3, 4), gradient=False)
form("nansum:nan", lambda t, x: t.nansum(x), floats(3, given=(math.nan, 1, 2)), smooth=False)
form("nanmean:nan", lambda t, x: x.nanmean(0), floats(2, 2, given=(math.nan, 1, 2, 3)), smooth=False)
form("aminmax", lambda t, x: t.aminmax(x), _f)
form("aminmax:dim", lambda t, x: x.aminmax(dim=1, keepdim=True), _f)

# -- products and running sums -----------------------------------------------------------------------------------------------

for _name in ("prod", "cumsum", "cumprod"):
    for _k, _operand in enumerate((_f, _t, _0d, floats(2, 0), floats(2, 4, given=(0, 1, 2, 0, 3, 0, 1, 2)))):
        form(f"{_name}:dim {_k}", lambda t, x, n=_name: getattr(t, n)(x, -1), _operand)
    form(f"{_name}:first", lambda t, x, n=_name: getattr(x, n)(dim=0), _f)
    form(f"{_name}:dtype", lambda t, x, n=_name: getattr(x, n)(0, dtype=t.float64), _f)
    form(f"{_name}:ints", lambda t, x, n=_name: getattr(t, n)(x, 1), ints(2, 3), gradient=False)
for _name in ("cumsum_", "cumprod_"):
    form(f"Tensor.{_name}", lambda t, x, n=_name: getattr(x.clone(), n)(1), _t)
form("prod", lambda t, x: t.prod(x), _f)
form("prod:kept", lambda t, x: x.prod(1, keepdim=True), _f)
form("prod:one zero", lambda t, x: x.prod(), floats(4, given=(1, 0, 2, 3)))
form("prod:two zeros", lambda t, x: x.prod(), floats(4, given=(1, 0, 0, 3)))

# -- ranks -------------------------------------------------------------------------------------------------------------------

for _k, _operand in enumerate((_f, _t, _0d, floats(0, 3), floats(1))):
    for _name in ("sort", "argsort"):
        form(f"{_name}:{_k}", lambda t, x, n=_name: getattr(t, n)(x), _operand, gradient=_name == "sort")
    form(f"median:along {_k}", lambda t, x: t.median(x, -1), _operand)
form("sort:down", lambda t, x: x.sort(0, descending=True), _f)
form("sort:ties", lambda t, x: t.sort(x, descending=True, stable=True), ints(20, high=4), gradient=False)
form("sort:nan", lambda t, x: t.sort(x), floats(4, given=(1, math.nan, 0, math.inf)), smooth=False)
form("argsort:down", lambda t, x: x.argsort(dim=0, descending=True), _f, gradient=False)
form("msort", lambda t, x: t.msort(x), _f)
form("topk", lambda t, x: t.topk(x, 2), _f)
form("topk:smallest", lambda t, x: x.topk(3, dim=0, largest=False), _t)
form("topk:all", lambda t, x: x.topk(4), _f)
form("topk:none", lambda t, x: x.topk(0), _f)
form("topk:0d", lambda t, x: x.topk(1), _0d)
form("kthvalue", lambda t, x: t.kthvalue(x, 2), _f)
form("kthvalue:kept", lambda t, x: x.kthvalue(3, 0, True), _f)
form("median", lambda t, x: t.median(x), _f)
form("median:odd", lambda t, x: x.median(), floats(5))
form("median:kept", lambda t, x: x.median(0, keepdim=True), _f)
form("median:ints", lambda t, x: x.median(1), ints(3, 4, given=(5, 1, 2, 9, 8, 3, 7, 6, 4, 0, 11, 10)), gradient=False)
form("median:nan", lambda t, x: x.median(1).values, floats(2, 3, given=(1, math.nan, 0, 1, 2, 3)), smooth=False)
form("median:0d", lambda t, x: x.median(), _0d)

# -- variance and norms --------------------------------------------------------------------------------------------------------

for _name in ("var", "std", "var_mean", "std_mean"):
    for _case, (_args, _attrs) in {"": ((), {}), "biased": ((False,), {}), "dim": ((1,), {}), "of a dim": ((0, False), {}),
                                   "kept": ((1, True, True), {}), "dims": (((0, 1),), {"correction": 0}),
                                   "correction": ((), {"dim": 1, "correction": 2, "keepdim": True})}.items():
        form(f"{_name}{':' if _case else ''}{_case}", lambda t, x, n=_name, a=_args, k=_attrs: getattr(t, n)(x, *a, **k), _cube)
form("Tensor.var", lambda t, x: x.var(dim=0, unbiased=False), _t)
form("Tensor.std", lambda t, x: x.std(), _t)
for _p in (0, 1, 2, 3, math.inf, -math.inf, "fro"):
    form(f"norm:{_p}", lambda t, x, p=_p: t.norm(x, p), _f)
form("norm:zeros", lambda t, x: x.norm(dim=1), floats(2, 2, given=(0, 0, 1, 2)), smooth=False)
form("norm:default", lambda t, x: x.norm(), _f)
form("dist", lambda t, x, y: t.dist(x, y, 3), _f, _f)

# -- differences, counts and quantiles ---------------------------------------------------------------------------------------

form("diff", lambda t, x: t.diff(x), _f)
form("diff:twice", lambda t, x: x.diff(2, 0), _t)
form("diff:too often", lambda t, x: t.diff(x, n=9), _f)
form("diff:between", lambda t, x, y: t.diff(x, dim=0, prepend=y, append=y), _f, floats(1, 4))
form("diff:bools", lambda t, x: t.diff(x > 0), _f, gradient=False)
form("diff:empty", lambda t, x: t.diff(x, dim=1), floats(2, 0))
form("bincount", lambda t, x: t.bincount(x % 4), ints(9), gradient=False)
form("bincount:least", lambda t, x: (x % 4).bincount(minlength=8), ints(9), gradient=False)
form("bincount:weights", lambda t, x, w: t.bincount(x % 4, w), ints(9), floats(9), gradient=False)
form("bincount:empty", lambda t, x: t.bincount(x), ints(0), gradient=False)
_spread = floats(9, given=(0, 0.5, 1, 1.5, 2, math.nan, -1, 3, 2.5))
form("histc", lambda t, x: t.histc(x, 4, 0, 2), _spread, gradient=False)
form("histc:method", lambda t, x: x.histc(bins=3, min=-1, max=3), _spread, gradient=False)
form("histc:own range", lambda t, x: t.histc(x, bins=5), _t, gradient=False)
form("histc:one", lambda t, x: t.histc(x, 1), _t, gradient=False)
form("histc:equal", lambda t, x: t.histc(x * 0 + 3, bins=4), _f, gradient=False)
form("histogram", lambda t, x: t.histogram(x, 4, range=(-1.0, 1.5)), _spread, gradient=False)
form("histogram:method", lambda t, x, w: x.histogram(3, range=(0, 1), weight=w), _f, _f, gradient=False)
form("histogram:edges", lambda t, x: t.histogram(x, t.tensor([-1.0, 0.0, 0.0, 1.5], dtype=x.dtype, device=x.device)), _t,
     gradient=False)
form("histogram:density", lambda t, x: t.histogram(x, 5, range=(-2, 2), density=True), _f, gradient=False)
form("histogram:nan and ends", lambda t, x: t.histogram(x, 2, range=(0, 2)), floats(5, given=(math.nan, 0, 1, 2, 3)),
     gradient=False)
form("histc:given range without width", lambda t, x: t.histc(x, 4, 0.5, 0.5), floats(0), gradient=False)
form("gradient", lambda t, x: t.gradient(x), _f)
form("gradient:infinite", lambda t, x: [*t.gradient(x), *t.gradient(x, spacing=0.5, edge_order=2)],
     floats(6, given=(1, math.inf, 2, 5, -3, 1.5)), gradient=False)
form("gradient:one", lambda t, x: t.gradient(x, dim=1, spacing=0.5), _cube)
form("gradient:dims", lambda t, x: t.gradient(x, dim=(2, 0), spacing=[2.0, 3.0]), _cube)
form("gradient:edges", lambda t, x: t.gradient(x, spacing=2, edge_order=2), _t)
_long, _places = floats(2, 4, 3), floats(4, given=(0, 1, 3, 3.5))
form("gradient:coordinates", lambda t, x, c: t.gradient(x, spacing=(c,), dim=1), _f, _places)
form("gradient:edges by coordinates", lambda t, x, c: t.gradient(x, spacing=[c], dim=-2, edge_order=2), _long, _places)
form("gradient:whole numbers", lambda t, x: t.gradient(x), ints(5), gradient=False)
form("gradient:of a number", lambda t, x: t.gradient(x), _0d, gradient=False)
for _between in ("linear", "lower", "higher", "nearest", "midpoint"):
    form(f"quantile:{_between}", lambda t, x, b=_between: t.quantile(x, 0.3, dim=1, interpolation=b), _f)
form("quantile", lambda t, x: x.quantile(0.9), _t)
form("quantile:kept", lambda t, x: t.quantile(x, 0.5, 1, True), _cube)
form("quantile:of a 0-d tensor", lambda t, x: t.quantile(x, t.tensor(0.3, dtype=x.dtype), dim=1), _cube)
form("quantile:several", lambda t, x: t.quantile(x, t.tensor([0.0, 0.25, 1.0], dtype=x.dtype), dim=0), _cube)
form("quantile:several kept", lambda t, x: t.quantile(x, t.tensor([0.1, 0.7], dtype=x.dtype), keepdim=True), _cube)
_holes = floats(3, 4, given=(1, math.nan, 0.5, 3, 2, 4, 5, -1, math.nan, 7, math.nan, math.nan))
for _between in ("linear", "lower", "higher", "nearest", "midpoint"):
    form(f"nanquantile:{_between}", lambda t, x, b=_between: t.nanquantile(x, 0.3, dim=1, interpolation=b), _holes,
         smooth=False)
form("nanquantile", lambda t, x: x.nanquantile(0.9), _holes, smooth=False)
form("nanquantile:several", lambda t, x: t.nanquantile(x, t.tensor([0.2, 0.7], dtype=x.dtype, device=x.device), 0, True),
     _holes, smooth=False)
form("nanquantile:nothing", lambda t, x: t.nanquantile(x, 0.5, 0), floats(2, 2, given=(math.nan, 1, math.nan, 3)),
     gradient=False)
form("quantile:nan", lambda t, x: t.quantile(x, 0.5, dim=1), floats(2, 3, given=(1, math.nan, 2, 5, 4, 3)), gradient=False)
