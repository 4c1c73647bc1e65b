"""Speed of kernels relative to the device's limits: the bandwidth of a copy, and the rate of large matrix products."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import gradcore
from bench.gpu.clock import clock_of
from bench.gpu.part import Outcome, Setting
from gradcore.ops import all_ops

#: Sizes of the main operand in MiB.
SIZES = (1, 16, 64, 256)
_WIDTH = 1024


@dataclass(frozen=True)
class Case:
    """A memory-bound call: ``make(rows, on)`` returns its arguments, with ``rows`` rows of 1024 floats.

    ``passes`` is how many times each of their bytes must cross the bus, counting reads and writes.
    """

    name: str
    op: str
    make: Callable[[int, dict[str, Any]], tuple[Any, ...]]
    passes: float
    attrs: dict[str, Any]


def case(name: str, op: str, make: Callable[[int, dict[str, Any]], tuple[Any, ...]], passes: float, **attrs: Any) -> Case:
    return Case(name, op, make, passes, attrs)


def _x(rows: int, on: dict[str, Any]) -> Any:
    return gradcore.rand(rows, _WIDTH, **on)


def _column(rows: int, on: dict[str, Any]) -> Any:
    return gradcore.ones(rows, 1, **on)


def _row(on: dict[str, Any]) -> Any:
    return gradcore.ones(_WIDTH, **on)


def _ids(n: int, high: int, on: dict[str, Any]) -> Any:
    return gradcore.tensor(np.random.default_rng(0).integers(0, high, n), **on)


def _images(rows: int, on: dict[str, Any]) -> Any:
    return _x(rows, on).view(-1, 32, 32, 32)


def _many(on: dict[str, Any]) -> tuple[Any, Any]:
    return gradcore.zeros(_WIDTH, **on), _row(on)


def _channels(on: dict[str, Any]) -> tuple[Any, Any]:
    return gradcore.zeros(32, **on), gradcore.ones(32, **on)


#: Elements of a state, so few that the matrix products are memory-bound too, and that of a step is part of its launch.
_STATE = 32


def _step(gates: int, rows: int, on: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The input's part of all gates of one step, the weight for the state, and a state."""
    batch = rows * _WIDTH // (gates * _STATE)
    return (gradcore.rand(1, batch, gates * _STATE, **on), gradcore.rand(gates * _STATE, _STATE, **on),
            gradcore.rand(batch, _STATE, **on))


def _lstm_back(rows: int, on: dict[str, Any]) -> tuple[Any, ...]:
    gates, weight, h = _step(4, rows, on)
    return h.view(1, *h.shape), h, gates, h.view(1, *h.shape), h.view(1, *h.shape), h, h, weight


def _gru_back(rows: int, on: dict[str, Any]) -> tuple[Any, ...]:
    gates, weight, h = _step(4, rows, on)
    return h.view(1, *h.shape), gates, h.view(1, *h.shape), h, weight[:3 * _STATE]


_SGD = {"dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False, "first": False}
_ADAM = {"beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "decoupled": False, "maximize": False}
_POOL = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
CASES = (
    case("add", "add", lambda n, on: (_x(n, on), _x(n, on)), 3),
    case("add a row", "add", lambda n, on: (_x(n, on), _row(on)), 2),
    case("times a number", "mul", lambda n, on: (_x(n, on), 1.5), 2),
    case("transposed copy", "clone", lambda n, on: (_x(n, on).transpose(0, 1),), 2),
    case("relu", "relu", lambda n, on: (_x(n, on),), 2),
    case("relu's gradient", "relu_grad", lambda n, on: (_x(n, on), _x(n, on)), 3),
    case("gelu", "gelu", lambda n, on: (_x(n, on),), 2),
    case("gelu's gradient", "gelu_grad", lambda n, on: (_x(n, on), _x(n, on)), 3, tanh=False),
    case("sum of all", "sum", lambda n, on: (_x(n, on),), 1, dims=(0, 1), keepdim=False),
    case("sum of rows", "sum", lambda n, on: (_x(n, on),), 1, dims=(1,), keepdim=False),
    case("sum of columns", "sum", lambda n, on: (_x(n, on),), 1, dims=(0,), keepdim=False),
    case("position of the largest", "argmax", lambda n, on: (_x(n, on).view(-1),), 1, dim=0, keepdim=False),
    case("running sum", "cumsum", lambda n, on: (_x(n, on),), 2, dim=1),
    case("softmax", "softmax", lambda n, on: (_x(n, on),), 2, dim=1),
    case("softmax's gradient", "softmax_grad", lambda n, on: (_x(n, on), _x(n, on)), 3, dim=1),
    case("layer norm", "layer_norm", lambda n, on: (_x(n, on), _row(on), _row(on)), 2, dims=1, eps=1e-5),
    case("layer norm's gradient", "layer_norm_grad",
         lambda n, on: (_x(n, on), _x(n, on), _row(on), _column(n, on), _column(n, on)), 3, dims=1, needs=(True, True, True)),
    case("RMS norm", "rms_norm", lambda n, on: (_x(n, on), _row(on)), 2, dims=1, eps=1e-5),
    case("RMS norm's gradient", "rms_norm_grad", lambda n, on: (_x(n, on), _x(n, on), _row(on), _column(n, on)), 3, dims=1,
         needs=(True, True)),
    case("cross entropy", "cross_entropy", lambda n, on: (_x(n, on), _ids(n, _WIDTH, on)), 1, reduction="mean"),
    case("cross entropy's gradient", "cross_entropy_grad",
         lambda n, on: (gradcore.ones((), **on), _x(n, on), _ids(n, _WIDTH, on)), 2, reduction="mean", ignore_index=-100),
    case("mean squared error", "mse_loss", lambda n, on: (_x(n, on), _x(n, on)), 2, reduction="mean"),
    case("dropout", "dropout", lambda n, on: (_x(n, on), gradcore.tensor(np.array([7, 0, 3, 0]), **on), 0.1), 2),
    case("batch norm", "batch_norm", lambda n, on: (_images(n, on), *_channels(on), *_channels(on)), 3, momentum=0.1, eps=1e-5),
    case("batch norm's gradient", "batch_norm_grad",
         lambda n, on: (_images(n, on), _images(n, on), _channels(on)[1], *_channels(on)), 5, needs=(True, True, True)),
    case("batch norm of rows", "batch_norm", lambda n, on: (_x(n, on), *_many(on), *_many(on)), 3, momentum=0.1, eps=1e-5),
    case("batch norm of rows' gradient", "batch_norm_grad",
         lambda n, on: (_x(n, on), _x(n, on), _many(on)[1], *_many(on)), 5, needs=(True, True, True)),
    case("max pooling", "max_pool2d", lambda n, on: (_images(n, on),), 1 + 5 / 16, ceil_mode=False, **_POOL),
    case("global average pooling", "adaptive_avg_pool2d", lambda n, on: (_images(n, on),), 1, size=(1, 1)),
    case("embedding", "embedding", lambda n, on: (gradcore.rand(256, 256, **on), _ids(4 * n, 256, on)), 1, padding=None),
    case("embedding's gradient", "embedding_grad", lambda n, on: (_x(n, on).view(-1, 256), _ids(4 * n, 256, on)), 1,
         shape=(256, 256), padding=None),
    # Random positions reach 1 - 1 / e of the rows, which are read and written.
    case("rows added at positions", "add_at_",
         lambda n, on: (_x(n, on).view(-1, 256), _ids(4 * n, 4 * n, on), _x(n, on).view(-1, 256)), 2.26, dim=0),
    case("RNN, a step", "rnn", lambda n, on: _step(1, n, on), 3, relu=False, backwards=False),
    case("LSTM, a step", "lstm", lambda n, on: (*_step(4, n, on), _step(4, n, on)[2]), 3.25, backwards=False),
    case("LSTM's gradient", "lstm_grad", _lstm_back, 5.75, backwards=False),
    case("GRU, a step", "gru", lambda n, on: (*_step(3, n, on)[:2], None, _step(3, n, on)[2]), 3, backwards=False),
    case("GRU's gradient", "gru_grad", _gru_back, 6.25, backwards=False),
    case("squares of gradients", "square_sum", lambda n, on: ([_x(n, on)],), 1),
    case("gradients scaled", "scale_", lambda n, on: ([_x(n, on)], gradcore.ones((), **on)), 2),
    case("SGD with momentum", "sgd_", lambda n, on: ([_x(n, on)], [_x(n, on)], [_x(n, on)], 0.1, 0.9), 5, **_SGD),
    case("Adam", "adam_", lambda n, on: ([_x(n, on)], [_x(n, on)], [_x(n, on)], [_x(n, on)], 0.1, 3, 0.9), 7, **_ADAM),
)


class Recorder:
    """A context manager that records the last kernel call of a device, so that it can be repeated alone."""

    def __init__(self, device: Any) -> None:
        self.last: Any = None
        self._device, self._usual = device, device.kernels

    def __enter__(self) -> Recorder:
        self._device.kernels = {name: self._kept(kernel) for name, kernel in self._usual.items()}
        self._device.calls.clear()
        return self

    def __exit__(self, *exc: object) -> None:
        self._device.kernels, self.last = self._usual, None
        self._device.calls.clear()

    def _kept(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any, **attrs: Any) -> None:
            if not _dry():
                self.last = lambda: kernel(*values, **attrs)
            kernel(*values, **attrs)

        return run

    def again(self, op: str, *args: Any, **attrs: Any) -> tuple[Any, Callable[[], Any]]:
        """An op's result, to be kept alive, and a function that launches its kernel again."""
        made = all_ops()[op](*args, **attrs)
        return made, self.last


def recorded(part: Callable[[Setting, Recorder], Outcome]) -> Callable[[Setting], Outcome]:
    """A part of the benchmark that also takes a recorder of its device's kernel calls."""
    @functools.wraps(part)
    def run(setting: Setting) -> Outcome:
        with Recorder(gradcore.device(setting.device)) as recorder:
            return part(setting, recorder)

    return run


def _dry() -> bool:
    """Whether calls are being written out over stand-in arrays, without launches."""
    gpu_launch = sys.modules.get("gradcore.devices.gpu.launch")
    return gpu_launch is not None and gpu_launch.noted.tape is not None


@recorded
def bandwidth(setting: Setting, recorder: Recorder) -> Outcome:
    """Bytes per second of a copy, and those of each memory-bound kernel as a fraction of it, at each size."""
    clock, on = clock_of(setting.device), {"device": setting.device}
    sizes = SIZES[:1] if setting.rehearsal else SIZES
    outcome = Outcome(table=[["kernel", *(f"{m} MiB" for m in sizes)]])
    copies = {}
    for m in sizes:
        copies[m] = 2 * (m << 20) / _seconds_of_copy(m << 20, setting, clock)
    outcome.table.append(["copy, GB/s", *(f"{copies[m] / 1e9:,.0f}" for m in sizes)])
    outcome.figures["copy"] = {str(m): rate for m, rate in copies.items()}
    with gradcore.no_grad():
        for c in CASES:
            cells, shares = [], {}
            for m in sizes:
                try:
                    args = c.make((m << 20) // (4 * _WIDTH), on)
                    made, run = recorder.again(c.op, *args, **c.attrs)
                    taken, how = clock.seconds(run, 3 if setting.rehearsal else 20)
                    del made, args, run
                    shares[str(m)] = c.passes * (m << 20) / taken / copies[m]
                    cells.append(f"{shares[str(m)]:.0%}" + (" (loop)" if how == "loop" else ""))
                except Exception as error:
                    outcome.problems.append(f"{c.name} at {m} MiB: {type(error).__name__}: {str(error)[:500]}")
                    cells.append("failed")
                recorder.last = None
            gradcore.empty_cache(setting.device)
            outcome.table.append([c.name, *cells])
            outcome.figures[c.name] = shares
            setting.keep(outcome)
    outcome.summary = f"copy: {copies[sizes[-1]] / 1e9:,.0f} GB/s at {sizes[-1]} MiB; below, shares of the copy at each size"
    return outcome


def _seconds_of_copy(nbytes: int, setting: Setting, clock: Any) -> float:
    if setting.device != "cuda":
        a, b = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
        return float(clock.seconds(lambda: np.copyto(b, a), 3)[0])
    import cupy

    source, target = cupy.cuda.alloc(nbytes), cupy.cuda.alloc(nbytes)
    return float(clock.seconds(lambda: target.copy_from_device_async(source, nbytes), 20)[0])


# -- arithmetic ----------------------------------------------------------------------------------------------------------


@recorded
def arithmetic(setting: Setting, recorder: Recorder) -> Outcome:
    """Operations per second of products, convolutions and attention, relative to the product of large matrices of the same kind
    of numbers, which is their ceiling."""
    clock, on = clock_of(setting.device), {"device": setting.device}
    n = 128 if setting.rehearsal else 4096
    batch, heads, length = (1, 2, 64) if setting.rehearsal else (8, 6, 1024)
    images = 2 if setting.rehearsal else 64

    def rand(*shape: int, dtype: Any = np.float32) -> Any:
        return gradcore.rand(*shape, **on).to(dtype=dtype)

    plain = {"transpose_a": False, "transpose_b": False}
    window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x, w, dy = (images, 64, 32, 32), (64, 64, 3, 3), (images, 64, 32, 32)
    seen = 2.0 * images * 64 * 64 * 9 * 32 * 32
    q = (batch, heads, length, 64)
    scores = 2.0 * batch * heads * length * length * 64
    how = {"causal": False, "scale": 0.125}
    rows: list[tuple[str, str, Callable[[], tuple[Any, ...]], float, dict[str, Any]]] = [
        (f"product {n}, float32", "matmul", lambda: (rand(n, n), rand(n, n)), 2.0 * n**3, plain),
        (f"product {n}, float32 as TF32", "matmul", lambda: (rand(n, n), rand(n, n)), 2.0 * n**3, plain),
        (f"product {n}, float16", "matmul", lambda: (rand(n, n, dtype=np.float16), rand(n, n, dtype=np.float16)), 2.0 * n**3,
         plain),
        (f"product {n}, float64", "matmul", lambda: (rand(n, n, dtype=np.float64), rand(n, n, dtype=np.float64)), 2.0 * n**3,
         plain),
        (f"product {n} and a bias", "linear", lambda: (rand(n, n), rand(n, n), rand(n)), 2.0 * n**3, {}),
        ("convolution", "conv2d", lambda: (rand(*x), rand(*w), rand(64)), seen, window),
        ("its input's gradient", "conv2d_input_grad", lambda: (rand(*dy), rand(*w)), seen, {**window, "shape": x}),
        ("its weight's gradient", "conv2d_weight_grad", lambda: (rand(*dy), rand(*x)), seen, {**window, "shape": w}),
        ("convolution, float32 as TF32", "conv2d", lambda: (rand(*x), rand(*w), rand(64)), seen, window),
        ("convolution, float16", "conv2d",
         lambda: (rand(*x, dtype=np.float16), rand(*w, dtype=np.float16), rand(64, dtype=np.float16)), seen, window),
        ("convolution, depthwise", "conv2d", lambda: (rand(*x), rand(64, 1, 3, 3), rand(64)), seen / 64,
         {**window, "groups": 64}),
        *(row for kind in (np.float32, np.float16) for row in (
            (f"attention, {np.dtype(kind).name}", "attention",
             lambda kind=kind: (*[rand(*q, dtype=kind) for _ in "qkv"], None), 2 * scores, how),
            (f"attention's gradient, {np.dtype(kind).name}", "attention_grad",
             lambda kind=kind: (*[rand(*q, dtype=kind) for _ in "dqkv"], None, rand(*q, dtype=kind), rand(*q[:3]) + 8),
             5 * scores, how)))]
    outcome = Outcome(table=[["kernel", "ms", "TFLOP/s", "of its ceiling"]])
    #: By kind of numbers: the rate of the first product.
    ceilings: dict[str, float] = {}
    with gradcore.no_grad():
        for name, op, make, operations, attrs in rows:
            gradcore.set_float32_matmul_precision("high" if "TF32" in name else "highest")
            try:
                args = make()
                made, run = recorder.again(op, *args, **attrs)
                taken, _ = clock.seconds(run, 2 if setting.rehearsal else 10)
                del made, args, run
            except Exception as error:
                outcome.problems.append(f"{name}: {type(error).__name__}: {str(error)[:500]}")
                continue
            finally:
                recorder.last = None
                gradcore.set_float32_matmul_precision("highest")
            rate = operations / taken
            kind = next((kind for kind in ("TF32", "float16", "float64") if kind in name), "float32")
            if op == "matmul":
                ceilings.setdefault(kind, rate)
            share = rate / ceilings[kind] if kind in ceilings else None
            outcome.figures[name] = {"seconds": taken, "operations a second": rate, "of its ceiling": share}
            outcome.table.append([name, f"{taken * 1e3:.3f}", f"{rate / 1e12:.2f}", "" if share is None else f"{share:.0%}"])
            setting.keep(outcome)
    outcome.summary = f"{outcome.table[1][0]}: {outcome.table[1][2]} TFLOP/s" if len(outcome.table) > 1 else "nothing ran"
    return outcome
