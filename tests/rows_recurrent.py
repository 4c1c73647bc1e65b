"""Sample calls of recurrent layers over a sequence, with plain loops as references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.rows import Operand, Row, floats

ROWS: list[Row] = []
BIG: list[Row] = []
#: Sizes where the CUDA kernels take different paths: rows of full accesses and not, several blocks, no steps.
SIZES: list[Row] = []


def _stacked(t: Any, outputs: list[Any], backwards: bool) -> Any:
    return t.stack(outputs[::-1] if backwards else outputs)


def _order(given: Any, backwards: bool) -> list[int]:
    steps = list(range(given.shape[0]))
    return steps[::-1] if backwards else steps


def rnn(relu: bool, backwards: bool) -> Any:
    def reference(t: Any, given: Any, weight: Any, h: Any) -> Any:
        outputs = []
        for k in _order(given, backwards):
            h = given[k] + h @ weight.T
            h = t.relu(h) if relu else t.tanh(h)
            outputs.append(h)
        return _stacked(t, outputs, backwards)

    return reference


def lstm(backwards: bool) -> Any:
    def reference(t: Any, given: Any, weight: Any, h: Any, c: Any) -> Any:
        outputs = []
        for k in _order(given, backwards):
            i, f, g, o = (given[k] + h @ weight.T).chunk(4, 1)
            c = t.sigmoid(f) * c + t.sigmoid(i) * t.tanh(g)
            h = t.sigmoid(o) * t.tanh(c)
            outputs.append(h)
        return _stacked(t, outputs, backwards), c

    return reference


def gru(backwards: bool) -> Any:
    def reference(t: Any, given: Any, weight: Any, bias: Any, h: Any) -> Any:
        outputs = []
        for k in _order(given, backwards):
            a, b = given[k].chunk(3, 1), (h @ weight.T + (0 if bias is None else bias)).chunk(3, 1)
            r, z = t.sigmoid(a[0] + b[0]), t.sigmoid(a[1] + b[1])
            n = t.tanh(a[2] + r * b[2])
            h = (1 - z) * n + z * h
            outputs.append(h)
        return _stacked(t, outputs, backwards)

    return reference


# -- results of the gradient ops, gate by gate -------------------------------------------------------------------------


def _weights(slopes: Any, out: Any, h0: Any, backwards: bool) -> Any:
    before = np.concatenate([out[1:], h0[None]] if backwards else [h0[None], out[:-1]])
    return np.einsum("lnw,lnh->wh", slopes, before)


def rnn_grad(relu: bool, backwards: bool) -> Any:
    def formula(dy: Any, out: Any, h0: Any, weight: Any) -> Any:
        slopes, dh = np.zeros_like(out), np.zeros_like(h0)
        for k in _order(out, not backwards):
            slopes[k] = (dy[k] + dh) * ((out[k] > 0) if relu else 1 - out[k] ** 2)
            dh = slopes[k] @ weight
        return slopes, _weights(slopes, out, h0, backwards), dh

    return formula


def lstm_grad(backwards: bool) -> Any:
    def formula(dy: Any, dlast: Any, gates: Any, cells: Any, out: Any, h0: Any, c0: Any, weight: Any) -> Any:
        slopes, dh, dc = np.zeros_like(gates), np.zeros_like(h0), np.zeros_like(c0) if dlast is None else dlast
        before = np.concatenate([cells[1:], c0[None]] if backwards else [c0[None], cells[:-1]])
        for k in _order(out, not backwards):
            i, f, g, o = np.split(gates[k], 4, 1)
            dh = dh if dy is None else dh + dy[k]
            bent = np.tanh(cells[k])
            dc = dc + dh * o * (1 - bent ** 2)
            slopes[k] = np.concatenate([dc * g * i * (1 - i), dc * before[k] * f * (1 - f), dc * i * (1 - g ** 2),
                                        dh * bent * o * (1 - o)], 1)
            dc, dh = dc * f, slopes[k] @ weight
        return slopes, _weights(slopes, out, h0, backwards), dh, dc

    return formula


def gru_grad(backwards: bool) -> Any:
    def formula(dy: Any, gates: Any, out: Any, h0: Any, weight: Any) -> Any:
        width = weight.shape[0]
        given, state, dh = np.zeros((*out.shape[:2], width), out.dtype), np.zeros((*out.shape[:2], width), out.dtype), 0 * h0
        before = np.concatenate([out[1:], h0[None]] if backwards else [h0[None], out[:-1]])
        for k in _order(out, not backwards):
            r, z, n, hn = np.split(gates[k], 4, 1)
            dh = dh + dy[k]
            dn = dh * (1 - z) * (1 - n ** 2)
            dr, dz = dn * hn * r * (1 - r), dh * (before[k] - n) * z * (1 - z)
            given[k], state[k] = np.concatenate([dr, dz, dn], 1), np.concatenate([dr, dz, dn * r], 1)
            dh = dh * z + state[k] @ weight
        return given, _weights(state, out, h0, backwards), state.sum((0, 1)), dh

    return formula


def _sizes(length: int, batch: int, size: int) -> tuple[Any, Operand, Operand, Operand]:
    """Operands: a sequence with some numbers per state, a weight with as many, a state, gates between 0 and 1."""
    def sequence(k: int, low: float = -2.0, high: float = 2.0) -> Operand:
        return floats(length, batch, k * size, low=low, high=high)

    return sequence, floats(batch, size), floats(batch, size), sequence(4, 0.1, 0.9)


for _case, _shape in (("plain", (3, 2, 4)), ("one step", (1, 3, 2)), ("one sample", (4, 1, 3)), ("no samples", (3, 0, 2))):
    for _backwards in (False, True):
        _s, _h, _c, _gates = _sizes(*_shape)
        _n = _shape[2]
        _name, _how = f"{_case}{' backwards' * _backwards}", {"backwards": _backwards}
        for _relu in (False, True):
            _both = {"relu": _relu, **_how}
            ROWS.append(Row("rnn", f"{_name} relu {_relu}", (_s(1), floats(_n, _n), _h), _both, torch=rnn(_relu, _backwards)))
            ROWS.append(Row("rnn_grad", f"{_name} relu {_relu}", (_s(1), _s(1, 0.1, 0.9), _h, floats(_n, _n)), _both,
                            numpy=rnn_grad(_relu, _backwards)))
        ROWS += [
            Row("lstm", _name, (_s(4), floats(4 * _n, _n), _h, _c), _how, torch=lstm(_backwards)),
            Row("lstm_grad", _name, (_s(1), _c, _gates, _s(1), _s(1), _h, _c, floats(4 * _n, _n)), _how,
                numpy=lstm_grad(_backwards), tolerance=1e-4),
            Row("lstm_grad", f"{_name} no last", (_s(1), None, _gates, _s(1), _s(1), _h, _c, floats(4 * _n, _n)), _how,
                numpy=lstm_grad(_backwards), tolerance=1e-4),
            Row("lstm_grad", f"{_name} last alone", (None, _c, _gates, _s(1), _s(1), _h, _c, floats(4 * _n, _n)), _how,
                numpy=lstm_grad(_backwards), tolerance=1e-4),
            Row("gru", _name, (_s(3), floats(3 * _n, _n), floats(3 * _n), _h), _how, torch=gru(_backwards)),
            Row("gru", f"{_name} no bias", (_s(3), floats(3 * _n, _n), None, _h), _how, torch=gru(_backwards)),
            Row("gru_grad", _name, (_s(1), _gates, _s(1), _h, floats(3 * _n, _n)), _how, numpy=gru_grad(_backwards),
                tolerance=1e-4)]

for _shape in ((2, 3, 8), (3, 1, 16), (2, 50, 24), (2, 310, 32), (2, 5, 40), (1, 5, 7), (0, 2, 4), (0, 3, 5)):
    _s, _h, _c, _gates = _sizes(*_shape)
    _n = _shape[2]
    # Results of relu, some of them zero.
    _ramp = tuple(k % 5 / 4 for k in range(_shape[0] * _shape[1] * _n))
    for _how in ({"backwards": False}, {"backwards": True}):
        for _relu in (False, True):
            SIZES += [Row("rnn", f"size {_shape} {_relu} {_how}", (_s(1), floats(_n, _n), _h), {"relu": _relu, **_how}),
                      Row("rnn_grad", f"size {_shape} {_relu} {_how}",
                          (_s(1), floats(*_shape, given=_ramp), _h, floats(_n, _n)), {"relu": _relu, **_how})]
        SIZES += [Row(op, f"size {_shape} {_how}", operands, _how, tolerance=1e-4) for op, operands in (
            ("lstm", (_s(4), floats(4 * _n, _n), _h, _c)),
            ("lstm_grad", (_s(1), _c, _gates, _s(1), _s(1), _h, _c, floats(4 * _n, _n))),
            ("lstm_grad", (_s(1), None, _gates, _s(1), _s(1), _h, _c, floats(4 * _n, _n))),
            ("gru", (_s(3), floats(3 * _n, _n), floats(3 * _n), _h)),
            ("gru_grad", (_s(1), _gates, _s(1), _h, floats(3 * _n, _n))))]

#: With two bytes per element, where only rounding may be off: tests/host/cuda/cuda_rows.py bounds it.
NARROW = [replace(row, tolerance=1e-5) for row in SIZES
          if row.name.startswith(("size (2, 50, 24)", "size (2, 5, 40)", "size (1, 5, 7)"))]

_s, _h, _c, _gates = _sizes(64, 32, 256)
for _how in ({"backwards": False}, {"backwards": True}):
    BIG += [Row("rnn", f"{_how}", (_s(1), floats(256, 256), _h), {"relu": False, **_how}),
            Row("rnn_grad", f"{_how}", (_s(1), _s(1), _h, floats(256, 256)), {"relu": True, **_how}),
            Row("lstm", f"{_how}", (_s(4), floats(1024, 256), _h, _c), _how),
            Row("lstm_grad", f"{_how}", (_s(1), _c, _gates, _s(1), _s(1), _h, _c, floats(1024, 256)), _how),
            Row("gru", f"{_how}", (_s(3), floats(768, 256), floats(768), _h), _how),
            Row("gru_grad", f"{_how}", (_s(1), _gates, _s(1), _h, floats(768, 256)), _how)]
