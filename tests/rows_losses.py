"""Sample calls of the elementwise losses, of RMS norm, and of the loss of labels without times."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.rows import Operand, Row, floats, ints


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

# -- labels without times ----------------------------------------------------------------------------------------------------


def _ctc(blank: int) -> Any:
    return lambda t, *args: t.nn.functional.ctc_loss(*args, blank=blank, reduction="none")


def _ctc_slopes(blank: int) -> Any:
    def formula(dy: Any, log_probs: Any, targets: Any, steps: Any, counts: Any, loss: Any, alpha: Any) -> Any:
        out, at, given = np.exp(log_probs) * dy[:, None], 0, 0
        for b, count in enumerate(counts):
            labels = targets[b][:count] if targets.ndim == 2 else targets[given:given + count]
            line = np.full(2 * count + 1, blank)
            line[1::2] = labels
            beta = np.full(len(line), -np.inf)
            beta[-1 - (count > 0):] = 0
            out[steps[b]:, b] = 0
            whole = loss[b] if np.isfinite(loss[b]) else 0
            for t in range(steps[b] - 1, -1, -1):
                np.subtract.at(out[t, b], line, np.exp(alpha[t, at:at + len(line)] + beta + whole) * dy[b])
                ahead = np.append(beta + log_probs[t, b, line], [-np.inf] * 2)
                far = [ahead[s + 2] if s + 2 < len(line) and line[s + 2] != line[s] else -np.inf for s in range(len(line))]
                beta = np.logaddexp(np.logaddexp(ahead[:-2], ahead[1:-1]), far)
            if not np.isfinite(loss[b]):
                out[:steps[b], b] = np.nan
            at += 2 * targets.shape[1] + 1 if targets.ndim == 2 else len(line)
            given += count
        return out

    return formula


#: Steps, classes; blank; targets; the steps and the numbers of labels of each sample.
_SPOKEN: dict[str, tuple[int, int, int, Operand, tuple[int, ...], tuple[int, ...]]] = {
    "padded": (7, 5, 0, ints(3, 4, low=1), (7, 6, 7), (4, 2, 0)), "in a row": (6, 4, 3, ints(5, high=3), (6, 4, 5), (2, 0, 3)),
    "repeated": (8, 3, 1, ints(2, 3, given=(0, 0, 0, 2, 0, 0)), (8, 7), (3, 3)),
    "too short": (4, 3, 0, ints(3, 3, given=(1, 1, 2, 1, 2, 1, 2, 2, 2)), (3, 0, 0), (3, 1, 0)),
    "no labels": (3, 4, 2, ints(2, 0), (3, 2), (0, 0)), "one step": (1, 3, 0, ints(2, low=1, high=3), (1, 1), (1, 1))}


def spoken(name: str, steps: int, classes: int, blank: int, targets: Operand, ins: tuple[int, ...], outs: tuple[int, ...],
           reference: bool = True) -> list[Row]:
    samples, count = len(ins), math.prod(targets.shape)
    columns = samples + 2 * (samples * targets.shape[1] if len(targets.shape) == 2 else count)
    x, lengths = floats(steps, samples, classes, low=-3, high=-0.5), (ints(samples, given=ins), ints(samples, given=outs))
    attrs = {"blank": blank, "zero_infinity": False}
    return [Row("ctc_loss", name, (x, targets, *lengths), attrs, torch=_ctc(blank) if reference else None, smooth=False),
            Row("ctc_loss_grad", name, (floats(samples), x, targets, *lengths, floats(samples, low=0, high=1),
                                        floats(steps, columns, low=-4, high=0)), attrs, numpy=_ctc_slopes(blank),
                gradient=False)]


for name, given in _SPOKEN.items():
    ROWS += spoken(name, *given)
ROWS += [Row("ctc_loss_grad", f"infinite {zero}", (floats(2), floats(3, 2, 3), ints(2, 2, low=1, high=3), ints(2, given=(3, 2)),
             ints(2, given=(2, 2)), floats(2, given=(np.inf, 0.5)), floats(3, 10)), {"blank": 0, "zero_infinity": zero},
             numpy=lambda *args, z=zero: np.nan_to_num(_ctc_slopes(0)(*args), nan=0.0 if z else np.nan), gradient=False)
         for zero in (False, True)]
# More columns and classes than a block has threads.
SIZES += spoken("long", 5, 300, 7, ints(2, 140, low=10, high=40), (5, 4), (140, 3), reference=False)
BIG += spoken("big", 60, 1024, 0, ints(4, 30, low=1, high=1024), (60, 60, 50, 40), (30, 20, 25, 10), reference=False)
