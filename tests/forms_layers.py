"""Functions of networks that have integer operands beside their input: unpooling, losses of labels without times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.forms import Form
from tests.rows import Operand, floats, ints

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(f"nn.functional.{name}", call, operands, **options))


# -- unpooling -------------------------------------------------------------------------------------------------------------

_planes, _places = floats(2, 2, 2, 3), ints(2, 2, 2, 3, given=(0, 2, 5, 13, 15, 17, 1, 3, 4, 12, 14, 16, 7, 9, 11, 18, 20, 23,
                                                              6, 8, 10, 19, 21, 22))
for _how, _options in {"": {}, "stride": {"stride": (3, 2)}, "size": {"output_size": (5, 7)},
                       "whole size": {"output_size": (2, 2, 5, 6)}, "padding": {"kernel_size": 4, "padding": (1, 0)}}.items():
    _options = {"kernel_size": 2} | _options
    form(f"max_unpool2d:{_how}", lambda t, x, i, o=_options: t.nn.functional.max_unpool2d(x, i, **o), _planes, _places)
form("max_unpool2d:one sample", lambda t, x, i: t.nn.functional.max_unpool2d(x[0], i[0], 2), _planes, _places)
# Of repeated indices each gets the gradient, though the last alone is seen.
form("max_unpool2d:of max_pool2d", lambda t, x: t.nn.functional.max_unpool2d(
    *t.nn.functional.max_pool2d(x, (3, 2), (2, 1), 1, return_indices=True), (3, 2), (2, 1), 1, x.shape), floats(1, 2, 5, 4),
    smooth=False)
form("max_unpool1d", lambda t, x: t.nn.functional.max_unpool1d(
    *t.nn.functional.max_pool1d(x, 2, return_indices=True), 2, output_size=x.shape[-1:]), floats(2, 2, 7))
form("max_unpool1d:one sample", lambda t, x, i: t.nn.functional.max_unpool1d(x, i, kernel_size=3, stride=2), floats(2, 3),
     ints(2, 3, given=(0, 2, 6, 5, 4, 1)))
form("max_unpool3d", lambda t, x: t.nn.functional.max_unpool3d(
    *t.nn.functional.max_pool3d(x, 2, (1, 2, 2), return_indices=True), 2, (1, 2, 2)), floats(1, 2, 3, 4, 4), smooth=False)
form("max_unpool3d:one sample", lambda t, x, i: t.nn.functional.max_unpool3d(x, i, 2, output_size=(5, 3, 4)),
     floats(2, 2, 1, 2), ints(2, 2, 1, 2, given=(0, 12, 59, 7, 3, 4, 5, 40)))
for _d in (1, 2, 3):
    form(f"max_pool{_d}d_with_indices", lambda t, x, d=_d: getattr(t.nn.functional, f"max_pool{d}d_with_indices")(
        x, 2, padding=1, stride=1, return_indices=False), floats(1, 2, *(4, 3, 5)[:_d]))
    form(f"adaptive_max_pool{_d}d_with_indices", lambda t, x, d=_d: getattr(
        t.nn.functional, f"adaptive_max_pool{d}d_with_indices")(x, 2), floats(1, 2, *(4, 3, 5)[:_d]))
FORMS.append(Form("max_pool1d_with_indices", lambda t, x: t.max_pool1d_with_indices(x, 2, 1), (floats(1, 2, 5),)))

# -- labels without times --------------------------------------------------------------------------------------------------

_spoken, _ins, _outs = floats(7, 3, 5), ints(3, given=(7, 5, 6)), ints(3, given=(4, 0, 2))
_padded, _flat = ints(3, 4, low=1, given=(1, 1, 3, 4, 9, 9, 9, 9, 2, 2, -1, -1)), ints(6, low=1, given=(1, 1, 3, 4, 2, 2))


def spoken(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    form(f"ctc_loss:{name}", lambda t, x, *rest: call(t, t.nn.functional.log_softmax(x, -1), *rest), *operands,
         **{"tolerance": 3e-5, "smooth": False} | options)


for _reduction in ("none", "mean", "sum"):
    spoken(_reduction, lambda t, x, y, i, o, r=_reduction: t.nn.functional.ctc_loss(x, y, i, o, reduction=r), _spoken, _padded,
           _ins, _outs)
    spoken(f"in a row {_reduction}", lambda t, x, y, r=_reduction: t.nn.functional.ctc_loss(x, y, (7, 5, 6), (4, 0, 2), 0, r),
           _spoken, _flat)
    spoken(f"one sample {_reduction}", lambda t, x, y, i, o, r=_reduction: t.nn.functional.ctc_loss(
        x[:, 0], y, i[0], o[:1], reduction=r), _spoken, ints(4, given=(0, 2, 2, 4)), _ins, _outs)
    spoken(f"too short {_reduction}", lambda t, x, y, i, o, r=_reduction: t.nn.functional.ctc_loss(
        x, y.int(), i, o.int(), 0, r, True), _spoken, _padded, ints(3, given=(3, 5, 0)), _outs)
spoken("another blank", lambda t, x, y, i, o: t.nn.CTCLoss(4, "sum")(x, y - 1, i, o), _spoken,
       ints(3, 4, low=1), _ins, _outs)
FORMS.append(Form("ctc_loss", lambda t, x, y, i, o: [t.ctc_loss(t.log_softmax(x, 2), y, i, o, 0, r, False) for r in (0, 1, 2)],
                  (_spoken, _padded, _ins, _outs), tolerance=3e-5, smooth=False))
