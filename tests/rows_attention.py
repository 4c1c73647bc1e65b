"""Sample calls of the ops of language models: attention, embeddings, triangles, layer norm from given statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.rows import Row, floats, ints

ROWS: list[Row] = []
#: The state of a generator that has drawn numbers: key, unused, counter, unused.
STATE = (7, 0, 3, 0)


def _attention(causal: bool, scale: float) -> Callable[..., Any]:
    def reference(t: Any, q: Any, k: Any, v: Any, mask: Any = None, state: Any = None, drop: float = 0.0) -> Any:
        scores = q @ k.transpose(-1, -2) * scale
        if mask is not None:
            scores = scores + mask.detach()
        if causal:
            scores = scores.masked_fill(t.ones(scores.shape[-2:], dtype=t.bool).tril().logical_not(), -math.inf)
        return scores.softmax(-1) * t.as_tensor(_left(scores.shape, drop), dtype=v.dtype) @ v

    return reference


def _left(shape: Any, drop: float) -> Any:
    """Dropout's factors for scores: the numbers of each row begin at a new counter, and a counter gives eight."""
    words = -(-shape[-1] // 8) * 8
    bits = np.random.Philox(key=np.array([STATE[0], 0], np.uint64), counter=np.array([STATE[2], 0, 0, 0], np.uint64))
    drawn = np.random.Generator(bits).random((*shape[:-1], words), dtype=np.float32)[..., :shape[-1]]
    return (drawn >= drop) / (1 - drop)


def _exact(x: Any) -> Any:
    return np.asarray(x, np.float64)


def _attention_grad(causal: bool, scale: float) -> Callable[..., Any]:
    def reference(dy: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, state: Any = None,
                  drop: float = 0.0) -> Any:
        scores = _exact(q) @ _exact(k).swapaxes(-1, -2) * scale
        if mask is not None:
            scores = scores + mask
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape[-2:])) > 0, scores, -np.inf)
        p = np.exp(scores - lse[..., None])
        left = _left(p.shape, drop)
        ds = p * (dy @ v.swapaxes(-1, -2) * left - (dy * out).sum(-1, keepdims=True)) * scale
        return tuple(a.astype(q.dtype) for a in (ds @ k, ds.swapaxes(-1, -2) @ q, (p * left).swapaxes(-1, -2) @ dy))

    return reference


for _name, _lead, _l, _s, _e, _ev, _causal, _mask, _drop in (
        ("plain", (1, 2), 3, 4, 2, 3, False, None, 0.0), ("causal", (2, 1), 4, 4, 3, 3, True, None, 0.0),
        ("causal few keys", (1, 1), 5, 3, 2, 2, True, None, 0.0), ("causal many keys", (1, 1), 3, 5, 2, 2, True, None, 0.0),
        ("mask", (2, 2), 2, 3, 2, 2, False, (2, 1, 2, 3), 0.0), ("one", (1, 1), 1, 1, 1, 1, True, None, 0.0),
        ("two blocks", (1, 1), 66, 66, 1, 1, True, None, 0.0), ("dropout", (2, 3), 3, 9, 2, 3, False, None, 0.4),
        ("dropout mask", (2, 2), 2, 3, 2, 2, False, (2, 3), 0.5), ("dropout causal", (2, 1), 4, 4, 2, 2, True, None, 0.3),
        ("dropout two blocks", (1, 2), 70, 70, 1, 1, True, None, 0.3),
        ("no keys", (1, 2), 3, 0, 2, 2, False, None, 0.0), ("no samples", (0, 2), 3, 4, 2, 2, True, None, 0.0)):
    _how = {"causal": _causal, "scale": 0.7}
    _q, _k, _v = (floats(*_lead, n, e) for n, e in ((_l, _e), (_s, _e), (_s, _ev)))
    _m = None if _mask is None else floats(*_mask)
    _drops = (ints(4, given=STATE), _drop) if _drop else ()
    ROWS.append(Row("attention", _name, (_q, _k, _v, _m, *_drops), _how, torch=_attention(**_how), tolerance=2e-5))
    ROWS.append(Row("attention_grad", _name, (floats(*_lead, _l, _ev), _q, _k, _v, _m, floats(*_lead, _l, _ev),
                                              floats(*_lead, _l, low=1.0), *_drops), _how, numpy=_attention_grad(**_how),
                    tolerance=1e-4))
for _name, _layouts in (("layouts", ("transposed", "sliced", "plain")), ("heads", ("heads",) * 3)):
    ROWS.append(Row("attention", _name, tuple(floats(2, 2, 4, e, layout=layout) for e, layout in zip(
        (3, 3, 2), _layouts, strict=True)), {"causal": False, "scale": 1.0}, torch=_attention(False, 1.0)))

# -- embeddings, triangles ---------------------------------------------------------------------------------------------

for _name, _index, _padding in (("plain", ints(2, 3), None), ("padding", ints(7), 2), ("one", ints(), 0),
                                ("empty", ints(0, 2), None)):
    ROWS.append(Row("embedding", _name, (floats(5, 3), _index), {"padding": _padding},
                    torch=lambda t, w, i, p=_padding: t.nn.functional.embedding(i, w, p), smooth=_padding is None))

    def _rows_grad(dy: Any, index: Any, padding: Any = _padding) -> Any:
        out = np.zeros((5, 3), dy.dtype)
        np.add.at(out, index, dy)
        if padding is not None:
            out[padding] = 0
        return out

    def _unpadded(weight: Any, index: Any, padding: Any = _padding) -> Any:
        return np.where((index == padding)[..., None], 0, weight[index]) if padding is not None else weight[index]

    ROWS.append(Row("embedding_grad", _name, (floats(*_index.shape, 3), _index), {"shape": (5, 3), "padding": _padding},
                    numpy=_rows_grad))
    ROWS.append(Row("embedding_unpadded", _name, (floats(5, 3), _index), {"padding": _padding}, numpy=_unpadded))
for _op in ("tril", "triu"):
    for _name, _x, _diagonal in (("plain", floats(3, 4), 0), ("above", floats(2, 4, 3), 1), ("below", floats(4, 3), -2),
                                 ("far", floats(2, 2), 7), ("layouts", floats(3, 4, layout="transposed"), 0),
                                 ("empty", floats(0, 3), 0)):
        ROWS.append(Row(_op, _name, (_x,), {"diagonal": _diagonal},
                        torch=lambda t, x, op=_op, d=_diagonal: getattr(x, op)(d)))

# -- layer norm from given statistics ----------------------------------------------------------------------------------


def _layer_norm_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any) -> Any:
    y = (x - mean) * rstd
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


for _name, _weight, _bias in (("plain", True, True), ("no bias", True, False), ("no affine", False, False)):
    ROWS.append(Row("layer_norm_apply", _name, (floats(2, 3), floats(3) if _weight else None, floats(3) if _bias else None,
                                                floats(2, 1), floats(2, 1)), {"dims": 1}, numpy=_layer_norm_apply))
