"""Sample calls of the elementwise losses, and of RMS norm."""

from __future__ import annotations

from typing import Any

from tests.rows import Row, floats


def _logits(t: Any, x: Any, y: Any) -> Any:
    y = y if hasattr(y, "shape") else t.full_like(x, y)
    return t.nn.functional.binary_cross_entropy_with_logits(x, y, reduction="none")


def _huber(t: Any, x: Any, delta: float) -> Any:
    return t.nn.functional.huber_loss(x, t.zeros_like(x), reduction="none", delta=delta)


def _bce(t: Any, x: Any, y: Any) -> Any:
    return t.nn.functional.binary_cross_entropy(x, y, reduction="none")


ROWS: list[Row] = []
for case, shape, layout in (("plain", (2, 3), "plain"), ("empty", (0, 2), "plain"), ("transposed", (3, 4), "transposed"),
                            ("0d", (), "plain")):
    x, share = floats(*shape, layout=layout), floats(*shape, low=0.1, high=0.9, layout=layout)
    ROWS += [Row("huber", f"{case} {delta}", (x, delta), torch=_huber) for delta in (0.5, 3.0)]
    ROWS += [Row("bce_logits", case, (x, share), torch=_logits),
             Row("bce_logits", f"{case} number", (x, 1.0), torch=_logits),
             Row("bce", case, (share, floats(*shape, low=0.1, high=0.9)), torch=_bce)]
# PyTorch has no gradient for a target of exactly 0 or 1.
ROWS += [Row("bce_logits", "far", (floats(5, low=-200, high=200), floats(5, low=0, high=1)), torch=_logits, smooth=False),
         Row("bce", "ends", (floats(4, given=(0.0, 1.0, 0.0, 1.0)), floats(4, given=(0.0, 0.0, 1.0, 1.0))), torch=_bce,
             smooth=False, gradient=False)]


def _rms(t: Any, x: Any, weight: Any = None) -> Any:
    return t.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-5)


for case, shape, layout in (("plain", (2, 3), "plain"), ("empty", (0, 3), "plain"), ("transposed", (4, 6), "transposed"),
                            ("vector", (5,), "plain"), ("planes", (2, 3, 4), "plain")):
    ROWS += [Row("rms_norm", case, (floats(*shape, layout=layout), floats(shape[-1])), {"dims": 1, "eps": 1e-5}, torch=_rms),
             Row("rms_norm", f"{case} alone", (floats(*shape, layout=layout),), {"dims": 1, "eps": 1e-5}, torch=_rms)]
ROWS.append(Row("rms_norm", "two dimensions", (floats(2, 3, 4), floats(3, 4)), {"dims": 2, "eps": 1e-5},
                torch=lambda t, x, w: t.nn.functional.rms_norm(x, (3, 4), w, 1e-5)))

_x, _share = floats(512, 1024), floats(512, 1024, low=0.1, high=0.9)
BIG = [Row("huber", "big", (_x, 0.5)), Row("bce", "big", (_share, _share)), Row("bce_logits", "big", (_x, _share)),
       Row("bce_logits", "big number", (_x, 1.0)), Row("rms_norm", "big", (_x, floats(1024)), {"dims": 1, "eps": 1e-5}),
       Row("rms_norm", "narrow", (floats(65536, 8), None), {"dims": 1, "eps": 1e-5})]
SIZES = [Row(op, f"size {n}", (floats(n, low=0.1, high=0.9), other)) for n in (1, 3, 4099)
         for op, other in (("huber", 0.5), ("bce", floats(n, low=0.1, high=0.9)), ("bce_logits", floats(n)))]
SIZES += [Row("rms_norm", f"size {shape}", (floats(*shape), floats(shape[1])), {"dims": 1, "eps": 1e-5})
          for shape in ((3, 31), (9, 33), (2, 5000))]
