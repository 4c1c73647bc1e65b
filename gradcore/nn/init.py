"""Initialization of parameters, in place, with the functions of ``torch.nn.init``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import numpy as np

from gradcore import _random
from gradcore.arguments import warn, with_name
from gradcore.engine import modes
from gradcore.engine.owners import upload
from gradcore.ops import creation

Tensor = Any
Generator = _random.Generator

_GAINS = {"linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0, "conv_transpose2d": 1.0,
          "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The recommended gain (factor of the standard deviation) of a nonlinearity. Raises ValueError for an unknown one."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}: expected leaky_relu, {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


@modes.no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one value."""
    return creation.fill_(tensor, val)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with uniform numbers in [a, b)."""
    return _random.uniform_(tensor, a, b, generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with normal numbers of given mean and standard deviation."""
    return _random.normal_(tensor, mean, std, generator)


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs of one unit; by PyTorch's name, which many layers call, for all its underscore."""
    shape = tensor.spec.shape
    if len(shape) < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with uniform numbers in +-gain * sqrt(6 / (fan_in + fan_out)).

    Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, AISTATS 2010.
    """
    bound = gain * math.sqrt(6.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return _random.uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with normal numbers of standard deviation gain * sqrt(2 / (fan_in + fan_out)); see :func:`xavier_uniform_`."""
    return _random.normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))), generator)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """Inputs, or outputs, of one unit."""
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode.lower()} not supported, please use one of ['fan_in', 'fan_out']")
    return _calculate_fan_in_and_fan_out(tensor)[mode.lower() == "fan_out"]


def _deviation(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


def _empty(tensor: Tensor) -> bool:
    if 0 in tensor.spec.shape:
        warn("Initializing zero-element tensors is a no-op")
        return True
    return False


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                     generator: Generator | None = None) -> Tensor:
    """Fill with uniform numbers in +-gain * sqrt(3 / fan), with the ``mode`` "fan_in" or "fan_out".

    He et al., Delving deep into rectifiers, arXiv:1502.01852.
    """
    if _empty(tensor):
        return tensor
    bound = math.sqrt(3.0) * _deviation(tensor, a, mode, nonlinearity)
    return _random.uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                    generator: Generator | None = None) -> Tensor:
    """Fill with normal numbers of standard deviation gain / sqrt(fan); see :func:`kaiming_uniform_`."""
    if _empty(tensor):
        return tensor
    return _random.normal_(tensor, 0.0, _deviation(tensor, a, mode, nonlinearity), generator)


# -- computed on the host ----------------------------------------------------------------------------------------------


@modes.no_grad()
def _put(tensor: Tensor, values: Callable[[], np.ndarray[Any, Any]]) -> Tensor:
    """Fill with numbers that are computed on the host, which for meta they are not."""
    device, dtype = tensor.storage.device, tensor.spec.dtype
    found = np.zeros(tensor.spec.shape, dtype) if device.type == "meta" else values().astype(dtype)
    return tensor.copy_(upload(found, device, role="temporary"))


def _drawn(draw: Any, shape: tuple[int, ...], tensor: Tensor, generator: Generator | None) -> np.ndarray[Any, Any]:
    """Random numbers from the generator of the tensor's device, as a host array; zeros for meta."""
    device = tensor.storage.device
    found = draw(shape, dtype=np.float64, device=device, generator=generator)
    return np.zeros(shape) if device.type == "meta" else np.asarray(device.read(found.storage, found.spec))


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
                  generator: Generator | None = None) -> Tensor:
    """Fill with normal numbers truncated to [a, b], as the inverse distribution function of uniform numbers.

    The inverse is interpolated linearly between 2^14 exact values, evenly spaced in the result. Raises ValueError for an
    empty range.
    """
    if not a < b:
        raise ValueError(f"trunc_normal_ expects a < b, but got a={a} and b={b}")
    mean, std = float(mean), float(std)
    u = _drawn(_random.rand, tensor.spec.shape, tensor, generator)

    def values() -> np.ndarray[Any, Any]:
        # The normal density beyond ten deviations is negligible, so infinite bounds may be cut to this.
        points, below = _normal_table(*(min(max((bound - mean) / std, -10.0), 10.0) for bound in (a, b)))
        found = u.reshape(-1) * (below[-1] - below[0]) + below[0]
        for start in range(0, found.size, 1 << 16):
            # In order, since NumPy looks near the last place first.
            part = found[start:start + (1 << 16)]
            order = np.argsort(part)
            part[order] = np.interp(part[order], below, points)
        return np.clip(found.reshape(u.shape) * std + mean, a, b)

    return _put(tensor, values)


@lru_cache(maxsize=8)
def _normal_table(low: float, high: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Evenly spaced numbers of deviations, and the probability of a smaller one for each."""
    points = np.linspace(low, high, 1 << 14)
    return points, np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in points.tolist()])


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with a random matrix of orthonormal rows or columns, times ``gain``; dimensions after the first are flattened.

    Saxe et al., arXiv:1312.6120.
    """
    if tensor.spec.ndim < 2:
        raise ValueError(f"Only tensors with 2 or more dimensions are supported, but got {tensor.spec.ndim}")
    if not tensor.spec.numel:
        return tensor
    rows = tensor.spec.shape[0]
    columns = tensor.spec.numel // rows
    drawn = _drawn(_random.randn, (max(rows, columns), min(rows, columns)), tensor, generator)

    def values() -> np.ndarray[Any, Any]:
        q, r = np.linalg.qr(drawn)
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
        return (q if rows >= columns else q.T).reshape(tensor.spec.shape) * gain

    return _put(tensor, values)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity. Raises ValueError unless there are two dimensions."""
    if tensor.spec.ndim != 2:
        raise ValueError(f"Only tensors with 2 dimensions are supported, but got {tensor.spec.ndim}")
    return _put(tensor, lambda: np.eye(*tensor.spec.shape))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill a convolution's weight so that it passes as many channels as possible unchanged.

    Raises ValueError unless there are three to five dimensions and ``groups`` divides the first.
    """
    shape = tensor.spec.shape
    if len(shape) not in (3, 4, 5):
        raise ValueError(f"Only tensors with 3, 4, or 5 dimensions are supported, but got {len(shape)}")
    if shape[0] % groups:
        raise ValueError(f"dim 0 must be divisible by groups, but got {shape[0]} and {groups}")
    values = np.zeros(shape)
    out = shape[0] // groups
    for k in range(min(out, shape[1])):
        values[(slice(k, None, out), k, *[n // 2 for n in shape[2:]])] = 1
    return _put(tensor, lambda: values)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Fill a matrix with normal numbers, of which a fraction ``sparsity`` in each column is 0.

    Martens, Deep learning via Hessian-free optimization, ICML 2010.
    """
    if tensor.spec.ndim != 2:
        raise ValueError(f"Only tensors with 2 dimensions are supported, but got {tensor.spec.ndim}")
    rows, columns = tensor.spec.shape
    drawn, ranks = (_drawn(draw, (rows, columns), tensor, generator) for draw in (_random.randn, _random.rand))

    def values() -> np.ndarray[Any, Any]:
        found = drawn * std
        np.put_along_axis(found, np.argsort(ranks, axis=0)[:math.ceil(sparsity * rows)], 0.0, axis=0)
        return found

    return _put(tensor, values)


def _deprecated(function: Any) -> Callable[..., Tensor]:
    """The function by its name of before PyTorch 0.4, which warns."""
    name = function.__name__

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Tensor:
        warn(f"`nn.init.{name[:-1]}` is now deprecated in favor of `nn.init.{name}`.", FutureWarning)
        return function(*args, **kwargs)

    return with_name(called, name[:-1], f":func:`{name}`, by a deprecated name.")


uniform, normal, constant, eye, dirac = map(_deprecated, (uniform_, normal_, constant_, eye_, dirac_))
xavier_uniform, xavier_normal = map(_deprecated, (xavier_uniform_, xavier_normal_))
kaiming_uniform, kaiming_normal = map(_deprecated, (kaiming_uniform_, kaiming_normal_))
orthogonal, sparse = map(_deprecated, (orthogonal_, sparse_))


#: PyTorch's names of the same without a graph, which is how all of these draw.
_no_grad_uniform_, _no_grad_normal_, _no_grad_trunc_normal_ = uniform_, normal_, trunc_normal_
_no_grad_fill_, _no_grad_zero_ = constant_, zeros_
