"""Functions of networks as users call them: convolutions, pooling, losses, the types of what they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.forms import Form
from tests.rows import Operand, floats, ints

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(f"nn.functional.{name}", call, operands, **options))


_volume, _kernel = floats(1, 2, 4, 3, 4), floats(2, 2, 2, 1, 2)
form("conv3d", lambda t, x, w, b: t.nn.functional.conv3d(x, w, b), _volume, _kernel, floats(2), tolerance=3e-5)
for _how, _options in {"stride": {"stride": (2, 1, 2)}, "padding": {"padding": (1, 0, 1)}, "dilation": {"dilation": (2, 1, 2)},
                       "all": {"stride": 2, "padding": 2, "dilation": 2}, "valid": {"padding": "valid"},
                       "same": {"padding": "same", "dilation": 2}}.items():
    form(f"conv3d:{_how}", lambda t, x, w, o=_options: t.nn.functional.conv3d(x, w, **o), _volume, _kernel, tolerance=3e-5)
form("conv3d:groups", lambda t, x, w: t.nn.functional.conv3d(x, w, groups=2), _volume, floats(4, 1, 2, 2, 2), tolerance=3e-5)
form("conv3d:depth of one", lambda t, x, w: t.nn.functional.conv3d(x, w), _volume, floats(3, 2, 1, 1, 1), tolerance=3e-5)
form("conv3d:one sample", lambda t, x, w: t.nn.functional.conv3d(x, w), floats(2, 3, 3, 2), floats(2, 2, 3, 2, 1),
     tolerance=3e-5)
form("conv3d:transposed", lambda t, x, w: t.nn.functional.conv3d(x.transpose(2, 4), w), floats(1, 1, 3, 3, 2),
     floats(2, 1, 2, 2, 2), tolerance=3e-5)

for _how, _size in {"": (2, 3), ":uneven": (3, 4), ":one": 1, ":kept": (None, 2), ":more than there are": (9, 2)}.items():
    form(f"adaptive_max_pool2d{_how}", lambda t, x, s=_size: t.nn.functional.adaptive_max_pool2d(x, s), floats(1, 2, 7, 6))
form("adaptive_max_pool2d:one sample", lambda t, x: t.nn.functional.adaptive_max_pool2d(x, 2), floats(2, 5, 4))
form("adaptive_max_pool2d:places", lambda t, x: t.nn.functional.adaptive_max_pool2d(x, (3, 4), return_indices=True),
     floats(1, 2, 7, 6))
form("adaptive_max_pool1d", lambda t, x: t.nn.functional.adaptive_max_pool1d(x, 3), floats(2, 3, 7))
form("adaptive_max_pool1d:places", lambda t, x: t.nn.functional.adaptive_max_pool1d(x, 3, return_indices=True), floats(3, 7))

_classes = ints(3, 4, low=-1, high=4, given=(3, 0, -1, 1, 1, -1, 0, 2, -1, 0, 1, 2))
for _reduction in ("mean", "sum", "none"):
    form(f"multilabel_margin_loss:{_reduction}",
         lambda t, x, y, r=_reduction: t.nn.functional.multilabel_margin_loss(x, y, reduction=r), floats(3, 4), _classes)
form("multilabel_margin_loss:one sample", lambda t, x, y: t.nn.functional.multilabel_margin_loss(x, y), floats(4),
     ints(4, low=-1, high=4, given=(2, 2, 0, -1)))
