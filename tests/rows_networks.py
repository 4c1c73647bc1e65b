"""Sample calls of the ops of networks: activations' gradients, softmax, losses, norms, random numbers, optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.rows import Row, floats, ints

ROWS: list[Row] = []


def pulled(function: Callable[..., Any], *positions: int) -> Callable[..., Any]:
    """A reference for a gradient op: torch's gradient of ``function(t, *inputs)`` at the positions, given dy first."""

    def reference(t: Any, dy: Any, *inputs: Any) -> Any:
        inputs_list = list(inputs)
        for k in positions:
            if not inputs_list[k].requires_grad:
                inputs_list[k] = inputs_list[k].detach().requires_grad_()
        out = function(t, *inputs_list)
        found = t.autograd.grad(out, [inputs_list[k] for k in positions], dy, create_graph=True)
        return found if len(positions) > 1 else found[0]

    return reference


# -- activations -------------------------------------------------------------------------------------------------------

GRADS: dict[str, tuple[Callable[..., Any], float, float]] = {
    "relu_grad": (lambda t, dy, x: dy * (x > 0), -2, 2), "tanh_grad": (lambda t, dy, x: dy * (1 - x * x), -1, 1),
    "sigmoid_grad": (lambda t, dy, x: dy * x * (1 - x), 0, 1)}
for _name, (_reference, _low, _high) in GRADS.items():
    ROWS += [Row(_name, case, (floats(*shape, layout=a), floats(*shape, low=_low, high=_high, layout=b)),
                 torch=_reference)
             for case, shape, a, b in (("plain", (2, 3), "plain", "plain"), ("empty", (0, 2), "plain", "plain"),
                                       ("layouts", (2, 3), "expanded", "transposed"), ("0d", (), "plain", "plain"))]


def _gelu(approximate: str) -> Callable[..., Any]:
    return lambda t, x: t.nn.functional.gelu(x, approximate=approximate)


for _tanh in (False, True):
    _attrs, _reference = {"tanh": _tanh}, _gelu("tanh" if _tanh else "none")
    ROWS += [Row("gelu", f"{case} {'tanh' if _tanh else 'exact'}", (a,), _attrs, torch=_reference) for case, a in {
        "plain": floats(2, 3, low=-3, high=3), "transposed": floats(2, 3, layout="transposed"), "empty": floats(0, 2),
        "0d": floats(), "tails": floats(4, given=(-30, -6, 6, 30))}.items()]
    ROWS += [Row("gelu_grad", f"{case} {'tanh' if _tanh else 'exact'}", args, _attrs, torch=pulled(_reference, 0))
             for case, args in {
                 "plain": (floats(2, 3), floats(2, 3)), "empty": (floats(0, 2), floats(0, 2)),
                 "layouts": (floats(2, 3, layout="expanded"), floats(2, 3, layout="transposed")),
                 "0d": (floats(), floats())}.items()]

# -- softmax -----------------------------------------------------------------------------------------------------------

_over = {"last": ((2, 3), "plain", 1), "first": ((2, 3), "plain", 0), "middle": ((2, 3, 2), "plain", 1),
         "transposed": ((2, 3), "transposed", 1), "sliced": ((2, 3), "sliced", 0), "one": ((1, 1), "plain", 0),
         "0d": ((), "plain", 0), "empty": ((0, 3), "plain", 1),
         "of nothing": ((0, 3), "plain", 0), "nothing": ((3, 0), "plain", 1)}
for _name in ("softmax", "log_softmax"):
    _grad: dict[str, Callable[..., Any]] = {
        "softmax": lambda t, dy, x, dim: x * (dy - (dy * x).sum(dim, keepdim=True)),
        "log_softmax": lambda t, dy, x, dim: dy - x.exp() * dy.sum(dim, keepdim=True)}
    for _case, (_shape, _layout, _dim) in _over.items():
        ROWS.append(Row(_name, _case, (floats(*_shape, layout=_layout),), {"dim": _dim},
                        torch=lambda t, x, n=_name, d=_dim: getattr(t, n)(x, d)))
        ROWS.append(Row(f"{_name}_grad", _case, (floats(*_shape), floats(*_shape, low=0, high=1, layout=_layout)),
                        {"dim": _dim}, torch=lambda t, dy, x, f=_grad[_name], d=_dim: f(t, dy, x, d)))
    ROWS.append(Row(_name, "large", (floats(2, 3, given=(1000, 999, -1000, -1e4, 0, 1e4)),), {"dim": 1},
                    torch=lambda t, x, n=_name: getattr(t, n)(x, 1)))

# -- losses ------------------------------------------------------------------------------------------------------------


def _loss(**attrs: Any) -> Callable[..., Any]:
    return lambda t, x, y, w=None: t.nn.functional.cross_entropy(x, y, w, **attrs)


_labels, _ignored = ints(3, given=(2, 0, 1)), ints(3, given=(2, -100, 1))
for _reduction in ("mean", "sum", "none"):
    _dy = floats(3) if _reduction == "none" else floats()
    for _case, _operands, _attrs in (
            ("plain", (floats(3, 4), _labels), {}), ("weighted", (floats(3, 4), _labels, floats(4, low=0.2)), {}),
            ("ignored", (floats(3, 4), _ignored, floats(4, low=0.2)), {}),
            ("ignored without weights", (floats(3, 4), _ignored), {}),
            ("ignored class", (floats(3, 4), _labels), {"ignore_index": 2}),
            ("layouts", (floats(3, 4, layout="transposed"), _labels, floats(4, low=0.2, layout="sliced")), {}),
            ("one class", (floats(2, 1), ints(2, high=1)), {}),
            ("large", (floats(1, 2, given=(500, -500)), ints(1, high=2)), {})):
        _all = {"reduction": _reduction, "ignore_index": -100, **_attrs}
        _row = _operands[1].shape[0]
        _cotangent = floats(_row) if _reduction == "none" else floats()
        ROWS.append(Row("cross_entropy", f"{_case} {_reduction}", _operands, _all, torch=_loss(**_all)))
        ROWS.append(Row("cross_entropy_grad", f"{_case} {_reduction}", (_cotangent, *_operands), _all,
                        torch=pulled(_loss(**_all), 0)))
    ROWS.append(Row("cross_entropy", f"empty {_reduction}", (floats(0, 4), ints(0)), {"reduction": _reduction},
                    torch=_loss(reduction=_reduction), smooth=False))
ROWS.append(Row("cross_entropy", "all ignored", (floats(2, 3), ints(2, given=(-100, -100))), {"reduction": "mean"},
                torch=_loss(reduction="mean"), smooth=False))


def _mse(reduction: str) -> Callable[..., Any]:
    return lambda t, x, y: t.nn.functional.mse_loss(x, y, reduction=reduction)


for _reduction in ("mean", "sum"):
    for _case, _pair in {"plain": (floats(2, 3), floats(2, 3)), "0d": (floats(), floats()),
                         "layouts": (floats(2, 3, layout="transposed"), floats(2, 3, layout="expanded")),
                         "one": (floats(1), floats(1))}.items():
        ROWS.append(Row("mse_loss", f"{_case} {_reduction}", _pair, {"reduction": _reduction}, torch=_mse(_reduction)))
        ROWS.append(Row("mse_grad", f"{_case} {_reduction}", (floats(), *_pair), {"reduction": _reduction},
                        torch=pulled(_mse(_reduction), 0)))
    ROWS.append(Row("mse_loss", f"empty {_reduction}", (floats(0, 2), floats(0, 2)), {"reduction": _reduction},
                    torch=_mse(_reduction), smooth=False))

# -- norms -------------------------------------------------------------------------------------------------------------


def _norm(dims: int) -> Callable[..., Any]:
    return lambda t, x, w=None, b=None: t.nn.functional.layer_norm(x, x.shape[x.ndim - dims:], w, b, 1e-5)


_norms = {
    "plain": ((floats(2, 3), floats(3), floats(3)), 1), "no affine": ((floats(2, 4), None, None), 1),
    "no bias": ((floats(2, 4), floats(4), None), 1), "only bias": ((floats(2, 4), None, floats(4)), 1),
    "two dimensions": ((floats(2, 2, 3), floats(2, 3), floats(2, 3)), 2), "1d": ((floats(4), floats(4), floats(4)), 1),
    "layouts": ((floats(2, 3, layout="transposed"), floats(3, layout="sliced"), floats(3, layout="sliced")), 1),
    "empty": ((floats(0, 3), floats(3), floats(3)), 1)}
for _case, (_operands, _dims) in _norms.items():
    ROWS.append(Row("layer_norm", _case, _operands, {"dims": _dims, "eps": 1e-5}, torch=_norm(_dims), tolerance=3e-5))


def _layer_norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
    hat = (x - mean) * rstd
    g = dy if weight is None else dy * weight
    dx = rstd * (g - g.mean(-1, keepdims=True) - hat * (g * hat).mean(-1, keepdims=True))
    return dx, (dy * hat).sum(0), dy.sum(0)


ROWS += [Row("layer_norm_grad", case, operands, {"dims": 1, "needs": (True, True, True)}, numpy=_layer_norm_grad,
             tolerance=1e-4)
         for case, operands in {
             "plain": (floats(2, 3), floats(2, 3), floats(3), floats(2, 1), floats(2, 1, low=0.5)),
             "no weight": (floats(2, 3), floats(2, 3), None, floats(2, 1), floats(2, 1, low=0.5)),
             "layouts": (floats(2, 3, layout="expanded"), floats(2, 3, layout="transposed"), floats(3), floats(2, 1),
                         floats(2, 1, low=0.5))}.items()]


def _rms_norm_grad(dy: Any, x: Any, weight: Any, rstd: Any) -> Any:
    last = tuple(range(rstd.ndim - rstd.shape.count(1), rstd.ndim))
    hat = x * rstd
    g = dy if weight is None else dy * weight
    return rstd * (g - hat * (g * hat).mean(last, keepdims=True)), (dy * hat).sum(0)


ROWS += [Row("rms_norm_grad", case, operands, {"dims": dims, "needs": (True, True)}, numpy=_rms_norm_grad, tolerance=1e-4)
         for case, dims, operands in (
             ("plain", 1, (floats(2, 3), floats(2, 3), floats(3), floats(2, 1, low=0.5))),
             ("no weight", 1, (floats(2, 3), floats(2, 3), None, floats(2, 1, low=0.5))),
             ("two dimensions", 2, (floats(2, 3, 2), floats(2, 3, 2), floats(3, 2), floats(2, 1, 1, low=0.5))),
             ("empty", 1, (floats(0, 3), floats(0, 3), floats(3), floats(0, 1, low=0.5))),
             ("layouts", 1, (floats(2, 3, layout="expanded"), floats(2, 3, layout="transposed"), floats(3),
                             floats(2, 1, low=0.5))))]


def _group_norm(groups: int) -> Callable[..., Any]:
    return lambda t, x, w=None, b=None: t.nn.functional.group_norm(x, groups, w, b, 1e-5)


_groups = {
    "plain": ((floats(2, 6, 2, 3), floats(6), floats(6)), 3), "no affine": ((floats(2, 4, 3), None, None), 2),
    "no bias": ((floats(3, 4, 2), floats(4), None), 2), "2d": ((floats(3, 6), floats(6), floats(6)), 2),
    "channels": ((floats(2, 3, 5), floats(3), floats(3)), 3),
    "layouts": ((floats(2, 4, 3, layout="transposed"), floats(4, layout="sliced"), floats(4, layout="expanded")), 2),
    "empty": ((floats(0, 4, 3), floats(4), floats(4)), 2)}
for _case, (_operands, _dims) in _groups.items():
    ROWS.append(Row("group_norm", _case, _operands, {"groups": _dims, "eps": 1e-5}, torch=_group_norm(_dims), tolerance=3e-5))
# torch 2.13 fails in backward without a weight.
ROWS.append(Row("group_norm", "only bias", (floats(2, 4, 2), None, floats(4)), {"groups": 1, "eps": 1e-5}, tolerance=3e-5,
                numpy=lambda x, _, b: ((x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)
                                       + b[:, None])))


def _group_norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
    each = (x.shape[1] // mean.shape[1])
    m, r = (np.repeat(v, each, 1).reshape(*x.shape[:2], *[1] * (x.ndim - 2)) for v in (mean, rstd))
    hat = (x - m) * r
    g = dy if weight is None else dy * weight.reshape(-1, *[1] * (x.ndim - 2))

    def average(v: Any) -> Any:
        return np.broadcast_to(v.reshape(*mean.shape, -1).mean(-1, keepdims=True), (*mean.shape, x[0].size // mean.shape[1])
                               ).reshape(x.shape)

    inner = (0, *range(2, x.ndim))
    return r * (g - average(g) - hat * average(g * hat)), (dy * hat).sum(inner), dy.sum(inner)


ROWS += [Row("group_norm_grad", case, operands, {"groups": 2, "needs": (True, True, True)}, numpy=_group_norm_grad,
             tolerance=1e-4)
         for case, operands in {
             "plain": (floats(3, 4, 2), floats(3, 4, 2), floats(4), floats(3, 2), floats(3, 2, low=0.5)),
             "no weight": (floats(2, 4, 3, 2), floats(2, 4, 3, 2), None, floats(2, 2), floats(2, 2, low=0.5)),
             "layouts": (floats(3, 4, layout="expanded"), floats(3, 4, layout="transposed"), floats(4), floats(3, 2),
                         floats(3, 2, low=0.5))}.items()]

# -- random numbers ----------------------------------------------------------------------------------------------------

_state = ints(4, given=(7, 0, 3, 0))
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def _philox(state: Any) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[int(state[0]), 0], counter=[int(state[2]), 0, 0, 0]))


def _normals(state: Any, mean: float, std: float, count: int) -> Any:
    u = _philox(state).random(count + count % 2).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log(1 - u[:, 0]))
    pairs = np.stack([radius * np.cos(2 * np.pi * u[:, 1]), radius * np.sin(2 * np.pi * u[:, 1])], 1)
    return mean + std * pairs.reshape(-1)[:count]


def _dropped(x: Any, state: Any, p: float) -> Any:
    u = _philox(state).random(x.size, dtype=np.float32).reshape(x.shape)
    return np.where(u >= np.float32(p), x / (1 - p) if p < 1 else 0, 0).astype(x.dtype)


ROWS += [
    *[Row("chance", k, args, torch=lambda t, u, p: u < p) for k, args in {
        "plain": (floats(3, 4, low=0, high=1), floats(3, 4, low=0, high=1)),
        "broadcast": (floats(3, 4, low=0, high=1), floats(4, low=0, high=1)), "number": (floats(5, low=0, high=1), 0.5),
        "layouts": (floats(3, 4, low=0, high=1, layout="transposed"), floats(3, 1, low=0, high=1)),
        "empty": (floats(0), floats(0))}.items()],
    *[Row("sampling_weights", k, (x,), numpy=lambda w: w.astype(F64)) for k, x in {
        "rows": floats(3, 4, low=0.1), "vector": floats(5, low=0.1), "empty": floats(0, 3),
        "layouts": floats(4, 3, low=0.1, layout="transposed")}.items()],
    Row("advance", "plain", (_state,), {"numel": 10}, numpy=lambda s: s),
    Row("uniform", "plain", (_state, 0.0, 1.0), {"shape": (2, 3), "dtype": F32},
        numpy=lambda s, a, b: _philox(s).random((2, 3), dtype=np.float32)),
    Row("uniform", "double", (_state, -1.0, 2.0), {"shape": (5,), "dtype": F64},
        numpy=lambda s, a, b: _philox(s).random(5) * 3 - 1),
    Row("uniform", "half", (_state, 0, 1), {"shape": (5,), "dtype": np.dtype(np.float16)},
        numpy=lambda s, a, b: _philox(s).random(5, dtype=np.float32).astype(np.float16)),
    Row("uniform", "empty", (_state, 0.0, 1.0), {"shape": (0,), "dtype": F32}, numpy=lambda s, a, b: np.zeros(0, F32)),
    Row("normal", "odd", (_state, 0.0, 1.0), {"shape": (5,), "dtype": F32},
        numpy=lambda s, m, d: _normals(s, m, d, 5).astype(F32)),
    Row("normal", "shifted", (_state, 1.0, 0.5), {"shape": (2, 3), "dtype": F64},
        numpy=lambda s, m, d: _normals(s, m, d, 6).reshape(2, 3)),
    Row("normal", "empty", (_state, 0.0, 1.0), {"shape": (0,), "dtype": F32}, numpy=lambda s, m, d: np.zeros(0, F32)),
    *[Row("uniform_", name, (x, _state, -1.0, 2.0),
          numpy=lambda x, s, a, b: _philox(s).random(x.shape, F32) * 3 - 1)
      for name, x in (("plain", floats(2, 3)), ("empty", floats(0)))],
    *[Row("normal_", name, (x, _state, 1.0, 0.5),
          numpy=lambda x, s, m, d: _normals(s, m, d, x.size).reshape(x.shape).astype(F32))
      for name, x in (("plain", floats(3, 3)), ("empty", floats(0)))],
    *[Row("dropout", name, (a, _state, p), numpy=_dropped) for name, a, p in (
        ("half", floats(2, 6), 0.5), ("none", floats(4), 0.0), ("all", floats(4), 1.0), ("empty", floats(0, 2), 0.5),
        ("transposed", floats(2, 3, layout="transposed"), 0.3))],
]

# -- optimizers --------------------------------------------------------------------------------------------------------


def _sgd(dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False,
         first: bool = False) -> tuple[dict[str, Any], Callable[..., Any]]:
    def update(params: Any, grads: Any, moments: Any, lr: float, momentum: float) -> Any:
        new, kept = [], []
        for k, (p, g) in enumerate(zip(params, grads, strict=True)):
            d = (-g if maximize else g) + weight_decay * p
            if moments:
                m = d if first else momentum * moments[k] + (1 - dampening) * d
                kept.append(m)
                d = d + momentum * m if nesterov else m
            new.append(p - lr * d)
        return *new, *kept

    return {"dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize,
            "first": first}, update


def _adam(weight_decay: float = 0.0, decoupled: bool = False, maximize: bool = False) -> tuple[dict[str, Any], Any]:
    def update(params: Any, grads: Any, means: Any, squares: Any, *rest: Any) -> Any:
        *largest, lr, step, beta1 = rest
        rows = []
        for p, g, m, v, *most in zip(params, grads, means, squares, *largest, strict=True):
            g = -g if maximize else g
            if decoupled:
                p = p * (1 - lr * weight_decay)
            else:
                g = g + weight_decay * p
            m = beta1 * m + (1 - beta1) * g
            v = 0.999 * v + 0.001 * g * g
            most = [np.maximum(v, o) for o in most]
            root = np.sqrt([v, *most][-1] / (1 - 0.999 ** step))
            rows.append((p - lr * (m / (1 - beta1 ** step)) / (root + 1e-8), m, v, *most))
        return tuple(part for parts in zip(*rows, strict=True) for part in parts)

    return {"beta2": 0.999, "eps": 1e-8, "weight_decay": weight_decay, "decoupled": decoupled, "maximize": maximize}, update


_two = [floats(2, 3), floats(4)]
for _case, (_attrs, _update), _moments, _momentum in (
        ("plain", _sgd(), [], 0.0), ("decay", _sgd(weight_decay=0.1), [], 0.0), ("momentum", _sgd(), _two, 0.9),
        ("momentum of 0", _sgd(), _two, 0.0), ("first", _sgd(dampening=0.5, first=True), _two, 0.9),
        ("dampening", _sgd(dampening=0.5, weight_decay=0.1), _two, 0.9),
        ("nesterov", _sgd(nesterov=True, weight_decay=0.1), _two, 0.9),
        ("maximize", _sgd(nesterov=True, weight_decay=0.1, maximize=True), _two, 0.9)):
    ROWS.append(Row("sgd_", _case, (_two, _two, _moments, 0.1, _momentum), _attrs, numpy=_update))
_positive = [floats(2, 3, low=0, high=1), floats(4, low=0, high=1)]
_others = [floats(2, 3, low=0, high=1), floats(4, low=0, high=1)]
for _case, (_attrs, _update) in (("plain", _adam()), ("decay", _adam(0.1)), ("decoupled", _adam(0.1, True)),
                                 ("maximize", _adam(0.1, False, True))):
    ROWS.append(Row("adam_", _case, (_two, _two, _two, _positive, 0.1, 3, 0.9), _attrs, numpy=_update))
    ROWS.append(Row("amsgrad_", _case, (_two, _two, _two, _positive, _others, 0.1, 3, 0.9), _attrs, numpy=_update))
