"""Composed functions, as users call them: elementwise ones, distances, positions in sorted sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.forms import Form
from tests.rows import Operand, floats, ints

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(name, call, operands, **options))


_f, _g, _positive = floats(2, 3), floats(3), floats(2, 3, low=0.3, high=0.9)
_nan = math.nan

# -- elementwise -----------------------------------------------------------------------------------------------------------

form("xlogy", lambda t, x, y: t.xlogy(x, y), _f, floats(3, low=0.5))
form("xlogy:zeros", lambda t, x, y: x.xlogy(y), floats(5, given=(0, 0, 0, 2, 0)),
     floats(5, given=(0, -1, math.inf, 0, _nan)), gradient=False)
form("xlogy:0 times a logarithm", lambda t, x, y: t.xlogy(x, y), floats(2, given=(0, 0)), floats(2, given=(2, 0.5)),
     smooth=False)
form("xlogy:number", lambda t, x: t.xlogy(x, 2), _f)
form("xlogy:of number", lambda t, x: t.xlogy(2.5, x), _positive)
form("xlogy:ints", lambda t, x, y: [t.xlogy(x, y), t.xlogy(x, 3), t.xlogy(2, y)], ints(4), ints(4), gradient=False)
form("Tensor.xlogy_", lambda t, x, y: x.clone().xlogy_(y), _f, _positive)
_tiny = 2.0**-149
_edges = floats(14, given=(0, -0.0, 1, -1, _tiny, -3 * _tiny, 2.0**-126, -(2.0**-126), 1 - 2.0**-24, -3.4028234663852886e38,
                           1e-30, math.inf, -math.inf, _nan))
form("frexp", lambda t, x: t.frexp(x).mantissa, floats(4, given=(0.3, -3, 1e-20, 40)), smooth=False)
form("frexp:edges", lambda t, x: [*x.frexp(), *t.frexp(x.double() * 1e-200)], floats(8, given=(
    0, -0.0, -1, 1 - 2.0**-24, -3.4028234663852886e38, math.inf, -math.inf, _nan)), gradient=False)
for _way in (-math.inf, -0.0, 0.0, 1.0, math.inf, _nan):
    form(f"nextafter:towards {_way}", lambda t, x, y: [t.nextafter(x, y), t.nextafter(x.double(), y)], _edges,
         floats(1, given=(_way,)), gradient=False)
form("nextafter:gradient", lambda t, x: t.nextafter(x, x.detach().flip(0)), floats(4, given=(1, -2, 0, 1)), smooth=False)
form("nextafter:halves' gradient", lambda t, x: t.nextafter(x.half() * 3, t.ones_like(x).half()), _f, smooth=False)
form("nextafter:mixed", lambda t, x, y: [t.nextafter(x, y.double()), x.nextafter(y[0].double())], _f, _g, gradient=False)
form("nextafter:halves", lambda t, x, y: [t.nextafter(x.half(), y.half()).float(), t.nextafter(x.bfloat16(), y.half())], _edges,
     floats(14), gradient=False)
form("Tensor.nextafter_", lambda t, x, y: x.clone().nextafter_(y), _f, _g, gradient=False)
form("Tensor.sum_to_size", lambda t, x: [x.sum_to_size(3), x.sum_to_size(2, 1), x.sum_to_size(()), x.sum_to_size(size=(2, 3))],
     _f)
form("Tensor.sum_to_size:ints", lambda t, x: [x.sum_to_size(1), (x > 3).sum_to_size(())], ints(2, 3), gradient=False)
form("Tensor.sum_to_size:0-d", lambda t, x: [x.bool()[0].sum_to_size(()), x[0].sum_to_size(())], ints(2), gradient=False)
form("logit", lambda t, x: t.logit(x), _positive)
form("logit:eps", lambda t, x: x.logit(0.4), _positive)
form("logit:outside", lambda t, x: t.logit(x), floats(4, given=(-0.5, 0, 1, 1.5)), gradient=False)
form("logit:ints", lambda t, x: x.logit(), ints(3, given=(0, 1, 0)), gradient=False)
form("Tensor.logit_", lambda t, x: x.clone().logit_(eps=0.1), _positive)
_signs = floats(6, given=(-0.0, 0.0, -1, 2, -math.inf, 1e-42))
form("signbit", lambda t, x: t.signbit(x), _signs, gradient=False)
form("signbit:ints", lambda t, x: x.signbit(), ints(3, given=(-1, 0, 2)), gradient=False)
form("copysign", lambda t, x, y: t.copysign(x, y), _f, floats(3))
form("copysign:zeros", lambda t, x, y: 1 / x.copysign(y), floats(6, given=(0, 1, -1, 3, 0, -2)), _signs, gradient=False)
form("copysign:gradient at 0", lambda t, x, y: x.copysign(y), floats(2, given=(0, 1)), floats(2, given=(-1, -0.0)),
     smooth=False)
form("copysign:number", lambda t, x: t.copysign(x, -2), _f)
form("copysign:ints", lambda t, x, y: t.copysign(x, y), ints(4, low=-3), ints(4, low=-3), gradient=False)
form("Tensor.copysign_", lambda t, x, y: x.clone().copysign_(y), _f, floats(3))
form("heaviside", lambda t, x, y: t.heaviside(x, y), floats(4, given=(-1, 0, 2, _nan)), floats(4), gradient=False)
form("heaviside:ints", lambda t, x, y: x.heaviside(y), ints(4, low=-1, high=2), ints(1), gradient=False)
form("Tensor.heaviside_", lambda t, x, y: x.clone().heaviside_(y), ints(4, low=-1, high=2), ints(1), gradient=False)
form("logaddexp2", lambda t, x, y: t.logaddexp2(x, y), _f, _g)
form("logaddexp2:infinite", lambda t, x, y: x.logaddexp2(y), floats(3, given=(-math.inf, math.inf, 1)),
     floats(3, given=(-math.inf, 1, -math.inf)), gradient=False)
form("float_power", lambda t, x, y: t.float_power(x, y), _positive, floats(3))
form("float_power:number", lambda t, x: [x.float_power(2), t.float_power(2, x)], _positive)
form("float_power:ints", lambda t, x, y: t.float_power(x, y), ints(3, low=1), ints(3, low=-2), gradient=False)
form("ldexp", lambda t, x, y: t.ldexp(x, y), _f, ints(3, low=-2))
form("ldexp:ints", lambda t, x, y: x.ldexp(y), ints(3), ints(3), gradient=False)
form("Tensor.ldexp_", lambda t, x, y: x.clone().ldexp_(y), _f, ints(3))
form("rsub", lambda t, x, y: t.rsub(x, y, alpha=2), _f, _g)
form("rsub:number", lambda t, x: t.rsub(x, 2), _f)

for _p in (2, 1.0, 3.0, math.inf):
    form(f"renorm:{_p}", lambda t, x, p=_p: [t.renorm(x, p, 0, 1.5), x.renorm(p, -1, 2.0)], floats(3, 2, 4))
form("renorm:none is larger", lambda t, x: t.renorm(input=x, p=2, dim=1, maxnorm=100), floats(3, 2))
form("renorm:no limit", lambda t, x: t.renorm(x, 2, 0, math.inf), floats(3, 2), smooth=False)
form("Tensor.renorm_", lambda t, x: (x * 2).renorm_(2, 1, 0.5), floats(3, 2))

# -- numbers and predicates ------------------------------------------------------------------------------------------------

form("logspace", lambda t: [t.logspace(-1, 2, 5), t.logspace(0, 1, 3, base=2, dtype=t.float64), t.logspace(0, 3, 4,
     dtype=t.int64)], gradient=False)
form("scalar_tensor", lambda t: [t.scalar_tensor(2), t.scalar_tensor(2.5, dtype=t.int64)], gradient=False)
form("is_same_size", lambda t, x, y: [t.is_same_size(x, y), x.is_same_size(x)], _f, _g, gradient=False)
form("is_nonzero", lambda t, x: [t.is_nonzero(x), (x * 0).is_nonzero()], floats(1, 1), gradient=False)
form("is_signed", lambda t, x: [t.is_signed(x), x.byte().is_signed(), x.bool().is_signed()], ints(1), gradient=False)
form("is_complex", lambda t, x: [x.is_complex(), x.is_inference()], _f, gradient=False)

# -- distances -------------------------------------------------------------------------------------------------------------

for _p in (2.0, 1.0, math.inf, 0.0, 3.0):
    form(f"cdist:{_p}", lambda t, x, y, p=_p: t.cdist(x, y, p), floats(3, 2), floats(2, 4, 2), gradient=_p != 0)
    form(f"cdist:{_p} equal", lambda t, x, y, p=_p: t.cdist(x, y, p), floats(2, 2, given=(1, 2, 3, 5)),
         floats(2, 2, given=(1, 2, 3.5, 3)), smooth=False, gradient=_p != 0)
    form(f"nn.functional.pdist:{_p}", lambda t, x, p=_p: t.nn.functional.pdist(x, p), floats(4, 3), gradient=_p != 0)
form("cdist:by product", lambda t, x, y: t.cdist(x, y, compute_mode="use_mm_for_euclid_dist"), floats(3, 2), floats(4, 2),
     tolerance=1e-4)
form("cdist:many", lambda t, x, y: t.cdist(x, y), floats(2, 27, 3), floats(2, 1, 3), tolerance=1e-4, smooth=False)
form("cdist:many one by one", lambda t, x, y: t.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"), floats(27, 3),
     floats(2, 3), smooth=False)
form("cdist:empty", lambda t, x, y: t.cdist(x, y), floats(2, 0), floats(3, 0))

# -- searching -------------------------------------------------------------------------------------------------------------

_rising, _sought = floats(5, given=(-1, 0, 0, 1.5, 2)), floats(2, 4, given=(-2, -1, 0, 0.5, 1.5, 2, 9, _nan))
for _right in (False, True):
    form(f"searchsorted:right {_right}", lambda t, s, x, r=_right: t.searchsorted(s, x, right=r), _rising, _sought,
         gradient=False)
    form(f"bucketize:right {_right}", lambda t, s, x, r=_right: t.bucketize(x, s, right=r, out_int32=True), _rising, _sought,
         gradient=False)
form("unravel_index", lambda t, x: [*t.unravel_index(x, (2, 3, 4)), *t.unravel_index(x, 7), *t.unravel_index(x, ())],
     ints(2, 3, low=-30, high=30), gradient=False)
form("unravel_index:bytes", lambda t, x: t.unravel_index(x.byte(), [300, 2])[0], ints(3), gradient=False)
form("searchsorted:rows", lambda t, s, x: t.searchsorted(s.sort(-1).values, x, side="right"), floats(2, 3, 6), floats(2, 3, 4),
     gradient=False)
form("searchsorted:sorter", lambda t, s, x: t.searchsorted(s, x, sorter=s.argsort(-1)), floats(6), floats(2, 3), gradient=False)
form("searchsorted:number", lambda t, s: [t.searchsorted(s, 1), t.bucketize(0.5, s), t.searchsorted(s[:0], 1.0)], _rising,
     gradient=False)
form("isin", lambda t, x, y: t.isin(x, y), ints(3, 4, high=9), ints(2, 3, high=9), gradient=False)
form("isin:nan", lambda t, x, y: [t.isin(x, y), t.isin(y, y)], floats(3, given=(1, _nan, 2)),
     floats(4, given=(2, _nan, _nan, 1)), gradient=False)
form("isin:invert", lambda t, x, y: t.isin(x, y, invert=True, assume_unique=False), ints(4), ints(3), gradient=False)
form("isin:two types", lambda t, x, y: t.isin(x, y), ints(4, given=(1, 2, 3, 2)), floats(3, given=(2, 2.5, _nan)),
     gradient=False)
form("isin:numbers", lambda t, x: [t.isin(x, 1), t.isin(3, x), t.isin(x, x[:0])], ints(4), gradient=False)
_runs = ints(7, given=(1, 1, 2, 2, 1, 3, 3))
form("unique_consecutive", lambda t, x: t.unique_consecutive(x), _runs, gradient=False)
form("unique_consecutive:counts", lambda t, x: x.reshape(1, 7).unique_consecutive(return_inverse=True, return_counts=True),
     _runs, gradient=False)
form("unique_consecutive:empty", lambda t, x: t.unique_consecutive(x[:0], return_inverse=True, return_counts=True), _runs,
     gradient=False)
form("unique_consecutive:dim", lambda t, x: t.unique_consecutive(x, return_inverse=True, return_counts=True, dim=1),
     ints(2, 4, given=(1, 1, 2, 1, 0, 0, 2, 0)), gradient=False)
