"""Special functions of ``gradcore.special``, as users call them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.forms import Form
from tests.rows import Operand, floats, ints

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(f"special.{name}", call, operands, **options))


_f, _share, _ints = floats(2, 3), floats(2, 3, low=0.1, high=0.9), ints(4)
_nan, _inf = math.nan, math.inf

for _name in ("digamma", "erf", "erfc", "exp2", "expit", "expm1", "gammaln", "psi", "sinc", "ndtr", "log_ndtr", "erfcx"):
    # PyTorch's trigamma has nine digits.
    form(_name, lambda t, x, n=_name: getattr(t.special, n)(x), floats(2, 3, low=0.2, high=2.5),
         double=1e-8 if _name in ("digamma", "psi") else 1e-11)
    form(f"{_name}:ints", lambda t, x, n=_name: getattr(t.special, n)(x), ints(4, low=1), gradient=False, double=1e-5)
for _name in ("entr", "erfinv", "log1p", "logit", "ndtri"):
    form(_name, lambda t, x, n=_name: getattr(t.special, n)(x), _share)
form("logit:eps", lambda t, x: t.special.logit(x, eps=0.3), _share, smooth=False)
form("polygamma", lambda t, x: [t.special.polygamma(n, x) for n in (0, 1, 3)], floats(2, 3, low=0.5, high=2), double=1e-8)
form("round", lambda t, x: [t.special.round(x), t.special.round(x, decimals=1)], _f, smooth=False)
form("multigammaln", lambda t, x: [t.special.multigammaln(x, p) for p in (1, 2, 4)], floats(2, 3, low=2, high=5))
form("multigammaln:outside", lambda t, x: t.special.multigammaln(x, 3), floats(4, given=(0.5, 1, 0.3, _nan)), gradient=False)
form("multigammaln:ints", lambda t, x: t.special.multigammaln(x, p=2), ints(3, low=1), gradient=False)
form("logsumexp", lambda t, x: [t.special.logsumexp(x, 1), t.special.logsumexp(x, dim=(0, 1), keepdim=True)], _f)
form("softmax", lambda t, x: t.special.softmax(x, 1), _f)
form("softmax:dtype", lambda t, x: t.special.softmax(x, dim=0, dtype=t.float64), _f)
form("log_softmax", lambda t, x: [t.special.log_softmax(x, 0), t.special.log_softmax(x, 1, dtype=t.float64)], _f)
form("xlogy", lambda t, x, y: t.special.xlogy(x, y), _f, floats(3, low=0.5))
form("xlog1py", lambda t, x, y: t.special.xlog1py(x, y), _f, floats(3, low=-0.5))
form("xlog1py:small", lambda t, x, y: t.special.xlog1py(x, y), floats(3), floats(3, given=(1e-9, -1e-12, 3e-7)), smooth=False)
form("xlog1py:zeros", lambda t, x, y: t.special.xlog1py(x, y), floats(5, given=(0, 0, 0, 2, 0)),
     floats(5, given=(0, -2, _inf, -1, _nan)), gradient=False)
form("xlog1py:numbers", lambda t, x: [t.special.xlog1py(x, 2), t.special.xlog1py(2.5, x)], _share)
form("xlog1py:ints", lambda t, x, y: t.special.xlog1py(x, y), _ints, _ints, gradient=False)
form("entr:0", lambda t, x: t.special.entr(x), floats(3, given=(0, 1, 3)), smooth=False)
form("entr:outside", lambda t, x: t.special.entr(x), floats(5, given=(-1, -_inf, _inf, _nan, -0.0)), gradient=False)
form("entr:ints", lambda t, x: t.special.entr(x), ints(4, low=-1), gradient=False)

# -- the ends of the normal distribution -----------------------------------------------------------------------------------

_wide = floats(7, given=(-30, -9, -8.4, -3, 0, 4, 5))
# PyTorch's loses all digits below -5.
form("ndtr:small", lambda t, x: t.special.ndtr(x), floats(4, given=(-3, -1, 0, 6)), smooth=False)
form("log_ndtr:small", lambda t, x: t.special.log_ndtr(x), _wide, smooth=False)
form("log_ndtr:ends", lambda t, x: t.special.log_ndtr(x), floats(4, given=(-_inf, _inf, _nan, -1e15)), gradient=False)
form("erfcx:wide", lambda t, x: t.special.erfcx(x), floats(8, given=(-5, -1, 0, 3, 5.99, 6, 6.01, 40)), smooth=False)
form("erfcx:ends", lambda t, x: t.special.erfcx(x), floats(5, given=(-_inf, _inf, _nan, -40, 1e18)), gradient=False)
form("ndtri:small", lambda t, x: t.special.ndtri(x), floats(7, given=(1e-30, 1e-16, 1e-9, 0.02, 0.13, 0.14, 0.99)),
     smooth=False)
form("ndtri:ends", lambda t, x: t.special.ndtri(x), floats(6, given=(0, 1, -0.1, 1.1, _nan, -1e-30)), smooth=False)
form("ndtri:ints", lambda t, x: t.special.ndtri(x), ints(2, low=0, high=2), gradient=False)
