"""Random integers, Bernoulli and categorical draws, counts and gamma draws, made on the device without reading it back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore import _tensor, functional
from gradcore._random import Generator, generator_of, normal_, rand, randn, uniform_
from gradcore.devices.device import device_of_new
from gradcore.dtypes import is_floating, limits
from gradcore.engine import modes
from gradcore.engine.operands import number
from gradcore.functional import folding, types
from gradcore.functional.searching import bisected
from gradcore.functional.shape import plain
from gradcore.ops import movement, random
from gradcore.spec import broadcast_shapes

Tensor = Any

#: A float64 represents all integers up to this one exactly.
_EXACT = 2**53
#: The number of comparisons above which categories are found by halving: more ops, without memory for all comparisons at once.
_MOST_COMPARED = 2**18


def _integers(low: int, high: int, shape: Sequence[int], device: Any, generator: Generator | None) -> Tensor:
    """Integers of [low, high) as float64. Raises RuntimeError for an empty range or one wider than 2^53."""
    if not (isinstance(low, (int, np.integer)) and isinstance(high, (int, np.integer))) or low >= high or high - low > _EXACT:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', by 2^53 at most, but got from={low} >= to={high}")
    u = rand(shape, generator=generator, dtype=np.float64, device=device)
    # The product may round up to high - low, which is outside the range.
    return functional.clamp(functional.floor(u * float(high - low)), max=float(high - low - 1)) + float(low)


def _uniform_like(x: Tensor, generator: Generator | None) -> Tensor:
    """Uniform numbers of [0, 1) in float64, one for each element."""
    return rand(x.spec.shape, generator=generator, dtype=np.float64, device=x.device)


def _check_range(low: int, high: int, dtype: Any) -> None:
    """Raise RuntimeError if the dtype cannot hold all integers of [low, high)."""
    ends = types.finfo(dtype) if is_floating(dtype) else None if dtype == np.bool_ else np.iinfo(dtype)
    least, most = (0, 1) if ends is None else (int(ends.min), int(ends.max))
    if low < least or high - 1 > most:
        raise RuntimeError(f"random_: from = {low} or to - 1 = {high - 1} is out of bounds for {np.dtype(dtype).name}: "
                           f"expected integers from {least} to {most}")


def randint(*args: Any, generator: Generator | None = None, dtype: Any = None, device: Any = None, low: int | None = None,
            high: int | None = None, size: Sequence[int] | None = None, requires_grad: bool = False) -> Tensor:
    """``randint([low=0,] high, size)``: integers of [low, high), int64 unless ``dtype`` says otherwise.

    Raises RuntimeError for an empty range, or one of more than 2^53 numbers.
    """
    given = list(args)
    if size is None and given and isinstance(given[-1], (tuple, list)):
        size = given.pop()
    if high is None and given:
        high = given.pop()
    if low is None:
        low = given.pop() if given else 0
    if high is None or size is None or given:
        raise TypeError(f"randint() expected (low=0, high, size), but got {args}")
    low, high = plain(low), plain(high)
    made = np.dtype(np.int64 if dtype is None else dtype)
    _check_range(low, high, made)
    with modes.no_grad():
        result = _integers(low, high, tuple(size), device, generator).to(made)
    result.requires_grad = requires_grad
    return result


def randint_like(input: Tensor, *args: int, low: int | None = None, high: int | None = None, dtype: Any = None,
                 device: Any = None, requires_grad: bool = False) -> Tensor:
    """:func:`randint` with the shape, dtype and device of ``input``: ``randint_like(input, [low=0,] high)``."""
    bounds = (*args, *(b for b in (low, high) if b is not None))
    return randint(*bounds, input.spec.shape, dtype=dtype or input.dtype, device=device_of_new(device, input.device),
                   requires_grad=requires_grad)


@modes.no_grad()
def exponential_(tensor: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with exponentially distributed numbers of rate ``lambd``, never 0, by which weights are often divided to sample.

    Raises RuntimeError for a rate that is not positive, or a tensor that is not of a floating type.
    """
    lambd = number("exponential_", "lambd", lambd)
    _check_draw("exponential_", tensor, "lambda", lambd)
    u = _uniform_like(tensor, generator)
    least = float(types.finfo(tensor.dtype).eps) / 2
    return movement.copy_(tensor, (functional.clamp(-functional.log(1 - u), min=least) / lambd).to(tensor.dtype))


def _check_draw(name: str, tensor: Tensor, parameter: str, value: float) -> None:
    """Raise RuntimeError for a parameter that is not positive, or a tensor that is not of a floating type."""
    if value <= 0:
        raise RuntimeError(f"{name} expects {parameter} > 0.0, but found {parameter}={value}")
    if not tensor.spec.floating:
        raise RuntimeError(f"{name} expects a tensor of a floating type, but got {tensor.dtype.name}")


@modes.no_grad()
def cauchy_(tensor: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with numbers of a Cauchy distribution of this median, whose quartiles are ``sigma`` beside it.

    Raises RuntimeError for a ``sigma`` that is not positive, or a tensor that is not of a floating type.
    """
    _check_draw("cauchy_", tensor, "sigma", sigma)
    u = _uniform_like(tensor, generator)
    return movement.copy_(tensor, (functional.tan((u - 0.5) * math.pi) * sigma + median).to(tensor.dtype))


@modes.no_grad()
def log_normal_(tensor: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with numbers whose logarithms are normally distributed, with this mean and deviation.

    Raises RuntimeError for a ``std`` that is not positive, or a tensor that is not of a floating type.
    """
    _check_draw("log_normal_", tensor, "std", std)
    return normal_(tensor, mean, std, generator=generator).exp_()


@modes.no_grad()
def geometric_(tensor: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Fill with numbers of trials up to the first success, of probability ``p``: 1 with probability p, 2 with p (1 - p).

    Raises RuntimeError for a ``p`` outside (0, 1).
    """
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    trials = functional.ceil(functional.log(1 - _uniform_like(tensor, generator)) / math.log1p(-p))
    return movement.copy_(tensor, functional.clamp(trials, min=1).to(tensor.dtype))


@modes.no_grad()
def random_(tensor: Tensor, *args: int, generator: Generator | None = None) -> Tensor:
    """Fill with integers of [from, to): ``random_()``, ``random_(to)``, ``random_(from, to)``; by default from 0 to the
    largest integer of the dtype."""
    if tensor.spec.floating:
        most = 2 ** (int(limits(tensor.dtype).nmant) + 1)
    else:
        most = 2 if tensor.dtype == np.bool_ else min(int(np.iinfo(tensor.dtype).max) + 1, _EXACT)
    low, high = (0, most) if not args else (0, args[0]) if len(args) == 1 else args
    _check_range(low, high, tensor.dtype)
    return movement.copy_(tensor, _integers(low, high, tensor.spec.shape, tensor.device, generator).to(tensor.dtype))


@modes.no_grad()
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability in ``input``, or ``p`` if it is given, else 0, with the shape and dtype of ``input``.

    Raises RuntimeError for a ``p`` outside [0, 1]; probabilities in a tensor on a GPU are not checked.
    """
    p = None if p is None else number("bernoulli", "p", p)
    if p is not None and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    drawn = (random.chance(_uniform_like(input, generator), input) if p is None else
             _uniform_like(input, generator) < p)
    return drawn.to(input.dtype)


def bernoulli_(tensor: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill with 1 with probability ``p``, a number or a tensor that broadcasts, and with 0 otherwise."""
    if isinstance(p, _tensor.Tensor):
        made = bernoulli(functional.broadcast_to(p, tensor.spec.shape), generator=generator)
    else:
        made = bernoulli(tensor, p, generator=generator)
    with modes.no_grad():
        return movement.copy_(tensor, made.to(tensor.dtype))


def normal(mean: Any = 0.0, std: Any = 1.0, size: Sequence[int] | None = None, *, generator: Generator | None = None,
           dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Normally distributed numbers: for two numbers of shape ``size``, for tensors of the shape that these broadcast to.

    Raises TypeError for two numbers without a size, RuntimeError for a negative deviation; deviations in a tensor on a GPU are
    not checked.
    """
    mean, std = (x if isinstance(x, _tensor.Tensor) else number("normal", name, x)
                 for name, x in (("mean", mean), ("std", std)))
    tensors = [x for x in (mean, std) if isinstance(x, _tensor.Tensor)]
    if not tensors and size is None:
        raise TypeError("normal() with numbers as mean and std needs a size")
    if isinstance(std, float) and std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    if tensors and std is tensors[-1] and std.spec.numel and std.storage.device.type == "cpu" and std.array.min() < 0:
        raise RuntimeError(f"normal expects all elements of std >= 0.0, but found {std.array.min()}")
    shape = tuple(size) if size is not None else broadcast_shapes(*(x.spec.shape for x in tensors))
    with modes.no_grad():
        like = {"dtype": tensors[0].dtype, "device": tensors[0].device} if tensors else {"dtype": dtype, "device": device}
        result = randn(shape, generator=generator, **like) * std + mean
    result.requires_grad = requires_grad
    return result


def standard_gamma(concentration: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of gamma distributions of rate 1, with a gradient for their concentrations; those of 0 give the least number."""
    return random.standard_gamma(concentration, _blocks(concentration, generator))


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Counts of events that come at the rates in ``input``, with its shape and dtype.

    On the CPU, raises RuntimeError for a negative rate; on a GPU it gives NaN.
    """
    with modes.no_grad():
        return random.poisson(input, _blocks(input, generator))


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """The numbers of successes among ``count`` trials of probability ``prob``, two tensors of one dtype that broadcast.

    On the CPU, raises RuntimeError for a negative count, and for probabilities outside [0, 1]; on a GPU these give NaN.
    """
    with modes.no_grad():
        count, prob = functional.broadcast_tensors(count, prob)
        return random.binomial(count, prob, _blocks(count, generator))


def _blocks(like: Tensor, generator: Generator | None) -> Tensor:
    """The state for one op, which takes a block of four doubles, or more of other streams, for each element."""
    return generator_of(like.device, generator).snapshot(4 * like.spec.numel)


@modes.no_grad()
def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
    """Draw ``num_samples`` categories for each row: int64 [..., num_samples], by weights [..., categories] of any sum.

    Without replacement, the categories with the smallest exponential times are taken: Efraimidis and Spirakis, Weighted Random
    Sampling with a Reservoir, 2006. Raises RuntimeError for weights that are not a vector or matrix of floats, and for more
    samples than categories; on the CPU also for negative, infinite or NaN weights and for rows of zeros. On a GPU, where values
    are not read back, these give an arbitrary category.
    """
    if input.spec.ndim not in (1, 2) or not input.spec.floating:
        raise RuntimeError(f"multinomial expects weights of 1 or 2 dimensions, of a floating type, but got {input.spec}")
    categories, num_samples = input.spec.shape[-1], plain(num_samples)
    if num_samples <= 0 or (not replacement and num_samples > categories):
        raise RuntimeError("cannot sample n_sample <= 0 samples, nor n_sample > prob_dist.size(-1) without replacement: got "
                           f"{num_samples} of {categories} categories")
    weights = random.sampling_weights(input)
    if not replacement:
        u = _uniform_like(weights, generator)
        times = -functional.log(1 - u)
        return folding.topk(weights / functional.clamp(times, min=1e-300), num_samples, -1)[1]
    reach = folding.cumsum(weights, -1)
    u = rand(*input.spec.shape[:-1], num_samples, generator=generator, dtype=np.float64, device=input.device) * reach[..., -1:]
    if u.spec.numel * categories > _MOST_COMPARED:
        passed = bisected(reach, u, right=True)
    else:
        passed = functional.sum(functional.unsqueeze(u, -1) >= functional.unsqueeze(reach, -2), -1)
    return functional.clamp(passed, max=categories - 1)


def _gumbel(like: Tensor) -> Tensor:
    """Gumbel noise in the shape of another tensor; each step's operand goes as soon as it is read."""
    return -functional.log(-functional.log(functional.clamp(
        rand(like.spec.shape, dtype=like.dtype, device=like.device), min=math.exp(-80))))


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A differentiable sample of the categories along ``dim``: softmax((logits + Gumbel noise) / tau).

    ``hard`` gives one-hot vectors with the gradient of the soft sample. Jang et al., arXiv:1611.01144; Maddison et al.,
    arXiv:1611.00712. ``eps`` is accepted as in PyTorch, and ignored.
    """
    soft = functional.softmax((logits + _gumbel(logits)) / tau, dim)
    if not hard:
        return soft
    with modes.no_grad():
        first = functional.argmax(soft, dim, keepdim=True)
        one = functional.zeros_like(soft).scatter_(dim, first, 1.0) - soft
    return soft + one


for _method in (bernoulli, bernoulli_, cauchy_, exponential_, geometric_, log_normal_, multinomial, normal_, random_, uniform_):
    setattr(_tensor.Tensor, _method.__name__, _method)
