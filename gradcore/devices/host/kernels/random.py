"""Random numbers and dropout on the CPU.

NumPy's Philox 4x64-10 generates the bits; ``ops.random`` describes the state. NumPy increments the counter before the first
block, splits a 64-bit word with its low half first, and takes the upper 24 (53) bits as a fraction. The CUDA kernels do the
same, so a seed gives the same uniform numbers everywhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from gradcore.devices.host.kernel import HOST_KERNELS, PIECE_ROWS, Array, horner, kernel, pieces, slices
from gradcore.devices.kernels import blocks_drawn, drawn_into, dropout_factor, split_workspace
from gradcore.spec import PIECE


class _Key(ISeedSequence):
    """A key in the place of a seed: of a key alone NumPy makes a seed, too, of the system's entropy, which takes 10 us."""

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Array:
        return np.array([self.key, 0], dtype)


def generator(state: Array, start: int = 0, attempt: int = 0) -> np.random.Generator:
    """NumPy's generator from ``start`` blocks behind the state on, in the numbers of an attempt."""
    key, _, counter, _ = state.view(np.uint64).tolist()
    # An array, since NumPy converts a list with a word of 2^63 or more to floats.
    counters = np.array([(counter + start) % 2**64, attempt, 0, 0], np.uint64)
    return np.random.Generator(np.random.Philox(_Key(key), counter=counters))  # type: ignore[arg-type]


@kernel
def advance(state: Array, out: Array, *, numel: int) -> None:
    out[...] = state
    state[2] += blocks_drawn(numel)


@kernel
def uniform(state: Array, low: Any, high: Any, out: Array, *, shape: Any, dtype: Any) -> None:
    generator(state).random(out=out, dtype=out.dtype)
    if high - low != 1:
        np.multiply(out, high - low, out)
    if low:
        np.add(out, low, out)


@kernel
def normal(state: Array, mean: Any, std: Any, out: Array, workspace: Array, *, shape: Any, dtype: Any) -> None:
    draws = generator(state)
    room = min(out.size + 1, PIECE)
    u, w = split_workspace(workspace, (room, np.dtype(np.float64)), (room, np.dtype(np.float64)))
    for (part,) in pieces(out):
        pairs = (part.size + 1) // 2
        drawn, radius, sine = u[:2 * pairs], w[:pairs], w[pairs:2 * pairs]
        draws.random(out=drawn)
        np.subtract(1, drawn[::2], radius)  # in (0, 1], so that the logarithm is finite
        np.subtract(drawn[1::2], 0.5, sine)
        np.log(radius, radius)
        np.multiply(radius, -2 * std * std, radius)
        np.sqrt(radius, radius)
        cosine = _circle(sine, drawn[:pairs], drawn[pairs:])
        for k, side in enumerate((cosine, sine)):
            np.multiply(side, radius, side)
            np.add(side, mean, side)
            np.copyto(part[k::2], side[:(part.size + 1 - k) // 2], casting="unsafe")


# sin(x pi / 2) / x by powers of x^2: for |x| <= 1/2 a series to the 15th power is exact to the last bits.
_SINE = [(-1) ** k * (math.pi / 2) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in reversed(range(8))]


def _circle(x: Array, sine: Array, other: Array) -> Array:
    """Replace numbers of turns from -1/2 to 1/2 by minus their sines, and return minus their cosines, written to ``sine``.

    NumPy has no vector instructions for sines of wide floats. Here they are those of a quarter of the angle, doubled twice.
    """
    np.multiply(x, x, sine)
    horner(sine, _SINE, other)
    np.multiply(other, x, x)
    # x is the sine of the quarter. Its cosine is positive.
    np.multiply(x, x, sine)
    np.subtract(1, sine, other)
    np.sqrt(other, other)
    np.multiply(x, other, other)
    np.multiply(other, 2, other)
    np.multiply(sine, -2, sine)
    np.add(sine, 1, sine)
    # ``other`` and ``sine`` are sine and cosine of the half.
    np.multiply(other, sine, x)
    np.multiply(x, -2, x)
    np.multiply(other, other, sine)
    np.multiply(sine, 2, sine)
    return np.subtract(sine, 1, sine)


HOST_KERNELS |= {"uniform_": drawn_into(advance, uniform), "normal_": drawn_into(advance, normal, room=True)}


@kernel
def dropout(x: Array, state: Array, p: Any, out: Array, workspace: Array) -> None:
    draws = generator(state)
    drawn = split_workspace(workspace, (min(x.size, PIECE), np.dtype(np.float32)))[0]
    scale = dropout_factor(p)
    for xs, outs in pieces(x, out):
        u = drawn[:xs.size]
        draws.random(out=u, dtype=np.float32)
        np.greater_equal(u, p, u)
        np.multiply(u, scale, u)
        np.multiply(xs, u, outs)


@kernel
def chance(u: Array, p: Any, out: Array) -> None:
    if np.size(p):
        low, high = np.min(p), np.max(p)
        # Written so that NaN fails too.
        if not (low >= 0 and high <= 1):
            raise RuntimeError(f"bernoulli: expected probabilities in [0, 1], but there are {low} and {high}")
    np.less(u, p, out)


@kernel
def sampling_weights(x: Array, out: Array) -> None:
    out[...] = x
    if not out.size:
        return
    low, high = out.min(), out.max()
    if not (low >= 0 and high < np.inf):
        raise RuntimeError("multinomial: probability tensor contains either inf, nan or element < 0: there are "
                           f"{low} and {high}")
    lines = out.reshape(-1, out.shape[-1])
    for some in slices(len(lines), PIECE_ROWS):
        if not np.maximum.reduce(lines[some], axis=1).all():
            raise RuntimeError("multinomial: invalid distribution (sum of probabilities <= 0)")
